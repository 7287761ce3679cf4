//! Losses: what go-back-N costs (MRC paper, figures 16 and 17).

use spindrift::time::Time;
use spindrift_fabric::workload::Stream;
use spindrift_fabric::{HostId, Impairment};
use spindrift_roce::RoceSpec;
use spindrift_srv6::Node;

use crate::support::{GBPS, World, clos, endless, line, messages, nic, nic_for_losses, over, pfc};

/// The share of a port's payload that one flow has when the links to its receiver lose this share of packets.
fn share(gbps: u64, loss: f64, acks_too: bool, seed: u64) -> f64 {
    share_with(nic_for_losses(gbps), loss, acks_too, seed)
}

fn share_with(nic: RoceSpec, loss: f64, acks_too: bool, seed: u64) -> f64 {
    let gbps = nic.qp.line_bps / GBPS;
    let mut world = World::new(clos(1, 2, gbps, None, Some(pfc())), nic, seed, vec![endless([(0, 1)])]);
    let t0 = Node::T0 { plane: 0, number: 0 };
    for host in [0, 1].into_iter().filter(|&host| acks_too || host == 1) {
        let link = world.clos.link(t0, Node::Host(host)).unwrap();
        world.sim.net_mut().set_impairment(link, Impairment { loss, ..Impairment::default() });
    }
    world.run_until(20_000_000);
    let share = world.rates(0, 0, 20_000_000)[0] / line(gbps);
    let [naks, timeouts, repeats, sent] = [
        world.total(|host| host.sequence_naks),
        world.total(|host| host.timeouts),
        world.total(|host| host.repeats),
        world.total(|host| host.sent),
    ];
    println!(
        "{gbps} Gb/s, {loss}, ACKs too {acks_too}: {share:.3}, {naks} NAKs, {timeouts} timeouts, {repeats} of {sent} repeated"
    );
    share
}

/// A lost packet costs all that is sent until the NAK arrives: as many packets as fit into a round trip. So the faster the port, the more is lost. Soft-RoCE
/// has 0.55 at 1 %.
#[test]
fn go_back_n_loses_much_of_the_rate() {
    // (Gb/s, share lost, share of the rate that is left): at 1 %, a round trip of 5 us has 15 packets at 100 Gb/s, and 60 at 400.
    for (gbps, loss, left) in [
        (100, 0.0, 0.99..1.0),
        (100, 0.001, 0.96..0.99),
        (100, 0.01, 0.78..0.88),
        (400, 0.001, 0.91..0.97),
        (400, 0.01, 0.5..0.65),
    ] {
        for acks_too in [false, true] {
            let share = share(gbps, loss, acks_too, 1);
            assert!(left.contains(&share), "{gbps} Gb/s, {loss}: {share}");
        }
    }
}

/// A packet that is lost again after the requester went back has no second NAK: the timer has to find it. With the usual one of 67 ms, little is left.
#[test]
fn a_repeat_that_is_lost_waits_for_the_timer() {
    let usual = share_with(nic(400, None), 0.01, false, 1);
    assert!(usual < 0.1, "{usual}");
}

/// Messages that are lost in part are complete in the end, over several queue pairs, too, and every byte is placed once.
#[test]
fn losses_are_made_good() {
    for (qps, loss, duplicate) in [(1, 0.01, 0.0), (4, 0.01, 0.01), (16, 0.03, 0.0)] {
        let spec = over(qps, nic_for_losses(100));
        let stream = Stream::new(
            vec![(HostId(0), HostId(3)), (HostId(3), HostId(0))],
            messages(100_000, 8, Some(200)),
        );
        let mut world = World::new(clos(2, 2, 100, None, Some(pfc())), spec, 7, vec![Box::new(stream)]);
        let links: Vec<_> = world.sim.net().links().collect();
        for link in links {
            world.sim.net_mut().set_impairment(link, Impairment { loss, duplicate, ..Impairment::default() });
        }
        world.run_until(1_000_000_000);
        assert!(world.sim.is_done(), "{qps}");
        assert_eq!(world.sim.jobs()[0].done().len(), 400);
        assert_eq!(world.total(|host| host.placed_bytes), 400 * 100_000);
        assert!(world.total(|host| host.duplicates) > 0, "some came twice");
    }
}

/// A peer that does not answer: seven retries, and the flow fails on each side.
#[test]
fn a_dead_link_ends_a_flow() {
    let stream = Stream::new(vec![(HostId(0), HostId(1))], messages(100_000, 8, None));
    let spec = over(4, nic_for_losses(100));
    let mut world = World::new(clos(1, 2, 100, None, Some(pfc())), spec, 7, vec![Box::new(stream)]);
    world.run_until(100_000);
    let ends = (Node::Host(1), Node::T0 { plane: 0, number: 0 });
    assert!(world.clos.set_cable(world.sim.net_mut(), ends, false, true));
    world.sim.run(Time(10_000_000));
    let failures = world.sim.jobs()[0].failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    // Eight times 131 us after the last acknowledgement, which came a little before or after.
    let took = failures[0].at.since(Time(100_000));
    assert!(took.abs_diff(8 * 131_072) < 20_000, "{took}");
    assert_eq!(failures[0].why, "no answer, after all retries");
}

/// A sender whose own port is down sends nothing, and goes on when it is up again, if its retries last as long.
#[test]
fn a_port_that_comes_back_is_used_again() {
    let stream = Stream::new(vec![(HostId(0), HostId(1))], messages(1_000_000, 8, Some(40)));
    let spec = over(4, nic_for_losses(100));
    let mut world = World::new(clos(1, 2, 100, None, Some(pfc())), spec, 7, vec![Box::new(stream)]);
    world.run_until(100_000);
    let ends = (Node::Host(0), Node::T0 { plane: 0, number: 0 });
    assert!(world.clos.set_cable(world.sim.net_mut(), ends, false, true));
    let sent = world.total(|host| host.sent);
    world.run_until(600_000);
    assert_eq!(world.total(|host| host.sent), sent);
    assert!(world.clos.set_cable(world.sim.net_mut(), ends, true, true));
    world.run_until(10_000_000);
    assert!(world.sim.is_done());
    assert_eq!(world.total(|host| host.placed_bytes), 40_000_000);
}
