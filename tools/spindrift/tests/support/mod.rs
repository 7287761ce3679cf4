//! What the tests of the command share: running it, and a capture with every kind of packet.

#![allow(dead_code, reason = "not every test file uses all of it")]

pub(crate) mod lab;
pub(crate) mod pauses;
pub(crate) mod program;
pub(crate) mod raw;

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use spindrift::wire::{
    Aeth, AtomicOperands, Bth, CcState, DataHead, Eeth, EndpointOp, Entropy, Erth, Ev, Mark, Meth, Msn,
    NackReason, NakCode, Neth, OpPosition, Opcode, Packet, Peth, Psn, Qpn, Reth, Seth, StackTemplate, Tseth,
    icrc,
};
use spindrift_pmd::MacAddr;
use spindrift_pmd::pcap::Capture;

/// The command, ready for arguments.
pub(crate) fn spindrift() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spindrift"));
    command.env_remove("SPINDRIFT_LOG");
    command
}

/// Runs the command to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    spindrift().args(args).output().expect("the command starts")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// The JSON object that a command printed.
pub(crate) fn json(text: &[u8]) -> serde_json::Value {
    serde_json::from_slice(text).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(text)))
}

/// A command that cannot be run says so in a line with these parts.
pub(crate) fn refused(args: &[&str], parts: &[&str]) {
    let output = run(args);
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{args:?}: {error}");
}

/// A path for a file of this test.
pub(crate) fn temp(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

/// A frame around MRC headers and payload. IPv4 addresses give an IPv4 frame.
pub(crate) struct Envelope {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) dst_port: u16,
    pub(crate) class: u8,
    pub(crate) src_port: u16,
    pub(crate) flow_label: u32,
}

impl Envelope {
    pub(crate) fn v6() -> Self {
        Self {
            src: "fd00::1".parse().unwrap(),
            dst: "fd00::2".parse().unwrap(),
            dst_port: 4971,
            class: 0,
            src_port: 0xc001,
            flow_label: 0x1234,
        }
    }

    pub(crate) fn v4() -> Self {
        Self { src: "10.0.0.1".parse().unwrap(), dst: "10.0.0.2".parse().unwrap(), ..Self::v6() }
    }

    pub(crate) fn frame(&self, packet: &Packet<'_>) -> Vec<u8> {
        let mut mrc = [0; 64];
        let head_len = packet.encode_head(&mut mrc);
        assert_ne!(head_len, 0);
        let (payload, pad): (&[u8], &[u8]) = match packet {
            Packet::Data { payload, pad, .. } => (payload, pad),
            _ => (&[], &[]),
        };
        let template = StackTemplate::new(
            MacAddr([2, 0, 0, 0, 0, 1]),
            MacAddr([2, 0, 0, 0, 0, 2]),
            self.src,
            self.dst,
            self.dst_port,
            64,
        )
        .unwrap();
        let mut frame = vec![0; template.header_len()];
        let udp_len = head_len + payload.len() + pad.len() + 4;
        let entropy = Entropy { src_port: self.src_port, flow_label: self.flow_label };
        assert_ne!(template.write(&mut frame, entropy, self.class, udp_len), 0);
        frame.extend(&mrc[..head_len]);
        let crc = icrc::compute(&frame[14..], payload, pad);
        frame.extend(payload);
        frame.extend(pad);
        frame.extend(crc);
        frame
    }
}

fn bth(opcode: Opcode, psn: u32) -> Bth {
    Bth::new(opcode, Qpn::new(0x42), Psn::new(psn))
}

