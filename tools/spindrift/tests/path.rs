//! `spindrift path`: what it says of the topologies given, and of files that are wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::fs;

use support::{spindrift, stderr, stdout, temp};

const TWO_PLANE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/lab/two-plane.toml");

/// Output and status of `spindrift path` with the topology of two planes.
fn path(args: &[&str]) -> (String, String, Option<i32>) {
    run(TWO_PLANE, args)
}

fn run(topology: &str, args: &[&str]) -> (String, String, Option<i32>) {
    let output = spindrift().args(["path", "--topology", topology]).args(args).output().expect("it starts");
    (stdout(&output), stderr(&output), output.status.code())
}

#[test]
fn a_path_is_told_hop_by_hop() {
    let (out, error, status) = path(&["--from", "h1", "--to", "h3", "--plane", "1", "--ev", "0x40000000"]);
    assert_eq!((error.as_str(), status), ("", Some(0)));
    let expected = "\
h1 to h3, plane 1, entropy value 0x40000000
  h1           sends to p1-t0-0      with destination fcbb:bb00:4200:8201:4201:c200::
  p1-t0-0      sends to p1-t1-1      with destination fcbb:bb00:8201:4201:c200::
  p1-t1-1      sends to p1-t0-1      with destination fcbb:bb00:4201:c200::
  p1-t0-1      sends to h3           with destination fcbb:bb00:c200::
  h3           takes the packet to fd5d:7072:0:1::1:1 out
";
    assert_eq!(out, expected);
}

#[test]
fn without_an_entropy_value_all_paths_are_listed() {
    let (out, _, status) = path(&["--to", "h4"]);
    assert_eq!(status, Some(0));
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(
        (lines[0], lines[5], lines.len()),
        ("h1 to h4, plane 0, 4 paths for 2 bits of the entropy value", "", 11)
    );
    let last = "  0xc0000000  fcbb:bb00:4200:8203:4201:c201::          p1-t0-0 p1-t1-3 p1-t0-1";
    assert_eq!(lines[10], last);
    let (out, _, _) = path(&["--from", "h3", "--to", "h4", "--plane", "1"]);
    let expected = "h3 to h4, plane 1, 1 path for 0 bits of the entropy value\n  \
                    0x00000000  fcbb:bb00:4201:c201::                    p1-t0-1\n";
    assert_eq!(out, expected);
}

#[test]
fn paths_over_a_link_are_listed() {
    let (out, _, status) = path(&["--link", "p0-t1-3:p0-t0-1", "--to", "h1"]);
    assert_eq!(status, Some(0));
    let expected = "\
h3 to h1: 1 of 4 paths: 0xc0000000
h4 to h1: 1 of 4 paths: 0xc0000000
2 of 9 paths in plane 0 cross p0-t0-1:p0-t1-3
";
    assert_eq!(out, expected);
    let (out, _, _) = path(&["--link", "h2:p1-t0-0"]);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!((lines.len(), lines[6]), (7, "18 of 36 paths in plane 1 cross h2:p1-t0-0"));
    assert_eq!(lines[0], "h1 to h2: 1 of 1 path: 0x00000000");
    assert_eq!(lines[1], "h2 to h1: 1 of 1 path: 0x00000000");
    assert_eq!(lines[2], "h2 to h3: 4 of 4 paths: 0x00000000 0x40000000 0x80000000 0xc0000000");
}

