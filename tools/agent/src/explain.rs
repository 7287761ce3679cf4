//! Findings in words.

use spindrift_srv6::Fabric;

use crate::{Component, Count, Evidence, Fault, Finding, Window};

impl Component {
    /// What it is called: `p0-t1-3`, or `h1 - p0-t0-0` for a link.
    pub fn name(self, fabric: &Fabric) -> String {
        match self {
            Self::Link((lower, upper)) => format!("{} - {}", fabric.name(lower), fabric.name(upper)),
            Self::Node(node) => fabric.name(node),
        }
    }

    fn with_kind(self, fabric: &Fabric) -> String {
        let kind = match self {
            Self::Link(_) => "link",
            Self::Node(spindrift_srv6::Node::Host(_)) => "host",
            Self::Node(_) => "switch",
        };
        format!("{kind} {}", self.name(fabric))
    }
}

impl Finding {
    /// The finding in two or three sentences: what is wrong, how that is known, and how certain it is.
    pub fn explain(&self, fabric: &Fabric) -> String {
        let names: Vec<_> = self.components.iter().map(|component| component.with_kind(fabric)).collect();
        let state = match self.fault {
            Fault::Down => "forwards nothing".to_owned(),
            Fault::Lossy { rate } => format!("loses {} of all probes", percent(rate)),
        };
        let first = match &names[..] {
            [one] => format!("The {one} {state}."),
            several => {
                let list = several.join(", the ");
                format!("One of these {state}, and the probes cannot tell which: the {list}.")
            }
        };
        let confidence = percent_down(self.confidence);
        format!("{first} {} Confidence: {confidence}.", sentence(&self.evidence))
    }
}

fn sentence(evidence: &Evidence) -> String {
    let Evidence { window, through, beside, paths, agents } = *evidence;
    let time = match window {
        Window::Fast => "50 ms",
        Window::Second => "second",
        Window::TenSeconds => "10 s",
        Window::FiveMinutes => "5 min",
    };
    let (paths, agents) = (plural(paths, "path"), plural(agents, "agent"));
    let crossed = format!("In the last {time}, {} over it were lost ({paths} of {agents})", of(through));
    if beside.sent == 0 {
        return format!("{crossed}.");
    }
    let whose = if agents == "1 agent" { "this agent's" } else { "these agents'" };
    format!("{crossed}, and {} on {whose} other paths in the plane.", of(beside))
}

fn of(count: Count) -> String {
    format!("{} of {} probes", count.lost, count.sent)
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn percent(share: f64) -> String {
    let digits = if share < 0.1 { 2 } else { 0 };
    format!("{:.digits$} %", share * 100.0)
}

/// Never rounded up to certainty.
fn percent_down(share: f64) -> String {
    format!("{:.2} %", (share * 10_000.0).floor().min(9_999.0) / 100.0)
}