fn write(opcode: Opcode, psn: u32, payload: &'static [u8]) -> Packet<'static> {
    let pad = &[0u8; 3][..(4 - payload.len() % 4) % 4];
    let ts = psn.is_multiple_of(2);
    let head = DataHead {
        bth: Bth { pad: pad.len() as u8, ts, ack_req: opcode.is_last(), rtx: psn == 257, ..bth(opcode, psn) },
        meth: Meth { rqmsn: Msn::new(if opcode.has_imm() { 7 } else { 0 }), msn: Msn::new(9) },
        tseth: ts.then(|| Tseth::new(0x1234)),
        reth: Reth { va: 0x7f00_0000_1000 + u64::from(psn), rkey: 0xdead_beef, dma_len: 4099 },
        imm: opcode.has_imm().then_some(0xcafe_f00d),
        operands: None,
    };
    Packet::Data { head, payload, pad }
}

fn sack() -> Packet<'static> {
    let seth = Seth {
        mark: Mark::SkipOnce,
        ack_psn_offset: 3,
        entropy: Ev(0xc001_1234),
        spdcid: 0x41,
        dpdcid: 0x42,
        cack: Psn::new(255),
        mpr: 8,
        sack_offset: 1,
        bitmap: 0x8000_0000_0000_0006,
        cc: CcState { tx_timestamp: 0x1234, ooo_count: 2, rcvd_bytes: 77, ..CcState::default() },
        ..Seth::default()
    };
    Packet::Sack { bth: bth(Opcode::Sack, 255), seth }
}

/// A header with every field at a value of its own, reserved ones too.
fn odd(opcode: Opcode) -> Bth {
    Bth {
        solicited: true,
        migrated: true,
        tver: 5,
        pkey: 0x7fff,
        var_res: 0xa5,
        reserved: true,
        inv_res: 9,
        ..bth(opcode, 0xff_ffff)
    }
}

fn odd_write() -> Packet<'static> {
    let tseth = Tseth { tsr: true, reserved: 0x7ff, ftype: 2, timestamp: 0xffff };
    let head = DataHead {
        bth: Bth { ts: true, ..odd(Opcode::WriteMiddle) },
        meth: Meth { rqmsn: Msn::new(0xffff), msn: Msn::new(0xfffe) },
        tseth: Some(tseth),
        reth: Reth { va: u64::MAX, rkey: u32::MAX, dma_len: u32::MAX },
        imm: None,
        operands: None,
    };
    Packet::Data { head, payload: b"all the fields are odd here!", pad: &[] }
}

fn odd_sack() -> Packet<'static> {
    let seth = Seth {
        reserved0: 0xff9d,
        mark: Mark::AlwaysSkip,
        pr: true,
        ack_psn_offset: -2,
        entropy: Ev(u32::MAX),
        spdcid: 0xfffe,
        dpdcid: 0xfffd,
        reserved12: 0xee,
        cack: Psn::new(0xff_fffe),
        cc_type: 3,
        cc_flags: 0xc,
        mpr: 255,
        sack_offset: -64,
        bitmap: u64::MAX,
        cc: CcState {
            tx_timestamp: 0xffff,
            reserved: true,
            ooo_count: 0x7fff,
            restore_cwnd: true,
            cwnd_penalty: 0x7f,
            rcvd_bytes: 0xff_ffff,
        },
    };
    Packet::Sack { bth: odd(Opcode::Sack), seth }
}

fn odd_nack() -> Packet<'static> {
    let neth = Neth {
        reserved0: 0x1122,
        reason: 0x42,
        vendor_info: 0x33,
        reserved12: 0x44,
        cc_flags: 5,
        reserved17: 0x55,
        tx_timestamp: 0x6677,
        spdcid: 1,
        dpdcid: 2,
        ..Neth::new(NackReason::Other(0x42), Psn::new(0x12_3456), Ev(0x0102_0304))
    };
    Packet::Nack { bth: odd(Opcode::Nack), neth }
}

/// Packets as no sender would send them.
fn odd_ones() -> Vec<Packet<'static>> {
    let peth = Peth {
        reserved0: 0x1111,
        reserved2: 0x22,
        vendor_info: 0x33,
        reserved6: 0x4444,
        tsr: true,
        reserved14: 0x7ff,
        ftype: 0xf,
        ..Peth::default()
    };
    let erth = Erth {
        reserved0: 0xfffc,
        op: EndpointOp::Reserved3,
        reserved2: 0x11,
        vendor_info: 0x22,
        reserved8: 0x3344_5566,
        tsr: true,
        reserved14: 0x555,
        ..Erth::default()
    };
    let eeth = Eeth {
        reserved0: 0xff83,
        reserved2: [0xab; 26],
        reserved30: [0xcd; 6],
        ..Eeth::new(EndpointOp::EvProbe, OpPosition::Bits5To4, 0x4321)
    };
    vec![
        odd_write(),
        Packet::Ack { bth: odd(Opcode::Ack), aeth: Aeth { syndrome: 0xff, msn: 0xff_ffff } },
        odd_sack(),
        odd_nack(),
        Packet::Probe { bth: odd(Opcode::Probe), peth },
        Packet::EndpointRequest { bth: odd(Opcode::EndpointRequest), erth },
        Packet::EndpointResponse { bth: odd(Opcode::EndpointResponse), eeth },
    ]
}

