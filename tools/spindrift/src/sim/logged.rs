//! Log lines of simulated hosts, with simulated time and the name of the host.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use spindrift::endpoint::DenyList;
use spindrift::time::Time;
use spindrift_fabric::{
    ConnectError, EvStateCounts, Free, Message, Messenger, Packet, Transport, TransportStats,
};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::plan::Plan;

thread_local! {
    /// What this thread simulates; nothing between two runs.
    static NOW: RefCell<Option<Now>> = const { RefCell::new(None) };
}

/// Where a run is.
#[derive(Debug)]
struct Now {
    run: String,
    at: Time,
    /// Whose turn it is; nobody's while two are connected.
    host: Option<u32>,
}

/// While it lives, log lines of this thread belong to a run.
#[derive(Debug)]
pub(super) struct RunLog(());

impl RunLog {
    pub(super) fn begin(Plan { variant, seed, .. }: &Plan) -> Self {
        let run = if variant.is_empty() { format!("seed {seed}") } else { format!("{variant} seed {seed}") };
        NOW.set(Some(Now { run, at: Time::ZERO, host: None }));
        Self(())
    }
}

impl Drop for RunLog {
    fn drop(&mut self) {
        NOW.set(None);
    }
}

/// The time of log lines: that of the simulation with host and run, or that of the system where nothing is simulated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        NOW.with_borrow(|now| {
            let Some(Now { run, at, host }) = now else { return SystemTime.format_time(out) };
            write!(out, "{}.{:09} ", at.0 / 1_000_000_000, at.0 % 1_000_000_000)?;
            if let Some(host) = host {
                write!(out, "h{} ", host + 1)?;
            }
            write!(out, "{run}")
        })
    }
}

/// A host whose log lines have its name.
#[derive(Debug)]
pub(super) struct Logged<T> {
    host: T,
    number: u32,
    /// Whether anything is logged at all.
    logs: bool,
}

impl<T> Logged<T> {
    pub(super) fn new(host: T, number: u32) -> Self {
        Self { host, number, logs: LevelFilter::current() != LevelFilter::OFF }
    }

    /// What is logged next happens at this time at this host.
    #[inline]
    fn note(&self, at: Time) {
        if self.logs {
            note(at, Some(self.number));
        }
    }
}

fn note(at: Time, host: Option<u32>) {
    NOW.with_borrow_mut(|now| {
        if let Some(now) = now {
            (now.at, now.host) = (at, host);
        }
    });
}

impl<T: Transport> Transport for Logged<T> {
    type Event = T::Event;

    #[inline]
    fn receive(&mut self, now: Time, plane: u8, packet: &Packet) {
        self.note(now);
        self.host.receive(now, plane, packet);
    }

    #[inline]
    fn transmit(&mut self, now: Time, free: Free, out: &mut Packet) -> bool {
        self.note(now);
        self.host.transmit(now, free, out)
    }

    #[inline]
    fn next_timeout(&self) -> Time {
        self.host.next_timeout()
    }

    fn on_timeout(&mut self, now: Time) {
        self.note(now);
        self.host.on_timeout(now);
    }

    fn on_pause(&mut self, from: Time, until: Time) {
        self.note(until);
        self.host.on_pause(from, until);
    }

    fn carrier(&mut self, now: Time, plane: u8, up: bool) {
        self.note(now);
        self.host.carrier(now, plane, up);
    }

    #[inline]
    fn poll(&mut self) -> Option<T::Event> {
        self.host.poll()
    }
}

impl<T: Messenger> Messenger for Logged<T> {
    fn connect(now: Time, one: &mut Self, other: &mut Self) -> Result<[u32; 2], ConnectError> {
        note(now, None);
        T::connect(now, &mut one.host, &mut other.host)
    }

    fn post(&mut self, now: Time, flow: u32, message: Message) -> bool {
        self.note(now);
        self.host.post(now, flow, message)
    }

    fn stats(&self) -> TransportStats {
        self.host.stats()
    }

    fn set_deny_list(&mut self, now: Time, list: &Arc<DenyList>) {
        self.note(now);
        self.host.set_deny_list(now, list);
    }

    fn evs(&self, flow: u32) -> Vec<EvStateCounts> {
        self.host.evs(flow)
    }
}
