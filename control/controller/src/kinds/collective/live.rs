//! What a group of ranks has in memory alone.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::links::DownLinks;

/// Who is in, who is waited for, and what is wrong; nothing of it for groups of other kinds.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// The last call of each rank. It counts for as long as the rank has a seat: whether it has is stored, and may be taken
    /// back.
    pub(crate) present: BTreeMap<u16, Presence>,
    /// The ranks that switches wait for, by the last report of each, and when that came.
    pub(crate) stalls: BTreeMap<String, (Instant, Vec<u16>)>,
    /// The ranks that are waited for, by all of these.
    pub(crate) waiting_for: Vec<u16>,
    /// For an active group: the links of its tree that are down.
    pub(crate) links_down: DownLinks,
}

/// Whether the last call of a rank stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// This call stands.
    Here(u64),
    /// This was the last; the lease runs.
    Away(u64),
}

impl Live {
    /// The rules are others now, or none: what was reported of them is over.
    pub(crate) fn rules_ended(&mut self) {
        self.stalls.clear();
        self.waiting_for.clear();
    }
}
