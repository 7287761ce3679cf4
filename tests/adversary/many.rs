//! Ten thousand queue pairs in one endpoint.

use spindrift::endpoint::{EndpointConfig, QpCap, QpInit};
use spindrift::memory::Access;
use spindrift::path::PathConfig;
use spindrift::time::Time;
use spindrift::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge};

use crate::bench::{PEER, VICTIM, completions, config, init, region};
use crate::support::link::Link;
use crate::support::net::Net;
use crate::support::pair::{self, Patience};

const PAIRS: u64 = 10_000;
const SIZE: u64 = 600;

#[test]
fn ten_thousand_queue_pairs_each_carry_data_both_ways() {
    let mut net = Net::new(5, vec![Link { loss: 100, ..Link::clean(3_000) }; 2]);
    net.heal_at = Time(1_000_000_000);
    net.max_steps = 20_000_000;
    for node in [VICTIM, PEER] {
        net.add(EndpointConfig { ..config(node) });
    }
    let pds = [VICTIM, PEER].map(|node| net.endpoint(node).alloc_pd());
    let sources = [VICTIM, PEER].map(|node| {
        region(&mut net, node, pds[node], (1 << 20, (PAIRS * SIZE) as usize), Access::LOCAL_READ)
    });
    let targets = [VICTIM, PEER].map(|node| {
        region(&mut net, node, pds[node], (1 << 40, (PAIRS * SIZE) as usize), Access::REMOTE_WRITE)
    });
    let mut ends = Vec::new();
    for _ in 0..PAIRS {
        let pair = [VICTIM, PEER].map(|node| {
            let path = PathConfig { active: 8, backup: 4, ..PathConfig::new(2) };
            let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
            pair::create(&mut net, node, QpInit { path, cap, ..init(pds[node]) })
        });
        pair::connect(&mut net, pair[0], pair[1], Patience::default());
        ends.push(pair);
    }
    for (n, pair) in (0..).zip(&ends) {
        for from in [VICTIM, PEER] {
            let (to, now) = (1 - from, net.now);
            net.endpoint(to).post_recv(pair[to].qpn, RecvWr::empty(n)).unwrap();
            let wr = SendWr {
                wr_id: n,
                op: SendOp::WriteWithImm(n as u32),
                local: Sge { addr: (1 << 20) + n * SIZE, len: SIZE as u32, lkey: sources[from].key.lkey },
                remote: RemoteAddr { addr: (1 << 40) + n * SIZE, rkey: targets[to].key.rkey },
                signaled: true,
                fence: false,
            };
            net.endpoint(from).post_send(now, pair[from].qpn, wr).unwrap();
        }
    }
    net.pump(VICTIM);
    net.pump(PEER);
    let mut completed = [vec![], vec![]];
    let done = net.run_until(|net| {
        for node in [VICTIM, PEER] {
            completed[node].extend(completions(&net.take_events(node)));
        }
        completed.iter().all(|all| all.len() as u64 >= 2 * PAIRS)
    });
    assert!(done, "{} {} completions: {}", completed[0].len(), completed[1].len(), net.why_stopped());
    for node in [VICTIM, PEER] {
        assert!(completed[node].iter().all(|wc| wc.status.is_success()));
        let differs = targets[node].region.first_difference(0, &sources[1 - node].expected).unwrap();
        assert_eq!(differs, None, "node {node}");
    }
}
