//! `spindrift ctl deny` and `allow`: which paths running processes avoid.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use spindrift::endpoint::{DenyList, DenyRule};
use spindrift_control::{Denied, DenyEntry, Reply, Request};

use super::{Processes, folder, list, object, refusal};
use crate::output::{eprint_line, print_line};
use crate::units::{count, parse_number};
use crate::usage::usage;

/// Paths to avoid.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct DeniedPaths {
    /// A plane; may be given several times, as may the others
    #[arg(long, value_name = "NUMBER")]
    plane: Vec<u8>,
    /// The plane to other hosts' ports with this address
    #[arg(long, value_name = "ADDRESS")]
    peer: Vec<IpAddr>,
    /// Entropy values: one, or with a mask all that have these bits; of a plane or of all. 0x1a2b0000/0xffff0000@1
    #[arg(long, value_name = "VALUE[/MASK][@PLANE]", value_parser = parse_evs)]
    ev: Vec<DenyRule>,
    /// Source-routed paths of a plane that visit these uSIDs in this order. 0:2a01,2401
    #[arg(long, value_name = "PLANE:USID[,USID ..]", value_parser = parse_path)]
    path: Vec<DenyRule>,
}

/// Whose deny list these commands change.
const SOURCE: &str = "operator";

/// A number, in hexadecimal with `0x`.
fn number(text: &str) -> Result<u32, String> {
    parse_number(text).ok_or_else(|| format!("{text:?} is no number of 32 bits; write 4711, or 0x1267"))
}

fn parse_evs(text: &str) -> Result<DenyRule, String> {
    let (evs, plane) = text.split_once('@').map_or((text, None), |(evs, plane)| (evs, Some(plane)));
    let plane = plane.map(|plane| plane.parse().map_err(|_| format!("{plane:?} is no plane")));
    let (value, mask) = evs.split_once('/').map_or((evs, None), |(value, mask)| (value, Some(mask)));
    let mask = mask.map_or(Ok(u32::MAX), number)?;
    checked(DenyRule::Ev { value: number(value)?, mask, plane: plane.transpose()? })
}

fn parse_path(text: &str) -> Result<DenyRule, String> {
    let form = "write the plane and the uSIDs in hexadecimal, such as 0:2a01,2401";
    let (plane, usids) = text.split_once(':').ok_or(form)?;
    let usid = |usid: &str| {
        let number = u16::from_str_radix(usid, 16).ok().filter(|_| !usid.starts_with('+'));
        number.ok_or_else(|| format!("{usid:?} is no uSID; {form}"))
    };
    let usids = usids.split(',').map(usid).collect::<Result<_, _>>()?;
    checked(DenyRule::Path {
        plane: plane.parse().map_err(|_| format!("{plane:?} is no plane; {form}"))?,
        usids,
    })
}

/// A rule that can be.
fn checked(rule: DenyRule) -> Result<DenyRule, String> {
    DenyList::new([&rule]).map(|_| ()).map_err(|error| error.to_string())?;
    Ok(rule)
}

impl DeniedPaths {
    fn rules(&self) -> Result<Vec<DenyRule>> {
        let planes = self.plane.iter().map(|&plane| DenyRule::Plane { plane });
        let peers = self.peer.iter().map(|&address| DenyRule::Peer { address });
        let rules: Vec<_> = planes.chain(peers).chain(self.ev.clone()).chain(self.path.clone()).collect();
        DenyList::new(&rules).map_err(|error| usage(error.to_string()))?;
        Ok(rules)
    }
}

/// Adds paths to the deny list of each process.
pub(super) fn deny(paths: &DeniedPaths, lifetime: Option<Duration>, processes: &Processes) -> Result<()> {
    let rules = paths.rules()?;
    if rules.is_empty() {
        return Err(usage("nothing to deny; name paths with --plane, --peer, --ev or --path"));
    }
    let lifetime_ms = lifetime.map(|time| time.as_millis().max(1) as u64);
    let source = SOURCE.to_owned();
    change(processes, "deny", &Request::Deny { source, rules, replace: false, lifetime_ms })
}

/// Removes them, or all.
pub(super) fn allow(paths: &DeniedPaths, all: bool, processes: &Processes) -> Result<()> {
    let rules = paths.rules()?;
    if rules.is_empty() && !all {
        return Err(usage("nothing to allow; name paths with --plane, --peer, --ev or --path, or use --all"));
    }
    change(processes, "allow", &Request::Allow { source: SOURCE.to_owned(), rules })
}