/// Every kind of packet as a sender would send it.
fn usual_ones() -> Vec<Packet<'static>> {
    let trimmed = Neth {
        spdcid: 0x41,
        dpdcid: 0x42,
        tx_timestamp: 7,
        ..Neth::new(NackReason::Trimmed, Psn::new(258), Ev(0xc002_0001))
    };
    let peth = Peth { probe_id: 5, spdcid: 0x41, dpdcid: 0x42, tx_timestamp: 99, ..Peth::default() };
    let erth = Erth { port_status_mask: 0xd, tx_timestamp: 3, ..Erth::default() };
    let eeth = Eeth::new(EndpointOp::PortStatusUpdate, OpPosition::Bits3To2, 3);
    let endpoint = |opcode| Bth::new(opcode, Qpn::new(2), Psn::new(0x1001));
    vec![
        write(Opcode::WriteFirst, 256, &[0x5a; 64]),
        write(Opcode::WriteMiddle, 257, &[0xa5; 64]),
        write(Opcode::WriteLast, 258, b"odd"),
        write(Opcode::WriteLastImm, 259, b"12345"),
        write(Opcode::WriteOnly, 260, b"x"),
        write(Opcode::WriteOnlyImm, 261, b"12345678"),
        Packet::Ack { bth: bth(Opcode::Ack, 261), aeth: Aeth::ack(9) },
        Packet::Ack { bth: bth(Opcode::Ack, 261), aeth: Aeth::nak(NakCode::RemoteAccess, 9) },
        sack(),
        Packet::Nack { bth: bth(Opcode::Nack, 258), neth: trimmed },
        Packet::Probe { bth: bth(Opcode::Probe, 0), peth },
        Packet::EndpointRequest { bth: endpoint(Opcode::EndpointRequest), erth },
        Packet::EndpointResponse { bth: endpoint(Opcode::EndpointResponse), eeth },
    ]
}

/// Every kind of packet of the operations that are extensions, and RNR NACKs with a short, a usual and the longest wait.
fn extended_ones() -> Vec<Packet<'static>> {
    use Opcode::*;
    let data = |opcode: Opcode, psn: u32, (va, dma_len): (u64, u32), payload: &'static [u8]| {
        let pad = &[0u8; 3][..(4 - payload.len() % 4) % 4];
        let word = match opcode {
            _ if opcode.has_imm() => Some(0xcafe_f00d),
            _ if opcode.invalidates() => Some(0x8765_4321),
            _ => None,
        };
        let operands = AtomicOperands { swap_or_add: 0x0102_0304_0506_0708, compare: u64::MAX - 1 };
        let head = DataHead {
            bth: Bth { pad: pad.len() as u8, ts: psn.is_multiple_of(2), ..bth(opcode, psn) },
            meth: Meth { rqmsn: Msn::new(7), msn: Msn::new(9) },
            tseth: psn.is_multiple_of(2).then(|| Tseth::new(0x1234)),
            reth: Reth { va, rkey: 0xdead_beef, dma_len },
            imm: word,
            operands: opcode.has_operands().then_some(operands),
        };
        Packet::Data { head, payload, pad }
    };
    let parts = [
        [SendFirst, SendMiddle, SendLast],
        [SendFirst, SendMiddle, SendLastImm],
        [SendFirst, SendMiddle, SendLastInvalidate],
        [ReadResponseFirst, ReadResponseMiddle, ReadResponseLast],
    ];
    let mut packets = Vec::new();
    for (n, opcode) in (0..).zip(parts.concat()) {
        let at = n % 3;
        let payload: &[u8] = if at == 2 { b"odd" } else { &[0x5a; 64] };
        packets.push(data(opcode, 300 + n, (64 * u64::from(at), 131), payload));
    }
    for (n, opcode) in
        (320..).zip([SendOnly, SendOnlyImm, SendOnlyInvalidate, ReadResponseOnly, AtomicResponse])
    {
        packets.push(data(opcode, n, (0, 8), b"12345678"));
    }
    // Messages without bytes.
    for (n, opcode) in (330..).zip([SendOnly, SendOnlyImm, SendOnlyInvalidate, ReadResponseOnly, WriteOnly]) {
        packets.push(data(opcode, n, (0, 0), b""));
    }
    for (n, opcode, len) in
        [(340, ReadRequest, u32::MAX), (341, ReadRequest, 0), (342, CompareSwap, 8), (343, FetchAdd, 8)]
    {
        packets.push(data(opcode, n, (0x7f00_0000_1000, len), b""));
    }
    for (psn, vendor_info) in [(350, 1), (351, 12), (352, 0), (353, 0xff)] {
        let neth = Neth { vendor_info, ..Neth::new(NackReason::NoResource, Psn::new(psn), Ev(0xc002_0001)) };
        packets.push(Packet::Nack { bth: bth(Nack, psn), neth });
    }
    packets
}

