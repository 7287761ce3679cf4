//! Memory is registered and deregistered while lanes use it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use spindrift::memory::{Access, MemoryError, MemorySpace, Region};
use spindrift::seed::Seed;

const BASE: u64 = 0x7000_0000;

/// Four lanes place packets while an application registers, deregisters and registers again: a key opens its own region
/// and no other, and nothing is placed once deregistering has returned.
#[test]
fn nothing_is_placed_after_deregistering_whatever_lanes_do() {
    const LANES: usize = 4;
    const ROUNDS: usize = 300;
    struct Offer {
        key: u32,
        region: usize,
        over: Arc<AtomicBool>,
    }
    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
    let space = MemorySpace::new(Seed::fixed(6), 8);
    let pd = space.alloc_pd();
    let lanes: Vec<_> = (0..LANES).map(|_| Mutex::new(space.view())).collect();
    let regions = [0, 1].map(|_| Region::alloc_at(64, BASE).unwrap());
    let offer = Mutex::new(None::<Offer>);
    let stop = AtomicBool::new(false);
    let placed: usize = thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .iter()
            .enumerate()
            .map(|(n, lane)| {
                let (offer, stop, regions) = (&offer, &stop, &regions);
                scope.spawn(move || {
                    let mut placed = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let Some((key, at, over)) =
                            lock(offer).as_ref().map(|o| (o.key, o.region, o.over.clone()))
                        else {
                            continue;
                        };
                        let mut view = lock(lane);
                        let before = regions[1 - at].load(n).unwrap();
                        let known_over = over.load(Ordering::SeqCst);
                        if view.place(key, pd, BASE + n as u64, &[before.wrapping_add(1)]).is_ok() {
                            assert!(!known_over && !over.load(Ordering::SeqCst), "placed after the end");
                            assert_eq!(regions[1 - at].load(n).unwrap(), before, "in another region");
                            placed += 1;
                        }
                    }
                    placed
                })
            })
            .collect();
        for round in 0..ROUNDS {
            let region = round % 2;
            let key = space.register(pd, regions[region].clone(), Access::REMOTE_WRITE).unwrap();
            let over = Arc::new(AtomicBool::new(false));
            *lock(&offer) = Some(Offer { key: key.rkey, region, over: over.clone() });
            for _ in 0..round % 7 {
                thread::yield_now();
            }
            space
                .deregister::<MemoryError>(key.rkey, |visit| {
                    for lane in &lanes {
                        visit(&mut lock(lane));
                    }
                    Ok(())
                })
                .unwrap();
            over.store(true, Ordering::SeqCst);
            assert_eq!(Arc::strong_count(&regions[region]), 1);
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(placed > ROUNDS / 4, "lanes placed {placed} packets, too few to tell anything");
}
