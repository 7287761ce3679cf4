//! Accesses by peers and by this side's work requests: rights, domains, bounds, uses.

use std::sync::Arc;
use std::thread;

use super::super::{Access, AtomicOp, MemoryError, MemorySpace, MemoryView, MrKey, PayloadRef, PdId, Region};
use super::super::{RegionError, RegionSlot};
use super::{BASE, all_rights, bytes, deregister, sent};
use crate::seed::Seed;

const LEN: usize = 64;

/// What may be done with a range of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Send,
    Receive,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
    Invalidate,
    /// Only checked.
    Check(Access),
}

/// Every operation, and the right that it needs.
const OPS: [(Op, Access); 11] = [
    (Op::Send, Access::LOCAL_READ),
    (Op::Receive, Access::LOCAL_WRITE),
    (Op::Write, Access::REMOTE_WRITE),
    (Op::Read, Access::REMOTE_READ),
    (Op::FetchAdd, Access::REMOTE_ATOMIC),
    (Op::CompareSwap, Access::REMOTE_ATOMIC),
    (Op::Invalidate, Access::REMOTE_INVALIDATE),
    (Op::Check(Access::REMOTE_WRITE), Access::REMOTE_WRITE),
    (Op::Check(Access::REMOTE_READ), Access::REMOTE_READ),
    (Op::Check(Access::REMOTE_ATOMIC), Access::REMOTE_ATOMIC),
    (Op::Check(Access::REMOTE_INVALIDATE), Access::REMOTE_INVALIDATE),
];

impl Op {
    /// The key that it uses.
    const fn key(self, key: MrKey) -> u32 {
        match self {
            Self::Send | Self::Receive => key.lkey,
            _ => key.rkey,
        }
    }

    /// Does it with 8 bytes at `va`.
    fn run(self, view: &mut MemoryView, key: u32, pd: PdId, va: u64) -> Result<(), MemoryError> {
        let swap = AtomicOp::CompareSwap { compare: 0, swap: 7 };
        match self {
            Self::Send => view.pin(key, pd, va, 8).map(drop),
            Self::Receive => view.pin_local(key, pd, va, 8, Access::LOCAL_WRITE).map(drop),
            Self::Write => view.place(key, pd, va, &[0x11; 8]),
            Self::Read => view.pin_remote(key, pd, va, 8, Access::REMOTE_READ).map(drop),
            Self::FetchAdd => view.atomic(key, pd, va, AtomicOp::FetchAdd(7)).map(drop),
            Self::CompareSwap => view.atomic(key, pd, va, swap).map(drop),
            Self::Invalidate => view.invalidate_remote(key, pd),
            Self::Check(needed) => {
                view.sync();
                view.check_remote(key, pd, va, 8, needed)
            }
        }
    }
}

/// A space, a lane's view of it, and a region of 64 bytes at `BASE`.
struct Setup {
    space: MemorySpace,
    view: MemoryView,
    pd: PdId,
    region: Arc<Region>,
    key: MrKey,
}

impl Setup {
    fn new(access: Access) -> Self {
        Self::over(Region::alloc_at(LEN, BASE).unwrap(), access)
    }

    fn over(region: Arc<Region>, access: Access) -> Self {
        let space = MemorySpace::new(Seed::fixed(11), 8);
        let (view, pd) = (space.view(), space.alloc_pd());
        let key = space.register(pd, Arc::clone(&region), access).unwrap();
        Self { space, view, pd, region, key }
    }

    fn run(&mut self, op: Op, va: u64) -> Result<(), MemoryError> {
        op.run(&mut self.view, op.key(self.key), self.pd, va)
    }

    /// Whether nothing has been changed, is in use, or has ended.
    fn is_untouched(&self) -> bool {
        let unused = self.view.uses(self.key.lkey) == 0;
        unused && self.space.regions() == 1 && bytes(&self.region).iter().all(|&byte| byte == 0)
    }
}