/// A write cut by a switch after `len` bytes of frame: IP length corrected, UDP length as it was.
fn trimmed(dscp: u8, len: usize) -> Vec<u8> {
    let envelope = Envelope { class: dscp << 2, ..Envelope::v6() };
    let mut frame = envelope.frame(&write(Opcode::WriteFirst, 264, &[0x5a; 64]));
    frame.truncate(len);
    let ip_payload = (len - 54) as u16;
    frame[18..20].copy_from_slice(&ip_payload.to_be_bytes());
    frame
}

/// The frames of the capture that [`write_capture`] makes.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let mut frames: Vec<_> = usual_ones().iter().map(|packet| Envelope::v6().frame(packet)).collect();
    frames.extend(
        odd_ones().iter().map(|packet| Envelope { dst_port: 4791, class: 3, ..Envelope::v4() }.frame(packet)),
    );
    let mut bad = Envelope::v6().frame(&sack());
    *bad.last_mut().unwrap() ^= 1;
    frames.push(bad);
    frames.push(trimmed(12, 98));
    frames.push(trimmed(16, 82));
    // A control packet with an iCRC, but cut in the middle by its sender.
    let mut short = Envelope::v6();
    short.dst_port = 4971;
    let whole = short.frame(&sack());
    frames.push(shortened(&whole, 10));
    frames.extend(extended_ones().iter().map(|packet| Envelope::v6().frame(packet)));
    frames
}

/// The frame with `less` bytes missing from the end of its UDP payload, all lengths right.
fn shortened(frame: &[u8], less: usize) -> Vec<u8> {
    let mut frame = frame[..frame.len() - less].to_vec();
    let udp_len = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&udp_len.to_be_bytes());
    frame[58..60].copy_from_slice(&udp_len.to_be_bytes());
    frame
}

/// Writes a capture with every kind of packet, and one frame that is something else.
pub(crate) fn write_capture(name: &str) -> PathBuf {
    let path = temp(name);
    let capture = Capture::create(&path, 1_700_000_000_000_000_000).expect("the capture can be created");
    capture.record(0, &[(&[0xff; 14]).into(), b"not IP".into()]);
    for (number, frame) in frames().iter().enumerate() {
        capture.record(number as u64 * 1000 + 1, &[frame.into()]);
    }
    capture.flush();
    path
}

/// A capture of these frames, as they are.
pub(crate) fn capture_of(name: &str, frames: &[Vec<u8>]) -> PathBuf {
    let path = temp(name);
    let capture = Capture::create(&path, 0).unwrap();
    for frame in frames {
        capture.record(1, &[frame.into()]);
    }
    capture.flush();
    path
}

/// The frame with extension headers between IPv6 and UDP: pairs of protocol number and body.
pub(crate) fn with_extensions(frame: &[u8], headers: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let mut next = 17;
    for (protocol, body) in headers.iter().rev() {
        let mut header = vec![next, (body.len() + 2) as u8 / 8 - 1];
        header.extend(body);
        frame.splice(54..54, header);
        next = *protocol;
    }
    frame[20] = next;
    let len = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame
}

