//! The slow, obvious twin of the machine: unwrapped positions, ordered maps, everything looked at on each event.

use super::path;
use castnet_collective::{Effect, Multicast, PathId};
use castnet_wire::{DropReason, NakCode, Psn, Syndrome};
use std::collections::{BTreeMap, BTreeSet};

/// How far behind the first data a group without a known start assumes its paths.
pub const BEHIND: i64 = 1 << 22;
/// How far ahead of it a path may be.
pub const AHEAD: i64 = 1 << 16;
/// How far ahead of what all have acknowledged data may be, but for the next.
pub const WINDOW: i64 = 1 << 20;

/// An effect as a test sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The data packet goes to these paths.
    Replicate(Vec<usize>),
    /// What it says.
    Effect(Effect),
}

impl Told {
    /// What `machine` means by it, right after it has said it.
    pub fn of(machine: &Multicast, effect: Effect) -> Self {
        match effect {
            Effect::Replicate { psn } => Self::Replicate(
                machine
                    .lacking(psn)
                    .filter(|path| machine.takes(*path, psn))
                    .map(PathId::index)
                    .collect(),
            ),
            effect => Self::Effect(effect),
        }
    }
}

impl PartialEq<Effect> for Told {
    fn eq(&self, effect: &Effect) -> bool {
        matches!(self, Self::Effect(told) if told == effect)
    }
}

impl From<Effect> for Told {
    fn from(effect: Effect) -> Self {
        Self::Effect(effect)
    }
}

/// An event whose PSN is a position on a line instead of a circle.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Data {
        from: u8,
        at: i64,
        ack_request: bool,
    },
    Feedback {
        from: u8,
        at: i64,
        msn: u32,
        syndrome: Syndrome,
    },
}

#[derive(Clone, Debug)]
pub struct Twin {
    paths: u8,
    source: u8,
    /// `None` until the first data, if no start was given.
    pub newest: Option<i64>,
    pub aggregated: i64,
    pub acked: BTreeMap<u8, i64>,
    msn: BTreeMap<u8, u32>,
    /// The last word of a path, if that was a NAK: of `acked + 1`.
    pub refused: BTreeMap<u8, Syndrome>,
    /// Paths whose fatal NAKs the source is not sent.
    pub holds: BTreeSet<u8>,
    acknowledged: bool,
    nak_sent: bool,
    learned: bool,
    /// The source has gone back in a stream whose start was learned.
    pub went_back: bool,
}

impl Twin {
    pub fn new(paths: u8, source: u8, start: Option<i64>) -> Self {
        let before = start.unwrap_or(0) - 1;
        let receivers = || (0..paths).filter(|p| *p != source);
        Self {
            paths,
            source,
            newest: start.map(|_| before),
            aggregated: before,
            acked: receivers().map(|p| (p, before)).collect(),
            msn: receivers().map(|p| (p, 0)).collect(),
            refused: BTreeMap::new(),
            holds: BTreeSet::new(),
            acknowledged: false,
            nak_sent: false,
            learned: start.is_none(),
            went_back: false,
        }
    }

    pub fn handle(&mut self, step: Step) -> Vec<Told> {
        let mut out = match step {
            Step::Data {
                from,
                at,
                ack_request,
            } => self.data(from, at, ack_request),
            Step::Feedback {
                from,
                at,
                msn,
                syndrome,
            } => self.feedback(from, at, msn, syndrome),
        };
        // After each event, whatever it was: has the lowest AckPSN risen, is there a NAK next to it?
        if self.newest.is_some() {
            let lowest = *self.acked.values().min().expect("a receiver");
            if lowest > self.aggregated {
                self.aggregated = lowest;
                self.acknowledged = true;
                self.nak_sent = false;
                out.push(self.up(lowest, Syndrome::Ack).into());
            }
            if let Some(syndrome) = self.strongest().filter(|_| !self.nak_sent) {
                self.nak_sent = true;
                out.push(self.up(lowest + 1, syndrome).into());
            }
        }
        if out.is_empty() {
            vec![Effect::Absorb.into()]
        } else {
            out
        }
    }

