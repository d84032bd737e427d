//! Counters: totals per host while it runs, and details per flow.

use castnet_wire::counters;
use serde::Serialize;

counters! {
    /// Totals of a host.
    #[derive(Serialize)]
    pub struct Counts {
        /// Frames made that the pattern measures: data, ACKs, NAKs, CNPs or contributions, without retransmissions.
        driven,
        /// All frames made.
        sent,
        /// Their bytes.
        sent_bytes,
        /// All frames received.
        received,
        /// Their bytes.
        received_bytes,
        /// Received frames that belong to no flow of this host.
        others,
    }
}

counters! {
    /// Counters of one flow: one member of one group.
    #[derive(Serialize)]
    pub struct FlowCounts {
        /// Data or contributions sent, without retransmissions; for a rank also its control messages.
        data_sent,
        /// Their bytes.
        data_sent_bytes,
        /// Data retransmitted.
        repeated,
        /// Data or results received, with repetitions.
        data_received,
        /// Their bytes.
        data_received_bytes,
        /// Data that never arrived: PSNs that were skipped.
        missing,
        /// Data that arrived again, or late.
        repeats,
        /// Frames whose ICRC was checked; of results also the payload.
        checked,
        /// Checked frames with a wrong ICRC.
        bad_icrc,
        /// Checked results that are not the sum of the contributions.
        wrong_results,
        /// ACKs sent.
        acks_sent,
        /// NAKs sent.
        naks_sent,
        /// CNPs sent.
        cnps_sent,
        /// ACKs received.
        acks_received,
        /// NAKs received.
        naks_received,
        /// CNPs received.
        cnps_received,
        /// Times that a flow continued, or went back, because nothing arrived for too long.
        timeouts,
    }
}