/// No right grants anything but its own operations, alone or in any combination.
#[test]
fn each_operation_needs_its_own_right() {
    for (_, access) in all_rights() {
        for (op, needed) in OPS {
            let mut setup = Setup::new(access);
            let result = setup.run(op, BASE + 8);
            if access.contains(needed) {
                assert_eq!(result, Ok(()), "{op:?} with {access:?}");
                let changes_nothing = matches!(op, Op::Check(_));
                assert_eq!(setup.is_untouched(), changes_nothing, "{op:?} with {access:?}");
            } else {
                assert_eq!(
                    result,
                    Err(MemoryError::NoAccess { key: op.key(setup.key), needed }),
                    "{access:?}"
                );
                assert!(setup.is_untouched(), "{op:?} with {access:?}");
            }
        }
    }
}

/// Key, domain, right, range, alignment: of several faults, the first is reported.
#[test]
fn checks_are_in_order_and_have_no_effect() {
    let outside = |addr| {
        MemoryError::Region(RegionError::OutOfBounds {
            addr,
            len: 8,
            region_addr: BASE,
            region_len: LEN as u64,
        })
    };
    for (op, needed) in OPS {
        let rights = [Access::LOCAL_READ, needed];
        for (granted, va) in rights.into_iter().flat_map(|right| [BASE + 61, BASE + 8].map(|va| (right, va)))
        {
            let mut setup = Setup::new(granted);
            let (key, other) = (op.key(setup.key), setup.space.alloc_pd());
            for unknown in [key ^ 0x8000_0000, 0, setup.key.lkey ^ setup.key.rkey ^ key] {
                for pd in [setup.pd, other] {
                    let result = op.run(&mut setup.view, unknown, pd, va);
                    assert_eq!(result, Err(MemoryError::UnknownKey { key: unknown }), "{op:?}");
                }
            }
            let result = op.run(&mut setup.view, key, other, va);
            assert_eq!(result, Err(MemoryError::WrongPd { key }), "{op:?}");
            if !granted.contains(needed) {
                assert_eq!(setup.run(op, va), Err(MemoryError::NoAccess { key, needed }));
            } else if va > BASE + 56 && op != Op::Invalidate {
                assert_eq!(setup.run(op, va), Err(outside(va)), "{op:?}");
            }
            assert!(setup.is_untouched(), "{op:?}");
        }
    }
}

#[test]
fn ranges_lie_inside_the_region() {
    let all = all_rights().last().unwrap().1;
    for (op, _) in OPS.into_iter().filter(|(op, _)| *op != Op::Invalidate) {
        for (va, fits) in [
            (BASE, true),
            (BASE + 56, true),
            (BASE - 1, false),
            (BASE - 8, false),
            (BASE + 57, false),
            (BASE + 64, false),
            (0, false),
            (u64::MAX - 7, false),
            (u64::MAX, false),
        ] {
            let mut setup = Setup::new(all);
            let result = setup.run(op, va);
            if fits {
                assert_eq!(result, Ok(()), "{op:?} {va:#x}");
            } else {
                let outside = matches!(result, Err(MemoryError::Region(RegionError::OutOfBounds { .. })));
                assert!(outside && setup.is_untouched(), "{op:?} {va:#x}: {result:?}");
            }
        }
    }
}

/// Also those of zero bytes, and at the end of the address space.
#[test]
fn pins_of_peers_lie_inside_the_region() {
    let last = u64::MAX - LEN as u64;
    for start in [BASE, last] {
        let region = Region::alloc_at(LEN, start).unwrap();
        let Setup { mut view, pd, key, .. } = Setup::over(region, Access::REMOTE_READ);
        let mut pin = |va, len| view.pin_remote(key.rkey, pd, va, len, Access::REMOTE_READ);
        for (offset, len) in [(0, 0), (0, 64), (64, 0), (63, 1), (1, 63)] {
            let pinned = pin(start + offset, len).unwrap();
            assert_eq!((pinned.offset, pinned.len), (offset, len));
        }
        for (va, len) in [
            (start - 1, 0),
            (start - 1, 65),
            (start, 65),
            (start, u32::MAX),
            (start + 1, 64),
            (start + 64, 1),
            (u64::MAX, 1),
            (u64::MAX, 2),
        ] {
            assert!(matches!(pin(va, len), Err(MemoryError::Region(_))), "{len} at {va:#x}");
        }
        assert_eq!(view.uses(key.lkey), 5);
    }
}

