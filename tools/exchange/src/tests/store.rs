//! Records that go straight to the peer.

use spindrift::fallback::{Nic, PairRecord, Record, Store, StoreError, StoreKey};

use super::*;

fn key(rkey: u32) -> StoreKey {
    StoreKey::Region { home: "192.0.2.1:12".to_owned(), rkey }
}

fn pair_key() -> StoreKey {
    StoreKey::Pair { address: "192.0.2.1".parse().unwrap(), qpn: 9, nic: Nic::Backup }
}

/// A channel of each side.
fn channels() -> (Channel, Channel) {
    let listener = Listener::bind("127.0.93.7:0").unwrap();
    let near = Channel::connect(listener.local_addr().unwrap(), PATIENCE).unwrap();
    (near, listener.accept(PATIENCE, || true).unwrap())
}

fn until<T: core::fmt::Debug>(mut call: impl FnMut() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let deadline = Deadline::after(PATIENCE);
    loop {
        let got = call();
        if wanted(&got) {
            return got;
        }
        assert!(deadline.left().is_some(), "{got:?}");
    }
}

fn has(store: &mut PeerStore, key: &StoreKey, record: &Record) {
    let _ = until(|| store.get(key), |got| got.as_ref() == Ok(&Some(record.clone())));
}

#[test]
fn each_side_gets_what_the_other_one_puts() {
    let (mut a, mut b) = (PeerStore::default(), PeerStore::default());
    // Without peers, records wait for them.
    a.put(&key(1), &Record::Region(10)).unwrap();
    assert_eq!(a.get(&key(1)), Ok(None), "they are the peers' records that are looked for");
    let (near, far) = channels();
    a.add(near);
    b.add(far);
    has(&mut b, &key(1), &Record::Region(10));
    let (generation, home) = (3, "here".to_owned());
    let pair = Record::Pair(Box::new(PairRecord {
        generation,
        alive: vec![2, 4],
        home,
        info: info(9),
        connected: true,
    }));
    b.put(&pair_key(), &pair).unwrap();
    has(&mut a, &pair_key(), &pair);
    // The newest counts.
    a.put(&key(1), &Record::Region(11)).unwrap();
    has(&mut b, &key(1), &Record::Region(11));
    assert_eq!(b.get(&key(2)), Ok(None));
}

#[test]
fn a_peer_that_has_gone_is_an_error_only_if_it_is_the_last() {
    let mut store = PeerStore::default();
    let (near, mut far) = channels();
    let (near_too, far_too) = channels();
    store.add(near);
    store.add(near_too);
    far.send(&json!({ "key": key(1).to_string(), "record": { "region": 10 } })).unwrap();
    has(&mut store, &key(1), &Record::Region(10));
    drop(far);
    assert_eq!(store.get(&key(2)), Ok(None));
    assert_eq!(store.put(&key(2), &Record::Region(2)), Ok(()));
    drop(far_too);
    let StoreError(error) = until(|| store.get(&key(2)), Result::is_err).unwrap_err();
    assert!(error.contains("127.0.93.7") && error.contains("closed"), "{error}");
    assert!(store.put(&key(3), &Record::Region(3)).is_err());
    // What it has put stays.
    assert_eq!(store.get(&key(1)), Ok(Some(Record::Region(10))));
}

#[test]
fn a_peer_cannot_replace_what_another_one_has_put() {
    let mut store = PeerStore::default();
    let (near, mut far) = channels();
    let (near_too, mut far_too) = channels();
    store.add(near);
    store.add(near_too);
    let put = |record: u32| json!({ "key": key(1).to_string(), "record": { "region": record } });
    far.send(&put(10)).unwrap();
    has(&mut store, &key(1), &Record::Region(10));
    far_too.send(&put(20)).unwrap();
    far_too.send(&json!({ "key": key(2).to_string(), "record": { "region": 2 } })).unwrap();
    has(&mut store, &key(2), &Record::Region(2));
    assert_eq!(store.get(&key(1)), Ok(Some(Record::Region(10))));
}

#[test]
fn what_is_no_record_ends_the_connection() {
    for junk in [json!(7), json!({ "key": "x" }), json!({ "key": "x", "record": { "region": -1 } })] {
        let mut store = PeerStore::default();
        let (near, mut far) = channels();
        store.add(near);
        far.send(&junk).unwrap();
        until(|| store.get(&key(1)), Result::is_err).unwrap_err();
    }
    // Nor is it kept without limit.
    let mut store = PeerStore::default();
    let (near, mut far) = channels();
    store.add(near);
    far.send(&json!({ "key": "x".repeat(70_000), "record": { "region": 1 } })).unwrap();
    until(|| store.get(&key(1)), Result::is_err).unwrap_err();
}

#[test]
fn what_a_slow_peer_does_not_take_is_kept_and_sent_in_order() {
    let (mut near, mut far) = channels();
    let text = "x".repeat(100_000);
    for number in 0..100 {
        near.try_send(&json!([number, text])).unwrap();
    }
    assert!(!near.try_flush().unwrap(), "a socket does not hold 10 MB");
    // A message that waits comes after those that do not.
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            for number in 0..100 {
                assert_eq!(far.receive::<Value>().unwrap()[0], json!(number));
            }
            assert_eq!(far.receive::<Value>().unwrap(), json!("last"));
        });
        near.send(&json!("last")).unwrap();
        reader.join().unwrap();
    });
    assert!(near.try_flush().unwrap());
}

#[test]
fn a_peer_that_takes_nothing_does_not_fill_the_memory() {
    let (mut near, _far) = channels();
    let text = "x".repeat(1 << 20);
    let error = (0..100).find_map(|_| near.try_send(&text).err()).unwrap();
    assert!(matches!(error, ExchangeError::TooLong { .. }), "{error}");
}
