//! State of a group that is in memory only.

use std::collections::BTreeMap;

use crate::state::broken_links::DownLinks;
use crate::state::kinds::multicast::stall::PathStall;
use crate::state::timers::{Due, Timers};

/// All but timers, links and paths is of groups of ranks.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// Calls that stand, by rank. One counts while the rank has a seat, which is stored and may be taken back; without one, its lease runs.
    pub(crate) present: BTreeMap<u16, u64>,
    pub(crate) timers: Timers<Due>,
    /// Ranks that switches wait for: the last report of each.
    pub(crate) stalls: BTreeMap<String, Vec<u16>>,
    /// Ranks that are waited for, by all of these reports.
    pub(crate) waiting_for: Vec<u16>,
    /// Links and switches of its tree, while it runs.
    pub(crate) links_down: DownLinks,
    /// Paths that switches of a multicast group wait for, by switch.
    pub(crate) path_stalls: BTreeMap<String, PathStall>,
}

impl Live {
    /// The rules have ended or been replaced: earlier reports no longer apply.
    pub(crate) fn rules_ended(&mut self) {
        self.stalls.clear();
        self.path_stalls.clear();
        self.waiting_for.clear();
    }
}
