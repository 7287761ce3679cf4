//! Faults over the loopback ring: what the rules say is what happens, and it repeats.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use spindrift_pmd::fault::{FaultPort, FaultStats};
use spindrift_pmd::loopback::{LoopbackConfig, LoopbackPort, pair};
use spindrift_pmd::{LinkState, Port, Tail, TxFrame};

const SOURCE_PORT: u16 = 0xc001;
const LABEL: u16 = 0x2222;

/// Faults on the sending side of plane 1, and the port at the other end.
struct Net {
    tx: FaultPort<LoopbackPort>,
    rx: LoopbackPort,
    stats: Arc<FaultStats>,
}

fn net(plan: &str, seed: u64) -> Net {
    let (mut a, mut b) = pair(2, LoopbackConfig { slots: 256, ..LoopbackConfig::default() });
    let tx = FaultPort::new(Box::new(a.remove(1)), 1, plan.parse().unwrap(), seed);
    let stats = tx.stats();
    Net { tx, rx: b.remove(1), stats }
}

/// An IPv6 frame: number `n` in the payload, operation code as given, ECT(0), 500 bytes of payload.
fn frame(n: u32, opcode: u8) -> Vec<u8> {
    let mut f = vec![0; 14 + 40 + 8 + 500];
    f[12..14].copy_from_slice(&[0x86, 0xdd]);
    (f[14], f[15]) = (0x60, 0x20);
    f[16..18].copy_from_slice(&LABEL.to_be_bytes());
    f[18..20].copy_from_slice(&508_u16.to_be_bytes());
    (f[20], f[21]) = (17, 64);
    f[54..56].copy_from_slice(&SOURCE_PORT.to_be_bytes());
    f[56..58].copy_from_slice(&4971_u16.to_be_bytes());
    f[58..60].copy_from_slice(&508_u16.to_be_bytes());
    f[62] = opcode;
    f[70..74].copy_from_slice(&n.to_be_bytes());
    f
}

fn send(port: &mut dyn Port, now_ns: u64, frames: &[Vec<u8>]) {
    let frames: Vec<_> = frames
        .iter()
        .map(|f| TxFrame {
            head: &f[..74],
            udp_payload_at: 62,
            payload: (&f[74..f.len() - 4]).into(),
            tail: (&f[f.len() - 4..]).into(),
            ticket: 0,
        })
        .collect();
    assert_eq!(port.tx_burst(now_ns, &frames), frames.len());
}

fn receive(port: &mut dyn Port, now_ns: u64) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    while port.rx_burst(now_ns, 16, &mut |frame| got.push(frame.data.to_vec())) > 0 {}
    got
}

fn numbers(frames: &[Vec<u8>]) -> Vec<u32> {
    frames.iter().map(|f| u32::from_be_bytes(f[70..74].try_into().unwrap())).collect()
}

fn stat(stats: &FaultStats, name: &str) -> u64 {
    stats.list().into_iter().find(|(n, _)| *n == name).unwrap().1
}

#[test]
fn the_same_seed_gives_the_same_faults_and_another_seed_others() {
    let run = |seed| {
        let mut net =
            net("loss=10%,dup=10%,reorder=10%:3us,corrupt=10%,delay=1us:2us,ecn=10%,trim=10%", seed);
        let mut all = Vec::new();
        for step in 0..200_u32 {
            let now = u64::from(step) * 1000;
            send(&mut net.tx, now, &[frame(step * 2, 0xc7), frame(step * 2 + 1, 0xc7)]);
            all.push(receive(&mut net.rx, now));
        }
        (all, net.stats.list())
    };
    let (a, b, c) = (run(1), run(1), run(2));
    assert!(a == b);
    assert!(a != c);
    assert!(a.1.iter().filter(|(_, n)| *n > 0).count() >= 7, "{:?}", a.1);
}

#[test]
fn loss_takes_its_share() {
    let mut net = net("loss=20%", 3);
    for n in 0..100 {
        send(&mut net.tx, 0, &vec![frame(n, 0xc7); 100]);
        receive(&mut net.rx, 0);
    }
    let lost = net.stats.lost.load(Ordering::Relaxed);
    assert!((1800..2200).contains(&lost), "{lost} of 10000");
    assert_eq!(net.tx.counters().tx_frames + lost, 10_000);
}

