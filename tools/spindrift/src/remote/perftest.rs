//! Options of perftest (`ib_write_bw`, `ib_send_lat` and so on) that a benchmark lacks, with what to use instead.

/// perftest's options by their names, and what to do about them. Those that mean the same here are not in it.
const OPTIONS: [(&[&str], &str); 46] = [
    (
        &["-b", "--bidirectional"],
        "a run has one direction; for both at once start a second server with another -p, and its client on the server's host",
    ),
    (&["-d", "--ib-dev"], "the ports are chosen by interface or address: --local eth0, or -x N"),
    (&["-i", "--ib-port"], "the ports are chosen by interface or address: --local eth0, or -x N"),
    (&["-O", "--dualport"], "give both ports as planes: --local eth0,eth1"),
    (&["--bind_source_ip", "--local_ip"], "it is called --local"),
    (&["-R", "--rdma_cm"], "leave it out; the set-up always goes over TCP (-p)"),
    (&["-z", "--com_rdma_cm"], "leave it out; the set-up always goes over TCP (-p)"),
    (&["-c", "--connection"], "leave it out; MRC has one kind of connection"),
    (&["-6", "--ipv6", "--ipv6-addr"], "leave it out; the server's address says which family it is"),
    (&["-A", "--atomic_type"], "it is for atomic-bw and atomic-lat"),
    (&["-e", "--events"], "it is called --wait poll"),
    (&["-u", "--qp-timeout"], "it is called --timeout"),
    (&["--retry_count"], "it is called --linear-retries, and --exponential-retries for those that double"),
    (&["-w", "--limit_bw"], "it is called --link-rate, in bits per second, as in 1.5Gbit"),
    (&["--rate_limit", "--rate_limit_type"], "it is called --link-rate, in bits per second, as in 1.5Gbit"),
    (
        &["--rate_units", "--burst_size", "--typical_pkt_size"],
        "--link-rate has its unit behind it, as in 1.5Gbit",
    ),
    (&["-y", "--limit_msgrate"], "it has no counterpart; --link-rate limits bits per second"),
    (&["-f", "--margin"], "leave it out; with -D all of the time is measured, after a warm-up"),
    (&["--run_infinitely"], "write -D 24h, and end it with Ctrl-C"),
    (&["--perform_warm_up"], "leave it out; there always is a warm-up"),
    (&["-N", "--no-peak", "--noPeak"], "leave it out; the peak is measured at no cost"),
    (&["-H", "--report-histogram"], "leave it out; percentiles are in the table, and in --json"),
    (&["-U", "--report-unsorted"], "leave it out; percentiles are in the table, and in --json"),
    (&["-C", "--report-cycles"], "leave it out; times are in microseconds"),
    (&["--report-per-port"], "--counters prints what was counted"),
    (&["--report-both"], "both sides print their part, or with --json an object"),
    (&["-W", "--report-counters"], "it is called --counters"),
    (&["--cpu_util"], "it is called --json, where `cpu_s` is the time that cores were used"),
    (&["--output"], "it is called --json, which has all values"),
    (&["--out_json"], "it is called --json"),
    (&["--out_json_file"], "it is called --json; redirect standard output to the file"),
    (&["-I", "--inline_size"], "leave it out; requests hold no data here"),
    (&["-l", "--post_list"], "leave it out; requests that are posted together are sent together"),
    (&["-Q", "--cq-mod"], "leave it out; completions are moderated as the transport needs it"),
    (&["-r", "--rx-depth"], "leave it out; there are twice as many receives as --tx-depth"),
    (
        &["-o", "--outs"],
        "it is for READs and atomic operations; --tx-depth is the number of messages in flight",
    ),
    (&["--use-srq"], "it is for SENDs, and for write-bw and write-lat with --imm"),
    (&["--write_with_imm"], "it is for write-bw and write-lat; SENDs have --imm"),
    (&["-S", "--sl"], "write the code points into a file: [transport.dscp], and --config FILE"),
    (&["-T", "--tos", "--tclass"], "write the code points into a file: [transport.dscp], and --config FILE"),
    (&["--flow_label"], "the paths of packets are --evs, or --source-ports"),
    (&["--source_port", "--udp_sport"], "it is called --source-ports"),
    (&["--use_hugepages", "--mmap", "--mmap-offset"], "leave it out; memory is the command's own"),
    (
        &["--use_cuda", "--use_cuda_bus_id", "--use_rocm", "--use_hl"],
        "leave it out; memory is that of the host",
    ),
    (&["--dont_xchg_versions", "--force-link", "--link_type"], "leave it out; versions are always compared"),
    (
        &["--disable_pcie_relaxed", "--no_enhanced_reorder", "--use_old_post_send"],
        "leave it out; there is no such device",
    ),
];

/// What to do about an option that the parser does not know, if it is one of perftest's.
pub(crate) fn advice(option: &str) -> Option<String> {
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    let (names, text) = OPTIONS.iter().find(|(names, _)| names.contains(&name))?;
    Some(format!("{} is an option of perftest, not of this command: {text}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_once_each() {
        let mut names: Vec<_> = OPTIONS.iter().flat_map(|(names, _)| names.iter()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(advice("--nonsense"), None);
        assert_eq!(advice("--out_json_file=x.json"), advice("--out_json_file"));
    }
}
