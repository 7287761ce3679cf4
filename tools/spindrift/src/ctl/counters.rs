//! `spindrift ctl counters`: what running processes have counted.

use anyhow::Result;
use serde_json::json;
use spindrift_control::{CountersReport, Seen, Watch, prometheus};

use super::{Processes, folder, no_socket, object};
use crate::output::{eprint_line, print_line};
use crate::units::count;

/// Prints the counters of the processes.
pub(super) fn counters(processes: &Processes, as_metrics: bool) -> Result<()> {
    let dir = folder(processes.control_dir.as_ref());
    let pid = processes.pid;
    let seen = Watch::only(vec![dir.clone()], move |process| pid.is_none_or(|pid| pid == process)).look();
    if let (Some(pid), true) = (pid, seen == Seen::default()) {
        return Err(no_socket(pid, &dir));
    }
    if as_metrics {
        print_line(prometheus::text(&seen).trim_end());
    } else if processes.json {
        print_line(&object("counters", "processes", &json!(seen.contexts)));
    } else if seen.contexts.is_empty() && seen.silent.is_empty() && seen.errors.is_empty() {
        processes.tell_none();
    } else {
        for (index, context) in seen.contexts.iter().enumerate() {
            if index > 0 {
                print_line("");
            }
            for line in lines(context) {
                print_line(&line);
            }
        }
    }
    finish(&seen)
}

/// Says what is not known. The last reason is the command's error.
fn finish(seen: &Seen) -> Result<()> {
    let silent =
        seen.silent.iter().map(|process| format!("process {process} does not reply; it may be stopped"));
    let omitted = (seen.omitted > 0).then(|| {
        format!(
            "{} not asked, as there are so many; name a process with --pid",
            count(seen.omitted, "context")
        )
    });
    let mut reasons: Vec<_> = silent.chain(seen.errors.iter().cloned()).chain(omitted).collect();
    let last = reasons.pop();
    for reason in reasons {
        eprint_line(format_args!("spindrift: {reason}"));
    }
    last.map_or(Ok(()), |reason| Err(anyhow::Error::msg(reason)))
}

/// A context, for people: all counters that are not 0.
fn lines(of: &CountersReport) -> Vec<String> {
    let queue_pairs: u64 = of.queue_pairs.states.values().sum();
    let mut lines =
        vec![format!("process {}: {}, {}", of.process, of.program, count(queue_pairs, "queue pair"))];
    let mut group = String::new();
    for (of_group, name, value) in prometheus::list(of) {
        if of_group != group {
            lines.push(format!("  {of_group}"));
            group = of_group;
        }
        lines.push(format!("    {name:<32} {value:>20}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_are_not_0_are_listed_by_group() {
        let map =
            |pairs: &[(&str, u64)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let plane = spindrift_control::counters::PlaneCounters {
            plane: 1,
            counters: map(&[("rx_bytes", 0), ("tx_bytes", 9)]),
            ..Default::default()
        };
        let context = CountersReport {
            process: 7,
            program: "a test".to_owned(),
            transport: map(&[("rx_data", 0), ("tx_data", 12)]),
            lanes: map(&[("polls", 3)]),
            planes: vec![plane],
            ..CountersReport::default()
        };
        let number = |name: &str, value: u64| format!("    {name:<32} {value:>20}");
        let expected = [
            "process 7: a test, 0 queue pairs".to_owned(),
            "  transport".to_owned(),
            number("tx_data", 12),
            "  lanes".to_owned(),
            number("polls", 3),
            "  plane 1".to_owned(),
            number("tx_bytes", 9),
        ];
        assert_eq!(lines(&context), expected);
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        assert!(finish(&Seen::default()).is_ok());
        let error = |seen: Seen| finish(&seen).unwrap_err().to_string();
        assert_eq!(
            error(Seen { silent: vec![5], ..Seen::default() }),
            "process 5 does not reply; it may be stopped"
        );
        assert_eq!(error(Seen { errors: vec!["x".to_owned()], ..Seen::default() }), "x");
        assert!(error(Seen { omitted: 2, ..Seen::default() }).starts_with("2 contexts not asked"));
    }
}