/// Each name takes the operation codes of its operation, and no others.
#[test]
fn a_rule_names_operations() {
    let codes: Vec<u8> = (0xc0..=0xdf).collect();
    let frames: Vec<_> = codes.iter().map(|&code| frame(code.into(), code)).collect();
    let lost = |name: &str| {
        let mut net = net(&format!("loss=100%,opcode={name}"), 1);
        let mut arrived = Vec::new();
        for frame in frames.chunks(8) {
            send(&mut net.tx, 0, frame);
            arrived.extend(numbers(&receive(&mut net.rx, 0)));
        }
        codes.iter().copied().filter(|&code| !arrived.contains(&code.into())).collect::<Vec<_>>()
    };
    for (name, codes) in [
        ("send", 0xc0..=0xc5),
        ("write", 0xc6..=0xcb),
        ("read-request", 0xcc..=0xcc),
        ("read-response", 0xcd..=0xd0),
        ("ack", 0xd1..=0xd1),
        ("atomic-response", 0xd2..=0xd2),
        ("atomic", 0xd3..=0xd4),
        ("send-invalidate", 0xd6..=0xd7),
        ("endpoint-request", 0xd8..=0xd8),
        ("endpoint-response", 0xd9..=0xd9),
        ("sack", 0xdc..=0xdc),
        ("nack", 0xdd..=0xdd),
        ("probe", 0xde..=0xde),
    ] {
        assert_eq!(lost(name), codes.collect::<Vec<u8>>(), "{name}");
    }
    assert_eq!(lost("read-request|atomic"), [0xcc, 0xd3, 0xd4]);
}

#[test]
fn selectors_pick_plane_ev_opcode_and_time() {
    let all = [frame(0, 0xc7), frame(1, 0xdc), frame(2, 0xdd)];
    let arriving = |plan: &str, now: u64| {
        let mut net = net(plan, 1);
        send(&mut net.tx, 5_000, &[]);
        send(&mut net.tx, 5_000 + now, &all);
        numbers(&receive(&mut net.rx, 5_000 + now))
    };
    assert_eq!(arriving("blackhole,port=1", 0), [0; 0]);
    assert_eq!(arriving("blackhole,port=0", 0), [0, 1, 2]);
    assert_eq!(arriving("blackhole,opcode=write", 0), [1, 2]);
    assert_eq!(arriving("blackhole,opcode=sack|nack", 0), [0]);
    assert_eq!(arriving("blackhole,opcode=0xdc", 0), [0, 2]);
    assert_eq!(arriving("blackhole,ev=0xc001", 0), [0; 0]);
    assert_eq!(arriving("blackhole,ev=0xc0012222", 0), [0; 0]);
    assert_eq!(arriving("blackhole,ev=0xc0012223", 0), [0, 1, 2]);
    assert_eq!(arriving("blackhole,ev=49154", 0), [0, 1, 2]);
    // Times count from the first call, at 5 us.
    assert_eq!(arriving("blackhole,from=2us,until=3us", 1_999), [0, 1, 2]);
    assert_eq!(arriving("blackhole,from=2us,until=3us", 2_000), [0; 0]);
    assert_eq!(arriving("blackhole,from=2us,until=3us", 3_000), [0, 1, 2]);
    assert_eq!(arriving("blackhole,dir=rx", 0), [0, 1, 2]);
    // Counted are those that the rule selects.
    assert_eq!(arriving("blackhole,after=2", 0), [0, 1]);
    assert_eq!(arriving("blackhole,after=1,opcode=sack|nack", 0), [0, 1]);
    assert_eq!(arriving("blackhole,after=1; blackhole,after=1", 0), [0]);
    assert_eq!(arriving("blackhole,after=1,port=1", 0), [0]);
    assert_eq!(arriving("blackhole,after=1,from=2us", 1_999), [0, 1, 2]);
    assert_eq!(arriving("blackhole,opcode=nack; blackhole,opcode=sack", 0), [0]);
}

#[test]
fn reordered_frames_are_overtaken_and_come_at_their_time() {
    let mut net = net("reorder=100%:50us,opcode=sack", 1);
    send(&mut net.tx, 1_000, &[frame(0, 0xdc), frame(1, 0xc7), frame(2, 0xdc), frame(3, 0xc7)]);
    assert_eq!(numbers(&receive(&mut net.rx, 1_000)), [1, 3]);
    assert_eq!(net.tx.next_event_ns(), Some(51_000));
    net.tx.flush(50_999);
    assert!(receive(&mut net.rx, 50_999).is_empty());
    net.tx.flush(51_000);
    assert_eq!(numbers(&receive(&mut net.rx, 51_000)), [0, 2]);
    assert_eq!((net.tx.next_event_ns(), stat(&net.stats, "reordered")), (None, 2));
}

#[test]
fn delay_without_jitter_keeps_order_and_bytes() {
    let mut net = net("delay=20us", 1);
    let sent: Vec<_> = (0..50).map(|n| frame(n, 0xc7)).collect();
    send(&mut net.tx, 0, &sent);
    net.tx.flush(19_999);
    assert!(receive(&mut net.rx, 0).is_empty());
    // Any call that tells the time releases.
    net.tx.tx_room(20_000);
    assert_eq!(receive(&mut net.rx, 0), sent);
}

