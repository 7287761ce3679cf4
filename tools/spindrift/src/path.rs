//! `spindrift path`: where packets go in a fabric, hop by hop, and which paths cross a link.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::{Value as Json, json};
use spindrift_srv6::{End, EvProfile, Fabric, Link, Node, Walk, Walker};

use crate::output::print_line;
use crate::topology;
use crate::units::{count, parse_ev};
use crate::usage::usage;

/// Prints paths of a fabric: of one entropy value hop by hop, between two hosts, or across a link
#[derive(Args, Debug)]
pub(crate) struct PathArgs {
    /// Topology file (examples: configs/lab/)
    #[arg(short, long, value_name = "FILE")]
    topology: PathBuf,
    /// Sending host [default: the first host of the file, or all hosts with --link]
    #[arg(long, value_name = "HOST")]
    from: Option<String>,
    /// Receiving host
    #[arg(long, value_name = "HOST", required_unless_present = "link")]
    to: Option<String>,
    /// Entropy value whose path is printed hop by hop, such as 0x80000000 [default: all paths are listed]
    #[arg(long, value_name = "EV", value_parser = parse_ev, conflicts_with = "link")]
    ev: Option<u32>,
    /// Only this plane
    #[arg(long, value_name = "N")]
    plane: Option<u8>,
    /// List the paths that cross this link, named by its two nodes: h1:p0-t0-0 or p0-t0-0:p0-t1-3
    #[arg(long, value_name = "NODE:NODE")]
    link: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &PathArgs) -> Result<()> {
    let fabric = topology::load(&args.topology)?;
    let last = fabric.shape().planes - 1;
    if let Some(plane) = args.plane.filter(|&plane| plane > last) {
        return Err(usage(format!("--plane {plane}: the fabric has planes 0 to {last}")));
    }
    let fabric = &fabric;
    let host = |flag, name: &Option<String>| name.as_ref().map(|name| host(fabric, flag, name)).transpose();
    let (from, to) = (host("--from", &args.from)?, host("--to", &args.to)?);
    let mut told = match &args.link {
        Some(text) => {
            let link = topology::link(fabric, text).map_err(|why| usage(format!("--link {text}: {why}")))?;
            across(args, fabric, link, from, to)?
        }
        // The option parser sees to `to`.
        None => between(args, fabric, from.unwrap_or(0), to.unwrap_or(0))?,
    };
    if let (true, Some(object)) = (args.json, told.as_object_mut()) {
        object.insert("command".to_owned(), "path".into());
        object.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
        print_line(&told.to_string());
    }
    Ok(())
}

fn host(fabric: &Fabric, flag: &str, name: &str) -> Result<u16> {
    let there_are = || topology::hosts_there_are(fabric);
    fabric.host(name).ok_or_else(|| usage(format!("{flag} {name}: no such host; {}", there_are())))
}

/// The planes asked for, of those that there are.
fn planes(args: &PathArgs, fabric: &Fabric) -> impl Iterator<Item = u8> {
    let only = args.plane;
    (0..fabric.shape().planes).filter(move |&plane| only.is_none_or(|only| only == plane))
}

/// The paths from one host to another, or the one of an entropy value.
fn between(args: &PathArgs, fabric: &Fabric, from: u16, to: u16) -> Result<Json> {
    let mut walker = fabric.walker();
    let mut told = Vec::new();
    for plane in planes(args, fabric) {
        let Some(paths) = fabric.paths(from, to, plane) else { continue };
        if let Some(ev) = args.ev {
            paths.check(ev).map_err(|error| usage(format!("--ev: {error}")))?;
        }
        let evs: Vec<_> = args.ev.map_or_else(|| evs(&paths).collect(), |ev| vec![ev]);
        if !args.json {
            // An empty line between planes.
            if args.plane.unwrap_or(0) != plane {
                print_line("");
            }
            head(fabric, (from, to), plane, &paths, args.ev);
        }
        for ev in evs {
            let Some(walk) = walker.walk(from, to, plane, ev) else { continue };
            if args.json {
                told.push(path_json(fabric, plane, ev, &walk));
            } else if args.ev.is_some() {
                explain(fabric, &walk);
            } else {
                let out = walk.hops.first().map_or_else(String::new, |hop| hop.destination.to_string());
                let inside = walk.hops.get(1..walk.hops.len() - 1).unwrap_or_default();
                print_line(&format!(
                    "  {ev:#010x}  {out:<40} {}",
                    names(fabric, inside.iter().map(|hop| hop.node))
                ));
            }
        }
    }
    Ok(json!({ "from": fabric.name(Node::Host(from)), "to": fabric.name(Node::Host(to)), "paths": told }))
}

