//! The times of messages as multiples of what they would take alone.

use std::fs;

use super::support::json;
use super::{Plan, number, rows};

fn plan(fabric: &str, transport: &str, workloads: &str) -> String {
    format!(
        "[plan]\ntitle = \"x\"\nduration = \"20ms\"\n[fabric]\n{fabric}[transport]\n{transport}\n{workloads}"
    )
}

/// A message that is alone takes its ideal time, of any size, over any number of planes and tiers, with either transport.
#[test]
fn a_message_alone_has_no_slowdown() {
    let three = "planes = 2\nt0 = 4\nt1 = 4\npods = 2\nt2 = 4\nhosts_per_t0 = 2\nhost_rate = \"400G\"\n";
    let one = "t0 = 2\nt1 = 2\nhosts_per_t0 = 2\nhost_rate = \"100G\"\ntrunk_rate = \"200G\"\n";
    let four = "planes = 4\nt0 = 2\nt1 = 4\nhosts_per_t0 = 2\nhost_rate = \"100G\"\n";
    for (number_of, (fabric, transport)) in [
        (three, ""),
        (one, ""),
        (four, ""),
        (four, "routing = \"ecmp\"\nmtu = 1024"),
        (one, "kind = \"roce\""),
    ]
    .into_iter()
    .enumerate()
    {
        let sizes = ["64", "4K", "40000", "64K", "1M", "5000000"];
        let workload = |(at, (size, to)): (usize, (&str, &str))| {
            let start = at * 600;
            format!(
                "[[workload]]\nkind = \"write\"\nname = \"{size} to {to}\"\nfrom = \"h1\"\nto = \"{to}\"\nsize = \"{size}\"\ncount = 1\nstart = \"{start}us\"\n"
            )
        };
        let last = if fabric == three { "h8" } else { "h4" };
        let all = sizes.into_iter().flat_map(|size| [(size, "h2"), (size, "h3"), (size, last)]);
        let text = plan(fabric, transport, &all.enumerate().map(workload).collect::<String>());
        let plan = Plan::new(&format!("slowdown-{number_of}"), &text);
        let rows = rows(&plan.run("results", &[]), "slowdown.csv");
        assert_eq!(rows.len(), 18);
        for row in rows {
            let most = number(&row, "most");
            assert!((0.99..1.04).contains(&most), "{fabric}{transport}: {row:?}");
        }
    }
}

/// Messages are in the row of their size, and one that waits for others of its connection is slow.
#[test]
fn messages_are_apart_by_size() {
    let fabric = "t0 = 2\nt1 = 4\nhosts_per_t0 = 2\nhost_rate = \"100G\"\n";
    let workload = |name: &str, size: &str, count: u32| {
        format!(
            "[[workload]]\nkind = \"write\"\nname = \"{name}\"\nfrom = \"h1\"\nto = \"h3\"\nsize = \"{size}\"\ncount = {count}\ndepth = {count}\n"
        )
    };
    let sizes = ["1", "1K", "1025", "4K", "70M"];
    let text = sizes.map(|size| workload(size, size, 1)).concat() + &workload("many", "4K", 10);
    let plan = Plan::new("slowdown-sizes", &plan(fabric, "", &text));
    let folder = plan.run("results", &[]);
    let rows = rows(&folder, "slowdown.csv");
    let row: Vec<_> = rows
        .iter()
        .map(|row| (row["workload"].as_str(), row["up_to_bytes"].as_str(), row["messages"].as_str()))
        .collect();
    assert_eq!(
        row,
        [
            ("1", "1024", "1"),
            ("1K", "1024", "1"),
            ("1025", "4096", "1"),
            ("4K", "4096", "1"),
            ("70M", "", "1"),
            ("many", "4096", "10"),
        ]
    );
    let many = &rows[5];
    assert!(number(many, "least") < number(many, "p50") && number(many, "p50") < number(many, "most"));
    let result = json(&fs::read(folder.join("result.json")).unwrap());
    let of = &result["variants"][0]["workloads"][5]["slowdown"][0];
    assert_eq!((&of["up_to_bytes"], &of["slowdown"]["count"]), (&4096.into(), &10.into()));
}
