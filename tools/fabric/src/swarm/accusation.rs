//! Counters that stay zero between peers that keep to the protocol: one list for all judges.

use spindrift::counters::Counters;

/// A counter that says that a peer has done what none does, other than those in `except`, which the judge's world may raise.
///
/// # Panics
/// `except` names a counter that is not in the list.
pub(crate) fn accusation(counters: &Counters, except: &[&str]) -> Option<(&'static str, u64)> {
    let never = [
        ("rx_malformed", counters.rx_malformed),
        ("rx_wrong_connection", counters.rx_wrong_connection),
        ("rx_out_of_window", counters.rx_out_of_window),
        ("rx_bad_rkey", counters.rx_bad_rkey),
        ("rx_wrong_pd", counters.rx_wrong_pd),
        ("rx_no_access", counters.rx_no_access),
        ("rx_misaligned", counters.rx_misaligned),
        ("rx_out_of_bounds", counters.rx_out_of_bounds),
        ("rx_bad_length", counters.rx_bad_length),
        ("rx_invalid_request", counters.rx_invalid_request),
        ("rx_no_receive", counters.rx_no_receive),
        ("rx_not_ready", counters.rx_not_ready),
        ("rx_not_negotiated", counters.rx_not_negotiated),
        ("rx_foreign_port_status", counters.rx_foreign_port_status),
        ("rx_contradicting_port_status", counters.rx_contradicting_port_status),
    ];
    for name in except {
        assert!(never.iter().any(|(known, _)| known == name), "{name} is not in the list");
    }
    never.into_iter().find(|(name, count)| *count > 0 && !except.contains(name))
}