fn head(fabric: &Fabric, (from, to): (u16, u16), plane: u8, paths: &EvProfile, ev: Option<u32>) {
    let (from, to) = (fabric.name(Node::Host(from)), fabric.name(Node::Host(to)));
    let what = match ev {
        Some(ev) => format!("entropy value {ev:#010x}"),
        None => format!(
            "{} for {} of the entropy value",
            count(paths.count(), "path"),
            count(paths.bits().into(), "bit")
        ),
    };
    print_line(&format!("{from} to {to}, plane {plane}, {what}"));
}

/// The path of one entropy value, a line for each node.
fn explain(fabric: &Fabric, walk: &Walk) {
    for (hop, next) in walk.hops.iter().zip(walk.hops.iter().skip(1)) {
        let (node, next) = (fabric.name(hop.node), fabric.name(next.node));
        print_line(&format!("  {node:<12} sends to {next:<12} with destination {}", hop.destination));
    }
    if let Some(last) = walk.hops.last() {
        let what = match walk.end {
            End::Delivered(inner) => format!("takes the packet to {inner} out"),
            End::Dropped(why) => format!("drops it: {why}"),
        };
        print_line(&format!("  {:<12} {what}", fabric.name(last.node)));
    }
}

fn path_json(fabric: &Fabric, plane: u8, ev: u32, walk: &Walk) -> Json {
    let hops: Vec<_> = walk
        .hops
        .iter()
        .map(|hop| json!({ "node": fabric.name(hop.node), "destination": hop.destination }))
        .collect();
    let (delivered, dropped) = match walk.end {
        End::Delivered(inner) => (Some(inner), None),
        End::Dropped(why) => (None, Some(why.to_string())),
    };
    json!({ "plane": plane, "ev": ev, "hops": hops, "delivered": delivered, "dropped": dropped })
}

/// The paths that cross a link, between the hosts asked for.
fn across(args: &PathArgs, fabric: &Fabric, link: Link, from: Option<u16>, to: Option<u16>) -> Result<Json> {
    let name = topology::link_name(fabric, link);
    let Some(plane) = link.1.plane() else {
        return Err(usage(format!("--link {name}: it is in no plane")));
    };
    if args.plane.is_some_and(|only| only != plane) {
        return Err(usage(format!("--link {name}: it is in plane {plane}; leave out --plane")));
    }
    let all = |host: Option<u16>| host.map_or(0..fabric.hosts().len() as u16, |host| host..host + 1);
    let (mut walker, mut told) = (fabric.walker(), Vec::new());
    let (mut crossing, mut total) = (0, 0);
    for (from, to) in all(from).flat_map(|from| all(to).map(move |to| (from, to))) {
        let Some(paths) = fabric.paths(from, to, plane).filter(|_| from != to) else { continue };
        let evs = crossers(&mut walker, &paths, link, from, to, plane);
        total += paths.count();
        crossing += evs.len() as u64;
        if evs.is_empty() {
            continue;
        }
        let (from, to) = (fabric.name(Node::Host(from)), fabric.name(Node::Host(to)));
        if args.json {
            told.push(json!({ "from": from, "to": to, "paths": paths.count(), "evs": evs }));
        } else {
            let list: Vec<_> = evs.iter().map(|ev| format!("{ev:#010x}")).collect();
            print_line(&format!(
                "{from} to {to}: {} of {}: {}",
                evs.len(),
                count(paths.count(), "path"),
                list.join(" ")
            ));
        }
    }
    if !args.json {
        print_line(&format!("{crossing} of {} in plane {plane} cross {name}", count(total, "path")));
    }
    Ok(json!({ "link": name, "plane": plane, "crossing": crossing, "of": total, "pairs": told }))
}

/// The entropy values whose packets cross a link.
fn crossers(
    walker: &mut Walker<'_>,
    paths: &EvProfile,
    link: Link,
    from: u16,
    to: u16,
    plane: u8,
) -> Vec<u32> {
    let mut crosses = |ev: &u32| walker.walk(from, to, plane, *ev).is_some_and(|walk| walk.crosses(link));
    evs(paths).filter(|ev| crosses(ev)).collect()
}

fn evs(paths: &EvProfile) -> impl Iterator<Item = u32> + '_ {
    (0..paths.count()).filter_map(|number| paths.nth(number))
}

fn names(fabric: &Fabric, nodes: impl Iterator<Item = Node>) -> String {
    nodes.map(|node| fabric.name(node)).collect::<Vec<_>>().join(" ")
}