/// A peer's key opens nothing for work requests, and vice versa.
#[test]
fn keys_are_for_one_side() {
    let all = all_rights().last().unwrap().1;
    for (op, _) in OPS {
        let mut setup = Setup::new(all);
        setup.key = MrKey { lkey: setup.key.rkey, rkey: setup.key.lkey };
        let key = op.key(setup.key);
        assert_eq!(setup.run(op, BASE), Err(MemoryError::UnknownKey { key }), "{op:?}");
        assert_eq!(setup.space.regions(), 1);
    }
}

/// A response to a read is sent from memory that stays, as for a work request.
#[test]
fn a_region_that_a_peer_reads_is_kept() {
    let Setup { space, mut view, pd, region, key } = Setup::new(Access::REMOTE_READ);
    region.write_at(8, b"response").unwrap();
    let pin = |view: &mut MemoryView| view.pin_remote(key.rkey, pd, BASE + 8, 8, Access::REMOTE_READ);
    let (first, local) = (pin(&mut view).unwrap(), view.pin(key.lkey, pd, BASE, 4).unwrap());
    assert_eq!(view.uses(key.lkey), 2);
    let busy = |uses| Err(MemoryError::Busy { uses });
    assert_eq!(deregister(&space, key.rkey, &mut [&mut view]), busy(2));
    view.unpin(local.slot);
    assert_eq!(deregister(&space, key.rkey, &mut [&mut view]), busy(1));
    let second = pin(&mut view).expect("a refused deregistration changes nothing");
    view.unpin(first.slot);

    space.invalidate(key.rkey);
    view.sync();
    assert_eq!(pin(&mut view), Err(MemoryError::UnknownKey { key: key.rkey }));
    assert_eq!(sent(&view, &second), b"response");
    assert_eq!(sent(&view, &second.part(2, 3)), b"spo");
    view.unpin(second.slot);
    assert_eq!((Arc::strong_count(&region), view.regions()), (1, 0));
    assert_eq!(sent(&view, &second), b"");
}

/// A read that arrives during a deregistration holds the memory, whether it comes before the keys end or after.
#[test]
fn a_read_meanwhile_holds_the_memory() {
    let Setup { space, mut view, pd, region, key } = Setup::new(Access::REMOTE_READ);
    let mut pins = Vec::new();
    let result = space.deregister::<MemoryError>(key.rkey, |visit| {
        visit(&mut view);
        pins.extend(view.pin_remote(key.rkey, pd, BASE, 8, Access::REMOTE_READ));
        Ok(())
    });
    assert_eq!((result, pins.len()), (Err(MemoryError::Busy { uses: 1 }), 1));
    view.unpin(pins[0].slot);
    deregister(&space, key.rkey, &mut [&mut view]).unwrap();
    assert_eq!((Arc::strong_count(&region), space.regions()), (1, 0));
}

/// A pin finds its region among those registered before and after, and places that were taken again.
#[test]
fn a_peers_key_pins_its_own_region() {
    let space = MemorySpace::new(Seed::fixed(12), 8);
    let (mut view, pd) = (space.view(), space.alloc_pd());
    let register = |mark: u8| {
        let region = Region::alloc_at(LEN, BASE).unwrap();
        region.fill(0, LEN, mark).unwrap();
        space.register(pd, region, Access::REMOTE_READ).unwrap()
    };
    let mut keys = [1, 2, 3].map(|mark| (mark, register(mark)));
    for round in 4..20 {
        for (mark, key) in keys {
            let pin = view.pin_remote(key.rkey, pd, BASE + 1, 2, Access::REMOTE_READ).unwrap();
            assert_eq!((sent(&view, &pin), view.uses(key.lkey)), (vec![mark; 2], 1));
            view.unpin(pin.slot);
            assert_eq!(view.uses(key.lkey), 0);
        }
        let (_, old) = std::mem::replace(&mut keys[usize::from(round) % 3], (round, register(round)));
        deregister(&space, old.rkey, &mut [&mut view]).unwrap();
    }
}

