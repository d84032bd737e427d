//! What is counted: cheaply per host while it runs, and in full per flow.

use castnet_wire::counters;
use serde::Serialize;

counters! {
    /// A host's totals.
    #[derive(Serialize)]
    pub struct Counts {
        /// Frames made that are what the pattern is about: data, ACKs, NAKs, CNPs or contributions; repeats are not among them.
        driven,
        /// All frames made.
        sent,
        /// Their bytes.
        sent_bytes,
        /// All frames that came.
        received,
        /// Their bytes.
        received_bytes,
        /// Of these: for no flow of this host.
        others,
    }
}

counters! {
    /// What one flow has seen: one member of one group.
    #[derive(Serialize)]
    pub struct FlowCounts {
        /// Data or contributions sent, repeats not counted; for a rank its control messages too.
        data_sent,
        /// Their bytes.
        data_sent_bytes,
        /// Data sent again.
        repeated,
        /// Data or results that came, repeats counted.
        data_received,
        /// Their bytes.
        data_received_bytes,
        /// Data that never came: PSNs that were jumped over.
        missing,
        /// Data that came again, or late.
        repeats,
        /// Frames whose ICRC, and results whose payload, was looked at.
        checked,
        /// Of these: with a wrong ICRC.
        bad_icrc,
        /// Of these: results that are not the sum of the contributions.
        wrong_results,
        /// Feedback sent.
        acks_sent,
        /// NAKs sent.
        naks_sent,
        /// CNPs sent.
        cnps_sent,
        /// Feedback that came.
        acks_received,
        /// NAKs that came.
        naks_received,
        /// CNPs that came.
        cnps_received,
        /// Times that nothing came for so long that the flow went on, or back, by itself.
        timeouts,
    }
}
