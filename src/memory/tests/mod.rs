#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed test is the message")]

use std::sync::Arc;

use proptest::prelude::*;

use super::keys::KeyTable;
use super::{Access, MemoryError, MemorySpace, MemoryView, MrKey, PayloadRef, PdId, Region};
use crate::seed::{Purpose, Seed};

mod peers;

const BASE: u64 = 0x7000_0000;

/// Every right but that to local reads, with a number and its name.
const RIGHTS: [(u32, Access, &str); 5] = [
    (0, Access::LOCAL_WRITE, "LOCAL_WRITE"),
    (1, Access::REMOTE_WRITE, "REMOTE_WRITE"),
    (2, Access::REMOTE_READ, "REMOTE_READ"),
    (3, Access::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
    (4, Access::REMOTE_INVALIDATE, "REMOTE_INVALIDATE"),
];

/// Every combination of rights, with the set of their numbers.
fn all_rights() -> impl Iterator<Item = (u32, Access)> {
    (0..1 << RIGHTS.len()).map(|bits| {
        let granted = RIGHTS.iter().filter(|(bit, ..)| bits >> bit & 1 == 1);
        (bits, granted.fold(Access::default(), |sum, &(_, right, _)| sum | right))
    })
}

/// A space with one domain, and one lane's view of it.
struct Bench {
    space: MemorySpace,
    view: MemoryView,
    pd: PdId,
}

impl Bench {
    fn new(seed: u64, max_regions: u32) -> Self {
        let space = MemorySpace::new(Seed::fixed(seed), max_regions);
        Self { view: space.view(), pd: space.alloc_pd(), space }
    }

    fn register(&self, region: &Arc<Region>) -> Result<MrKey, MemoryError> {
        self.space.register(self.pd, Arc::clone(region), Access::REMOTE_WRITE)
    }

    fn one(len: usize) -> (Self, Arc<Region>, MrKey) {
        let bench = Self::new(1, 8);
        let region = Region::alloc_at(len, BASE).unwrap();
        let key = bench.register(&region).unwrap();
        (bench, region, key)
    }

    fn deregister(&mut self, rkey: u32) -> Result<(), MemoryError> {
        deregister(&self.space, rkey, &mut [&mut self.view])
    }

    fn pin(&mut self, key: MrKey, addr: u64, len: u32) -> Result<PayloadRef, MemoryError> {
        self.view.pin(key.lkey, self.pd, addr, len)
    }
}

fn deregister(space: &MemorySpace, rkey: u32, views: &mut [&mut MemoryView]) -> Result<(), MemoryError> {
    space.deregister(rkey, |visit| {
        for view in views.iter_mut() {
            visit(view);
        }
        Ok(())
    })
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut all = vec![0; region.len()];
    region.read_at(0, &mut all).unwrap();
    all
}

fn sent(view: &MemoryView, payload: &PayloadRef) -> Vec<u8> {
    let mut all = Vec::new();
    view.bytes(payload).append_to(&mut all, usize::MAX);
    all
}

#[test]
fn a_packet_is_placed_only_where_its_key_allows() {
    let (Bench { space, mut view, pd }, region, MrKey { lkey, rkey }) = Bench::one(64);
    view.place(rkey, pd, BASE + 60, b"tail").unwrap();
    assert_eq!(&bytes(&region)[60..], b"tail");
    let before = bytes(&region);

    let other = space.alloc_pd();
    let refused = [
        (view.place(rkey ^ 0x8000_0000, pd, BASE, b"x"), "key"),
        (view.place(lkey, pd, BASE, b"x"), "the key of our own work requests"),
        (view.place(0, pd, BASE, b"x"), "key 0"),
        (view.place(rkey, other, BASE, b"x"), "domain"),
        (view.place(rkey, pd, BASE + 61, b"tail"), "end"),
        (view.place(rkey, pd, BASE - 1, b"x"), "start"),
        (view.place(rkey, pd, u64::MAX, b"xx"), "wrap"),
    ];
    for (result, what) in refused {
        assert!(result.is_err(), "{what}");
    }
    let read_only = space.register(pd, Region::alloc(8).unwrap(), Access::LOCAL_WRITE).unwrap().rkey;
    let no_access = Err(MemoryError::NoAccess { key: read_only, needed: Access::REMOTE_WRITE });
    assert_eq!(view.place(read_only, pd, 0, b""), no_access);
    assert_eq!(view.check_remote(rkey, pd, BASE + 64, 0, Access::REMOTE_WRITE), Ok(()));
    assert!(view.check_remote(rkey, pd, BASE + 65, 0, Access::REMOTE_WRITE).is_err());
    assert!(view.check_remote(rkey, pd, BASE, u64::MAX, Access::REMOTE_WRITE).is_err());
    assert_eq!(bytes(&region), before);
}

#[test]
fn deregistering_is_refused_while_in_use_and_the_old_keys_miss() {
    let (mut bench, region, key) = Bench::one(64);
    let pin = bench.pin(key, BASE, 64).unwrap();
    assert_eq!(bench.deregister(key.rkey), Err(MemoryError::Busy { uses: 1 }));
    bench.view.place(key.rkey, bench.pd, BASE, b"x").unwrap();
    assert_eq!(bench.space.dealloc_pd(bench.pd), Err(MemoryError::PdInUse { pd: bench.pd.0 }));
    bench.view.unpin(pin.slot);
    bench.deregister(key.rkey).unwrap();
    assert_eq!(bench.deregister(key.rkey), Err(MemoryError::UnknownKey { key: key.rkey }));
    assert!(bench.view.place(key.rkey, bench.pd, BASE, b"x").is_err());
    assert!(bench.pin(key, BASE, 1).is_err());
    assert_eq!((bench.space.regions(), bench.view.regions()), (0, 0));
    assert_eq!(Arc::strong_count(&region), 1);
    bench.space.dealloc_pd(bench.pd).unwrap();
}

#[test]
fn an_invalid_registration_drains() {
    let (mut bench, region, key) = Bench::one(64);
    region.write_at(0, b"still here").unwrap();
    let pins = [bench.pin(key, BASE, 4).unwrap(), bench.pin(key, BASE, 4).unwrap()];
    bench.space.invalidate(key.rkey);
    bench.view.sync();
    assert!(bench.pin(key, BASE, 4).is_err(), "no new work request");
    assert!(bench.view.place(key.rkey, bench.pd, BASE, b"x").is_err(), "no new remote write");
    let payload = pins[0].part(0, 10);
    assert_eq!(sent(&bench.view, &payload), b"still here");
    bench.view.unpin(pins[0].slot);
    assert_eq!((Arc::strong_count(&region), bench.view.regions()), (2, 1));
    bench.view.unpin(pins[1].slot);
    assert_eq!((Arc::strong_count(&region), bench.view.regions()), (1, 0));
    assert_eq!(sent(&bench.view, &payload), b"");
}

/// Pins of an earlier region have no effect on the one in its place.
#[test]
fn pins_end_with_their_region() {
    let (mut bench, _region, key) = Bench::one(64);
    let old = bench.pin(key, BASE, 4).unwrap();
    let payload = old;
    bench.view.unpin(old.slot);
    bench.deregister(key.rkey).unwrap();
    let secret = Region::alloc_at(64, BASE).unwrap();
    secret.write_at(0, b"secret").unwrap();
    let key = bench.register(&secret).unwrap();
    let new = bench.pin(key, BASE, 4).unwrap();
    assert_eq!(sent(&bench.view, &payload), b"");
    bench.view.unpin(old.slot);
    assert_eq!(bench.deregister(key.rkey), Err(MemoryError::Busy { uses: 1 }));
    bench.view.unpin(new.slot);
    bench.view.unpin(new.slot);
    bench.deregister(key.rkey).unwrap();
}

#[test]
fn payloads_outside_the_region_are_empty() {
    let (mut bench, _region, key) = Bench::one(64);
    let pin = bench.pin(key, BASE + 8, 56).unwrap();
    assert_eq!((pin.offset, pin.len), (8, 56));
    let len = |skip: i64, len| bench.view.bytes(&pin.part(skip as u64, len)).len();
    assert_eq!([len(55, 1), len(56, 1), len(54, 3), len(-8, 1), len(-9, 1)], [1, 0, 0, 1, 0]);
    assert!(bench.view.bytes(&PayloadRef::EMPTY).is_empty());
    assert!(bench.pin(key, BASE + 8, 57).is_err());
    let other = bench.space.alloc_pd();
    assert_eq!(bench.view.pin(key.lkey, other, BASE, 1), Err(MemoryError::WrongPd { key: key.lkey }));
    let swapped = MrKey { lkey: key.rkey, ..key };
    assert_eq!(bench.pin(swapped, BASE, 1), Err(MemoryError::UnknownKey { key: key.rkey }));
}

#[test]
fn the_space_has_a_limit_and_slots_are_taken_again_under_new_keys() {
    let mut bench = Bench::new(3, 2);
    let region = Region::alloc(8).unwrap();
    let first = bench.register(&region).unwrap().rkey;
    bench.register(&region).unwrap();
    assert_eq!(bench.register(&region), Err(MemoryError::TooMany { max: 2 }));
    bench.deregister(first).unwrap();
    let second = bench.register(&region).unwrap().rkey;
    assert_ne!(first, second);
    bench.view.sync();
    let check = |key| bench.view.check_remote(key, bench.pd, region.iova(), 8, Access::REMOTE_WRITE);
    assert_eq!((check(first), check(second)), (Err(MemoryError::UnknownKey { key: first }), Ok(())));
    bench.space.invalidate(second);
    bench.register(&region).unwrap();
}

#[test]
fn domains_live_as_long_as_something_belongs_to_them() {
    let bench = Bench::new(1, 8);
    let in_use = Err(MemoryError::PdInUse { pd: bench.pd.0 });
    let members = [(); 2].map(|()| bench.space.join_pd(bench.pd).unwrap());
    let key = bench.register(&Region::alloc(8).unwrap()).unwrap();
    for member in members {
        assert_eq!(member.id(), bench.pd);
        assert_eq!(bench.space.dealloc_pd(bench.pd), in_use);
    }
    assert_eq!(bench.space.dealloc_pd(bench.pd), in_use);
    bench.space.invalidate(key.rkey);
    bench.space.dealloc_pd(bench.pd).unwrap();
    let gone = MemoryError::NoSuchPd { pd: bench.pd.0 };
    assert_eq!(bench.space.dealloc_pd(bench.pd), Err(gone));
    assert_eq!(bench.space.join_pd(bench.pd).unwrap_err(), gone);
    assert_eq!(bench.register(&Region::alloc(8).unwrap()), Err(gone));
    assert_eq!(bench.space.regions(), 0);
}

fn keys(seed: u64, count: usize) -> Vec<MrKey> {
    let bench = Bench::new(seed, count as u32);
    let region = Region::alloc(8).unwrap();
    (0..count).map(|_| bench.register(&region).unwrap()).collect()
}

#[test]
fn keys_depend_on_the_seed_alone() {
    assert_eq!(keys(5, 50), keys(5, 50));
    assert_ne!(keys(5, 50), keys(6, 50));
    let mut all: Vec<u32> = keys(5, 50).into_iter().flat_map(|key| [key.lkey, key.rkey]).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 100);
}