    fn data(&mut self, from: u8, at: i64, ack_request: bool) -> Vec<Told> {
        if from >= self.paths {
            return vec![Effect::Drop(DropReason::NotMember).into()];
        }
        // Where the start was learned, and nothing is acknowledged yet, the paths are only assumed to be so far behind.
        let behind = if self.learned && !self.acknowledged {
            BEHIND
        } else {
            0
        };
        let unexpected = self.newest.is_some_and(|newest| at != newest + 1);
        if unexpected && at - self.aggregated > behind + WINDOW {
            return vec![Effect::Drop(DropReason::AheadOfWindow).into()];
        }
        if from != self.source {
            return vec![Effect::Drop(DropReason::NotSource).into()];
        }
        if self.newest.is_none() {
            self.aggregated = at - BEHIND;
            self.acked.values_mut().for_each(|acked| *acked = at - BEHIND);
        }
        self.went_back |= self.learned && Some(at) <= self.newest;
        self.newest = self.newest.max(Some(at));
        let acked = &self.acked;
        self.refused
            .retain(|path, syndrome| is_fatal(*syndrome) || acked[path] + 1 < at);
        let lacking = self.acked.iter().filter(|(_, acked)| **acked < at);
        let to: Vec<usize> = lacking.map(|(path, _)| usize::from(*path)).collect();
        let answer = to.is_empty() && (ack_request || at == self.aggregated) && self.acknowledged;
        let back = at <= self.aggregated + 1;
        if back && (at == self.aggregated + 1 || answer || self.strongest().is_none()) {
            self.nak_sent = false;
        }
        if !to.is_empty() {
            vec![Told::Replicate(to)]
        } else if answer {
            vec![self.up(self.aggregated, Syndrome::Ack).into()]
        } else {
            vec![]
        }
    }

    fn feedback(&mut self, from: u8, at: i64, msn: u32, syndrome: Syndrome) -> Vec<Told> {
        if from == self.source {
            return vec![Effect::Drop(DropReason::FeedbackFromSource).into()];
        }
        if from >= self.paths {
            return vec![Effect::Drop(DropReason::NotMember).into()];
        }
        let ahead = self.newest.is_none_or(|newest| at > newest);
        if let Some(newest) = self.newest.filter(|newest| at > *newest && at - newest <= AHEAD)
            && self.went_back
        {
            return self.feedback(from, newest, msn, Syndrome::Ack);
        }
        if ahead {
            return vec![Effect::Drop(DropReason::AckAhead).into()];
        }
        let acked = self.acked.get_mut(&from).expect("a receiver");
        if at <= *acked {
            return vec![];
        }
        let upto = if syndrome == Syndrome::Ack { at } else { at - 1 };
        if upto > *acked {
            *acked = upto;
            self.msn.insert(from, msn);
            self.refused.remove(&from);
        }
        if syndrome != Syndrome::Ack {
            let stronger = self
                .refused
                .get(&from)
                .is_none_or(|old| strength(syndrome) > strength(*old));
            if stronger {
                self.refused.insert(from, syndrome);
            }
        }
        vec![]
    }

    /// The strongest refusal of the packet after the lowest AckPSN that the source may be sent.
    fn strongest(&self) -> Option<Syndrome> {
        let lowest = self.acked.values().min()?;
        let refused = self
            .refused
            .iter()
            .filter(|(path, _)| self.acked[path] == *lowest)
            .filter(|(path, syndrome)| !(self.holds.contains(*path) && is_fatal(**syndrome)));
        refused
            .map(|(_, syndrome)| *syndrome)
            .max_by_key(|syndrome| strength(*syndrome))
    }

    fn up(&self, at: i64, syndrome: Syndrome) -> Effect {
        let lowest = self.acked.values().min().expect("a receiver");
        let mut holders = self
            .acked
            .iter()
            .filter(|(_, acked)| *acked == lowest)
            .map(|(path, _)| self.msn[path]);
        let first = holders.next().expect("it is there");
        // One that is ahead has completed more messages.
        let msn = match self.went_back {
            true => holders
                .chain([first])
                .min_by_key(|msn| Psn::new(*msn).diff(Psn::new(first)))
                .expect("it"),
            false => first,
        };
        Effect::Acknowledge {
            to: path(self.source),
            psn: wrap(at),
            msn,
            syndrome,
        }
    }
}

/// The position on the circle.
pub fn wrap(at: i64) -> Psn {
    Psn::new(at.rem_euclid(Psn::MODULUS as i64) as u32)
}

fn is_fatal(syndrome: Syndrome) -> bool {
    matches!(syndrome, Syndrome::Nak(code) if code.is_fatal())
}

fn strength(syndrome: Syndrome) -> (u8, u64) {
    match syndrome {
        Syndrome::Ack => (0, 0),
        Syndrome::Nak(NakCode::PsnSequenceError) => (1, 0),
        Syndrome::RnrNak(timer) => (2, timer.wait().0),
        Syndrome::Nak(code) => (3, code as u64),
    }
}