#[test]
fn jitter_stays_in_its_range() {
    let mut net = net("delay=20us:5us", 9);
    for n in 0..100 {
        send(&mut net.tx, 0, &[frame(n, 0xc7)]);
    }
    net.tx.flush(19_999);
    assert!(receive(&mut net.rx, 0).is_empty());
    net.tx.flush(22_500);
    let early = receive(&mut net.rx, 0).len();
    assert!((20..80).contains(&early), "{early}");
    net.tx.flush(25_000);
    assert_eq!(receive(&mut net.rx, 0).len(), 100 - early);
}

#[test]
fn doubles_are_whole() {
    let mut net = net("dup=100%", 1);
    send(&mut net.tx, 0, &[frame(7, 0xc7), frame(8, 0xc7)]);
    let mut got = numbers(&receive(&mut net.rx, 0));
    got.sort_unstable();
    assert_eq!(got, [7, 7, 8, 8]);
}

#[test]
fn corruption_flips_one_to_four_bits_behind_the_ethernet_header() {
    let mut net = net("corrupt=100%", 4);
    let mut seen = [0; 5];
    for n in 0..300 {
        let sent = frame(n, 0xc7);
        send(&mut net.tx, 0, std::slice::from_ref(&sent));
        let got = &receive(&mut net.rx, 0)[0];
        assert_eq!((got.len(), &got[..14]), (sent.len(), &sent[..14]));
        let flipped: u32 = got.iter().zip(&sent).map(|(a, b)| (a ^ b).count_ones()).sum();
        seen[flipped as usize] += 1;
    }
    assert!(seen[0] == 0 && seen[1..].iter().all(|&n| n > 30), "{seen:?}");
}

#[test]
fn ecn_sets_ce_and_trim_cuts_as_switches_do() {
    let mut net = net("ecn=100%,opcode=sack; trim=100%,opcode=write", 1);
    send(&mut net.tx, 0, &[frame(1, 0xdc), frame(2, 0xc7)]);
    let got = receive(&mut net.rx, 0);
    let mut marked = frame(1, 0xdc);
    marked[15] |= 0x30;
    assert_eq!(got[0], marked);
    let cut = etherparse::LaxPacketHeaders::from_ethernet(&got[1]).unwrap();
    let Some(etherparse::NetHeaders::Ipv6(ip, _)) = cut.net else { panic!("{cut:?}") };
    assert_eq!((got[1].len(), ip.payload_length, ip.traffic_class), (128, 74, 12 << 2 | 2));
    assert_eq!(cut.transport.unwrap().udp().unwrap().length, 508);
    assert_eq!(got[1][62..128], frame(2, 0xc7)[62..128]);
    assert_eq!((stat(&net.stats, "ecn_marked"), stat(&net.stats, "ecn_not_capable")), (1, 0));
}

#[test]
fn down_takes_both_directions_and_reports() {
    let mut net = net("down,port=1,from=10us,until=20us", 1);
    send(&mut net.tx, 0, &[frame(0, 0xc7)]);
    assert_eq!((net.tx.link(), net.tx.next_event_ns()), (LinkState::Up, Some(10_000)));
    send(&mut net.tx, 10_000, &[frame(1, 0xc7)]);
    send(&mut net.rx, 10_000, &[frame(2, 0xc7)]);
    assert!(receive(&mut net.tx, 10_000).is_empty());
    assert_eq!((net.tx.link(), net.tx.next_event_ns()), (LinkState::Down, Some(20_000)));
    send(&mut net.tx, 20_000, &[frame(3, 0xc7)]);
    send(&mut net.rx, 20_000, &[frame(4, 0xc7)]);
    assert_eq!(net.tx.link(), LinkState::Up);
    assert_eq!(numbers(&receive(&mut net.rx, 20_000)), [0, 3]);
    assert_eq!(numbers(&receive(&mut net.tx, 20_000)), [4]);
    assert_eq!(stat(&net.stats, "down"), 2);
}

#[test]
fn the_receiving_side_has_the_same_faults() {
    let mut net = net(
        "delay=5us,dir=rx,opcode=write; dup=100%,dir=rx,opcode=sack; loss=100%,dir=rx,opcode=nack; trim=100%:100,dir=rx,opcode=probe",
        1,
    );
    send(&mut net.rx, 0, &[frame(0, 0xc7), frame(1, 0xdc), frame(2, 0xdd), frame(3, 0xde)]);
    let got = receive(&mut net.tx, 0);
    assert_eq!(numbers(&got), [1, 3, 1]);
    assert_eq!(got[1].len(), 100);
    assert_eq!(net.tx.next_event_ns(), Some(5_000));
    assert_eq!(receive(&mut net.tx, 5_000), [frame(0, 0xc7)]);
}