/// Common bits of two keys do not reveal when they were registered. In every bit, neighbours differ in half of the
/// cases. So do keys that are a power of two apart, whose slots would differ in one bit if they were counted. So do
/// the two keys of a registration, of which a peer knows one.
#[test]
fn keys_do_not_tell_of_each_other() {
    const COUNT: usize = 4096;
    let keys = keys(9, COUNT);
    let rkeys: Vec<u32> = keys.iter().map(|key| key.rkey).collect();
    let mut cases: Vec<(String, Vec<u32>)> = [1, 2, 4, 64, 1024]
        .map(|n| (format!("{n} apart"), rkeys.iter().zip(&rkeys[n..]).map(|(a, b)| a ^ b).collect()))
        .into();
    cases.push(("lkey and rkey".to_owned(), keys.iter().map(|key| key.lkey ^ key.rkey).collect()));
    for (what, differences) in &mut cases {
        let pairs = differences.len();
        for bit in 0..32 {
            let differ = differences.iter().filter(|&difference| difference >> bit & 1 == 1).count();
            // Five standard deviations of a fair coin.
            let off = differ.abs_diff(pairs / 2);
            assert!(
                (off * off) as f64 <= 25.0 * pairs as f64 / 4.0,
                "{what}, bit {bit}: {differ} of {pairs}"
            );
        }
        differences.sort_unstable();
        differences.dedup();
        assert!(differences.len() > pairs - 4, "{what}: {} different ones", differences.len());
    }
}

