//! `spindrift dissect`, and the Wireshark dissector beside it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::slice;

use serde_json::{Value as Json, json};
use support::{
    capture_of, encapsulated, frames, gre_around, run, stderr, stdout, temp, udp_around, with_extensions,
    write_capture,
};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn dissect_json(path: &Path) -> Json {
    let output = run(&["dissect", text(path), "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// The text is compared with a file; `SPINDRIFT_BLESS=1` writes that file anew.
fn assert_golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("SPINDRIFT_BLESS").is_some() {
        fs::write(&path, found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == found,
        "{} differs; SPINDRIFT_BLESS=1 writes it anew. Found:\n{found}",
        path.display()
    );
}

#[test]
fn prints_every_kind_of_packet() {
    let capture = write_capture("golden.pcap");
    let short = run(&["dissect", text(&capture)]);
    assert!(short.status.success());
    assert_golden("dissect.txt", &stdout(&short));
    let long = run(&["dissect", text(&capture), "-v"]);
    assert_golden("dissect-v.txt", &stdout(&long));
}

#[test]
fn json_has_every_packet_and_the_totals() {
    let json = dissect_json(&write_capture("json.pcap"));
    let packets = json["packets"].as_array().unwrap();
    assert_eq!(packets.len(), frames().len());
    assert_eq!(packets[0]["opcode"], "WRITE_FIRST");
    assert_eq!(packets[0]["number"], 2);
    assert_eq!(packets[0]["bth"]["psn"], 256);
    assert_eq!(packets[0]["reth"]["va"], "0x00007f0000001100");
    assert_eq!(packets[0]["icrc"]["good"], true);
    let totals = &json["totals"];
    assert_eq!(totals["frames"], frames().len() + 1);
    assert_eq!(totals["other_frames"], 1);
    assert_eq!((&totals["bad_icrc"], &totals["unreadable"]), (&2.into(), &1.into()));
    assert_eq!(json["error"], Json::Null);
}

#[test]
fn filters_by_queue_pair_and_stops_at_a_count() {
    let capture = write_capture("filter.pcap");
    let endpoint = stdout(&run(&["dissect", text(&capture), "--qp", "2"]));
    assert!(endpoint.contains("2 MRC packets") && endpoint.contains("ENDPOINT_REQUEST"), "{endpoint}");
    let first = stdout(&run(&["dissect", text(&capture), "-c", "3"]));
    assert_eq!(first.lines().count(), 4, "{first}");
}

#[test]
fn a_capture_cut_off_gives_what_was_readable_and_an_error() {
    let whole = fs::read(write_capture("whole.pcap")).unwrap();
    let cut = temp("cut.pcap");
    fs::write(&cut, &whole[..whole.len() - 30]).unwrap();
    let output = run(&["dissect", text(&cut)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("WRITE_FIRST"), "{}", stdout(&output));
    let error = stderr(&output);
    assert!(error.contains("cut.pcap") && error.contains("cut off"), "{error}");
    let json = run(&["dissect", text(&cut), "--json"]);
    assert_eq!(json.status.code(), Some(1));
    let json: Json = serde_json::from_slice(&json.stdout).expect("still one JSON object");
    assert!(json["error"].as_str().unwrap().contains("cut off"));
}

#[test]
fn what_is_no_capture_is_refused_with_the_reason() {
    let cases: [(&str, &[u8], &str); 4] = [
        ("empty.pcap", b"", "fewer than 4 bytes"),
        ("text.pcap", b"this is a text, not a capture, and it is long", "neither pcap nor pcapng"),
        ("header.pcap", &[0x4d, 0x3c, 0xb2, 0xa1, 2, 0], "ends inside its header"),
        ("header.pcapng", &[0x0a, 0x0d, 0x0d, 0x0a, 2, 0], "ends inside its header"),
    ];
    for (name, bytes, reason) in cases {
        let path = temp(name);
        fs::write(&path, bytes).unwrap();
        let output = run(&["dissect", text(&path)]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        let error = stderr(&output);
        assert!(error.contains(name) && error.contains(reason), "{name}: {error}");
        let output = run(&["dissect", text(&path), "--json"]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        let json = support::json(&output.stdout);
        let error = json["error"].as_str().unwrap();
        assert!(error.contains(name) && error.contains(reason), "{name}: {error}");
        assert_eq!((&json["packets"], &json["totals"]["frames"]), (&Json::Array(Vec::new()), &0.into()));
    }
    let output = run(&["dissect", "/nonexistent.pcap", "--json"]);
    let json = support::json(&output.stdout);
    assert_eq!(
        json["error"],
        "/nonexistent.pcap: cannot open the capture: No such file or directory (os error 2)"
    );
    let error = stderr(&run(&["dissect", "/nonexistent.pcap"]));
    assert!(error.contains("/nonexistent.pcap") && error.contains("No such file"), "{error}");
}

#[test]
fn damaged_captures_never_panic() {
    let whole = fs::read(write_capture("fuzz.pcap")).unwrap();
    let pcapng = as_pcapng(&whole);
    for (kind, bytes) in [("pcap", &whole), ("pcapng", &pcapng)] {
        for step in 0..60 {
            let mut bytes = bytes.clone();
            let at = (step * 7919) % bytes.len();
            bytes[at] ^= 1 << (step % 8);
            bytes[step * 4] ^= 0xff;
            let path = temp(&format!("damaged.{kind}"));
            fs::write(&path, &bytes).unwrap();
            let output = run(&["dissect", text(&path), "-v"]);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{kind} {step}: {}", stderr(&output));
        }
    }
}

/// The same frames in a pcapng file with microseconds.
fn as_pcapng(pcap: &[u8]) -> Vec<u8> {
    with_interfaces(pcap, &[1])
}

/// The same frames in a pcapng file with microseconds, on interfaces of these link types in turn.
fn with_interfaces(pcap: &[u8], links: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let len = (12 + body.len().next_multiple_of(4)) as u32;
        out.extend(kind.to_le_bytes());
        out.extend(len.to_le_bytes());
        out.extend(body);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend(len.to_le_bytes());
    };
    let mut section = 0x1a2b_3c4du32.to_le_bytes().to_vec();
    section.extend([1, 0, 0, 0]);
    section.extend([0xff; 8]);
    block(0x0a0d_0d0a, &section);
    for &link in links {
        block(1, &[link, 0, 0, 0, 0, 0, 0, 0]);
    }
    let (mut at, mut frame) = (24, 0);
    let word = |at: usize| u32::from_le_bytes(pcap[at..at + 4].try_into().unwrap());
    while at < pcap.len() {
        let micros = u64::from(word(at)) * 1_000_000 + u64::from(word(at + 4)) / 1000;
        let len = word(at + 8) as usize;
        let mut packet = vec![(frame % links.len()) as u8, 0, 0, 0];
        packet.extend(((micros >> 32) as u32).to_le_bytes());
        packet.extend((micros as u32).to_le_bytes());
        packet.extend([(len as u32).to_le_bytes(), word(at + 12).to_le_bytes()].concat());
        packet.extend(&pcap[at + 16..at + 16 + len]);
        block(6, &packet);
        at += 16 + len;
        frame += 1;
    }
    out
}

#[test]
fn pcapng_gives_the_same_packets() {
    let pcap = write_capture("same.pcap");
    let pcapng = temp("same.pcapng");
    fs::write(&pcapng, as_pcapng(&fs::read(&pcap).unwrap())).unwrap();
    let (old, new) = (dissect_json(&pcap), dissect_json(&pcapng));
    assert_eq!(old["totals"], new["totals"]);
    let without_time = |json: &Json| {
        let mut packets = json["packets"].as_array().unwrap().clone();
        for packet in &mut packets {
            packet["time_ns"] = Json::Null;
        }
        packets
    };
    assert_eq!(without_time(&old), without_time(&new));
    assert_eq!(new["packets"][5]["time_ns"], 5000);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let capture = write_capture("pipe.pcap");
    let script = format!("{} dissect {} -v | head -n 1", env!("CARGO_BIN_EXE_spindrift"), text(&capture));
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(stderr(&output), "");
}

#[test]
fn ipv6_extension_headers_are_followed() {
    let plain = frames()[0].clone();
    // One segment left; the destination of the packet on its way is that segment's, not the receiver's.
    let mut segments = vec![4, 1, 1, 0, 0, 0];
    segments.extend(&plain[38..54]);
    segments.extend([0xfc; 16]);
    let (hop, options) = ((0, vec![1, 4, 0, 0, 0, 0]), (60, vec![1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    let mut routed = with_extensions(&plain, &[hop.clone(), options.clone(), (43, segments)]);
    routed[38..54].copy_from_slice(&[0xfc; 16]);
    // Segments left, but no list: what follows the header is not one.
    let no_list = with_extensions(&plain, &[(43, vec![4, 1, 0, 0, 0, 0])]);
    let many = with_extensions(&plain, &vec![hop.clone(); 9]);
    let frames =
        [with_extensions(&plain, &[hop]), with_extensions(&plain, &[options]), routed, no_list, many];
    let json = dissect_json(&capture_of("extensions.pcap", &frames));
    let packets = json["packets"].as_array().unwrap();
    assert_eq!(packets.len(), 4, "nine extension headers are too many");
    for packet in packets {
        assert_eq!((&packet["opcode"], &packet["icrc"]["good"]), (&"WRITE_FIRST".into(), &true.into()));
        assert_eq!(packet["dst"], "fd00::2");
    }
}

#[test]
fn ipv4_options_are_passed_over() {
    let plain = frames()[13].clone();
    // "No operation" (RFC 791), up to the longest header.
    let with_options = |units: u8| {
        let options = vec![1; 4 * usize::from(units)];
        let mut frame = [&plain[..34], &options, &plain[34..]].concat();
        frame[14] = 0x45 + units;
        let len = u16::from_be_bytes([plain[16], plain[17]]) + 4 * u16::from(units);
        frame[16..18].copy_from_slice(&len.to_be_bytes());
        frame
    };
    let json = dissect_json(&capture_of("options.pcap", &[1, 3, 10].map(with_options)));
    let packets = json["packets"].as_array().unwrap();
    assert_eq!(packets.len(), 3);
    let expected =
        dissect_json(&capture_of("no-options.pcap", slice::from_ref(&plain)))["packets"][0].clone();
    for (number, packet) in packets.iter().enumerate() {
        assert_eq!((&packet["icrc"]["good"], &packet["number"]), (&true.into(), &(number + 1).into()));
        for field in ["src", "dst", "opcode", "bth", "reth", "icrc"] {
            assert_eq!(packet[field], expected[field]);
        }
    }
    // A header that is longer than its packet, and packets that end in their options.
    let mut long = with_options(10);
    long[16..18].copy_from_slice(&59_u16.to_be_bytes());
    let cut = with_options(10)[..70].to_vec();
    let json = dissect_json(&capture_of("bad-options.pcap", &[long, cut]));
    assert_eq!(json["packets"], json!([]), "{json}");
}

#[test]
fn packets_that_are_cut_say_so_in_the_specification_s_names() {
    let mut cut = fs::read(capture_of("uncut.pcap", &frames()[8..9])).unwrap();
    // The capture kept 80 bytes of the frame: 24 of file header, 16 of record header, whose third word says how many.
    cut.truncate(24 + 16 + 80);
    cut[32..36].copy_from_slice(&80u32.to_le_bytes());
    let path = temp("snapped.pcap");
    fs::write(&path, cut).unwrap();
    let text_of = |path: &Path| stdout(&run(&["dissect", text(path)]));
    let seen = text_of(&path);
    assert!(seen.contains("cut after 18 bytes") && !seen.contains("not MRC"), "{seen}");
    // A SACK that goes on behind its end.
    let mut long = frames()[8].clone();
    long.extend([0; 4]);
    let len = (long.len() - 54) as u16;
    long[18..20].copy_from_slice(&len.to_be_bytes());
    long[58..60].copy_from_slice(&len.to_be_bytes());
    let seen = text_of(&capture_of("long.pcap", &[long]));
    assert!(seen.contains("SACK takes 48 bytes") && !seen.contains("cut"), "{seen}");
}

/// The frame in a capture that kept so many bytes of it.
fn snapped(frame: &[u8], kept: usize) -> std::path::PathBuf {
    let path = capture_of(&format!("snapped-{kept}.pcap"), &[frame.to_vec()]);
    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(24 + 16 + kept);
    bytes[32..36].copy_from_slice(&(kept as u32).to_le_bytes());
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn of_a_packet_cut_by_the_snap_length_what_was_captured_is_printed() {
    let all = frames();
    for (frame, udp_end, name) in [(&all[0], 62, "WRITE_FIRST"), (&all[13], 42, "WRITE_MIDDLE")] {
        let (qp, psn) =
            if udp_end == 62 { ("qp 0x000042", "psn 256") } else { ("qp 0x000042", "psn 16777215") };
        for kept in 0..udp_end + 40 {
            let path = snapped(frame, kept);
            let output = run(&["dissect", text(&path), "-v"]);
            let (seen, error) = (stdout(&output), stderr(&output));
            let json = dissect_json(&path);
            assert_eq!(output.status.code(), Some(0), "{kept}: {error}");
            if kept < udp_end - 4 {
                assert!(error.contains("; 1 cut before the UDP ports"), "{kept}: {seen} {error}");
                assert_eq!(json["totals"]["cut_before_ports"], 1, "{kept}");
                continue;
            }
            let mrc = kept.saturating_sub(udp_end);
            for (from, part) in [(1, name), (8, qp), (12, psn), (12, "bth: "), (16, "meth: ")] {
                assert_eq!(seen.contains(part), mrc >= from, "{kept} {part}: {seen}");
            }
            assert!(seen.contains("cut") && !seen.contains("not MRC"), "{kept}: {seen}");
            assert!(seen.contains("; 1 cut in the capture"), "{kept}: {seen}");
            let totals = &json["totals"];
            let counts = ["packets", "cut", "unreadable"].map(|name| totals[name].as_u64().unwrap());
            assert_eq!(counts, if mrc > 0 { [1, 1, 0] } else { [0, 1, 1] }, "{kept}");
            assert_eq!(json["packets"][0]["bth"] != Json::Null, mrc >= 12, "{kept}");
        }
    }
}

/// Two packets in one datagram, and one of more bytes than a length field holds, as captured inside a kernel.
#[test]
fn packets_that_the_kernel_handles_as_one_are_explained() {
    let (first, second) = (frames()[0].clone(), frames()[1].clone());
    let mut joined = first.clone();
    joined.extend(&second[62..]);
    let len = (joined.len() - 54) as u16;
    joined[18..20].copy_from_slice(&len.to_be_bytes());
    joined[58..60].copy_from_slice(&len.to_be_bytes());
    let mut open = joined.clone();
    open[18..20].copy_from_slice(&[0, 0]);
    open[58..60].copy_from_slice(&[0, 0]);
    let each = format!("several packets of {} bytes", first.len() - 62);
    for (name, frame) in [("joined.pcap", joined), ("open.pcap", open)] {
        let path = capture_of(name, &[frame]);
        let seen = stdout(&run(&["dissect", text(&path)]));
        assert!(seen.contains(&each) && !seen.contains("iCRC BAD"), "{seen}");
        assert_eq!(dissect_json(&path)["totals"]["bad_icrc"], 0);
    }
}

/// The frame with the length fields of IP and UDP at 0, and with this checksum of IPv4.
fn with_open_lengths(frame: &[u8], checksum: [u8; 2]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let v6 = frame[12] == 0x86;
    let (ip_len, udp_len) = if v6 { (18, 58) } else { (16, 38) };
    frame[ip_len..ip_len + 2].fill(0);
    frame[udp_len..udp_len + 2].fill(0);
    if !v6 {
        frame[24..26].copy_from_slice(&checksum);
    }
    frame
}

/// Linux shows such packets where it will cut them up later. The checksum of IPv4 may not be computed yet.
#[test]
fn an_ip_length_of_0_is_that_of_the_capture() {
    let all = frames();
    let (v6, v4) = (&all[0], &all[13]);
    let mut joined = v4.clone();
    joined.extend(&v4[42..]);
    let hop = (0, vec![1, 4, 0, 0, 0, 0]);
    let mut extended = with_extensions(&with_open_lengths(v6, [0, 0]), std::slice::from_ref(&hop));
    extended[18..20].fill(0);
    let open = [
        with_open_lengths(v6, [0, 0]),
        with_open_lengths(v4, [0, 0]),
        with_open_lengths(v4, [0xab, 0xcd]),
        extended,
        with_open_lengths(&joined, [0, 0]),
    ];
    let path = capture_of("length-0.pcap", &open);
    let json = dissect_json(&path);
    let whole = dissect_json(&capture_of("length-whole.pcap", &[v6.clone(), v4.clone()]));
    let packets = json["packets"].as_array().unwrap();
    assert_eq!(packets.len(), open.len(), "{json}");
    for (packet, reference) in packets.iter().zip([0, 1, 1, 0, 1]) {
        let (packet, reference) = (packet.as_object().unwrap(), &whole["packets"][reference]);
        let several = packet["notes"].to_string().contains("several packets");
        for name in ["opcode", "bth", "meth", "reth", "payload_len", "icrc"] {
            let same = packet.get(name).unwrap_or(&Json::Null) == &reference[name];
            assert!(same || several && matches!(name, "payload_len" | "icrc"), "{name}: {packet:?}");
        }
        assert!(packet["notes"].to_string().contains("IP length 0"), "{packet:?}");
    }
    assert_eq!((&packets[4]["icrc"], &json["totals"]["bad_icrc"]), (&Json::Null, &0.into()));
    assert!(packets[4]["notes"].to_string().contains("several packets of"), "{}", packets[4]);
    let seen = stdout(&run(&["dissect", text(&path)]));
    assert_eq!(seen.matches("the length is that of the capture").count(), open.len(), "{seen}");
    // A length that ends inside the extension headers is wrong, not open.
    let mut wrong = with_extensions(v6, &[hop]);
    wrong[18..20].copy_from_slice(&[0, 8]);
    assert_eq!(dissect_json(&capture_of("length-wrong.pcap", &[wrong]))["totals"]["packets"], 0);
}

/// Of a packet with a length of 0 that is cut in the capture, the capture still tells how long it was.
#[test]
fn an_ip_length_of_0_in_a_cut_frame_is_that_of_the_wire() {
    let whole = with_open_lengths(&frames()[13], [0, 0]);
    let mut cut = fs::read(capture_of("length-0-whole.pcap", std::slice::from_ref(&whole))).unwrap();
    cut.truncate(24 + 16 + 80);
    cut[32..36].copy_from_slice(&80u32.to_le_bytes());
    let path = temp("length-0-cut.pcap");
    fs::write(&path, cut).unwrap();
    let packet = dissect_json(&path)["packets"][0].clone();
    assert_eq!(packet["not_captured"], whole.len() - 80 - 4, "{packet}");
    assert!(packet["notes"].to_string().contains("IP length 0"), "{packet}");
}

/// An endpoint over kernel sockets takes the IPv4 identification to be 0; the kernel may choose another.
#[test]
fn the_icrc_of_ipv4_over_kernel_sockets_is_explained() {
    let mut frame = frames()[13].clone();
    assert_eq!(frame[12..14], [8, 0]);
    frame[18..20].copy_from_slice(&[0x12, 0x34]);
    let sum = u32::from(!u16::from_be_bytes([frame[24], frame[25]])) + 0x1234;
    frame[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    let seen = stdout(&run(&["dissect", text(&capture_of("identified.pcap", &[frame]))]));
    assert!(seen.contains("iCRC BAD") && seen.contains("good with IPv4 identification 0"), "{seen}");
}

#[test]
fn the_port_of_a_run_over_sockets_is_printed_and_found() {
    let path = temp("sockets.pcap");
    let path = path.to_str().unwrap();
    let run_args = ["loopback", "--port", "udp", "-s", "4K", "-n", "5", "--pcap", path];
    let printed = stdout(&run(&run_args));
    let port = printed.split("UDP port ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let blind = run(&["dissect", path]);
    assert!(stderr(&blind).contains(&format!("--port {port} prints them")), "{}", stderr(&blind));
    let seen = stdout(&run(&["dissect", path, "--port", port]));
    assert!(seen.contains("WRITE_ONLY"), "{seen}");
}

/// Captures of several interfaces are not always in the order of time.
#[test]
fn times_before_the_first_packet_s_are_negative() {
    let path = capture_of("earlier.pcap", &frames()[..3]);
    let mut bytes = fs::read(&path).unwrap();
    let second = 24 + 16 + u32::from_le_bytes(bytes[32..36].try_into().unwrap()) as usize;
    // The first frame is of a later second than the others.
    bytes[24..28].copy_from_slice(&12u32.to_le_bytes());
    bytes[second..second + 4].copy_from_slice(&10u32.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let json = dissect_json(&path);
    let times = [0, 1].map(|packet| json["packets"][packet]["time_ns"].as_i64());
    assert_eq!(times, [Some(0), Some(-2_000_000_000)]);
    let seen = stdout(&run(&["dissect", text(&path)]));
    assert!(seen.contains(" -2.000000000  fd00::1"), "{seen}");
}

#[test]
fn link_types_that_are_not_read_are_named() {
    let mut wireless = fs::read(capture_of("wired.pcap", &frames()[..4])).unwrap();
    let (half, none) = (with_interfaces(&wireless, &[1, 105]), with_interfaces(&wireless, &[105, 147]));
    // Above the link type, the header can say how long the frame check sequence is.
    wireless[20..24].copy_from_slice(&0x4400_0069u32.to_le_bytes());
    let read = |name: &str, bytes: &[u8]| {
        let path = temp(name);
        fs::write(&path, bytes).unwrap();
        let output = run(&["dissect", text(&path)]);
        (output.status.code(), stdout(&output), stderr(&output))
    };
    let (status, seen, error) = read("wireless.pcap", &wireless);
    assert_eq!((status, seen.as_str()), (Some(1), ""));
    let named = "link type 105 (IEEE802_11) is not read (Ethernet, ";
    assert!(error.contains(named) && error.lines().count() == 1, "{error}");
    let (status, seen, _) = read("half-wireless.pcapng", &half);
    assert_eq!(status, Some(0));
    assert!(seen.contains("2 MRC packets in 4 frames"), "{seen}");
    assert!(seen.contains("; 2 of link type 105 (IEEE802_11) not read (Ethernet, "), "{seen}");
    let (status, _, error) = read("no-ethernet.pcapng", &none);
    assert_eq!(status, Some(1));
    assert!(error.contains("link type 105 (IEEE802_11), link type 147"), "{error}");
    wireless[20..24].copy_from_slice(&0x4400_0001u32.to_le_bytes());
    let (status, seen, _) = read("checked.pcap", &wireless);
    assert!(status == Some(0) && seen.contains("4 MRC packets"), "{seen}");
}

#[test]
fn standard_input_and_pipes_are_read() {
    let bytes = fs::read(write_capture("piped.pcap")).unwrap();
    let fifo = temp("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let expected = stdout(&run(&["dissect", text(&temp("piped.pcap"))]));
    for (name, bytes) in [("-", &bytes), ("/dev/stdin", &bytes), (text(&fifo), &bytes)] {
        let mut child = support::spindrift();
        child.args(["dissect", name]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        if name == text(&fifo) {
            fs::write(&fifo, bytes).unwrap();
        } else {
            child.stdin.take().unwrap().write_all(bytes).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!((stderr(&output).as_str(), stdout(&output)), ("", expected.clone()), "{name}");
    }
    let output = support::spindrift().args(["dissect", "-"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("standard input: not a capture"), "{}", stderr(&output));
}

/// With `tcpdump -w - | spindrift dissect -`, the lines come with the packets, not when the capture ends.
#[test]
fn packets_of_a_pipe_are_printed_as_they_come() {
    let bytes = fs::read(capture_of("live.pcap", &frames()[..2])).unwrap();
    let mut child = support::spindrift();
    child.args(["dissect", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = support::Running::start(&mut child);
    let mut input = child.child().stdin.take().unwrap();
    let first = 24 + 16 + u32::from_le_bytes(bytes[32..36].try_into().unwrap()) as usize;
    let mut output = BufReader::new(child.child().stdout.take().unwrap());
    let mut line = String::new();
    for (part, opcode) in [(&bytes[..first], "WRITE_FIRST"), (&bytes[first..], "WRITE_MIDDLE")] {
        input.write_all(part).unwrap();
        line.clear();
        output.read_line(&mut line).unwrap();
        assert!(line.contains(opcode), "{line}");
    }
    drop(input);
    let output = support::end_of(child, std::time::Duration::from_mins(1), "dissect");
    assert!(output.status.success());
}

#[test]
fn ip_fragments_are_counted() {
    let (v6, v4) = (frames()[0].clone(), frames()[13].clone());
    let with_flags = |flags: u16| {
        let mut frame = v4.clone();
        frame[20..22].copy_from_slice(&flags.to_be_bytes());
        frame
    };
    // Fragment header: offset 0 and "more fragments"; offset 8.
    let v6_part = |field: u8| with_extensions(&v6, &[(44, vec![0, field, 0, 0, 0, 9])]);
    let parts = [with_flags(0x2000), with_flags(0x0001), v6_part(1), v6_part(8), v6];
    let path = capture_of("fragments.pcap", &parts);
    let json = dissect_json(&path);
    let totals = ["packets", "fragments", "other_frames"].map(|name| json["totals"][name].as_u64().unwrap());
    assert_eq!(totals, [1, 4, 4], "{json}");
    let seen = stdout(&run(&["dissect", text(&path)]));
    assert!(seen.contains("; 4 IP fragments not read"), "{seen}");
    let error = stderr(&run(&["dissect", text(&capture_of("only-fragments.pcap", &parts[..4]))]));
    assert!(error.contains("; 4 IP fragments not read"), "{error}");
}

#[test]
fn encapsulations_are_looked_through() {
    for (family, plain) in [("v6", &frames()[0]), ("v4", &frames()[13])] {
        let all = encapsulated(plain);
        let expected =
            dissect_json(&capture_of("bare.pcap", std::slice::from_ref(plain)))["packets"][0].clone();
        let packed: Vec<_> = all.iter().map(|(_, frame)| frame.clone()).collect();
        let path = capture_of(&format!("encapsulated-{family}.pcap"), &packed);
        let packets = dissect_json(&path)["packets"].as_array().unwrap().clone();
        assert_eq!(packets.len(), all.len(), "{packets:?}");
        for (mut packet, (name, _)) in packets.into_iter().zip(&all) {
            assert_eq!(
                packet["encapsulation"],
                serde_json::json!(name.split(", ").collect::<Vec<_>>()),
                "{packet}"
            );
            assert_eq!(packet["notes"][0], format!("in {name}"));
            for field in ["number", "encapsulation", "notes"] {
                packet[field] = expected[field].clone();
            }
            assert_eq!(packet, expected, "{name}");
        }
        let seen = stdout(&run(&["dissect", text(&path)]));
        assert!(seen.contains("[in VXLAN]") && seen.contains("[in VXLAN, VXLAN]"), "{seen}");
    }
}

#[test]
fn encapsulations_that_hide_their_content_are_counted() {
    let plain = &frames()[0];
    let mut esp = gre_around(&[], &[9; 60]);
    esp[23] = 50;
    let closed = [
        esp.clone(),
        esp,
        gre_around(&[0x30, 1, 0x88, 0x0b], plain),
        gre_around(&[0, 0, 0x12, 0x34], plain),
        udp_around(4789, &[&[0; 8], plain]),
        udp_around(4790, &[&[0x0c, 0, 0, 3, 0, 0, 7, 0], plain]),
        udp_around(6081, &[&[0x80, 0, 0x65, 0x58, 0, 0, 7, 0], plain]),
    ];
    let path = capture_of("closed.pcap", &closed);
    let json = dissect_json(&path);
    let counted = serde_json::json!({ "ESP": 2, "GENEVE": 1, "GRE": 2, "VXLAN": 1, "VXLAN-GPE": 1 });
    assert_eq!(json["totals"]["not_looked_through"], counted);
    let error = stderr(&run(&["dissect", text(&path)]));
    assert!(error.contains("; 2 in ESP not looked through; 1 in GENEVE not looked through"), "{error}");
}

/// A switch can cut what it mirrors, and the capture of that is whole.
#[test]
fn a_mirrored_packet_that_the_switch_cut_says_so() {
    let plain = &frames()[0];
    let path = capture_of("mirrored.pcap", &[gre_around(&[0, 0, 0x88, 0xbe], &plain[..80])]);
    let packet = dissect_json(&path)["packets"][0].clone();
    assert_eq!((&packet["opcode"], &packet["bth"]["psn"]), (&"WRITE_FIRST".into(), &256.into()));
    assert_eq!(packet["not_captured"], plain.len() - 80 - 4, "{packet}");
}

/// Whatever stands in an encapsulation, it is read or counted.
#[test]
fn damaged_encapsulations_never_panic() {
    let mut all = Vec::new();
    for (_, frame) in encapsulated(&frames()[0]) {
        for at in 12..frame.len().min(100) {
            let mut changed = frame.clone();
            changed[at] ^= 0xff;
            all.extend([changed, frame[..at].to_vec()]);
        }
    }
    let json = dissect_json(&capture_of("damaged-encapsulations.pcap", &all));
    assert_eq!(json["totals"]["frames"], all.len());
}

/// A switch that trims corrects the length of the packet that it forwards, which is the outer one.
#[test]
fn packets_trimmed_inside_an_outer_packet_are_shown() {
    for (plain, kept) in [(&frames()[0], 80), (&frames()[13], 60)] {
        let inner = &plain[14..14 + kept];
        let (next, ecn) = if plain[12] == 0x86 { (41, plain[15] >> 4 & 3) } else { (4, plain[15] & 3) };
        for (class, trimmed, outer) in [
            (12 << 2 | 3, Json::from("fabric"), json!({"dscp": 12, "ecn": 3})),
            (16 << 2, "last-hop".into(), json!({"dscp": 16, "ecn": 0})),
        ] {
            let frame = carried(next, class, inner);
            let path = capture_of("trimmed-inside.pcap", &[frame]);
            let packet = dissect_json(&path)["packets"][0].clone();
            assert_eq!((&packet["trimmed"], &packet["error"]), (&trimmed, &Json::Null), "{packet}");
            assert_eq!((&packet["not_captured"], &packet["notes"]), (&0.into(), &Json::Array(Vec::new())));
            assert_eq!((&packet["outer"], &packet["ecn"]), (&outer, &ecn.into()), "{packet}");
            let text = stdout(&run(&["dissect", text(&path)]));
            assert_eq!(text.contains("CE (outer)"), class & 3 == 3, "{text}");
        }
    }
}

/// An Ethernet frame with an outer IPv6 header of this traffic class.
fn carried(next: u8, class: u8, inner: &[u8]) -> Vec<u8> {
    let len = (inner.len() as u16).to_be_bytes();
    let head = [0x60 | class >> 4, class << 4, 0, 0, len[0], len[1], next, 64];
    [&[2; 12][..], &[0x86, 0xdd], &head, &[0xfc; 32], inner].concat()
}

/// Of a packet that is whole, both headers' marks are told. A DSCP of the inner header says nothing where there is an outer one.
#[test]
fn the_marks_of_both_headers_are_told() {
    let mut inner = frames()[0][14..].to_vec();
    inner[..2].copy_from_slice(&[0x60 | 12 >> 2, (12 << 6 & 0xff) as u8 | 2 << 4]);
    let packet = dissect_json(&capture_of("both-marks.pcap", &[carried(41, 8 << 2 | 1, &inner)]))["packets"]
        [0]
    .clone();
    assert_eq!((&packet["dscp"], &packet["ecn"]), (&12.into(), &2.into()), "{packet}");
    assert_eq!(
        (&packet["outer"], &packet["trimmed"]),
        (&json!({"dscp": 8, "ecn": 1}), &Json::Null),
        "{packet}"
    );
    let plain = dissect_json(&capture_of("one-mark.pcap", &[frames()[0].clone()]))["packets"][0].clone();
    assert_eq!(plain["outer"], Json::Null);
}
