//! State of hosts, switches and links.

use super::turns::Turns;
use super::{Bounded, LATE_MAX};
use crate::fabric::{LINKS, RECEIVERS};
use crate::host::{Requester, Responder};
use crate::message::{Message, Queue};
use crate::plain::Parts;
use crate::switch::{Rule, Seen, Switches};
use std::hash::{DefaultHasher, Hash, Hasher};

/// State of hosts, switches and links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub(super) switches: Switches,
    pub(super) source: Requester,
    pub(super) receivers: [Responder; RECEIVERS],
    pub(super) turns: Turns,
    pub(super) links: [Queue; LINKS],
    /// Delayed messages with their links; sorted, so that equal states compare equal.
    pub(super) late: [Option<Late>; LATE_MAX],
    pub(super) losses: u8,
    pub(super) duplicates: u8,
    pub(super) delays: u8,
    pub(super) early_time_outs: u8,
    pub(super) time_outs: u8,
    pub(super) early_ticks: u8,
    /// By receiver, the CNPs that it will still send.
    pub(super) cnps: [u8; RECEIVERS],
    /// CNPs that the source has received.
    pub(super) cnps_at_source: u8,
    /// Number of the present window of CNPs.
    pub(super) window: u8,
    /// The switch that may still evict its last path.
    pub(super) evicts: Option<usize>,
    /// Ticks since the timer of the source was set.
    pub(super) elapsed: u8,
    pub(super) broken: Option<Rule>,
    /// Events of the last step. Not part of the state's identity.
    pub(super) seen: Seen,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self {
            switches,
            source,
            receivers,
            turns,
            links,
            late,
            evicts,
            cnps,
            cnps_at_source,
            window,
            broken,
            ..
        } = self;
        let budgets = [
            self.losses,
            self.duplicates,
            self.delays,
            self.early_time_outs,
            self.time_outs,
            self.early_ticks,
            self.elapsed,
        ];
        (switches, source, receivers, links, late, evicts, broken, budgets).hash(hasher);
        (cnps, cnps_at_source, window).hash(hasher);
        // In most runs it is always the same.
        if turns.have_begun() {
            turns.hash(hasher);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Late {
    pub(super) link: u8,
    pub(super) message: Message,
    pub(super) overtaken: bool,
}

impl State {
    /// Returns true if the run has ended correctly: everything is delivered and the source knows it, or the source
    /// has received a refusal.
    pub(super) fn is_settled(&self, model: &Bounded) -> bool {
        if model.is_switching() {
            return model.turns_are_over(self);
        }
        let delivered = model.all_have(self, model.config.packets);
        delivered && self.source.is_done() || self.source.failed
    }

    pub(super) fn is_network_empty(&self) -> bool {
        self.links.iter().all(|queue| queue.is_empty()) && self.late == [None; LATE_MAX]
    }
}

impl Parts for State {
    type Rule = Rule;

    fn broken(&self) -> Option<Rule> {
        self.broken
    }

    fn parts(&self, mut each: impl FnMut(DefaultHasher)) {
        let mut part = |index: usize, state: &dyn Fn(&mut DefaultHasher)| {
            let mut hasher = DefaultHasher::new();
            index.hash(&mut hasher);
            state(&mut hasher);
            each(hasher);
        };
        part(0, &|hasher| {
            self.source.hash(hasher);
            self.turns.hash_host(0, hasher);
        });
        for (i, receiver) in self.receivers.iter().enumerate() {
            part(1 + i, &|hasher| {
                receiver.hash(hasher);
                self.turns.hash_host(1 + i, hasher);
            });
        }
        let switches = self
            .switches
            .machines
            .iter()
            .zip(&self.switches.acknowledged)
            .enumerate();
        for (i, switch) in switches {
            part(1 + RECEIVERS + i, &|hasher| switch.hash(hasher));
        }
    }
}