#[test]
fn one_object_says_the_same() {
    let json = |args: &[&str]| -> serde_json::Value {
        let (out, _, status) = path(&[args, &["--json"]].concat());
        assert_eq!((status, out.lines().count()), (Some(0), 1));
        serde_json::from_str(&out).expect("JSON")
    };
    let all = json(&["--to", "h3"]);
    assert_eq!((&all["command"], &all["from"], &all["to"]), (&"path".into(), &"h1".into(), &"h3".into()));
    assert_eq!(all["paths"].as_array().unwrap().len(), 8);
    let one = &all["paths"][6];
    assert_eq!((&one["plane"], &one["ev"]), (&1.into(), &0x8000_0000_u32.into()));
    assert_eq!(
        (&one["delivered"], &one["dropped"]),
        (&"fd5d:7072:0:1::1:1".into(), &serde_json::Value::Null)
    );
    let nodes: Vec<_> =
        one["hops"].as_array().unwrap().iter().map(|hop| hop["node"].as_str().unwrap()).collect();
    assert_eq!(nodes, ["h1", "p1-t0-0", "p1-t1-2", "p1-t0-1", "h3"]);
    assert_eq!(one["hops"][1]["destination"], "fcbb:bb00:8202:4201:c200::");
    assert_eq!(json(&["--to", "h3", "--ev", "2147483648", "--plane", "1"])["paths"][0], *one);
    let link = json(&["--link", "p1-t0-0:p1-t1-2", "--from", "h2"]);
    assert_eq!((&link["link"], &link["plane"]), (&"p1-t0-0:p1-t1-2".into(), &1.into()));
    assert_eq!((&link["crossing"], &link["of"]), (&2.into(), &9.into()));
    let pairs = serde_json::json!([
        { "from": "h2", "to": "h3", "paths": 4, "evs": [0x8000_0000_u32] },
        { "from": "h2", "to": "h4", "paths": 4, "evs": [0x8000_0000_u32] },
    ]);
    assert_eq!(link["pairs"], pairs);
}

/// Four of six T1 switches are on the paths of the example, in each plane.
#[test]
fn templates_take_the_place_of_paths() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/lab/template.toml");
    let (out, error, status) = run(file, &["--to", "h2", "--plane", "1"]);
    let expected = "\
h1 to h2, plane 1, 4 paths for 3 bits of the entropy value
  0x00000000  fcbb:bb00:4200:8200:4201:c200::          p1-t0-0 p1-t1-0 p1-t0-1
  0x20000000  fcbb:bb00:4200:8201:4201:c200::          p1-t0-0 p1-t1-1 p1-t0-1
  0x40000000  fcbb:bb00:4200:8202:4201:c200::          p1-t0-0 p1-t1-2 p1-t0-1
  0x60000000  fcbb:bb00:4200:8203:4201:c200::          p1-t0-0 p1-t1-3 p1-t0-1
";
    assert_eq!((out.as_str(), error.as_str(), status), (expected, "", Some(0)));
    let crossing = |from| run(file, &["--link", "p0-t0-0:p0-t1-5", "--from", from]).0;
    assert_eq!(
        crossing("h1"),
        "h1 to h3: 1 of 6 paths: 0xa0000000\n1 of 10 paths in plane 0 cross p0-t0-0:p0-t1-5\n"
    );
    assert!(crossing("h2").contains("h2 to h1: 1 of 6 paths: 0xa0000000"), "{}", crossing("h2"));
    let (_, error, status) = run(file, &["--to", "h2", "--ev", "0x80000000"]);
    assert!(status == Some(2) && error.contains("--ev: entropy value 0x80000000: field 3 is 4"), "{error}");
}

