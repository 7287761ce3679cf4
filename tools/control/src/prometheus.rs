//! The counters of processes in the text format of Prometheus (version 0.0.4). `docs/cli.md` lists the metrics.
//!
//! Names and labels are an interface: dashboards and rules of others use them. The labels of a context are its process, the number of its
//! control socket and its program; no label names a queue pair, a peer or an entropy value. So a context has as many series as there are
//! reasons to count, whatever it does.

use std::fmt::Write as _;

use crate::counters::{CountersReport, EvTotals, PlaneCounters};
use crate::watch::Seen;

/// A metric, its label, its meaning, and each counter with what it is in the label.
type Family = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Counters of the transport.
const TRANSPORT: &[Family] = &[
    (
        "packets_sent_total",
        "kind",
        "Packets sent, retransmissions included.",
        &[
            ("tx_data", "data"),
            ("tx_sacks", "sack"),
            ("tx_nacks", "nack"),
            ("tx_acks", "ack"),
            ("tx_naks", "nak"),
            ("tx_probes", "probe"),
            ("tx_endpoint_requests", "endpoint_request"),
            ("tx_endpoint_responses", "endpoint_response"),
        ],
    ),
    (
        "packets_received_total",
        "kind",
        "Packets received.",
        &[
            ("rx_data", "data"),
            ("rx_sacks", "sack"),
            ("rx_nacks", "nack"),
            ("rx_acks", "ack"),
            ("rx_naks", "nak"),
            ("rx_probes", "probe"),
            ("rx_endpoint_requests", "endpoint_request"),
            ("rx_endpoint_responses", "endpoint_response"),
        ],
    ),
    ("frames_received_total", "", "Frames that ports handed to the transport.", &[("rx_packets", "")]),
    ("sent_bytes_total", "", "Bytes of payload sent, retransmissions included.", &[("tx_data_bytes", "")]),
    ("placed_bytes_total", "", "Bytes of payload placed in registered memory.", &[("rx_placed_bytes", "")]),
    (
        "retransmits_total",
        "",
        "Data packets retransmitted, as they were declared lost.",
        &[("tx_retransmits", "")],
    ),
    (
        "tail_probes_total",
        "",
        "Data packets retransmitted for want of any acknowledgement.",
        &[("tx_tail_probes", "")],
    ),
    (
        "losses_total",
        "cause",
        "Data packets declared lost, by what they were declared lost for.",
        &[("loss_same_ev", "later_packet_of_path"), ("loss_overdue", "overdue"), ("loss_nack", "nack")],
    ),
    (
        "losses_suspected_total",
        "",
        "Tail loss probes whose original was probably lost.",
        &[("tail_suspects", "")],
    ),
    (
        "spurious_total",
        "of",
        "Losses declared, and packets retransmitted, for packets that had arrived.",
        &[("spurious_losses", "loss"), ("spurious_retransmits", "retransmit")],
    ),
    ("timeouts_total", "", "Retransmission timeouts.", &[("timeouts", "")]),
    (
        "data_received_total",
        "condition",
        "Data packets received that were marked, trimmed, repeated or out of order.",
        &[
            ("rx_ecn_marked", "marked"),
            ("rx_trimmed", "trimmed"),
            ("rx_duplicates", "duplicate"),
            ("rx_old", "old"),
            ("rx_out_of_order", "out_of_order"),
        ],
    ),
    (
        "receiver_not_ready_total",
        "side",
        "Data packets refused for want of a receive work request: by this side, and by peers.",
        &[("rx_not_ready", "local"), ("loss_not_ready", "peer")],
    ),
    (
        "peer_operations_total",
        "operation",
        "READs and atomic operations carried out for peers.",
        &[("rx_reads", "read"), ("rx_atomics", "atomic")],
    ),
    (
        "dropped_packets_total",
        "reason",
        "Packets received and dropped.",
        &[
            ("rx_bad_stack", "bad_stack"),
            ("rx_wrong_destination", "wrong_destination"),
            ("rx_other_port", "other_port"),
            ("rx_truncated", "truncated"),
            ("rx_bad_icrc", "bad_icrc"),
            ("rx_wrong_version", "wrong_version"),
            ("rx_wrong_partition", "wrong_partition"),
            ("rx_malformed", "malformed"),
            ("rx_unknown_qp", "unknown_qp"),
            ("rx_foreign_source", "foreign_source"),
            ("rx_wrong_state", "wrong_state"),
            ("rx_wrong_connection", "wrong_connection"),
            ("rx_out_of_window", "out_of_window"),
            ("rx_implausible_msn", "implausible_msn"),
            ("rx_not_negotiated", "not_negotiated"),
            ("rx_trimmed_useless", "trimmed_useless"),
            ("rx_forged_ack", "forged_ack"),
            ("rx_stale_sack", "stale_sack"),
            ("rx_stale_nack", "stale_nack"),
            ("rx_unmatched_response", "unmatched_response"),
            ("rx_rate_limited", "rate_limited"),
            ("rx_foreign_port_status", "foreign_port_status"),
            ("rx_contradicting_port_status", "contradicting_port_status"),
        ],
    ),
    (
        "refused_packets_total",
        "reason",
        "Data packets refused, as their operation is not allowed.",
        &[
            ("rx_bad_rkey", "bad_rkey"),
            ("rx_wrong_pd", "wrong_pd"),
            ("rx_no_access", "no_access"),
            ("rx_misaligned", "misaligned"),
            ("rx_out_of_bounds", "out_of_bounds"),
            ("rx_bad_length", "bad_length"),
        ],
    ),
    (
        "unsent_packets_total",
        "reason",
        "Packets that were not sent, or later: a queue of this host was full, or a limit was reached.",
        &[
            ("tx_unsent", "queue_full"),
            ("tx_unsent_dropped", "dropped"),
            ("tx_endpoint_requests_refused", "endpoint_request_refused"),
            ("tx_endpoint_dropped", "endpoint_port_down"),
            ("tx_nacks_dropped", "nack_limit"),
            ("tx_sacks_dropped", "sack_limit"),
        ],
    ),
    (
        "congestion_window_waits_total",
        "",
        "Times that a queue pair waited for a shared window.",
        &[("tx_cwnd_waits", "")],
    ),
    (
        "order_rule_pauses_total",
        "",
        "Times that packets of one entropy value were reordered.",
        &[("order_rule_pauses", "")],
    ),
    (
        "forwarded_packets_total",
        "",
        "Packets forwarded to another lane with the same address.",
        &[("rx_other_lane", "")],
    ),
    (
        "plane_probes_total",
        "",
        "Probes sent on planes that a peer has reported as unreachable.",
        &[("tx_plane_probes", "")],
    ),
    (
        "port_status_unheard_total",
        "",
        "Port status updates that a peer did not respond to.",
        &[("tx_port_status_unheard", "")],
    ),
    (
        "port_changes_total",
        "side",
        "Changes of the state of ports: of this host, and of peers.",
        &[("port_changes", "local"), ("peer_port_changes", "peer")],
    ),
    (
        "queue_pair_errors_total",
        "",
        "Queue pairs that went to ERROR, whatever the reason.",
        &[("qp_errors", "")],
    ),
    (
        "queue_pair_failures_total",
        "reason",
        "Queue pairs that failed for a reason of the transport; part of those that went to ERROR.",
        &[
            ("retries_exhausted", "retries_exhausted"),
            ("rx_invalid_request", "invalid_request"),
            ("rx_no_receive", "no_receive"),
        ],
    ),
];