#[test]
fn rights_add_up() {
    for (bits, access) in all_rights() {
        let mut grown = Access::LOCAL_READ;
        RIGHTS.iter().filter(|(bit, ..)| bits >> bit & 1 == 1).for_each(|&(_, right, _)| grown |= right);
        assert_eq!(grown, access);
        for (other_bits, other) in all_rights() {
            assert_eq!(access.contains(other), other_bits & !bits == 0, "{access:?} of {other:?}");
        }
        let names: Vec<_> =
            RIGHTS.iter().filter(|(bit, ..)| bits >> bit & 1 == 1).map(|right| right.2).collect();
        let want = if bits == 0 { "LOCAL_READ".to_owned() } else { names.join(" | ") };
        assert_eq!(format!("{access:?}"), want);
    }
}

/// So that a key is drawn in two tries on average, however many there are.
#[test]
fn at_least_half_of_the_slots_are_free() {
    let mut table = KeyTable::new();
    let mut rng = Seed::fixed(8).generator(Purpose::Keys);
    for n in 1..=1000 {
        let key = table.draw(&mut rng);
        table.insert(key, n);
        assert!(table.slots() >= 2 * table.len() as usize, "{} of {}", table.len(), table.slots());
        assert!(table.slots() <= 64.max(4 * n), "no more memory than that takes");
    }
}

