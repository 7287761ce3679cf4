//! Rules that no order of events shows, because they need time, keys, or requests that are refused.

use super::world::{Limits, Op, Step, World};
use crate::endpoint::QpCap;
use crate::fallback::{FallbackConfig, FallbackError, Machine, Nic, PairId, SendState};
use crate::time::Time;
use crate::verbs::PostError;
use crate::wire::Qpn;
use crate::work::{GatherWr, RemoteAddr, ScatterWr, SendOp, Sge};

const LIMITS: Limits = Limits { downs: 3, ups: 3, removals: 0, pairs: 8, prompt: true };

fn config() -> FallbackConfig {
    FallbackConfig {
        hold_ns: 1000,
        hold_max_ns: 4000,
        probe_ns: 100,
        prepare_timeout_ns: 500,
        ..FallbackConfig::default()
    }
}

fn world(script: &'static [Op]) -> World {
    World::new([script, &[]], &config(), LIMITS)
}

/// Takes all steps that are possible at time `now`, except that links change.
fn run(world: &mut World, now: u64) {
    (0..2).for_each(|at| world.tick(at, Time(now)));
    for _ in 0..1000 {
        let changes =
            |step: &Step| matches!(step, Step::Down(_) | Step::Up(_) | Step::Remove(..) | Step::Tick(_));
        let step = world.steps().into_iter().find(|step| !changes(step));
        if let Some(step) = step {
            world.take(step);
            continue;
        }
        let before = super::search::digest(world);
        (0..2).for_each(|at| world.tick(at, Time(now)));
        if super::search::digest(world) == before {
            return;
        }
    }
    panic!("it goes on for ever: {world:?}");
}

fn states(world: &World) -> [SendState; 2] {
    [0, 1].map(|at: usize| world.sides[at].machine.send_state())
}

/// Neither side waits for its next probe: the one whose links are back knows, and the other one learns it.
#[test]
fn both_sides_return_soon_after_the_links() {
    let config = FallbackConfig { probe_ns: 1_000_000, ..config() };
    let mut world = World::new([&[], &[]], &config, LIMITS);
    run(&mut world, 10);
    world.take(Step::Down(Nic::Default));
    world.lose_first_of(0);
    run(&mut world, 20);
    // This probe fails.
    run(&mut world, 1020);
    let machine = |world: &World, at: usize| world.sides[at].machine.next_timeout();
    assert_eq!([0, 1].map(|at| machine(&world, at)), [Time(1_001_020); 2]);
    world.take(Step::Up(Nic::Default));
    run(&mut world, 5000);
    assert_eq!(states(&world), [SendState::Fallback; 2]);
    world.sides[0].machine.on_link_up(Nic::Backup);
    assert_eq!(machine(&world, 0), Time(1_001_020));
    world.sides[0].machine.on_link_up(Nic::Default);
    assert_eq!(machine(&world, 0), Time(6000));
    run(&mut world, 5999);
    assert_eq!(states(&world), [SendState::Fallback; 2]);
    run(&mut world, 6000);
    assert_eq!(states(&world), [SendState::Default; 2]);
    // Where nothing has failed, links that come back are no reason to probe.
    world.sides[0].machine.on_link_up(Nic::Default);
    assert_eq!(machine(&world, 0), Time::NEVER);
}

#[test]
fn a_nic_is_probed_after_the_hold_time_and_again_if_it_does_not_work() {
    let mut world = world(&[]);
    run(&mut world, 10);
    world.take(Step::Down(Nic::Default));
    world.lose_first_of(0);
    run(&mut world, 20);
    assert_eq!(states(&world), [SendState::Fallback; 2]);
    // It works again, but nothing looks for 1000 ns.
    world.take(Step::Up(Nic::Default));
    run(&mut world, 1019);
    assert_eq!(states(&world), [SendState::Fallback; 2]);
    assert_eq!(world.sides[0].machine.next_timeout(), Time(1020));
    run(&mut world, 1020);
    assert_eq!(states(&world), [SendState::Default; 2]);
    assert_eq!(world.sides[0].machine.next_timeout(), Time::NEVER);
    // The next failure is held against it for twice as long.
    world.take(Step::Down(Nic::Default));
    world.lose_first_of(0);
    run(&mut world, 1100);
    run(&mut world, 3100);
    // The probe of that time failed.
    assert_eq!(world.sides[0].machine.counters().spares_failed, 1);
    world.take(Step::Up(Nic::Default));
    run(&mut world, 3199);
    assert_eq!(states(&world), [SendState::Fallback; 2]);
    run(&mut world, 3200);
    assert_eq!(states(&world), [SendState::Default; 2]);
    assert_eq!(world.sides[0].machine.counters().moves, 2);
}

#[test]
fn a_side_with_one_nic_left_makes_pairs_on_that_one() {
    let mut world = World::new([&[], &[]], &config(), Limits { removals: 1, ..LIMITS });
    run(&mut world, 10);
    world.take(Step::Remove(0, Nic::Default));
    run(&mut world, 20);
    assert_eq!(states(&world), [SendState::Fallback; 2]);
    // The pair in use fails by mistake. The next one is on the same NIC.
    world.lose_first_of(1);
    run(&mut world, 30);
    assert_eq!(states(&world), [SendState::Fallback; 2]);
    assert_eq!(world.sides[1].machine.pairs_in_use().0, PairId { nic: Nic::Backup, generation: 1 });
}