/// Changes the deny list of each process.
fn change(processes: &Processes, command: &str, request: &Request) -> Result<()> {
    let all = processes.ask(request)?;
    let (mut denied, mut refused) = (Vec::new(), Vec::new());
    for (socket, reply) in &all.replies {
        match reply {
            Reply::Denied(entries) => denied.push((socket.process(), entries)),
            other => refused.push(format!("process {}: {}", socket.process(), refusal(other))),
        }
    }
    if processes.json {
        let list = denied.iter().map(|(process, denied)| json!({ "process": process, "denied": denied }));
        print_line(&object(command, "processes", &list.collect()));
    } else {
        for (process, entries) in &denied {
            let what = if entries.is_empty() { "nothing is denied" } else { "denied now:" };
            print_line(&format!("process {process}: {what}"));
            entries.iter().for_each(|entry| print_line(&denied_text(entry)));
        }
    }
    // A process that started later was never told what is allowed again now.
    let fails = denied.is_empty() || !matches!(request, Request::Allow { .. });
    if let Some(last) = refused.pop().filter(|_| fails) {
        for reason in refused {
            eprint_line(format_args!("spindrift: {reason}"));
        }
        bail!("{last}");
    }
    if denied.is_empty() && all.errors.is_empty() {
        let dir = folder(processes.control_dir.as_ref());
        bail!("no process has a control socket in {}", dir.path().display());
    }
    all.finish()
}

pub(super) fn denied_text(entry: &DenyEntry) -> String {
    let DenyEntry { source, rule, left_ms } = entry;
    let left = left_ms.map_or_else(String::new, |left| {
        format!(", for {} more", humantime::format_duration(Duration::from_secs(left.div_ceil(1000))))
    });
    format!("  {rule} (by {source}{left})")
}

/// What a queue pair does about the deny list.
pub(super) fn avoids_text(denied: &Denied) -> String {
    let Denied { planes, avoided, evs, released, silent_failovers } = denied;
    let mut text = String::new();
    if !avoided.is_empty() {
        let _ = write!(text, "; avoids plane {}", list(avoided));
    }
    let used: Vec<u8> = planes.iter().copied().filter(|plane| !avoided.contains(plane)).collect();
    if !used.is_empty() {
        let _ = write!(text, "; uses the denied plane {}, since the others do not suffice", list(&used));
    }
    match (evs, released) {
        (0, _) => {}
        (evs, false) => _ = write!(text, "; avoids {}", count(u64::from(*evs), "entropy value")),
        (evs, true) => {
            let evs = count(u64::from(*evs), "denied entropy value");
            let _ = write!(text, "; uses {evs}, since the others do not suffice");
        }
    }
    if *silent_failovers > 0 {
        let _ = write!(text, "; {}", count(*silent_failovers, "silent failover"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_paths_are_read() {
        for (text, expected) in [
            ("7", "entropy values 0x7"),
            ("0x1a2b0000/0xffff0000@1", "entropy values 0x1a2b0000 in the bits 0xffff0000 of plane 1"),
            ("0/0", "entropy values 0x0 in the bits 0x0"),
        ] {
            assert_eq!(parse_evs(text).unwrap().to_string(), expected);
        }
        assert_eq!(parse_path("3:2a01,4").unwrap().to_string(), "paths of plane 3 over 2a01:0004");
        for text in ["", "x", "1/", "/1", "1@", "1@x", "1@32", "3/1", "4294967296", "-1"] {
            parse_evs(text).unwrap_err();
        }
        for text in ["", "1", "1:", ":1", "1:1,", "1:12345", "1:+1", "32:1", "x:1"] {
            parse_path(text).unwrap_err();
        }
        let error = parse_path("0:xyz").unwrap_err();
        assert_eq!(
            error,
            "\"xyz\" is no uSID; write the plane and the uSIDs in hexadecimal, such as 0:2a01,2401"
        );
    }

    #[test]
    fn what_a_queue_pair_avoids_is_told() {
        let denied = |planes: &[u8], avoided: &[u8], evs, released| {
            let silent_failovers = u64::from(released);
            let (planes, avoided) = (planes.to_vec(), avoided.to_vec());
            avoids_text(&Denied { planes, avoided, evs, released, silent_failovers })
        };
        assert_eq!(denied(&[1, 2], &[1, 2], 0, false), "; avoids plane 1,2");
        assert_eq!(
            denied(&[1, 2], &[2], 1, false),
            "; avoids plane 2; uses the denied plane 1, since the others do not suffice; avoids 1 entropy value"
        );
        assert_eq!(
            denied(&[], &[], 3, true),
            "; uses 3 denied entropy values, since the others do not suffice; 1 silent failover"
        );
        let entry = |left_ms| {
            denied_text(&DenyEntry {
                source: "agent h1".to_owned(),
                rule: DenyRule::Plane { plane: 1 },
                left_ms,
            })
        };
        assert_eq!(entry(None), "  plane 1 (by agent h1)");
        assert_eq!(entry(Some(61_001)), "  plane 1 (by agent h1, for 1m 2s more)");
    }
}