/// A frame around an IPv4 packet of this protocol.
fn ipv4_around(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len()) as u16;
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(len.to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    frame.extend(payload);
    frame
}

/// A frame around a datagram to this port.
pub(crate) fn udp_around(port: u16, payload: &[&[u8]]) -> Vec<u8> {
    let payload = payload.concat();
    let len = (8 + payload.len()) as u16;
    let head = [0xc000u16.to_be_bytes(), port.to_be_bytes(), len.to_be_bytes(), [0, 0]].concat();
    ipv4_around(17, &[head, payload].concat())
}

/// A frame around a GRE packet.
pub(crate) fn gre_around(header: &[u8], inside: &[u8]) -> Vec<u8> {
    ipv4_around(47, &[header, inside].concat())
}

/// The frame in every encapsulation that is looked through, with its name.
pub(crate) fn encapsulated(frame: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let (ip, kind) = (&frame[14..], &frame[12..14]);
    let typed = |kind: [u8; 2], rest: &[u8]| [&[2; 12], &kind[..], rest].concat();
    let vxlan = udp_around(4789, &[&[8, 0, 0, 0, 0, 0, 7, 0], frame]);
    let geneve_ip = udp_around(6081, &[&[1, 0], kind, &[0, 0, 7, 0, 1, 2, 3, 0], ip]);
    let (low, bottom) = ([0, 1, 0x40, 64], [0, 1, 0x51, 64]);
    vec![
        ("VXLAN", vxlan.clone()),
        ("GENEVE", udp_around(6081, &[&[0, 0, 0x65, 0x58, 0, 0, 7, 0], frame])),
        ("GENEVE", geneve_ip),
        ("GRE", gre_around(&[&[0, 0], kind].concat(), ip)),
        ("GRE", gre_around(&[0x30, 0, 0x65, 0x58, 0, 0, 0, 7, 0, 0, 0, 1], frame)),
        ("ERSPAN", gre_around(&[0, 0, 0x88, 0xbe], frame)),
        ("ERSPAN", gre_around(&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 1, 0, 1, 0, 0, 0, 0], frame)),
        ("ERSPAN", gre_around(&[&[0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20][..], &[0; 11]].concat(), frame)),
        (
            "ERSPAN",
            gre_around(
                &[&[0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20][..], &[0; 10], &[1], &[0; 8]].concat(),
                frame,
            ),
        ),
        ("MPLS", typed([0x88, 0x47], &[&low[..], &bottom, ip].concat())),
        ("MPLS", typed([0x88, 0x47], &[&bottom[..], &[0; 4], frame].concat())),
        ("MPLS", typed([0x88, 0x47], &[&bottom[..], frame].concat())),
        ("VXLAN, VXLAN", udp_around(4789, &[&[8, 0, 0, 0, 0, 0, 7, 0], &vxlan])),
        ("VXLAN", typed([0x81, 0], &[&[0, 5], &vxlan[12..]].concat())),
    ]
}

/// A process that does not outlive its test: when the test fails, it is killed and waited for.
pub(crate) struct Running(Option<Child>);

impl From<Child> for Running {
    fn from(child: Child) -> Self {
        Self(Some(child))
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.spawn().expect("the command starts").into()
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it was not waited for yet")
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.as_ref().expect("it was not waited for yet").id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // Fails only if it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The signals that end a command. One that was started under `nohup`, as these tests may be, ignores that its terminal is closed.
pub(crate) fn ending_signals() -> Vec<&'static str> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignores_hang_up = u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1;
    ["-INT", "-TERM", "-HUP"].into_iter().filter(|name| *name != "-HUP" || !ignores_hang_up).collect()
}

/// Waits for the end of `process`, but no longer than `patience`; `what` names it in the failure.
pub(crate) fn end_of(process: impl Into<Running>, patience: Duration, what: &str) -> Output {
    let mut process = process.into();
    let start = Instant::now();
    while process.child().try_wait().unwrap().is_none() {
        assert!(start.elapsed() <= patience, "{what} still runs after {patience:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    process.0.take().unwrap().wait_with_output().unwrap()
}
