//! What is counted: cheaply per host while it runs, and in full per flow.

use serde::Serialize;

/// A host's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Frames made that are what the pattern is about: data, ACKs, NAKs, CNPs or contributions; repeats are not among them.
    pub driven: u64,
    /// All frames made.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// All frames that came.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Of these: for no flow of this host.
    pub others: u64,
}

impl Counts {
    /// Adds another host's.
    pub fn add(&mut self, more: &Self) {
        self.driven += more.driven;
        self.sent += more.sent;
        self.sent_bytes += more.sent_bytes;
        self.received += more.received;
        self.received_bytes += more.received_bytes;
        self.others += more.others;
    }
}

/// What one flow has seen: one member of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlowCounts {
    /// Data or contributions sent, repeats not counted; for a rank its control messages too.
    pub data_sent: u64,
    /// Their bytes.
    pub data_sent_bytes: u64,
    /// Data sent again.
    pub repeated: u64,
    /// Data or results that came, repeats counted.
    pub data_received: u64,
    /// Their bytes.
    pub data_received_bytes: u64,
    /// Data that never came: PSNs that were jumped over.
    pub missing: u64,
    /// Data that came again, or late.
    pub repeats: u64,
    /// Frames whose ICRC, and results whose payload, was looked at.
    pub checked: u64,
    /// Of these: with a wrong ICRC.
    pub bad_icrc: u64,
    /// Of these: results that are not the sum of the contributions.
    pub wrong_results: u64,
    /// Feedback sent.
    pub acks_sent: u64,
    /// NAKs sent.
    pub naks_sent: u64,
    /// CNPs sent.
    pub cnps_sent: u64,
    /// Feedback that came.
    pub acks_received: u64,
    /// NAKs that came.
    pub naks_received: u64,
    /// CNPs that came.
    pub cnps_received: u64,
    /// Times that nothing came for so long that the flow went on, or back, by itself.
    pub timeouts: u64,
}

impl FlowCounts {
    /// Adds another flow's.
    pub fn add(&mut self, more: &Self) {
        self.data_sent += more.data_sent;
        self.data_sent_bytes += more.data_sent_bytes;
        self.repeated += more.repeated;
        self.data_received += more.data_received;
        self.data_received_bytes += more.data_received_bytes;
        self.missing += more.missing;
        self.repeats += more.repeats;
        self.checked += more.checked;
        self.bad_icrc += more.bad_icrc;
        self.wrong_results += more.wrong_results;
        self.acks_sent += more.acks_sent;
        self.naks_sent += more.naks_sent;
        self.cnps_sent += more.cnps_sent;
        self.acks_received += more.acks_received;
        self.naks_received += more.naks_received;
        self.cnps_received += more.cnps_received;
        self.timeouts += more.timeouts;
    }
}
