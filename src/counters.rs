//! Counters: one for every kind of drop, refusal and unusual event, named after its reason.

/// Declares [`Counters`] and the table that names each field for people and tools.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The counters of an endpoint since it was made. Values only grow.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Every counter as name, meaning and value, in declaration order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name)),+].into_iter()
            }

            /// Adds another endpoint's counts to these.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counters! {
    /// Frames handed to the endpoint.
    rx_packets,
    /// Data packets placed or checked for placement.
    rx_data,
    /// SACKs received.
    rx_sacks,
    /// NACKs received.
    rx_nacks,
    /// Transport ACKs received.
    rx_acks,
    /// Transport NAKs received.
    rx_naks,
    /// Reliability probes received.
    rx_probes,
    /// Endpoint requests received.
    rx_endpoint_requests,
    /// Endpoint responses received.
    rx_endpoint_responses,
    /// Payload bytes placed in registered memory.
    rx_placed_bytes,
    /// Frames dropped: Ethernet, IP or UDP headers malformed or of another protocol.
    rx_bad_stack,
    /// Frames dropped: IP destination is not the address of the receiving port.
    rx_wrong_destination,
    /// Frames dropped: UDP destination port is not MRC's.
    rx_other_port,
    /// Frames dropped: shorter than their length fields and not marked as trimmed.
    rx_truncated,
    /// Packets dropped: invariant CRC does not match.
    rx_bad_icrc,
    /// Packets dropped: transport version (`BTH.tver`) is not 0.
    rx_wrong_version,
    /// Packets dropped: partition key does not match the default partition's.
    rx_wrong_partition,
    /// Packets dropped: transport headers malformed or opcode unknown.
    rx_malformed,
    /// Packets forwarded to another lane with the same address.
    rx_other_lane,
    /// Packets dropped: no such queue pair.
    rx_unknown_qp,
    /// Packets dropped: source address is not the connected peer's.
    rx_foreign_source,
    /// Packets dropped: queue pair is not in a state to receive them.
    rx_wrong_state,
    /// Packets dropped: reflected connection identifiers are not this pair's.
    rx_wrong_connection,
    /// Packets dropped: PSN outside the receive window.
    rx_out_of_window,
    /// Data packets dropped: message number impossible at that PSN, as in a copy from before a PSN wrap.
    rx_implausible_msn,
    /// Data packets seen before, above the cumulative acknowledgement.
    rx_duplicates,
    /// Data packets refused with an RNR NACK: no receive work request was posted for their message.
    rx_not_ready,
    /// Reads of the peer carried out.
    rx_reads,
    /// Atomic operations of the peer carried out.
    rx_atomics,
    /// Data packets dropped: of an operation that the peers did not agree on.
    rx_not_negotiated,
    /// Data packets at or below the cumulative acknowledgement.
    rx_old,
    /// Data packets that arrived out of order.
    rx_out_of_order,
    /// Data packets that carried a congestion-experienced mark.
    rx_ecn_marked,
    /// Data packets that a switch trimmed.
    rx_trimmed,
    /// Trimmed packets that could not be used: unknown pair, old, or too short.
    rx_trimmed_useless,
    /// Data packets refused: remote key unknown or stale.
    rx_bad_rkey,
    /// Data packets refused: region belongs to another protection domain.
    rx_wrong_pd,
    /// Data packets refused: region does not allow remote writes.
    rx_no_access,
    /// Atomic operations refused: their address is not a multiple of 8.
    rx_misaligned,
    /// Data packets refused: range outside the region.
    rx_out_of_bounds,
    /// Data packets refused: length does not suit opcode, message or path MTU.
    rx_bad_length,
    /// Queue pairs failed: packets in order did not form messages, or too many immediates.
    rx_invalid_request,
    /// Queue pairs failed: an immediate found no receive work request.
    rx_no_receive,
    /// SACKs, NACKs and ACKs dropped: they name packets that were never sent.
    rx_forged_ack,
    /// SACKs older than one already processed; only new information in them is used.
    rx_stale_sack,
    /// NACKs ignored: the packet has arrived, or they refer to an earlier transmission.
    rx_stale_nack,
    /// Endpoint responses and SACKs of probes that match no outstanding request.
    rx_unmatched_response,
    /// Endpoint requests and probes without a response: rate limit.
    rx_rate_limited,
    /// Port status updates dropped: source address is not a connected peer's.
    rx_foreign_port_status,
    /// Port status updates dropped: they report the port they came from as unreachable.
    rx_contradicting_port_status,
    /// Data packets sent, retransmissions included.
    tx_data,
    /// Payload bytes sent, retransmissions included.
    tx_data_bytes,
    /// SACKs sent.
    tx_sacks,
    /// NACKs sent.
    tx_nacks,
    /// Transport ACKs sent.
    tx_acks,
    /// Transport NAKs sent.
    tx_naks,
    /// Reliability probes sent.
    tx_probes,
    /// Endpoint requests sent.
    tx_endpoint_requests,
    /// Endpoint requests not sent: queue of endpoint packets full.
    tx_endpoint_requests_refused,
    /// Endpoint packets dropped before sending: their port went down.
    tx_endpoint_dropped,
    /// Port status updates abandoned: no response from the peer for a minute.
    tx_port_status_unheard,
    /// Probes sent on planes that a port status update reported as unreachable.
    tx_plane_probes,
    /// Endpoint responses sent.
    tx_endpoint_responses,
    /// Packets that a full queue of this host rejected. They are sent again; until then, the counters of sent data exclude
    /// them.
    tx_unsent,
    /// Packets without payload dropped after a full queue rejected them: too many waited, or their port went down.
    tx_unsent_dropped,
    /// Data packets retransmitted because they were declared lost.
    tx_retransmits,
    /// Tail loss probes sent: data packets retransmitted because no acknowledgement arrived.
    tx_tail_probes,
    /// Times that a queue pair was blocked by its shared congestion window.
    tx_cwnd_waits,
    /// NACKs not sent: too many pending at once.
    tx_nacks_dropped,
    /// Congestion marks and duplicates without a SACK of their own: too many pending at once.
    tx_sacks_dropped,
    /// Losses declared: a later packet of the same entropy value arrived.
    loss_same_ev,
    /// Losses declared: later packets arrived and this one is overdue.
    loss_overdue,
    /// Losses declared: NACK from the peer.
    loss_nack,
    /// Packets refused because the peer had no receive work request (RNR NACK). They are sent again after a wait.
    loss_not_ready,
    /// Tail loss probes acknowledged when the original was not: the original was probably lost.
    tail_suspects,
    /// Losses declared for packets that arrived late.
    spurious_losses,
    /// Retransmissions and tail loss probes of a packet whose earlier transmission arrived too.
    spurious_retransmits,
    /// Times the same-path order rule was suspended, because packets of one entropy value were reordered.
    order_rule_pauses,
    /// Retransmission timeouts.
    timeouts,
    /// Queue pairs failed: retries exhausted.
    retries_exhausted,
    /// Queue pairs that went to the error state, whatever the reason.
    qp_errors,
    /// Local port state changes.
    port_changes,
    /// Planes closed or opened because a peer's ports changed state.
    peer_port_changes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_a_name_and_a_meaning() {
        let counters = Counters { rx_packets: 3, ..Counters::default() };
        let rows: Vec<_> = counters.iter().collect();
        assert_eq!(rows[0], ("rx_packets", "Frames handed to the endpoint.", 3));
        assert!(rows.iter().all(|(name, meaning, _)| !name.is_empty() && meaning.ends_with('.')));
        let mut sum = counters.clone();
        sum.add(&counters);
        assert_eq!(sum.rx_packets, 6);
    }
}