#[test]
fn wrong_options_are_named() {
    for (args, parts) in [
        (&["--to", "h9"] as &[&str], &["--to h9", "no such host", "h1, h2, h3, h4"] as &[&str]),
        (&["--from", "x", "--to", "h1"], &["--from x", "no such host"]),
        (&["--to", "h3", "--plane", "2"], &["--plane 2", "planes 0 to 1"]),
        (&["--to", "h3", "--ev", "1"], &["--ev", "0x00000001", "first 2 bits"]),
        (&["--to", "h3", "--ev", "x"], &["--ev", "`x`", "0x80000000"]),
        (&["--link", "h1"], &["--link h1", "p0-t0-0:p0-t1-3"]),
        (&["--link", "h1:p0-t0-9"], &["no node \"p0-t0-9\"", "p0-t1-3"]),
        (&["--link", "h1:p0-t0-1"], &["h1 and p0-t0-1 are not joined"]),
        (&["--link", "h1:p0-t0-0", "--plane", "1"], &["--link h1:p0-t0-0", "plane 0", "--plane"]),
        (&["--link", "h1:p0-t0-0", "--ev", "0"], &["--ev", "--link"]),
        (&[], &["--to"]),
    ] {
        let (out, error, status) = path(args);
        assert_eq!((out.as_str(), status), ("", Some(2)), "{args:?}: {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
    }
    let (_, error, status) = run("/no/such.toml", &["--to", "h1"]);
    assert!(status == Some(2) && error.contains("cannot read the topology /no/such.toml"), "{error}");
}

#[test]
fn a_wrong_topology_is_named_by_line() {
    let file = temp("topology");
    let name = file.to_str().unwrap();
    let host = "\n[[host]]\nname = \"a\"\n";
    for (text, place, part) in [
        ("[fabric]\nplanes = 0", "line 2, column 10: fabric.planes", "must be 1 to 32"),
        ("[fabric]\nt0 = 2", "line 2, column 6: fabric.t0", "`t1` is missing"),
        ("[fabric]\nt0 = 3", "line 2, column 6: fabric.t0", "need T1 switches"),
        ("[fabric]\nt0 = 2\nt1 = 513", "line 3, column 6: fabric.t1", "0 to 512"),
        ("[fabric]\nblock = \"fcbb::/16\"", "line 2, column 9: fabric.block", "32 bits"),
        ("[fabric]\nprefix = \"fd00::/64\"", "line 2, column 10: fabric.prefix", "48 bits"),
        ("[fabric]\nprefix = \"fd00::1\"", "line 2, column 10", "invalid"),
        ("[fabric]\nplane = 2", "line 2, column 1", "unknown field `plane`"),
        ("[fabric]\nhosts_per_t0 = 2", "line 2, column 16: fabric.hosts_per_t0", "there are [[host]] tables"),
        ("[fabric]\n[[host]]\nname = \"p0-t0-0\"", "line 3, column 8: host.0.name", "switches have names"),
        ("[fabric]\n[[host]]\nname = \"b\"\nt0 = 1", "line 4, column 6: host.0.t0", "no T0 switch 1"),
        ("[fabric]\n[[host]]\nname = \"b\"\ndownlink = 512", "line 4, column 12", "more than 511"),
        ("[fabric]\n[[host]]\nt0 = 0", "line 2", "missing field `name`"),
        ("", "line 1", "missing field `fabric`"),
    ] {
        fs::write(&file, format!("{text}{host}")).unwrap();
        let (out, error, status) = run(name, &["--to", "a"]);
        assert_eq!((out.as_str(), status), ("", Some(2)), "{text}: {error}");
        assert!([name, place, part].iter().all(|part| error.contains(part)), "{text}: {error}");
    }
    for (text, part) in [
        ("[fabric]", "there are no hosts; add [[host]]"),
        ("[fabric]\nhosts_per_t0 = 0", "line 2, column 16: fabric.hosts_per_t0: there are no hosts"),
        (
            "[fabric]\nhosts_per_t0 = 513",
            "fabric.hosts_per_t0: downlink of host \"h513\": 512 is more than 511",
        ),
    ] {
        fs::write(&file, text).unwrap();
        let (_, error, status) = run(name, &["--to", "h1"]);
        assert!(status == Some(2) && error.contains(part), "{text}: {error}");
    }
}

#[test]
fn a_wrong_template_is_named_by_line() {
    let file = temp("template");
    let name = file.to_str().unwrap();
    for (text, place, part) in [
        ("to = \"::/0\"", "line 6", "missing field `fields`"),
        ("to = \"::/0\"\nfields = []", "line 8, column 10: template.0.fields", "there are none"),
        ("to = \"::1/0\"\nfields = [{}]", "line 7, column 6: template.0.to", "::/0 has none"),
        (
            "to = \"::/0\"\nfrom = [\"a\", \"b\"]\nfields = [{}]",
            "line 8, column 14: template.0.from.1",
            "no host \"b\"; the topology has a",
        ),
        ("to = \"::/0\"\nfields = [{}]\nplanes = [1]", "line 9, column 10: template.0.planes", "no plane 1"),
        ("to = \"::/0\"\nfields = [{}]\nplanes = [256]", "line 9, column 11", "invalid value"),
        (
            "to = \"::/0\"\nfields = [{}, {}]\nformat = [128]",
            "line 8, column 10: template.0.fields",
            "2 fields given, the format has 1 place",
        ),
        (
            "to = \"::/0\"\nfields = [{}]\nformat = [128]",
            "line 8, column 11: template.0.fields.0",
            "width: 128 bits given",
        ),
        (
            "to = \"::/0\"\nfields = [{}]\nformat = [1, 0]",
            "line 9, column 14: template.0.format.1",
            "0 bits given",
        ),
        ("to = \"::/0\"\nfields = [{}]\nformat = [1, 2]", "line 9, column 10: template.0.format", "3 bits"),
        (
            "to = \"::/0\"\nfields = [{}, { mask = 65536 }]",
            "line 8, column 24: template.0.fields.1.mask",
            "more than 16 bits",
        ),
        (
            "to = \"::/0\"\nfields = [{}, { mask = 3, min = 4 }]",
            "line 8, column 33: template.0.fields.1.min",
            "4 is more than max, which is 3",
        ),
        (
            "to = \"::/0\"\nfields = [{ mask = 1, downlink = 1 }]",
            "line 8, column 34: template.0.fields.0.downlink",
            "too: 0x1",
        ),
        ("to = \"::/0\"\nfields = [{ masks = 1 }]", "line 8, column 13", "unknown field `masks`"),
        (
            "to = \"::/0\"\nfields = [{}]\n[[template]]\nto = \"::/0\"\nfields = [{}]",
            "line 10, column 6: template.1.to",
            "template 1 leads to ::/0 as well",
        ),
    ] {
        fs::write(&file, format!("[fabric]\n\n[[host]]\nname = \"a\"\n\n[[template]]\n{text}")).unwrap();
        let (out, error, status) = run(name, &["--to", "a"]);
        assert_eq!((out.as_str(), status), ("", Some(2)), "{text}: {error}");
        assert!([name, place, part].iter().all(|part| error.contains(part)), "{text}: {error}");
    }
}

/// Ports that are not named are the lowest free ones; hosts that are only counted are called h1, h2 and so on.
#[test]
fn places_are_given_out() {
    let file = temp("places");
    let name = file.to_str().unwrap();
    let list = ["a", "b\"\ndownlink = 0 #", "c", "d\"\nt0 = 1 #"]
        .map(|name| format!("[[host]]\nname = \"{name}\"\n"));
    fs::write(&file, format!("[fabric]\nt0 = 2\nt1 = 1\n{}", list.concat())).unwrap();
    for (host, usid) in
        [("a", "4000:c001::"), ("b", "4000:c000::"), ("c", "4000:c002::"), ("d", "4001:c000::")]
    {
        let (out, error, _) = run(name, &["--to", host]);
        assert!(out.contains(usid), "{host}: {out}{error}");
    }
    fs::write(&file, "[fabric]\nplanes = 4\nt0 = 3\nt1 = 2\nhosts_per_t0 = 5").unwrap();
    let (out, error, _) = run(name, &["--to", "h15", "--plane", "3"]);
    assert!(out.contains("fcbb:bb00:4600:8600:4602:c604::"), "{out}{error}");
}