#[test]
fn a_nic_without_links_is_left_at_once() {
    let mut world = world(&[Op::Send, Op::Write]);
    run(&mut world, 10);
    world.lose_links(0, Nic::Backup);
    assert_eq!(states(&world)[0], SendState::Default, "it is not the one in use");
    world.lose_links(0, Nic::Default);
    assert_eq!(states(&world)[0], SendState::Switching);
    run(&mut world, 20);
    assert_eq!(states(&world), [SendState::Fallback; 2]);
    assert_eq!(world.sides[0].done, [(0, true), (1, true)]);
}

#[test]
fn a_nic_without_links_is_kept_if_nothing_can_take_over() {
    // No pair is prepared on the other one.
    let mut world = World::new([&[Op::Send], &[]], &config(), Limits { pairs: 0, ..LIMITS });
    run(&mut world, 10);
    world.lose_links(0, Nic::Default);
    assert_eq!(states(&world)[0], SendState::Default);
    // Or what is in flight may not be sent again.
    let mut world = World::new([&[Op::Atomic], &[]], &config(), LIMITS);
    world.take(Step::Post(0));
    world.lose_links(0, Nic::Default);
    assert_eq!(states(&world)[0], SendState::Default);
    run(&mut world, 10);
    assert_eq!(world.sides[0].done, [(0, true)]);
    world.lose_links(0, Nic::Default);
    assert_eq!(states(&world)[0], SendState::Switching);
}

#[test]
fn requests_wait_for_remote_keys() {
    let mut world = world(&[Op::Send, Op::Write, Op::Send]);
    world.sides[0].nics.keys_pending = true;
    world.take(Step::Down(Nic::Default));
    run(&mut world, 10);
    // The first message needs no key. The write, and what follows it, waits.
    assert_eq!(world.sides[0].done, [(0, true)]);
    assert_eq!(world.sides[0].machine.next_timeout(), Time::ZERO);
    run(&mut world, 509);
    assert_eq!(world.sides[0].done, [(0, true)]);
    world.sides[0].nics.keys_pending = false;
    run(&mut world, 509);
    assert_eq!(world.sides[0].done, [(0, true), (1, true), (2, true)]);
}

#[test]
fn a_remote_key_that_does_not_come_is_an_error() {
    let mut world = world(&[Op::Send, Op::Write]);
    world.sides[0].nics.keys_pending = true;
    world.take(Step::Down(Nic::Default));
    run(&mut world, 10);
    run(&mut world, 509);
    assert_eq!(world.failures()[0], None);
    run(&mut world, 510);
    assert_eq!(world.failures()[0], Some(FallbackError::UnknownRemoteKey));
    assert_eq!(world.sides[0].done, [(0, true), (1, false)]);
}

#[test]
fn without_a_store_there_are_no_remote_keys() {
    let mut world = world(&[Op::Send, Op::Write]);
    world.sides[0].nics.store_down = true;
    world.take(Step::Down(Nic::Default));
    run(&mut world, 10);
    assert_eq!(world.failures()[0], Some(FallbackError::StoreUnreachable));
}

#[test]
fn what_the_queues_do_not_take_is_refused() {
    let mut world = world(&[]);
    let side = &mut world.sides[0];
    let cap = QpCap { max_send_wr: 2, max_recv_wr: 2, max_send_sge: 2, max_recv_sge: 2 };
    side.machine = Machine::new(config(), cap, Qpn::new(1));
    let three = [Sge { addr: 0, len: 1, lkey: 0 }; 3];
    let wr = |local| GatherWr {
        wr_id: 7,
        op: SendOp::Send,
        local,
        remote: RemoteAddr::default(),
        signaled: true,
        fence: false,
    };
    let refused = side.machine.post_gather(&mut side.nics, wr(&three), false);
    assert_eq!(refused, Err(PostError::TooManySges { count: 3, max: 2 }));
    let refused = side.machine.post_recv(&mut side.nics, ScatterWr { wr_id: 7, local: &three });
    assert_eq!(refused, Err(PostError::TooManySges { count: 3, max: 2 }));
    for _ in 0..2 {
        side.machine.post_gather(&mut side.nics, wr(&three[..2]), false).expect("room");
        side.machine.post_recv(&mut side.nics, ScatterWr { wr_id: 7, local: &three[..2] }).expect("room");
    }
    let refused = side.machine.post_gather(&mut side.nics, wr(&[]), false);
    assert_eq!(refused, Err(PostError::QueueFull { max: 2 }));
    let refused = side.machine.post_recv(&mut side.nics, ScatterWr { wr_id: 7, local: &[] });
    assert_eq!(refused, Err(PostError::QueueFull { max: 2 }));
    assert_eq!((side.machine.sends_outstanding(), side.machine.recvs_outstanding()), (2, 2));
}
