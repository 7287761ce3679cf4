#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed test is the message")]

use std::sync::Arc;

use proptest::prelude::*;

use super::{Access, MemoryError, MemoryTable, PayloadRef, PdId, Region};
use crate::seed::Seed;

const PD: PdId = PdId(1);
const BASE: u64 = 0x7000_0000;

fn one(len: usize) -> (MemoryTable, Arc<Region>, u32) {
    let mut table = MemoryTable::new(Seed::fixed(1), 8);
    let region = Region::alloc_at(len, BASE).unwrap();
    let key = table.register(PD, region.clone(), Access::REMOTE_WRITE).unwrap();
    (table, region, key.rkey)
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut all = vec![0; region.len()];
    region.read_at(0, &mut all).unwrap();
    all
}

fn sent(table: &MemoryTable, payload: &PayloadRef) -> Vec<u8> {
    let mut all = Vec::new();
    table.bytes(payload).append_to(&mut all, usize::MAX);
    all
}

#[test]
fn a_packet_is_placed_only_where_its_key_allows() {
    let (mut table, region, key) = one(64);
    table.place(key, PD, BASE + 60, b"tail").unwrap();
    assert_eq!(&bytes(&region)[60..], b"tail");
    let before = bytes(&region);

    let refused = [
        (table.place(key ^ 0x8000_0000, PD, BASE, b"x"), "key"),
        (table.place(0, PD, BASE, b"x"), "key 0"),
        (table.place(key, PdId(2), BASE, b"x"), "domain"),
        (table.place(key, PD, BASE + 61, b"tail"), "end"),
        (table.place(key, PD, BASE - 1, b"x"), "start"),
        (table.place(key, PD, u64::MAX, b"xx"), "wrap"),
    ];
    for (result, what) in refused {
        assert!(result.is_err(), "{what}");
    }
    let read_only = table.register(PD, Region::alloc(8).unwrap(), Access::LOCAL_WRITE).unwrap();
    assert!(matches!(
        table.check_remote(read_only.rkey, PD, 0, 0),
        Err(MemoryError::NoAccess { needed: Access::REMOTE_WRITE, .. })
    ));
    assert_eq!(table.check_remote(key, PD, BASE + 64, 0), Ok(()));
    assert!(table.check_remote(key, PD, BASE + 65, 0).is_err());
    assert!(table.check_remote(key, PD, BASE, u64::MAX).is_err());
    assert_eq!(bytes(&region), before);
}

#[test]
fn deregistering_is_refused_while_in_use_and_the_old_key_misses() {
    let (mut table, region, key) = one(64);
    let pin = table.pin(key, PD, BASE, 64).unwrap();
    assert_eq!(table.deregister(key), Err(MemoryError::Busy { uses: 1 }));
    assert!(table.pd_in_use(PD));
    table.unpin(pin);
    table.deregister(key).unwrap();
    assert_eq!(table.deregister(key), Err(MemoryError::UnknownKey { key }));
    assert!(table.place(key, PD, BASE, b"x").is_err());
    assert_eq!((table.regions(), table.pd_in_use(PD)), (0, false));
    assert_eq!(Arc::strong_count(&region), 1);
}

#[test]
fn a_dropped_handle_drains() {
    let (mut table, region, key) = one(64);
    region.write_at(0, b"still here").unwrap();
    let pins = [table.pin(key, PD, BASE, 4).unwrap(), table.pin(key, PD, BASE, 4).unwrap()];
    table.invalidate(key);
    assert!(table.pin(key, PD, BASE, 4).is_err(), "no new work request");
    assert!(table.place(key, PD, BASE, b"x").is_err(), "no new remote write");
    let payload = table.payload(pins[0], BASE, 10);
    assert_eq!(sent(&table, &payload), b"still here");
    table.unpin(pins[0]);
    assert_eq!(Arc::strong_count(&region), 2);
    table.unpin(pins[1]);
    assert_eq!(Arc::strong_count(&region), 1);
    assert_eq!(sent(&table, &payload), b"");
}