/// Growing the table moves regions to other slots, and every key still opens its own, in a view that took every step
/// and in one that took none.
#[test]
fn keys_outlive_the_growth_of_the_table() {
    let mut bench = Bench::new(2, 3000);
    let late = bench.space.view();
    let mut held = Vec::new();
    let mut dead = Vec::new();
    for n in 0..3000_u64 {
        let region = Region::alloc_at(8, BASE + 8 * n).unwrap();
        held.push((n, bench.register(&region).unwrap()));
        if n % 3 == 0 {
            let (_, key) = held.swap_remove(n as usize / 2 % held.len());
            bench.space.invalidate(key.rkey);
            dead.push(key);
        }
        if n % 100 == 0 {
            bench.view.sync();
        }
    }
    let mut views = [bench.view, late, bench.space.view()];
    for view in &mut views {
        view.sync();
        assert_eq!((bench.space.regions(), view.regions()), (held.len(), held.len()));
        for &(n, key) in &held {
            assert_eq!(view.check_remote(key.rkey, bench.pd, BASE + 8 * n, 8, Access::REMOTE_WRITE), Ok(()));
            assert!(view.pin(key.lkey, bench.pd, BASE + 8 * n, 8).is_ok());
        }
        for &MrKey { lkey, rkey } in &dead {
            let unknown = |key| Err(MemoryError::UnknownKey { key });
            assert_eq!(view.check_remote(rkey, bench.pd, BASE, 0, Access::REMOTE_WRITE), unknown(rkey));
            assert_eq!(view.pin(lkey, bench.pd, BASE, 0), unknown(lkey).map(|()| PayloadRef::EMPTY));
        }
    }
}