#[test]
fn arriving_payload_goes_into_pinned_ranges() {
    let Setup { space, mut view, pd, region, key } = Setup::new(Access::LOCAL_WRITE);
    let place = view.pin_local(key.lkey, pd, BASE + 16, 32, Access::LOCAL_WRITE).unwrap();
    for (from, len) in [(0, 0), (0, 32), (32, 0), (31, 1), (5, 7)] {
        region.fill(0, LEN, 0).unwrap();
        let room = view.room(&place, from, len).unwrap();
        assert_eq!(room.len(), len as usize);
        room.fill(&[1; LEN]);
        let filled = 16 + from as usize..16 + (from + len) as usize;
        let want: Vec<u8> = (0..LEN).map(|at| u8::from(filled.contains(&at))).collect();
        assert_eq!(bytes(&region), want, "{len} from {from}");
    }
    for (from, len) in
        [(0, 33), (1, 32), (32, 1), (33, 0), (u32::MAX, 1), (1, u32::MAX), (u32::MAX, u32::MAX)]
    {
        assert!(view.room(&place, from, len).is_none(), "{len} from {from}");
    }
    // A part may be longer than what was pinned, and ends with the region at the latest.
    let part = place.part(16, 33);
    assert_eq!(view.room(&part, 0, 32).map(|room| room.len()), Some(32));
    assert!(view.room(&part, 0, 33).is_none() && view.room(&part, 1, 32).is_none());
    let far = PayloadRef { offset: u64::MAX, ..place };
    assert!(view.room(&far, 0, 0).is_none() && view.room(&far, 1, 1).is_none());
    assert!(view.room(&PayloadRef::EMPTY, 0, 0).is_none());
    assert!(view.room(&PayloadRef { slot: RegionSlot::default(), ..place }, 0, 1).is_none());

    space.invalidate(key.rkey);
    view.sync();
    view.room(&place, 0, 4).expect("the work request still uses it").fill(b"last");
    view.unpin(place.slot);
    assert!(view.room(&place, 0, 4).is_none(), "the region was released");
    let next = space.register(pd, Arc::clone(&region), Access::LOCAL_WRITE).unwrap();
    let taken_again = view.pin_local(next.lkey, pd, BASE + 16, 32, Access::LOCAL_WRITE).unwrap();
    assert_eq!(taken_again.slot.index, place.slot.index);
    assert!(view.room(&place, 0, 4).is_none(), "another registration has its place");
    assert!(view.room(&taken_again, 0, 4).is_some());
}

#[test]
fn atomics_return_the_value_before() {
    let Setup { mut view, pd, region, key, .. } = Setup::new(Access::REMOTE_ATOMIC);
    region.fill(0, LEN, 0xEE).unwrap();
    region.store_u64(8, u64::MAX).unwrap();
    let mut run = |op| view.atomic(key.rkey, pd, BASE + 8, op);
    assert_eq!(run(AtomicOp::FetchAdd(3)), Ok(u64::MAX));
    assert_eq!(run(AtomicOp::CompareSwap { compare: 3, swap: 9 }), Ok(2), "not the one expected");
    assert_eq!(run(AtomicOp::CompareSwap { compare: 2, swap: 9 }), Ok(2));
    assert_eq!(run(AtomicOp::FetchAdd(0)), Ok(9));
    let want = [&[0xEE; 8][..], &9_u64.to_ne_bytes(), &[0xEE; 48]].concat();
    assert_eq!(bytes(&region), want);
}

#[test]
fn atomics_are_aligned_for_the_peer_and_in_this_process() {
    for iova in [BASE, BASE + 3] {
        let region = Region::alloc_at(LEN, iova).unwrap();
        let mut setup = Setup::over(region, Access::REMOTE_ATOMIC);
        for (offset, op) in (0..=56).flat_map(|offset| [Op::FetchAdd, Op::CompareSwap].map(|op| (offset, op)))
        {
            let va = iova + offset;
            let result = setup.run(op, va);
            if va % 8 != 0 {
                assert_eq!(result, Err(MemoryError::Misaligned { va }));
            } else if iova % 8 != 0 {
                // The region starts on a page.
                let misaligned = matches!(result, Err(MemoryError::Region(RegionError::Misaligned { addr, at }))
                    if addr == va && at % 4096 == offset);
                assert!(misaligned, "{va:#x}: {result:?}");
            } else {
                assert_eq!(result, Ok(()));
            }
        }
        assert_eq!(setup.is_untouched(), iova % 8 != 0);
    }
    assert_eq!(
        MemoryError::Misaligned { va: 0x1004 }.to_string(),
        "address 0x1004 of an atomic is not a multiple of 8; choose one that is"
    );
}