/// Counters of lanes.
const LANES: Family = (
    "lane_events_total",
    "event",
    "What lanes have done and met.",
    &[
        ("polls", "poll"),
        ("idle_polls", "idle_poll"),
        ("interruptions", "interruption"),
        ("doorbells", "doorbell"),
        ("tx_refused", "frame_refused"),
        ("refused_requests", "request_refused"),
        ("cq_overruns", "cq_overrun"),
        ("taken_over", "frame_taken_over"),
        ("handover_lost", "frame_handover_lost"),
    ],
);

/// Counters of ports, of each plane. What lanes count of frames, ports count too.
const PORTS: &[Family] = &[
    (
        "port_frames_total",
        "direction",
        "Frames sent and received.",
        &[("tx_frames", "tx"), ("rx_frames", "rx")],
    ),
    (
        "port_bytes_total",
        "direction",
        "Their bytes, with headers.",
        &[("tx_bytes", "tx"), ("rx_bytes", "rx")],
    ),
    (
        "port_dropped_frames_total",
        "direction",
        "Frames that ports lost.",
        &[("tx_dropped", "tx"), ("rx_dropped", "rx")],
    ),
    (
        "port_calls_total",
        "direction",
        "System calls made to send, and those that returned received frames.",
        &[("tx_calls", "tx"), ("rx_calls", "rx")],
    ),
    (
        "port_problems_total",
        "problem",
        "Frames that ports could not handle as usual, and errors.",
        &[
            ("tx_full", "tx_full"),
            ("tx_unsent", "tx_unsent"),
            ("tx_oversize", "tx_oversize"),
            ("tx_fragmented", "tx_fragmented"),
            ("tx_unsendable", "tx_unsendable"),
            ("tx_errors", "tx_error"),
            ("rx_errors", "rx_error"),
            ("rx_unread", "rx_unread"),
        ],
    ),
];

/// A label's value as the format has it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Text that is written family by family.
struct Text<'a> {
    out: String,
    contexts: Vec<(String, &'a CountersReport)>,
}

impl<'a> Text<'a> {
    fn new(seen: &'a Seen) -> Self {
        let labels = |of: &CountersReport| {
            let program = escaped(&of.program);
            format!("process=\"{}\",context=\"{}\",program=\"{program}\"", of.process, of.context)
        };
        Self { out: String::new(), contexts: seen.contexts.iter().map(|of| (labels(of), of)).collect() }
    }

