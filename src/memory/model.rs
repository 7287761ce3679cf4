//! Model checking of the memory space: `tools/model.sh` tries every interleaving of the threads.
//!
//! A lane is a view behind a lock, as the engine's lanes are: a thread that ends a registration meets them between
//! two polls.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

use super::{Access, MemoryError, MemorySpace, MemoryView, MrKey, PayloadRef, PdId, Region};
use crate::seed::Seed;

const BASE: u64 = 0x1000;

/// A space, a domain, and two lanes.
struct Fabric {
    space: MemorySpace,
    pd: PdId,
    lanes: [Mutex<MemoryView>; 2],
}

impl Fabric {
    fn new() -> Arc<Self> {
        let space = MemorySpace::new(Seed::fixed(1), 4);
        let lanes = [(); 2].map(|()| Mutex::new(space.view()));
        Arc::new(Self { pd: space.alloc_pd(), lanes, space })
    }

    fn register(&self) -> (Arc<Region>, MrKey) {
        let region = Region::alloc_at(8, BASE).unwrap();
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_INVALIDATE;
        let key = self.space.register(self.pd, Arc::clone(&region), access).unwrap();
        (region, key)
    }

    fn deregister(&self, rkey: u32) -> Result<(), MemoryError> {
        self.space.deregister(rkey, |visit| {
            self.lanes.iter().for_each(|lane| visit(&mut lane.lock().unwrap()));
            Ok(())
        })
    }

    fn place(&self, lane: usize, rkey: u32) -> Result<(), MemoryError> {
        self.lanes[lane].lock().unwrap().place(rkey, self.pd, BASE, b"x")
    }
}

#[test]
fn nothing_is_placed_after_deregistering() {
    loom::model(|| {
        let fabric = Fabric::new();
        let (region, key) = fabric.register();
        let over = Arc::new(AtomicBool::new(false));
        let lanes = [0, 1].map(|lane| {
            let (fabric, over) = (Arc::clone(&fabric), Arc::clone(&over));
            thread::spawn(move || {
                let mut view = fabric.lanes[lane].lock().unwrap();
                let placed = view.place(key.rkey, fabric.pd, BASE, b"x").is_ok();
                assert!(!placed || !over.load(Ordering::SeqCst));
            })
        });
        fabric.deregister(key.rkey).unwrap();
        over.store(true, Ordering::SeqCst);
        assert_eq!(Arc::strong_count(&region), 1);
        // The next one may be in the same slot.
        let (_, next) = fabric.register();
        assert!(fabric.place(0, key.rkey).is_err());
        assert!(fabric.place(1, next.rkey).is_ok());
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
    });
}

#[test]
fn a_key_works_from_when_registering_returns() {
    loom::model(|| {
        let fabric = Fabric::new();
        let told = Arc::new(AtomicU64::new(0));
        let lane = {
            let (fabric, told) = (Arc::clone(&fabric), Arc::clone(&told));
            thread::spawn(move || {
                let key = told.load(Ordering::Acquire) as u32;
                assert_eq!(fabric.place(0, key).is_ok(), key != 0);
            })
        };
        let busy = {
            let fabric = Arc::clone(&fabric);
            thread::spawn(move || fabric.register())
        };
        let (_region, key) = fabric.register();
        told.store(u64::from(key.rkey), Ordering::Release);
        lane.join().unwrap();
        let (_, other) = busy.join().unwrap();
        assert!(key.rkey != other.rkey && fabric.place(1, other.rkey).is_ok());
    });
}

/// A lane pins memory in this way and reads it, while the application ends the registration.
fn a_pin_and_a_deregistration(pin: fn(&mut MemoryView, MrKey, PdId) -> Result<PayloadRef, MemoryError>) {
    loom::model(move || {
        let fabric = Fabric::new();
        let (region, key) = fabric.register();
        let lane = {
            let fabric = Arc::clone(&fabric);
            thread::spawn(move || {
                let pinned = pin(&mut fabric.lanes[1].lock().unwrap(), key, fabric.pd);
                if let Ok(pin) = pinned {
                    let mut view = fabric.lanes[1].lock().unwrap();
                    assert_eq!(view.bytes(&pin).len(), 8);
                    view.unpin(pin.slot);
                }
            })
        };
        let ended = fabric.deregister(key.rkey);
        if ended.is_ok() {
            assert_eq!(Arc::strong_count(&region), 1);
            assert!(pin(&mut fabric.lanes[1].lock().unwrap(), key, fabric.pd).is_err());
        }
        lane.join().unwrap();
        assert!(ended.is_ok() || fabric.deregister(key.rkey).is_ok());
        assert_eq!(Arc::strong_count(&region), 1);
    });
}

#[test]
fn a_work_request_keeps_its_memory() {
    a_pin_and_a_deregistration(|view, key, pd| view.pin(key.lkey, pd, BASE, 8));
}

#[test]
fn a_response_to_a_peer_keeps_its_memory() {
    a_pin_and_a_deregistration(|view, key, pd| view.pin_remote(key.rkey, pd, BASE, 8, Access::REMOTE_READ));
}

/// In either order, the registration ends, and no lane keeps the memory after it has synced.
#[test]
fn a_peer_and_the_application_end_a_registration() {
    loom::model(|| {
        let fabric = Fabric::new();
        let (region, key) = fabric.register();
        let lane = {
            let fabric = Arc::clone(&fabric);
            thread::spawn(move || {
                let mut view = fabric.lanes[1].lock().unwrap();
                let ended = view.invalidate_remote(key.rkey, fabric.pd);
                assert!(view.place(key.rkey, fabric.pd, BASE, b"x").is_err());
                ended.is_ok()
            })
        };
        let by_application = fabric.deregister(key.rkey).is_ok();
        let by_peer = lane.join().unwrap();
        assert!(by_application || by_peer);
        fabric.lanes.iter().for_each(|lane| lane.lock().unwrap().sync());
        assert_eq!((Arc::strong_count(&region), fabric.space.regions()), (1, 0));
        assert!(fabric.space.dealloc_pd(fabric.pd).is_ok());
    });
}
