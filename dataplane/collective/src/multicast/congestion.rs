//! The filter of congestion notification packets (Cepheus III.D, "Congestion Control"; contract M4).

use crate::path::PathId;
use crate::translated::CNP_WINDOW;
use alloc::boxed::Box;
use alloc::vec;
use castnet_wire::Nanos;

/// Counts the CNPs of each path, and lets only those of the most congested path pass. So the source gets one stream of CNPs, as of one
/// receiver, and its rate follows the most congested path.
///
/// Counts are halved once per [`CNP_WINDOW`] (the paper's ageing). A CNP passes if it gives its path more than any path has. Hence a path
/// that was the most congested one keeps its place until another path has sent more, equally congested paths together pass as many CNPs
/// as one of them has sent, and a path whose congestion has ended is overtaken after a few windows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CnpFilter {
    /// False: all CNPs pass.
    pub(super) filters: bool,
    /// Number of the window of the newest CNP.
    window: u64,
    /// The largest count.
    most: u16,
    /// By path. The entry of the source is unused.
    counts: Box<[u16]>,
}

impl CnpFilter {
    pub(super) fn new(paths: usize) -> Self {
        Self {
            filters: true,
            window: 0,
            most: 0,
            counts: vec![0; paths].into_boxed_slice(),
        }
    }

    /// Counts a CNP of this path. True if it must be forwarded. A CNP beyond the largest count of a window is absorbed.
    pub(super) fn passes(&mut self, now: Nanos, from: PathId) -> bool {
        self.age(now);
        let Some(count) = self.counts.get_mut(from.index()) else {
            return false;
        };
        *count = count.saturating_add(1);
        let passes = *count > self.most;
        self.most = self.most.max(*count);
        passes || !self.filters
    }

    /// A path becomes the source, and receives nothing from now on: its count would hide the congestion of others.
    pub(super) fn forget(&mut self, path: PathId) {
        if let Some(count) = self.counts.get_mut(path.index()) {
            *count = 0;
        }
        self.most = self.counts.iter().copied().max().unwrap_or(0);
    }

    fn age(&mut self, now: Nanos) {
        let window = now.0 / CNP_WINDOW.0;
        let windows = window.saturating_sub(self.window).min(u64::from(u16::BITS));
        if windows > 0 {
            self.window = window;
            let halve = |count: &mut u16| *count = (u32::from(*count) >> windows) as u16;
            self.counts.iter_mut().for_each(halve);
            halve(&mut self.most);
        }
    }

    /// Takes over the count of a path that both have: its index here and there.
    pub(super) fn carry_on(&mut self, old: &Self, path: PathId, before: PathId) {
        self.window = old.window;
        if let Some(count) = self.counts.get_mut(path.index()) {
            *count = old.count(before);
            self.most = self.most.max(*count);
        }
    }

    /// Copies a filter of as many paths, without allocating.
    pub(super) fn copy_state(&mut self, of: &Self) {
        self.counts.clone_from(&of.counts);
        (self.filters, self.window, self.most) = (of.filters, of.window, of.most);
    }

    /// The count of a path.
    pub(super) fn count(&self, path: PathId) -> u16 {
        self.counts.get(path.index()).copied().unwrap_or_default()
    }

    /// Bytes outside of the struct.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.counts)
    }
}