#[test]
fn a_full_port_below_loses_nothing() {
    let (mut a, mut b) = pair(1, LoopbackConfig { slots: 4, ..LoopbackConfig::default() });
    let mut tx = FaultPort::new(Box::new(a.remove(0)), 0, "dup=100%,reorder=50%:1us".parse().unwrap(), 1);
    let frames: Vec<_> = (0..20).map(|n| frame(n, 0xc7)).collect();
    let borrowed: Vec<_> = frames
        .iter()
        .map(|f| TxFrame {
            head: &f[..62],
            udp_payload_at: 62,
            payload: (&f[62..]).into(),
            tail: (&[]).into(),
            ticket: 0,
        })
        .collect();
    let (mut sent, mut got) = (0, Vec::new());
    for step in 0..100 {
        sent += tx.tx_burst(step * 1000, &borrowed[sent..]);
        tx.flush(step * 1000);
        got.extend(numbers(&receive(&mut b[0], 0)));
    }
    got.sort_unstable();
    assert_eq!(got, (0..20).flat_map(|n| [n, n]).collect::<Vec<_>>());
    assert_eq!(stat(&tx.stats(), "overflow"), 0);
}

/// Every frame comes out once: over the port, or back to the caller with its number in the burst.
#[test]
fn a_full_queue_gives_frames_back() {
    for plan in ["full=30%", "full=30%;ecn=30%", "full=30%;delay=1us", "loss=20%;full=30%"] {
        let mut net = net(plan, 5);
        let (mut given_back, mut lost) = (0, 0);
        for round in 0..40_u32 {
            let frames: Vec<_> = (0..20).map(|i| frame(round * 20 + i, 0xca)).collect();
            let now_ns = u64::from(round) * 10_000;
            send(&mut net.tx, now_ns, &frames);
            let kept: Vec<u32> = net.tx.unsent().iter().map(|&i| round * 20 + u32::from(i)).collect();
            assert!(kept.is_sorted() && kept.iter().all(|n| n / 20 == round), "{plan}: {kept:?}");
            net.tx.flush(now_ns + 5_000);
            let number = |data: &Vec<u8>| u32::from_be_bytes(data[70..74].try_into().unwrap());
            let got: Vec<u32> = receive(&mut net.rx, now_ns + 5_000).iter().map(number).collect();
            assert!(got.iter().all(|n| !kept.contains(n)), "{plan}: {kept:?} and {got:?}");
            given_back += kept.len();
            lost += frames.len() - kept.len() - got.len();
        }
        let stat = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed) as usize;
        assert_eq!((given_back, lost), (stat(&net.stats.unsent), stat(&net.stats.lost)), "{plan}");
        assert!((100..400).contains(&given_back), "{plan}: {given_back}");
    }
}

/// What the port below has no room for goes back by its number, too.
#[test]
fn frames_that_the_port_below_gives_back_keep_their_numbers() {
    let (mut low, mut high) = pair(1, LoopbackConfig { slots: 256, ..LoopbackConfig::default() });
    let below = FaultPort::new(Box::new(low.remove(0)), 0, "full=40%".parse().unwrap(), 1);
    let mut above = FaultPort::new(Box::new(below), 0, "ecn=20%,full=10%".parse().unwrap(), 2);
    let mut rx = high.remove(0);
    for round in 0..40_u32 {
        let frames: Vec<_> = (0..20).map(|i| frame(round * 20 + i, 0xca)).collect();
        send(&mut above, 0, &frames);
        let mut all: Vec<u32> = above.unsent().iter().map(|&i| round * 20 + u32::from(i)).collect();
        let number = |data: &Vec<u8>| u32::from_be_bytes(data[70..74].try_into().unwrap());
        all.extend(receive(&mut rx, 0).iter().map(number));
        all.sort_unstable();
        assert!(all.into_iter().eq(round * 20..round * 20 + 20), "round {round}");
    }
}

/// Frames that are held are copied with the tail that the port below would have computed.
#[test]
fn a_held_frame_has_its_checksum() {
    let mut net = net("delay=5us", 1);
    let whole = frame(7, 0xc7);
    let payload = (&whole[74..]).into();
    let sent = TxFrame {
        head: &whole[..74],
        udp_payload_at: 62,
        payload,
        tail: Tail::Crc32(0x1234_5678),
        ticket: 0,
    };
    assert_eq!(net.tx.tx_burst(0, &[sent]), 1);
    net.tx.flush(6_000);
    let mut crc = crc32fast::Hasher::new_with_initial(0x1234_5678);
    crc.update(&whole[74..]);
    let expected = [&whole[..], &crc.finalize().to_le_bytes()].concat();
    assert_eq!(receive(&mut net.rx, 6_000), [expected]);
}