#[test]
fn payloads_outside_the_region_are_empty() {
    let (mut table, _region, key) = one(64);
    let pin = table.pin(key, PD, BASE + 8, 56).unwrap();
    assert_eq!(table.bytes(&table.payload(pin, BASE + 63, 1)).len(), 1);
    assert_eq!(table.bytes(&table.payload(pin, BASE + 64, 1)).len(), 0);
    assert_eq!(table.bytes(&table.payload(pin, BASE - 1, 1)).len(), 0);
    assert!(table.bytes(&PayloadRef::EMPTY).is_empty());
    assert!(table.pin(key, PD, BASE + 8, 57).is_err());
    assert!(table.pin(key, PdId(9), BASE, 1).is_err());
}

#[test]
fn the_table_has_a_limit_and_slots_are_taken_again_under_new_keys() {
    let mut table = MemoryTable::new(Seed::fixed(3), 2);
    let region = Region::alloc(8).unwrap();
    let register = |table: &mut MemoryTable| table.register(PD, region.clone(), Access::REMOTE_WRITE);
    let first = register(&mut table).unwrap().rkey;
    register(&mut table).unwrap();
    assert_eq!(register(&mut table), Err(MemoryError::TooMany { max: 2 }));
    table.deregister(first).unwrap();
    let second = register(&mut table).unwrap().rkey;
    assert_ne!(first, second);
    assert_eq!(table.check_remote(first, PD, region.iova(), 8), Err(MemoryError::UnknownKey { key: first }));
    assert_eq!(table.check_remote(second, PD, region.iova(), 8), Ok(()));
}

#[test]
fn keys_depend_on_the_seed_alone() {
    let keys = |seed| {
        let mut table = MemoryTable::new(Seed::fixed(seed), 100);
        let region = Region::alloc(8).unwrap();
        (0..50)
            .map(|_| table.register(PD, region.clone(), Access::default()).unwrap().lkey)
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(5), keys(5));
    assert_ne!(keys(5), keys(6));
    let mut unique = keys(5);
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), 50);
}

/// What two keys have in common says nothing of when they were registered: in every bit, neighbours differ in half of
/// the cases, and so do keys that are a power of two apart, whose slots would differ in one bit if they were counted.
#[test]
fn keys_do_not_tell_of_each_other() {
    const COUNT: usize = 4096;
    let mut table = MemoryTable::new(Seed::fixed(9), COUNT as u32);
    let region = Region::alloc(8).unwrap();
    let keys: Vec<u32> =
        (0..COUNT).map(|_| table.register(PD, region.clone(), Access::REMOTE_WRITE).unwrap().rkey).collect();
    for apart in [1, 2, 4, 64, 1024] {
        let pairs = COUNT - apart;
        for bit in 0..32 {
            let differ = (0..pairs).filter(|&i| (keys[i] ^ keys[i + apart]) >> bit & 1 == 1).count();
            // Five standard deviations of a fair coin.
            let off = differ.abs_diff(pairs / 2);
            assert!(
                (off * off) as f64 <= 25.0 * pairs as f64 / 4.0,
                "{apart} apart, bit {bit}: {differ} of {pairs}"
            );
        }
    }
    let mut differences: Vec<u32> = keys.windows(2).map(|pair| pair[0] ^ pair[1]).collect();
    differences.sort_unstable();
    differences.dedup();
    assert!(differences.len() > COUNT - 4, "{} different ones", differences.len());
}

