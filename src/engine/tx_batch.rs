//! Turns the endpoint's transmits into frames: fills a batch, adds the checksums, and passes each port its frames in
//! one burst.

use spindrift_pmd::{Port, Tail, TxFrame};

use super::tuning::{TX_BURST, TX_BURST_BATCHED};
use crate::endpoint::{Endpoint, Transmit};
use crate::memory::Payload;
use crate::path::PlaneSet;
use crate::time::Time;
use crate::wire::{ICRC_LEN, icrc};

/// Most ports of one endpoint.
const MAX_PORTS: usize = 32;

/// Whether any port benefits from many frames of one path at a time.
fn batched(ports: &[Box<dyn Port>]) -> bool {
    ports.iter().any(|port| port.caps().same_path_batch > 1)
}

/// The frames of one round, and the room that each port had for them.
pub(super) struct TxBatch {
    frames: Box<[Transmit]>,
    /// The iCRC of each, up to the payload. MRC packets carry no padding (MRC 1.0 table 6-3: pad is 0).
    crcs: Box<[u32]>,
    /// Indexes into `frames`, port by port.
    order: Box<[u16]>,
    /// Frames that the ports did not accept or rejected, as indexes into `frames`.
    refused: Vec<u16>,
    filled: usize,
    room: [usize; MAX_PORTS],
    /// Frames of the round for each port.
    counts: [u16; MAX_PORTS],
    /// Ports given frames since the last flush.
    dirty: u32,
}

const NO_FRAME: TxFrame<'static> =
    TxFrame { head: &[], udp_payload_at: 0, payload: Payload::EMPTY, tail: Tail::Bytes(&[]), ticket: 0 };

impl TxBatch {
    /// A batch of the best length for these ports.
    pub(super) fn for_ports(ports: &[Box<dyn Port>]) -> Self {
        let len = if batched(ports) { TX_BURST_BATCHED } else { TX_BURST };
        Self {
            frames: vec![Transmit::default(); len].into_boxed_slice(),
            crcs: vec![0; len].into_boxed_slice(),
            order: vec![0; len].into_boxed_slice(),
            refused: Vec::with_capacity(len),
            filled: 0,
            room: [0; MAX_PORTS],
            counts: [0; MAX_PORTS],
            dirty: 0,
        }
    }

    /// Makes room for packets of up to `mtu` bytes whose bytes come from several places.
    pub(super) fn reserve_gathered(&mut self, mtu: usize) {
        for frame in &mut self.frames {
            frame.reserve_gathered(mtu);
        }
    }

    /// Whether the last fill stopped because the batch was full.
    pub(super) fn was_full(&self) -> bool {
        self.filled == self.frames.len()
    }

    /// Polls the endpoint for packets while any port has room, and returns their number.
    pub(super) fn fill(&mut self, now: Time, endpoint: &mut Endpoint, ports: &mut [Box<dyn Port>]) -> usize {
        self.fill_from(self.frames.len(), endpoint, ports, now, |endpoint, free, frame| {
            endpoint.transmit(now, free, frame)
        })
    }

    /// The same for packets that leave before acknowledgements.
    pub(super) fn fill_ahead(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        ports: &mut [Box<dyn Port>],
    ) -> usize {
        if !endpoint.goes_ahead() {
            return 0;
        }
        self.fill_from(Endpoint::AHEAD, endpoint, ports, now, |endpoint, free, frame| {
            endpoint.transmit_ahead(now, free, frame)
        })
    }

    #[inline]
    fn fill_from(
        &mut self,
        most: usize,
        endpoint: &mut Endpoint,
        ports: &mut [Box<dyn Port>],
        now: Time,
        mut next: impl FnMut(&mut Endpoint, PlaneSet, &mut Transmit) -> bool,
    ) -> usize {
        let mut free = 0;
        for (plane, (port, room)) in ports.iter_mut().zip(&mut self.room).enumerate() {
            *room = port.tx_room(now.0);
            free |= u32::from(*room > 0) << plane;
        }
        self.filled = 0;
        endpoint.begin_burst(most);
        for frame in self.frames.iter_mut().take(most) {
            if free == 0 || !next(endpoint, PlaneSet(free), frame) {
                break;
            }
            self.filled += 1;
            if let Some(room) = self.room.get_mut(usize::from(frame.port)) {
                *room = room.saturating_sub(1);
                free &= !(u32::from(*room == 0) << frame.port);
            }
        }
        self.filled
    }

