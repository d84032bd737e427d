//! A path that joins a running stream gets nothing before the first packet of a message with the PSN after the newest. Until
//! then the machine acknowledges each new packet for it, so it holds up nobody; a switch with no other paths acknowledges all data. From
//! that packet on it is a path like the others: its AckPSN is the PSN before. No ACK of that packet can have been sent, as it is newer
//! than all data that this switch has seen, and the machine remembers its data when the rule is replaced ([`Multicast::carry_on`]). A
//! switch that has lost its state lets no path join before all others have sent feedback.

use super::Effects;
use super::machine::{Multicast, Phase, Special};
use crate::path::PathId;
use alloc::boxed::Box;
use castnet_wire::{Nanos, Psn, Syndrome};

/// Paths that join a running stream, all with the same packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Joining {
    paths: Box<[PathId]>,
    /// PSN of their first packet; `None` while they wait for it.
    first: Option<Psn>,
}

impl Joining {
    pub(super) fn copy_state(&mut self, of: &Self) {
        self.first = of.first;
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.paths)
    }
}

impl Multicast {
    /// Lets these paths of a new machine join the stream: before [`carry_on`](Self::carry_on).
    #[must_use]
    pub fn with_joining(mut self, paths: impl IntoIterator<Item = PathId>) -> Self {
        let own = |path: &PathId| path.index() < self.table.len() && *path != self.source;
        let paths: Box<[PathId]> = paths.into_iter().filter(own).collect();
        if !paths.is_empty() {
            self.rare.special = Some(Special::Joining(Joining { paths, first: None }));
            self.fast = false;
        }
        self
    }

    pub(super) fn joining(&self) -> Option<&Joining> {
        match &self.rare.special {
            Some(Special::Joining(joining)) => Some(joining),
            _ => None,
        }
    }

    /// Data of `psn` from `from` is about to be handled, and begins a message: waiting paths join with it, if it is the next after the
    /// newest. Its ICRC must have been verified.
    pub fn handle_message(&mut self, from: PathId, psn: Psn) {
        let Some(Special::Joining(joining @ Joining { first: None, .. })) = &mut self.rare.special else {
            return;
        };
        let gap = self
            .rare
            .repair
            .as_ref()
            .is_some_and(|r| r.frontier != self.newest.next());
        let joins = match self.phase {
            // Nothing has been acknowledged by this switch, and no path but those that wait has received anything.
            Phase::Learning => joining.paths.len() + 1 == self.table.len(),
            Phase::Baseline => self.newest == self.agg_ack && psn == self.newest.next(),
            Phase::Acknowledged => psn == self.newest.next(),
        };
        if !joins || gap || from != self.source {
            return;
        }
        joining.first = Some(psn);
        self.fast = self.rare.repair.is_none();
        if self.phase == Phase::Learning {
            self.start_after(psn.prev());
            self.phase = Phase::Acknowledged;
        }
    }

    /// True while a path waits for the first packet of a message.
    pub fn is_waiting(&self) -> bool {
        !self.fast && self.joining().is_some_and(|j| j.first.is_none())
    }

    /// The paths that have joined with the data packet of `psn`, and have not acknowledged it.
    pub fn joined_with(&self, psn: Psn) -> impl Iterator<Item = PathId> {
        let joining = self.joining().filter(|j| j.first == Some(psn));
        let paths = joining.into_iter().flat_map(|j| j.paths.iter().copied());
        paths.filter(move |path| self.lacks(*path, psn))
    }

    /// Whether the path joins.
    pub(super) fn joins(&self, path: PathId) -> bool {
        self.joining().is_some_and(|j| j.paths.contains(&path))
    }

    /// The number of paths that wait for the first packet of a message.
    pub(super) fn waiting(&self) -> usize {
        match self.joining() {
            Some(Joining { paths, first: None }) => paths.len(),
            _ => 0,
        }
    }

    /// Acknowledges new data for the paths that wait.
    pub(super) fn pass_waiting(&mut self, now: Nanos, psn: Psn, out: &mut Effects) {
        let count = self.joining().map_or(0, |j| j.paths.len());
        for i in 0..count {
            let path = self.joining().and_then(|j| j.paths.get(i).copied());
            if let Some(path) = path {
                self.on_feedback(now, path, psn, 0, Syndrome::Ack, out);
            }
        }
    }
}