#[test]
fn atomics_of_virtual_regions_change_nothing() {
    let region = Region::virtual_at(1 << 40, BASE).unwrap();
    let Setup { mut view, pd, key, .. } = Setup::over(region, Access::REMOTE_ATOMIC);
    let mut run = |va, op| view.atomic(key.rkey, pd, va, op);
    for _ in 0..2 {
        assert_eq!(run(BASE + 8, AtomicOp::FetchAdd(1)), Ok(0));
        assert_eq!(run(BASE + 8, AtomicOp::CompareSwap { compare: 0, swap: 1 }), Ok(0));
    }
    assert_eq!(run(BASE + 9, AtomicOp::FetchAdd(1)), Err(MemoryError::Misaligned { va: BASE + 9 }));
    assert!(run(BASE + (1 << 40) - 7, AtomicOp::FetchAdd(1)).is_err());
}

/// Peers on two lanes and the application change one counter, and the sum is exact.
#[test]
fn no_update_by_peers_on_two_lanes_is_lost() {
    const ROUNDS: u64 = 30_000;
    let Setup { space, view, pd, region, key } = Setup::new(Access::REMOTE_ATOMIC);
    let start = std::sync::Barrier::new(3);
    thread::scope(|scope| {
        let start = &start;
        let mut adding = view;
        scope.spawn(move || {
            start.wait();
            for _ in 0..ROUNDS {
                adding.atomic(key.rkey, pd, BASE + 8, AtomicOp::FetchAdd(1)).unwrap();
            }
        });
        let mut swapping = space.view();
        scope.spawn(move || {
            start.wait();
            for _ in 0..ROUNDS {
                let mut compare = 0;
                loop {
                    let op = AtomicOp::CompareSwap { compare, swap: compare.wrapping_add(1 << 20) };
                    match swapping.atomic(key.rkey, pd, BASE + 8, op).unwrap() {
                        before if before == compare => break,
                        before => compare = before,
                    }
                }
            }
        });
        start.wait();
        for _ in 0..ROUNDS {
            region.fetch_add(8, 1 << 40).unwrap();
        }
    });
    assert_eq!(region.load_u64(8), Ok(ROUNDS + (ROUNDS << 20) + (ROUNDS << 40)));
}

#[test]
fn a_peer_ends_a_registration() {
    let all = all_rights().last().unwrap().1;
    let Setup { space, mut view, pd, region, key } = Setup::new(all);
    let mut other_lane = space.view();
    region.write_at(0, b"in use").unwrap();
    let pin = view.pin(key.lkey, pd, BASE, 6).unwrap();
    view.invalidate_remote(key.rkey, pd).unwrap();

    // On this lane at once, without a sync.
    assert_eq!(view.check_remote(key.rkey, pd, BASE, 8, Access::REMOTE_READ), unknown(key.rkey));
    assert_eq!(space.regions(), 0);
    for (op, _) in OPS {
        assert_eq!(op.run(&mut view, op.key(key), pd, BASE), unknown(op.key(key)), "{op:?}");
    }
    assert_eq!(deregister(&space, key.rkey, &mut [&mut view, &mut other_lane]), unknown(key.rkey));
    // On the other lane from its next sync; the peer's second request meets an unknown key there.
    let mut third_lane = space.view();
    assert_eq!(third_lane.invalidate_remote(key.rkey, pd), unknown(key.rkey));
    assert_eq!(other_lane.invalidate_remote(key.rkey, pd), unknown(key.rkey));

    assert_eq!(sent(&view, &pin), b"in use");
    view.unpin(pin.slot);
    assert_eq!((Arc::strong_count(&region), view.regions(), other_lane.regions()), (1, 0, 0));
    space.dealloc_pd(pd).unwrap();
}

/// A lane that has not seen the end of a registration refuses a peer's request to end it.
#[test]
fn a_registration_ends_once() {
    let Setup { space, mut view, pd, key, .. } = Setup::new(Access::REMOTE_INVALIDATE);
    view.sync();
    space.invalidate(key.rkey);
    assert_eq!(view.check_remote(key.rkey, pd, BASE, 0, Access::LOCAL_READ), Ok(()), "not seen yet");
    assert_eq!(view.invalidate_remote(key.rkey, pd), unknown(key.rkey));
}

fn unknown(key: u32) -> Result<(), MemoryError> {
    Err(MemoryError::UnknownKey { key })
}
