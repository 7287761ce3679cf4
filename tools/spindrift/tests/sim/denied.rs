//! Components that all hosts avoid for a while.

use super::support::{refused, run, stderr, stdout};
use super::{FABRIC, Plan};

/// Each host avoids what crosses the component, and nothing else, and for no longer. What is denied twice is so until both ends.
#[test]
fn hosts_avoid_what_is_denied_until_it_ends() {
    let text = |place: &str, claims: &[(&str, &str, u32)]| {
        let claim = |&(host, at, count): &(&str, &str, u32)| {
            format!(
                "[[claim]]\nwhat = \"{host} {at}\"\nmeasure = \"denied\"\nhosts = \"{host}\"\nto = \"{at}\"\nleast = {count}\nmost = {count}\n"
            )
        };
        format!(
            "[plan]\ntitle = \"x\"\nduration = \"4ms\"\n{FABRIC}[record]\nhosts = \"all\"\n\
             [path]\nactive = 8\nbackup = 0\n\
             [[workload]]\nkind = \"write\"\nfrom = \"h1, h2, h5, h6\"\nto = \"h5, h6, h2, h1\"\nsize = \"64K\"\n\
             [[fault]]\nat = \"500us\"\nwhere = \"{place}\"\naction = \"deny\"\nfor = \"1ms\"\n\
             [[fault]]\nat = \"1ms\"\nwhere = \"{place}\"\naction = \"deny\"\nfor = \"1ms\"\n{}",
            claims.iter().map(claim).collect::<String>()
        )
    };
    // The own port is the whole plane, that of the peer the plane to it, and a link above the one path over it.
    for (number, (place, counts)) in [
        ("h1:p0-t0-0", [("h1", 4), ("h2", 0), ("h5", 0), ("h6", 4)]),
        ("p0-t0-0:p0-t1-1", [("h1", 1), ("h2", 1), ("h5", 1), ("h6", 1)]),
    ]
    .into_iter()
    .enumerate()
    {
        let of_host = |(host, count)| {
            [(host, "400us", 0), (host, "900us", count), (host, "1800us", count), (host, "4ms", 0)]
        };
        let claims: Vec<_> = counts.into_iter().flat_map(of_host).collect();
        let plan = Plan::new(&format!("denied-{number}"), &text(place, &claims));
        let output = run(&["sim", &plan.path("plan.toml"), "-o", &plan.path("results")]);
        assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    }
}

#[test]
fn a_transport_without_paths_avoids_nothing() {
    let text = format!(
        "[plan]\ntitle = \"x\"\nduration = \"1ms\"\n{FABRIC}[transport]\nkind = \"roce\"\n\
         [[workload]]\nkind = \"write\"\nfrom = \"h1\"\nto = \"h5\"\n\
         [[fault]]\nat = \"0us\"\nwhere = \"h1:p0-t0-0\"\naction = \"deny\"\n"
    );
    let plan = Plan::new("denied-roce", &text.replace("planes = 2", "planes = 1"));
    let parts = ["line 19, column 10: fault.0.action", "RoCE has no paths", "kind = \"mrc\""];
    refused(&["sim", &plan.path("plan.toml"), "-o", &plan.path("results")], &parts);
}