/// A view that missed more than is remembered looks at everything: it forgets what ended, keeps what is in use until it
/// is not, and keeps the pins of what lives on.
#[test]
fn a_view_that_lags_far_behind_catches_up() {
    let mut bench = Bench::new(4, 400);
    let regions = [(); 4].map(|()| Region::alloc_at(64, BASE).unwrap());
    let [stays, stays_in_use, goes, goes_in_use] =
        regions.each_ref().map(|region| bench.register(region).unwrap());
    let pins = [stays_in_use, goes_in_use].map(|key| bench.pin(key, BASE, 1).unwrap());
    let spare = Region::alloc(8).unwrap();
    for _ in 0..200 {
        let key = bench.register(&spare).unwrap();
        bench.space.invalidate(key.rkey);
    }
    bench.space.invalidate(goes.rkey);
    bench.space.invalidate(goes_in_use.rkey);
    let new = bench.register(&spare).unwrap();
    bench.view.place(new.rkey, bench.pd, spare.iova(), b"x").unwrap();
    assert_eq!(bench.view.regions(), 4, "two that stay, one in use, one new");
    for key in [stays, stays_in_use] {
        assert_eq!(bench.view.check_remote(key.rkey, bench.pd, BASE, 64, Access::REMOTE_WRITE), Ok(()));
    }
    for key in [goes, goes_in_use] {
        assert!(bench.view.check_remote(key.rkey, bench.pd, BASE, 64, Access::REMOTE_WRITE).is_err());
    }
    assert_eq!(Arc::strong_count(&regions[2]), 1);
    let uses = [stays, stays_in_use, goes, goes_in_use].map(|key| bench.view.uses(key.lkey));
    assert_eq!(uses, [0, 1, 0, 1]);
    for pin in pins {
        assert_eq!(bench.view.bytes(&pin.part(0, 64)).len(), 64);
        bench.view.unpin(pin.slot);
    }
    assert_eq!(regions.each_ref().map(Arc::strong_count), [4, 4, 1, 1]);
}

#[test]
fn changes_are_remembered_one_by_one() {
    let bench = Bench::new(4, 400);
    let missed = |version| {
        let state = bench.space.lock();
        bench.space.changes_since(&state, version).map(Iterator::count)
    };
    let region = Region::alloc(8).unwrap();
    let keys: Vec<_> = (0..64).map(|_| bench.register(&region).unwrap()).collect();
    assert_eq!([0, 61, 64].map(missed), [Some(64), Some(3), Some(0)]);
    bench.space.invalidate(keys[0].rkey);
    assert_eq!([0, 1, 64].map(missed), [None, Some(64), Some(1)]);
    // As many as there are registrations.
    for _ in 0..100 {
        bench.register(&region).unwrap();
    }
    assert_eq!([1, 2, 165].map(missed), [None, Some(163), Some(0)]);
}

/// Between the two visits of `deregister`, so much else happens that a view has to look at everything.
#[test]
fn a_view_that_lags_learns_of_an_end_that_is_not_over() {
    let (Bench { space, view: mut pinning, pd }, _region, key) = Bench::one(64);
    let mut lagging = space.view();
    let spare = Region::alloc(8).unwrap();
    let result = space.deregister::<MemoryError>(key.rkey, |visit| {
        for _ in 0..100 {
            let spare = space.register(pd, spare.clone(), Access::LOCAL_READ)?;
            space.invalidate(spare.rkey);
        }
        visit(&mut pinning);
        visit(&mut lagging);
        let _ = pinning.pin(key.lkey, pd, BASE, 1);
        Ok(())
    });
    assert_eq!(result, Err(MemoryError::Busy { uses: 1 }));
    assert_eq!(
        lagging.check_remote(key.rkey, pd, BASE, 1, Access::REMOTE_WRITE),
        Err(MemoryError::UnknownKey { key: key.rkey })
    );
    assert_eq!((space.regions(), pinning.regions(), lagging.regions()), (1, 1, 0));
}