    /// Passes the batch to the ports and returns the number of frames that they did not accept. These return to the
    /// endpoint.
    pub(super) fn send(&mut self, now: Time, endpoint: &mut Endpoint, ports: &mut [Box<dyn Port>]) -> usize {
        self.begin_icrcs(endpoint);
        self.group_by_port();
        self.burst_to_ports(now, endpoint, ports);
        for &index in &self.refused {
            if let Some(frame) = self.frames.get(usize::from(index)) {
                endpoint.unsent(frame);
            }
        }
        self.refused.len()
    }

    fn burst_to_ports(&mut self, now: Time, endpoint: &Endpoint, ports: &mut [Box<dyn Port>]) {
        let mut refused = core::mem::take(&mut self.refused);
        refused.clear();
        // The list of frames lives on the stack; its size follows the batch, because all of it is written.
        if self.filled <= 4 {
            self.send_sized::<4>(now, endpoint, ports, &mut refused);
        } else if self.filled <= TX_BURST {
            self.send_sized::<TX_BURST>(now, endpoint, ports, &mut refused);
        } else if self.filled <= 128 {
            self.send_sized::<128>(now, endpoint, ports, &mut refused);
        } else {
            self.send_sized::<TX_BURST_BATCHED>(now, endpoint, ports, &mut refused);
        }
        self.refused = refused;
    }

    /// Flushes frames that the ports may have held back.
    pub(super) fn flush(&mut self, now: Time, ports: &mut [Box<dyn Port>]) {
        for (plane, port) in ports.iter_mut().enumerate() {
            if self.dirty >> plane & 1 == 1 {
                port.flush(now.0);
            }
        }
        self.dirty = 0;
    }

    /// Starts every frame's iCRC; its port continues it.
    fn begin_icrcs(&mut self, endpoint: &Endpoint) {
        if !endpoint.config().icrc {
            return;
        }
        for (frame, crc) in self.frames.iter().zip(&mut self.crcs).take(self.filled) {
            *crc = icrc::before_payload(frame.l3());
        }
    }

    /// Orders the frames by port, keeping their order inside each.
    fn group_by_port(&mut self) {
        let filled = self.frames.get(..self.filled).unwrap_or_default();
        self.counts = [0; MAX_PORTS];
        for frame in filled {
            if let Some(count) = self.counts.get_mut(usize::from(frame.port)) {
                *count += 1;
                self.dirty |= 1 << frame.port;
            }
        }
        let mut next = [0; MAX_PORTS];
        let mut start = 0;
        for (next, count) in next.iter_mut().zip(&self.counts) {
            *next = start;
            start += count;
        }
        for (index, frame) in filled.iter().enumerate() {
            if let Some(at) = next.get_mut(usize::from(frame.port))
                && let Some(place) = self.order.get_mut(usize::from(*at))
            {
                *place = index as u16;
                *at += 1;
            }
        }
    }

    fn send_sized<const N: usize>(
        &self,
        now: Time,
        endpoint: &Endpoint,
        ports: &mut [Box<dyn Port>],
        refused: &mut Vec<u16>,
    ) {
        let order = self.order.get(..self.filled).unwrap_or_default();
        let list: [TxFrame<'_>; N] = core::array::from_fn(|at| {
            order.get(at).and_then(|&index| self.frame(endpoint, index)).unwrap_or(NO_FRAME)
        });
        let mut rest = list.get(..self.filled).unwrap_or(&list);
        let mut start = 0;
        for (plane, port) in ports.iter_mut().enumerate() {
            let count = usize::from(self.counts.get(plane).copied().unwrap_or(0));
            if count == 0 {
                continue;
            }
            let (mine, others) = rest.split_at(count.min(rest.len()));
            rest = others;
            let taken = port.tx_burst(now.0, mine).min(mine.len());
            let unsent = port.unsent();
            if taken < mine.len() || !unsent.is_empty() {
                let mine = order.get(start..start + count).unwrap_or_default();
                refused.extend(unsent.iter().filter_map(|&at| mine.get(usize::from(at))));
                refused.extend(mine.iter().skip(taken));
            }
            start += count;
        }
    }

    fn frame<'a>(&'a self, endpoint: &'a Endpoint, index: u16) -> Option<TxFrame<'a>> {
        let frame = self.frames.get(usize::from(index))?;
        let crc = *self.crcs.get(usize::from(index))?;
        let tail = if endpoint.config().icrc { Tail::Crc32(crc) } else { Tail::Bytes(&[0; ICRC_LEN]) };
        Some(TxFrame {
            head: frame.head(),
            udp_payload_at: usize::from(frame.udp_payload_at),
            payload: endpoint.payload(frame),
            tail,
            ticket: frame.ticket,
        })
    }
}
