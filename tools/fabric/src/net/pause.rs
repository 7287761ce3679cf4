//! Priority flow control in a network: switches count what is in their buffers, and pause frames travel.
//!
//! Most networks have none, so what is called from the rest is marked as cold.

use super::{Event, Net, SwitchId};
use crate::link::{End, Link, LinkId};
use crate::packet::{Packet, PacketId};
use crate::pfc::{Buffers, Class, Free, PfcSpec, Told};
use crate::transport::Transport;

impl<T: Transport> Net<T> {
    /// From now on all switches do this, or nothing of the kind. To be called while nothing is on its way.
    ///
    /// A link can be paused only if the [other direction](Self::set_cable) of its cable is known. Queues must have room for what the
    /// buffers hold: what finds none in a queue is dropped all the same. Hosts read as fast as packets come, and pause nobody.
    pub fn set_pfc(&mut self, spec: Option<PfcSpec>) {
        self.buffers = spec.map(|spec| Box::new(Buffers::new(spec)));
    }

    /// Two links are the directions of one cable: pause frames for one travel on the other.
    pub fn set_cable(&mut self, one: LinkId, other: LinkId) {
        for (link, back) in [(one, other), (other, one)] {
            self.links[link.0 as usize].back = Some(back);
        }
    }

    /// The most bytes that a switch's shared buffer has held; nothing is counted without [PFC](Self::set_pfc).
    pub fn most_buffered(&self, switch: SwitchId) -> u64 {
        self.buffers.as_ref().map_or(0, |buffers| buffers.most_used(switch.0))
    }

    /// Counts a packet that came to a switch in its buffer, and puts it into the queue of its next link.
    #[cold]
    pub(super) fn admit(&mut self, from: LinkId, next: LinkId, packet: PacketId) {
        if !self.count(from, next, packet) {
            self.links[from.0 as usize].count_overflow();
            return self.drop_at(next, packet);
        }
        let before = self.measure(next, packet);
        if !self.links[next.0 as usize].push(packet, &mut self.pool) {
            self.release(next, packet);
            return self.drop_at(next, packet);
        }
        if self.measure(next, packet) != before {
            // It was trimmed: count it as what it is now, or not at all.
            self.settle(packet, before);
            self.count(from, next, packet);
        }
        let link = &mut self.links[next.0 as usize];
        if link.has_turn || link.free_at() > self.now {
            link.note_wait();
        }
        self.go_on(next);
    }

    /// The class of a packet at a link, and its bytes.
    fn measure(&self, at: LinkId, packet: PacketId) -> (Class, u64) {
        let packet = self.pool.get(packet);
        (self.links[at.0 as usize].class(packet.dscp()), u64::from(packet.wire_len()))
    }

    /// `false` if the switch's buffer has no room for the packet.
    fn count(&mut self, from: LinkId, next: LinkId, packet: PacketId) -> bool {
        let (class, bytes) = self.measure(next, packet);
        self.pool.get_mut(packet).ingress = Packet::UNCOUNTED;
        let link = &self.links[from.0 as usize];
        let (Some(buffers), End::Switch(switch)) = (&mut self.buffers, link.end) else { return true };
        if !buffers.spec().classes.has(class) {
            return true;
        }
        let headroom = buffers.spec().headroom(link.spec());
        let Some(told) = buffers.admit((switch, from.0, class), bytes, headroom) else { return false };
        self.pool.get_mut(packet).ingress = from.0;
        self.tell(from, class, told);
        true
    }

    /// A packet leaves the queue of a link.
    #[cold]
    pub(super) fn release(&mut self, at: LinkId, packet: PacketId) {
        if self.buffers.is_some() {
            let measure = self.measure(at, packet);
            self.settle(packet, measure);
        }
    }

    fn settle(&mut self, packet: PacketId, (class, bytes): (Class, u64)) {
        let packet = self.pool.get_mut(packet);
        let from = core::mem::replace(&mut packet.ingress, Packet::UNCOUNTED);
        let Some(link) = self.links.get(from as usize) else { return };
        let (Some(buffers), End::Switch(switch)) = (&mut self.buffers, link.end) else { return };
        let told = buffers.release((switch, from, class), bytes);
        self.tell(LinkId(from), class, told);
    }

    /// Tells the other end of an ingress link to stop or to go on.
    fn tell(&mut self, link: LinkId, class: Class, told: Told) {
        match told {
            Told::Nothing => {}
            Told::Pause => self.send_pause(link, class, true),
            Told::Resume => self.send_pause(link, class, false),
        }
    }

    fn send_pause(&mut self, link: LinkId, class: Class, on: bool) {
        let Some(back) = self.links[link.0 as usize].back else { return };
        let Some(arrives_at) = self.links[back.0 as usize].send_pause(self.now) else { return };
        if on {
            self.links[link.0 as usize].count_pause();
            self.counters.pauses += 1;
        }
        let outages = self.outages(link);
        self.calendar.add(arrives_at, Event::Pause { link, class, on, outages });
    }

    /// How often either direction of a cable has gone down: what was sent before is lost.
    fn outages(&self, link: LinkId) -> u16 {
        let link = &self.links[link.0 as usize];
        let back = link.back.map_or(0, |back| self.links[back.0 as usize].outages());
        link.outages().wrapping_add(back) as u16
    }

    /// A pause frame has come to the start of the link that it is about.
    #[cold]
    pub(super) fn on_pause(&mut self, link: LinkId, class: Class, on: bool, outages: u16) {
        if outages != self.outages(link) {
            return;
        }
        let now = self.now;
        self.links[link.0 as usize].set_paused(now, class, on);
        if !on {
            self.go_on(link);
        }
    }

    /// A link may send again.
    fn go_on(&mut self, id: LinkId) {
        let link = &mut self.links[id.0 as usize];
        if link.has_turn {
            return;
        }
        if link.free_at() > self.now {
            link.has_turn = true;
            let free_at = link.free_at();
            return self.calendar.add(free_at, Event::Turn(id));
        }
        self.turn(id);
    }

    /// One direction of a cable has come up or gone down. A pause ends with the link that it is about, and, since nothing renews it, with the
    /// one on which it is renewed; when that is up again, it is.
    #[cold]
    pub(super) fn pauses_after(&mut self, link: LinkId, up: bool) {
        if self.buffers.is_none() {
            return;
        }
        let back = self.links[link.0 as usize].back;
        let classes = [Class::Control, Class::Trimmed, Class::Data];
        if up {
            self.go_on(link);
            let pausing = |back: LinkId| self.buffers.as_ref().map(|buffers| (back, buffers.pausing(back.0)));
            let Some((back, pausing)) = back.and_then(pausing) else { return };
            for class in classes.into_iter().filter(|&class| pausing.has(class)) {
                self.send_pause(back, class, true);
            }
            return;
        }
        if let Some(buffers) = &mut self.buffers {
            buffers.forget_pauses(link.0);
        }
        for at in [Some(link), back].into_iter().flatten() {
            for class in classes {
                let now = self.now;
                self.links[at.0 as usize].set_paused(now, class, false);
            }
        }
        // The one that is down goes on when it is up.
        if let Some(back) = back {
            self.go_on(back);
        }
    }
}

/// The planes that a host with these links may send on, class by class.
#[cold]
pub(super) fn free(uplinks: &[LinkId], links: &[Link]) -> Free {
    let mut free = Free::default();
    for (plane, link) in (0..).zip(uplinks) {
        free.add(plane, links[link.0 as usize].room());
    }
    free
}