#[test]
fn all_views_are_asked_before_memory_goes() {
    let (Bench { space, view: mut first, pd }, region, key) = Bench::one(64);
    let mut second = space.view();
    let left_out = Err(MemoryError::ViewsLeftOut { visited: 1, views: 2 });
    assert_eq!(deregister(&space, key.rkey, &mut [&mut first]), left_out);
    let pin = second.pin(key.lkey, pd, BASE, 64).unwrap();
    let busy = Err(MemoryError::Busy { uses: 1 });
    assert_eq!(deregister(&space, key.rkey, &mut [&mut first, &mut second]), busy);
    second.unpin(pin.slot);
    deregister(&space, key.rkey, &mut [&mut first, &mut second]).unwrap();
    assert_eq!(Arc::strong_count(&region), 1);
    drop(second);
    let key = space.register(pd, region, Access::LOCAL_READ).unwrap();
    deregister(&space, key.rkey, &mut [&mut first]).unwrap();
}

/// A work request that is posted while its memory is being deregistered is carried out or refused; it is never left
/// without its memory.
#[test]
fn a_request_posted_meanwhile_holds_the_memory() {
    let (Bench { space, mut view, pd }, region, key) = Bench::one(64);
    let mut pin = None;
    let mut try_it = |view: &mut MemoryView| {
        space.deregister(key.rkey, |visit| {
            visit(view);
            pin = pin.or(view.pin(key.lkey, pd, BASE, 1).ok());
            Ok(())
        })
    };
    assert_eq!(try_it(&mut view), Err(MemoryError::Busy { uses: 1 }));
    assert_eq!(try_it(&mut view), Err(MemoryError::Busy { uses: 1 }));
    assert!(view.check_remote(key.rkey, pd, BASE, 1, Access::REMOTE_WRITE).is_err(), "the keys have ended");
    assert_eq!((space.regions(), view.regions()), (1, 1));
    view.unpin(pin.unwrap().slot);
    deregister(&space, key.rkey, &mut [&mut view]).unwrap();
    assert_eq!((Arc::strong_count(&region), space.regions()), (1, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Register,
    Deregister(usize),
    Invalidate(usize),
    Sync(usize),
    Pin(usize, usize),
    PinRemote(usize, usize),
    Unpin(usize),
    Place(usize, usize, u64, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Register),
        1 => any::<usize>().prop_map(Step::Deregister),
        1 => any::<usize>().prop_map(Step::Invalidate),
        1 => any::<usize>().prop_map(Step::Sync),
        2 => any::<(usize, usize)>().prop_map(|(k, v)| Step::Pin(k, v)),
        2 => any::<(usize, usize)>().prop_map(|(k, v)| Step::PinRemote(k, v)),
        3 => any::<usize>().prop_map(Step::Unpin),
        4 => (any::<(usize, usize)>(), 0..80u64, 0..80usize).prop_map(|((k, v), at, len)| Step::Place(k, v, at, len)),
    ]
}

/// The expected state of one registration.
struct Model {
    key: MrKey,
    region: Arc<Region>,
    bytes: Vec<u8>,
    /// With the views that they belong to.
    pins: Vec<(usize, PayloadRef)>,
    valid: bool,
    /// Views that may not know yet that it ended.
    unaware: [bool; 2],
}

proptest! {
    #[test]
    fn any_sequence_agrees_with_a_model(seed: u64, steps in prop::collection::vec(step(), 1..80)) {
        let space = MemorySpace::new(Seed::fixed(seed), 4);
        let pd = space.alloc_pd();
        let mut views = [space.view(), space.view()];
        let mut all: Vec<Model> = Vec::new();
        for (n, step) in steps.into_iter().enumerate() {
            let count = all.len().max(1);
            let index = |k: usize| k % count;
            match step {
                Step::Register => {
                    let region = Region::alloc_at(64, BASE).unwrap();
                    let live = all.iter().filter(|m| m.valid).count();
                    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
                    if let Ok(key) = space.register(pd, region.clone(), access) {
                        let (bytes, pins) = (vec![0; 64], vec![]);
                        all.push(Model { key, region, bytes, pins, valid: true, unaware: [true; 2] });
                    } else {
                        prop_assert_eq!(live, 4);
                    }
                }
                Step::Sync(v) => {
                    views[v % 2].sync();
                    all.iter_mut().filter(|m| !m.valid).for_each(|m| m.unaware[v % 2] = false);
                }
                _ if all.is_empty() => {}
                Step::Deregister(k) => {
                    let [one, two] = &mut views;
                    let m = &mut all[index(k)];
                    let known = m.valid;
                    let ok = deregister(&space, m.key.rkey, &mut [one, two]).is_ok();
                    prop_assert_eq!(ok, m.valid && m.pins.is_empty());
                    m.valid &= !ok;
                    if known {
                        all.iter_mut().filter(|m| !m.valid).for_each(|m| m.unaware = [false; 2]);
                    }
                }
                Step::Invalidate(k) => {
                    let m = &mut all[index(k)];
                    space.invalidate(m.key.rkey);
                    m.valid = false;
                }
                Step::Pin(k, v) => {
                    let m = &mut all[index(k)];
                    let pin = views[v % 2].pin(m.key.lkey, pd, BASE, 64);
                    prop_assert!(pin.is_ok() == m.valid || m.unaware[v % 2]);
                    m.pins.extend(pin.map(|pin| (v % 2, pin)));
                }
                Step::PinRemote(k, v) => {
                    let m = &mut all[index(k)];
                    let pin = views[v % 2].pin_remote(m.key.rkey, pd, BASE, 64, Access::REMOTE_READ);
                    prop_assert!(pin.is_ok() == m.valid || m.unaware[v % 2]);
                    m.pins.extend(pin.map(|pin| (v % 2, pin)));
                }
                Step::Unpin(k) => {
                    if let Some((v, pin)) = all[index(k)].pins.pop() {
                        views[v].unpin(pin.slot);
                    }
                }
                Step::Place(k, v, at, len) => {
                    let m = &mut all[index(k)];
                    let data = vec![n as u8 + 1; len];
                    let ok = views[v % 2].place(m.key.rkey, pd, BASE + at, &data).is_ok();
                    let inside = at as usize + len <= 64;
                    let possible = m.valid || m.unaware[v % 2];
                    prop_assert!(!ok || inside && possible);
                    prop_assert!(ok || !inside || !m.valid);
                    if ok {
                        m.bytes[at as usize..][..len].copy_from_slice(&data);
                    }
                }
            }
            for m in &all {
                prop_assert_eq!(&bytes(&m.region), &m.bytes);
                for &(v, pin) in &m.pins {
                    prop_assert_eq!(&sent(&views[v], &pin), &m.bytes);
                }
            }
        }
        views.iter_mut().for_each(MemoryView::sync);
        for m in &all {
            for (v, view) in views.iter().enumerate() {
                let pins = m.pins.iter().filter(|pin| pin.0 == v).count();
                prop_assert_eq!(view.uses(m.key.lkey) as usize, pins);
            }
            let holders = (0..2).filter(|v| m.pins.iter().any(|pin| pin.0 == *v)).count();
            let expected = if m.valid { 6 } else { 1 + holders };
            prop_assert_eq!(Arc::strong_count(&m.region), expected);
        }
    }
}