    /// A metric: for each context more labels, and their values.
    fn metric(
        &mut self,
        [name, kind, help]: [&str; 3],
        values: impl Fn(&'a CountersReport) -> Vec<(String, String)>,
    ) {
        let _ = writeln!(
            self.out,
            "# HELP spindrift_transport_{name} {help}\n# TYPE spindrift_transport_{name} {kind}"
        );
        for (labels, context) in &self.contexts {
            for (more, value) in values(context) {
                let _ = writeln!(self.out, "spindrift_transport_{name}{{{labels}{more}}} {value}");
            }
        }
    }

    fn family(
        &mut self,
        (name, label, help, counters): Family,
        value: impl Fn(&CountersReport, &str) -> Option<u64>,
    ) {
        self.metric([name, "counter", help], |context| {
            let of = |&(counter, part): &(&str, &str)| {
                let more = if label.is_empty() { String::new() } else { format!(",{label}=\"{part}\"") };
                // A process of another version may not have it.
                Some((more, value(context, counter)?.to_string()))
            };
            counters.iter().filter_map(of).collect()
        });
    }

    fn of_planes(&mut self, head: [&str; 3], values: impl Fn(&PlaneCounters) -> Vec<(String, String)>) {
        self.metric(head, |context| {
            let of = |plane: &PlaneCounters| {
                let at = format!(",plane=\"{}\"", plane.plane);
                values(plane).into_iter().map(move |(more, value)| (format!("{at}{more}"), value))
            };
            context.planes.iter().flat_map(of).collect()
        });
    }

    fn ports(&mut self) {
        for &(name, label, help, counters) in PORTS {
            self.of_planes([name, "counter", help], |plane| {
                let of = |&(counter, part): &(&str, &str)| {
                    Some((format!(",{label}=\"{part}\""), plane.counters.get(counter)?.to_string()))
                };
                counters.iter().filter_map(of).collect()
            });
        }
        self.of_planes(["port_up", "gauge", "Whether the link of the plane is up."], |plane| {
            vec![(String::new(), u8::from(plane.up).to_string())]
        });
        self.of_planes(
            ["entropy_values", "gauge", "Entropy values of all queue pairs, by state."],
            |plane| {
                let EvTotals { good, skip, reserve, assumed_bad, denied } = plane.evs;
                [
                    ("good", good),
                    ("skip", skip),
                    ("reserve", reserve),
                    ("assumed_bad", assumed_bad),
                    ("denied", denied),
                ]
                .map(|(state, count)| (format!(",state=\"{state}\""), count.to_string()))
                .into()
            },
        );
    }

    fn queue_pairs(&mut self) {
        self.metric(["queue_pairs", "gauge", "Queue pairs, by state."], |context| {
            let of = |(state, count): (&String, &u64)| {
                (format!(",state=\"{}\"", escaped(&state.to_lowercase())), count.to_string())
            };
            context.queue_pairs.states.iter().map(of).collect()
        });
        self.metric(["sends_outstanding", "gauge", "Send work requests not complete."], |context| {
            vec![(String::new(), context.queue_pairs.sends_outstanding.to_string())]
        });
        let rtt = "Smoothed round-trip times of queue pairs now.";
        self.metric(["rtt_seconds", "summary", rtt], |context| {
            let rtt = context.queue_pairs.rtt;
            if rtt.queue_pairs == 0 {
                return Vec::new();
            }
            [("0", rtt.min_ns), ("0.5", rtt.p50_ns), ("0.99", rtt.p99_ns), ("1", rtt.max_ns)]
                .map(|(quantile, ns)| (format!(",quantile=\"{quantile}\""), (ns as f64 / 1e9).to_string()))
                .into()
        });
        self.metric(["deny_rules", "gauge", "Rules by which paths are avoided."], |context| {
            vec![(String::new(), context.deny_rules.to_string())]
        });
    }
}

/// All metrics of the processes that were looked at.
pub fn text(seen: &Seen) -> String {
    let mut text = Text::new(seen);
    for &family in TRANSPORT {
        text.family(family, |context, counter| context.transport.get(counter).copied());
    }
    text.family(LANES, |context, counter| context.lanes.get(counter).copied());
    text.ports();
    text.queue_pairs();
    text.metric(
        ["contexts", "gauge", "Contexts with a control socket, by what became of the request."],
        |_| Vec::new(),
    );
    let states = [
        ("seen", seen.contexts.len() as u64),
        ("silent", seen.silent.len() as u64),
        ("failed", seen.errors.len() as u64),
        ("omitted", seen.omitted),
    ];
    for (state, count) in states {
        let _ = writeln!(text.out, "spindrift_transport_contexts{{state=\"{state}\"}} {count}");
    }
    text.out
}

/// Each counter of a context that is not 0, with the group that it is of: `transport`, `lanes` or a plane.
pub fn list(context: &CountersReport) -> Vec<(String, &str, u64)> {
    let transport = context.transport.iter().map(|(name, value)| ("transport".to_owned(), &**name, *value));
    let lanes = context.lanes.iter().map(|(name, value)| ("lanes".to_owned(), &**name, *value));
    let planes = context.planes.iter().flat_map(|plane| {
        plane.counters.iter().map(|(name, value)| (format!("plane {}", plane.plane), &**name, *value))
    });
    transport.chain(lanes).chain(planes).filter(|(.., value)| *value > 0).collect()
}
