//! Hosts that run different transports in one fabric.

use std::sync::Arc;

use spindrift::endpoint::DenyList;
use spindrift::time::Time;

use crate::packet::Packet;
use crate::pfc::Free;
use crate::transport::{
    ConnectError, EvStateCounts, FlowEvent, Message, Messenger, Transport, TransportStats,
};

/// A host that runs one of two transports. Only hosts that run the same one can be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first of the two.
    First(A),
    /// The second.
    Second(B),
}

/// The same of whichever it is.
macro_rules! each {
    ($host:expr, $transport:ident => $call:expr) => {
        match $host {
            Either::First($transport) => $call,
            Either::Second($transport) => $call,
        }
    };
}

impl<A: Transport, B: Transport<Event = A::Event>> Transport for Either<A, B> {
    type Event = A::Event;

    #[inline]
    fn receive(&mut self, now: Time, plane: u8, packet: &Packet) {
        each!(self, host => host.receive(now, plane, packet));
    }

    #[inline]
    fn transmit(&mut self, now: Time, free: Free, out: &mut Packet) -> bool {
        each!(self, host => host.transmit(now, free, out))
    }

    #[inline]
    fn next_timeout(&self) -> Time {
        each!(self, host => host.next_timeout())
    }

    fn on_timeout(&mut self, now: Time) {
        each!(self, host => host.on_timeout(now));
    }

    fn on_pause(&mut self, from: Time, until: Time) {
        each!(self, host => host.on_pause(from, until));
    }

    fn carrier(&mut self, now: Time, plane: u8, up: bool) {
        each!(self, host => host.carrier(now, plane, up));
    }

    #[inline]
    fn poll(&mut self) -> Option<A::Event> {
        each!(self, host => host.poll())
    }
}

impl<A: Messenger, B: Messenger + Transport<Event = FlowEvent>> Messenger for Either<A, B> {
    fn connect(now: Time, one: &mut Self, other: &mut Self) -> Result<[u32; 2], ConnectError> {
        match (one, other) {
            (Self::First(one), Self::First(other)) => A::connect(now, one, other),
            (Self::Second(one), Self::Second(other)) => B::connect(now, one, other),
            _ => Err(ConnectError("the hosts run different transports".into())),
        }
    }

    fn post(&mut self, now: Time, flow: u32, message: Message) -> bool {
        each!(self, host => host.post(now, flow, message))
    }

    fn stats(&self) -> TransportStats {
        each!(self, host => host.stats())
    }

    fn set_deny_list(&mut self, now: Time, list: &Arc<DenyList>) {
        each!(self, host => host.set_deny_list(now, list));
    }

    fn evs(&self, flow: u32) -> Vec<EvStateCounts> {
        each!(self, host => host.evs(flow))
    }
}
