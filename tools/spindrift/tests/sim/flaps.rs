//! Links that go down at random times.

use std::collections::BTreeSet;
use std::fs;

use super::support::{json, refused};
use super::{FABRIC, Plan};

fn plan(rest: &str) -> String {
    format!(
        "[plan]\ntitle = \"x\"\nduration = \"2ms\"\n{FABRIC}[record]\nlinks = [\"p0-t0-1:h5\"]\n\
         [[workload]]\nkind = \"write\"\nfrom = \"h1\"\nto = \"h5\"\nsize = \"64K\"\n[[flaps]]\n{rest}\n"
    )
}

/// As many as the rate says, each for as long as it should be, on links of the tier alone; with another seed at other times.
#[test]
fn flaps_have_their_rate_their_length_and_their_tier() {
    let keys = "links = \"t0-t1\"\nevery = \"20us\"\nfor = \"3us\"\nfrom = \"500us\"\nto = \"1500us\"\naction = \"dark\"";
    let plan = Plan::new("flaps", &plan(keys));
    let events = |seed: &str| {
        let folder = plan.run(&format!("results-{seed}"), &["--seed", seed]);
        let result = json(&fs::read(folder.join("result.json")).unwrap());
        let events = result["variants"][0]["events"].as_array().unwrap().clone();
        let event = |event: &serde_json::Value| {
            let what = event["what"].as_str().unwrap().to_owned();
            (event["at_ns"].as_f64().unwrap() / 1e3, what)
        };
        events.iter().map(event).collect::<Vec<_>>()
    };
    let all = events("1");
    let (ends, begins): (Vec<_>, Vec<_>) = all.iter().partition(|(_, what)| what.ends_with(" ends"));
    assert_eq!((begins.len(), ends.len()), (50, 50), "{all:?}");
    assert!(begins.iter().all(|(at, _)| (500.0..1500.0).contains(at)), "{begins:?}");
    // Both halves of the time have some.
    let early = begins.iter().filter(|(at, _)| *at < 1000.0).count();
    assert!((10..=40).contains(&early), "{early}");
    for (at, what) in &begins {
        let end = format!("{what} ends");
        assert!(
            ends.iter().any(|(until, what)| *what == end && (until - at - 3.0).abs() < 0.01),
            "{what} {at}"
        );
    }
    let links: BTreeSet<_> = begins.iter().map(|(_, what)| what.strip_suffix(": dark").unwrap()).collect();
    assert!(links.len() > 10, "of 16: {links:?}");
    assert!(links.iter().all(|link| link.contains("-t0-") && link.contains("-t1-")), "{links:?}");
    assert_eq!(all, events("1"));
    assert_ne!(all, events("2"));
}

#[test]
fn flaps_that_cannot_be_are_refused_with_their_place() {
    let good = "links = \"t0-t1\"\nevery = \"20us\"\nfor = \"3us\"";
    for (number, (keys, parts)) in [
        (good.replace("links = \"t0-t1\"\n", ""), &["flaps.0", "`links` is missing"][..]),
        (good.replace("t0-t1", "t0"), &["line 18, column 9: flaps.0.links", "`t0` is no tier"]),
        (good.replace("t0-t1", "t1-t2"), &["flaps.0.links", "no such links"]),
        (good.replace("\nevery = \"20us\"", ""), &["`every` is missing"]),
        (good.replace("\nfor = \"3us\"", ""), &["`for` is missing"]),
        (good.replace("20us", "often"), &["line 19, column 9: flaps.0.every", "`often`"]),
        (good.replace("20us", "3ms"), &["flaps.0.every", "0 flaps"]),
        (good.replace("20us", "100ns"), &["flaps.0.every", "20000 flaps"]),
        (format!("{good}\nfrom = \"2ms\""), &["line 21, column 8: flaps.0.from", "after `from`"]),
        (format!("{good}\nfrom = \"1ms\"\nto = \"1ms\""), &["line 22, column 6: flaps.0.to", "before `to`"]),
        (format!("{good}\nto = \"3ms\""), &["flaps.0.to", "must last so long"]),
        (format!("{good}\naction = \"stop\""), &["line 21, column 10: flaps.0.action", "down or dark"]),
    ]
    .into_iter()
    .enumerate()
    {
        let plan = Plan::new(&format!("flaps-refused-{number}"), &plan(&keys));
        refused(&["sim", &plan.path("plan.toml"), "-o", &plan.path("results")], parts);
    }
}