/// Growing the table moves regions to other slots, and every key still opens its own.
#[test]
fn keys_outlive_the_growth_of_the_table() {
    let mut table = MemoryTable::new(Seed::fixed(2), 3000);
    let mut held = Vec::new();
    let mut dead = Vec::new();
    for n in 0..3000_u64 {
        let region = Region::alloc_at(8, BASE + 8 * n).unwrap();
        held.push((n, table.register(PD, region, Access::REMOTE_WRITE).unwrap().rkey));
        if n % 3 == 0 {
            let (_, key) = held.swap_remove(n as usize / 2 % held.len());
            table.deregister(key).unwrap();
            dead.push(key);
        }
    }
    assert_eq!(table.regions(), held.len());
    for &(n, key) in &held {
        assert_eq!(table.check_remote(key, PD, BASE + 8 * n, 8), Ok(()));
    }
    assert!(
        dead.iter().all(|&key| table.check_remote(key, PD, BASE, 0) == Err(MemoryError::UnknownKey { key }))
    );
}

#[derive(Clone, Debug)]
enum Step {
    Register,
    Deregister(usize),
    Invalidate(usize),
    Pin(usize),
    Unpin(usize),
    Place(usize, u64, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Register),
        1 => any::<usize>().prop_map(Step::Deregister),
        1 => any::<usize>().prop_map(Step::Invalidate),
        2 => any::<usize>().prop_map(Step::Pin),
        2 => any::<usize>().prop_map(Step::Unpin),
        4 => (any::<usize>(), 0..80u64, 0..80usize).prop_map(|(k, at, len)| Step::Place(k, at, len)),
    ]
}

/// What the table should know of one registration.
struct Model {
    key: u32,
    region: Arc<Region>,
    bytes: Vec<u8>,
    pins: Vec<super::RegionSlot>,
    valid: bool,
}

impl Model {
    fn held(&self) -> bool {
        self.valid || !self.pins.is_empty()
    }
}

proptest! {
    #[test]
    fn any_sequence_agrees_with_a_model(seed: u64, steps in prop::collection::vec(step(), 1..80)) {
        let mut table = MemoryTable::new(Seed::fixed(seed), 4);
        let mut all: Vec<Model> = Vec::new();
        for (n, step) in steps.into_iter().enumerate() {
            let count = all.len().max(1);
            let index = |k: usize| k % count;
            match step {
                Step::Register => {
                    let region = Region::alloc_at(64, BASE).unwrap();
                    let held = all.iter().filter(|m| m.held()).count();
                    if let Ok(key) = table.register(PD, region.clone(), Access::REMOTE_WRITE) {
                        all.push(Model { key: key.rkey, region, bytes: vec![0; 64], pins: vec![], valid: true });
                    } else {
                        prop_assert_eq!(held, 4);
                    }
                }
                _ if all.is_empty() => {}
                Step::Deregister(k) => {
                    let m = &mut all[index(k)];
                    let ok = table.deregister(m.key).is_ok();
                    prop_assert_eq!(ok, m.valid && m.pins.is_empty());
                    m.valid &= !ok;
                }
                Step::Invalidate(k) => {
                    let m = &mut all[index(k)];
                    table.invalidate(m.key);
                    m.valid = false;
                }
                Step::Pin(k) => {
                    let m = &mut all[index(k)];
                    let pin = table.pin(m.key, PD, BASE, 64);
                    prop_assert_eq!(pin.is_ok(), m.valid);
                    m.pins.extend(pin);
                }
                Step::Unpin(k) => {
                    if let Some(pin) = all[index(k)].pins.pop() {
                        table.unpin(pin);
                    }
                }
                Step::Place(k, at, len) => {
                    let m = &mut all[index(k)];
                    let data = vec![n as u8 + 1; len];
                    let ok = table.place(m.key, PD, BASE + at, &data).is_ok();
                    prop_assert_eq!(ok, m.valid && at as usize + len <= 64);
                    if ok {
                        m.bytes[at as usize..][..len].copy_from_slice(&data);
                    }
                }
            }
            for m in &all {
                prop_assert_eq!(&bytes(&m.region), &m.bytes);
                prop_assert_eq!(Arc::strong_count(&m.region), 1 + usize::from(m.held()));
            }
        }
    }
}
