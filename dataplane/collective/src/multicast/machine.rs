//! The multicast machine itself.

use super::entry::{Entry, Refusal};
use super::{Effect, Effects, Event, MulticastConfig, MulticastStatus, PathStatus, TimerReason};
use crate::path::{PATHS_MAX, PathId};
use crate::prefetch::Prefetch;
use alloc::boxed::Box;
use alloc::vec;
use castnet_wire::{DropReason, Nanos, Psn, Syndrome};

/// How far behind the first data the paths are assumed to be where the start is not known: half of the half circle that
/// can be compared. That is more than any requester has outstanding, and leaves as much again ahead.
const UNKNOWN_BEHIND: i32 = 1 << 22;

/// The state of one group at one switch: Cepheus' MFT but for what only rewriting needs.
///
/// Replication. Data from the source goes on by every path that has not acknowledged it: a new packet by all, a
/// retransmitted one only if it is needed (M3). What all have acknowledged goes nowhere; the acknowledgement that the
/// source must have missed is given again when it asks or comes by the last such packet. In a tree, the lowest switch
/// whose feedback was lost answers.
///
/// Acknowledgement. AggAckPSN is at all times the lowest AckPSN. The paper keeps one path that holds it (triPort), and looks
/// at all entries when that path moves. Here those that hold it are counted, and all entries are looked at only when
/// the last of them has moved: once per aggregated ACK, in whatever order the paths answer. Each time, an ACK goes to the
/// source (M1).
///
/// Refusal. A NAK of `e` acknowledges all before `e`, so each path's pending NAK is that of its own AckPSN + 1, and one
/// byte per entry holds it. The paper keeps a single MePSN instead, and forgets the NAK of one path when another's lower
/// one comes or goes. A NAK goes to the source when AggAckPSN reaches the PSN before it, looked for on ACKs and on NAKs
/// alike (M2), once until the source goes back. Where several paths refuse the same PSN, the strongest refusal goes: one
/// that ends the connection, then the longest RNR wait, then a gap. A refusal that ends the connection stays, since its
/// receiver will not repeat it: it goes again each time the source comes back to that PSN or asks.
///
/// Nothing here mutates but through [`handle`](Self::handle) and [`handle_timeout`](Self::handle_timeout). The order of
/// calls: `handle` for each frame, then `poll_timeout`, and `handle_timeout` when that time has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Multicast {
    /// The Path Table. The source's own entry is unused.
    table: Box<[Entry]>,
    /// Last progress, or the first data after none was outstanding.
    since: Nanos,
    /// When a stall is to be reported.
    stall_at: Nanos,
    stall_timeout: Nanos,
    /// Newest data seen. No AckPSN is ever beyond it.
    newest: Psn,
    /// AggAckPSN: the lowest AckPSN.
    agg_ack: Psn,
    source: PathId,
    /// How many paths have the lowest AckPSN, `agg_ack`: the paper's triPort, but all that tie.
    lowest: u16,
    phase: Phase,
    /// The NAK of `agg_ack + 1` has gone to the source, and the source has not gone back since.
    nak_sent: bool,
}

/// What is known of the PSNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Nothing: no data has come yet.
    Learning,
    /// `agg_ack` is only where counting begins. It is never sent: a requester believes any ACK, and this one could be of
    /// a PSN that it never sent.
    Baseline,
    /// `agg_ack` was acknowledged by all paths.
    Acknowledged,
}

impl Multicast {
    /// A group that has seen nothing yet. All memory that it will ever need is reserved here.
    pub fn new(config: MulticastConfig) -> Self {
        let MulticastConfig {
            paths,
            source,
            start_psn,
            stall_timeout,
        } = config;
        let paths = (paths as usize).clamp(source.index() + 1, PATHS_MAX);
        let baseline = start_psn.map_or(Psn::new(0), Psn::prev);
        Self {
            table: vec![Entry::new(baseline); paths].into_boxed_slice(),
            since: Nanos::ZERO,
            stall_at: Nanos::ZERO,
            stall_timeout,
            newest: baseline,
            agg_ack: baseline,
            source,
            lowest: (paths - 1) as u16,
            phase: if start_psn.is_some() {
                Phase::Baseline
            } else {
                Phase::Learning
            },
            nak_sent: false,
        }
    }

    /// Takes on the state of `of`, a machine of the same configuration. Allocates no memory.
    pub fn copy_state(&mut self, of: &Self) {
        self.table.clone_from(&of.table);
        *self = Self {
            table: core::mem::take(&mut self.table),
            ..*of
        };
    }

    /// Takes a frame in. `out` is emptied first, then holds at least one effect and at most two.
    pub fn handle(&mut self, now: Nanos, event: Event, out: &mut Effects) {
        out.clear();
        match event {
            Event::Data {
                from,
                psn,
                ack_request,
            } => self.on_data(now, from, psn, ack_request, out),
            Event::Feedback {
                from,
                psn,
                msn,
                syndrome,
            } => match self.refuse_feedback(from) {
                Some(reason) => emit(out, Effect::Drop(reason)),
                None => self.on_feedback(now, from, psn, msn, syndrome, out),
            },
            Event::Cnp { from } => match self.refuse_feedback(from) {
                Some(reason) => emit(out, Effect::Drop(reason)),
                None => emit(out, Effect::Cnp { to: self.source }),
            },
        }
        if out.is_empty() {
            emit(out, Effect::Absorb);
        }
    }

    /// The fast path of [`handle`](Self::handle) for nearly all of a stream: data of the source with the PSN that comes
    /// next, which goes to all receivers. `false`, and nothing has changed, where it takes more than that.
    #[inline]
    pub fn next_data(&mut self, now: Nanos, psn: Psn) -> bool {
        let next = self.phase != Phase::Learning && psn == self.newest.next();
        let taken = next && psn.is_after(self.agg_ack) && self.table.len() > 1;
        if taken {
            self.on_new_data(now, psn);
        }
        taken
    }

    /// Returns true if the data packet of `psn` is to go to `path`: one that is not the source's and has not acknowledged it (M3).
    #[inline]
    pub fn lacks(&self, path: PathId, psn: Psn) -> bool {
        let entry = self.table.get(path.index());
        // Against AggAckPSN first: only after it are comparisons safe from the wrap.
        path != self.source && psn.is_after(self.agg_ack) && entry.is_some_and(|e| psn.is_after(e.ack()))
    }

    /// Prefetches the memory that feedback of `from` touches beside the machine itself.
    #[inline]
    pub fn prefetch(&self, from: PathId, by: &impl Prefetch) {
        if let Some(entry) = self.table.get(from.index()) {
            by.prefetch(entry);
        }
    }

    /// The paths that [lack](Self::lacks) the data packet of `psn`, lowest first.
    pub fn lacking(&self, psn: Psn) -> impl Iterator<Item = PathId> {
        let paths = self.entries().map(|(path, _)| path);
        paths.filter(move |&path| self.lacks(path, psn))
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called, and why.
    pub fn poll_timeout(&self) -> Option<(Nanos, TimerReason)> {
        let watched = self.is_outstanding() && self.stall_timeout > Nanos::ZERO;
        watched.then_some((self.stall_at, TimerReason::Stall))
    }

    /// Time has passed. `out` is emptied first; a stall is reported once per stall time-out.
    pub fn handle_timeout(&mut self, now: Nanos, out: &mut Effects) {
        out.clear();
        if self.poll_timeout().is_some_and(|(at, _)| now >= at) {
            self.stall_at = now + self.stall_timeout;
            emit(
                out,
                Effect::Stalled {
                    path: self.waits_for(),
                    since: self.since,
                },
            );
        }
    }

    /// The PSN that new data will have; `None` while no data has come and none was foretold. A frame with another PSN may
    /// change more than this count, so its ICRC must be verified before it is handled.
    pub fn next_psn(&self) -> Option<Psn> {
        (self.phase != Phase::Learning).then(|| self.newest.next())
    }

    /// The state, for display.
    pub fn status(&self) -> MulticastStatus {
        let known = self.phase != Phase::Learning;
        let outstanding = self.is_outstanding();
        let refused = self
            .entries()
            .map(|(_, entry)| entry)
            .filter(|e| !e.refusal.is_none());
        let paths = self.entries().map(|(path, entry)| {
            // What was assumed when joining a running stream is not told as if a path had said it.
            let told = entry.ack().is_after(self.agg_ack) || self.phase == Phase::Acknowledged;
            PathStatus {
                path,
                ack_psn: told.then(|| entry.ack()),
                msn: entry.msn(),
                refusal: entry.refusal.syndrome(),
            }
        });
        MulticastStatus {
            source: self.source,
            newest_psn: known.then_some(self.newest),
            agg_ack_psn: (self.phase == Phase::Acknowledged).then_some(self.agg_ack),
            me_psn: refused
                .map(|e| e.ack().next())
                .min_by_key(|e| e.diff(self.agg_ack)),
            nak_sent: self.nak_sent,
            waiting_for: outstanding.then(|| self.waits_for()),
            since: outstanding.then_some(self.since),
            paths: paths.collect(),
        }
    }

    /// Bytes that a frame of the group can touch: the head of the machine and its Path Table.
    pub fn hot_bytes(&self) -> usize {
        core::mem::size_of::<Self>() + core::mem::size_of_val(&*self.table)
    }

    /// Bytes that only set-up touches: none, the configuration is taken apart into the head.
    pub fn cold_bytes(&self) -> usize {
        0
    }

    fn on_data(&mut self, now: Nanos, from: PathId, psn: Psn, ack_request: bool, out: &mut Effects) {
        if from != self.source {
            let member = from.index() < self.table.len();
            return emit(
                out,
                Effect::Drop(if member {
                    DropReason::NotSource
                } else {
                    DropReason::NotMember
                }),
            );
        }
        if self.phase == Phase::Learning {
            self.learn(psn);
        }
        // In this order: AggAckPSN is the one measure, and nothing beyond the half circle after it is taken as newer. So all
        // PSNs that are kept lie within one half circle, where comparisons are safe from the wrap.
        if !psn.is_after(self.agg_ack) {
            self.on_acknowledged_data(psn, ack_request, out);
        } else if psn.is_after(self.newest) {
            self.on_new_data(now, psn);
            self.replicate(psn, out);
        } else {
            self.on_retransmission(psn, out);
        }
    }

    /// No AckPSN is beyond the newest data, so nobody has this packet and nobody need be asked.
    #[inline]
    fn on_new_data(&mut self, now: Nanos, psn: Psn) {
        if !self.is_outstanding() {
            self.progress(now);
        }
        self.newest = psn;
    }

    /// Takes the first data of a stream that may have been running for long as a measure.
    ///
    /// To take all before it as acknowledged would be wrong: the source may have older PSNs outstanding that some receiver
    /// lacks. Their retransmission would be filtered away, and the source told that all have them. So the paths are
    /// assumed to be as far behind as can be: everything is passed on, and nothing is acknowledged, until each path has
    /// spoken for itself.
    fn learn(&mut self, psn: Psn) {
        let baseline = psn.add(-UNKNOWN_BEHIND);
        self.table.fill(Entry::new(baseline));
        self.newest = baseline;
        self.agg_ack = baseline;
        self.lowest = (self.table.len() - 1) as u16;
        self.phase = Phase::Baseline;
    }

    /// Data that came before and that not all have acknowledged: to those that have not (M3).
    fn on_retransmission(&mut self, psn: Psn, out: &mut Effects) {
        for entry in &mut self.table {
            // A requester that goes back sends all from there again, so what was refused from there on is served.
            if !psn.is_after(entry.ack().next()) {
                entry.refusal.serve();
            }
        }
        self.replicate(psn, out);
        if psn == self.agg_ack.next() {
            self.nak_sent = false;
            self.send_nak(out);
        }
    }

    /// Data that all have acknowledged: the source has missed that, and has gone back further than any NAK asked for.
    ///
    /// It is told so where it asks, and at the last such packet, which it always comes by, even if it does not: the
    /// packets that ask may be those that are lost each time.
    fn on_acknowledged_data(&mut self, psn: Psn, ack_request: bool, out: &mut Effects) {
        for entry in &mut self.table {
            entry.refusal.serve();
        }
        let answer = self.phase == Phase::Acknowledged && (ack_request || psn == self.agg_ack);
        if answer {
            self.send_ack(out);
        }
        // Only what ends the connection is left now. It was sent; it is sent again to a source that asks.
        if answer || self.refusal().is_none() {
            self.nak_sent = false;
            self.send_nak(out);
        }
    }

    fn on_feedback(
        &mut self,
        now: Nanos,
        from: PathId,
        psn: Psn,
        msn: u32,
        syndrome: Syndrome,
        out: &mut Effects,
    ) {
        if self.phase == Phase::Learning {
            return emit(out, Effect::Drop(DropReason::AckAhead));
        }
        // In this order: only between AggAckPSN and the newest data are comparisons safe from the wrap.
        if !psn.is_after(self.agg_ack) {
            return;
        }
        if psn.is_after(self.newest) {
            return emit(out, Effect::Drop(DropReason::AckAhead));
        }
        let entry = &mut self.table[from.index()];
        if !psn.is_after(entry.ack()) {
            return;
        }
        let refusal = Refusal::of(syndrome);
        let ack = if refusal.is_none() { psn } else { psn.prev() };
        let before = entry.ack();
        if ack.is_after(before) {
            entry.advance(ack, msn, refusal);
            if before == self.agg_ack {
                self.lowest -= 1;
            }
            if self.lowest == 0 {
                let (first, strongest) = self.raise_agg_ack();
                self.progress(now);
                self.phase = Phase::Acknowledged;
                let msn = self.table[first].msn();
                self.acknowledge((self.agg_ack, msn), Syndrome::Ack, out);
                self.nak_sent = !strongest.is_none();
                if let Some(syndrome) = strongest.syndrome() {
                    self.acknowledge((self.agg_ack.next(), msn), syndrome, out);
                }
            }
        } else {
            entry.refusal = entry.refusal.max(refusal);
        }
        // By the letter of the paper a NAK is looked for only where an ACK is sent; then the NAK of the path that is
        // itself the lowest would never leave.
        if !refusal.is_none() {
            self.send_nak(out);
        }
    }

    /// Looks for the lowest AckPSN again, once no path is left if it was: AggAckPSN rises. Returns the first path that has it,
    /// and the strongest refusal of those that do.
    fn raise_agg_ack(&mut self) -> (usize, Refusal) {
        let (before, source) = (self.agg_ack, self.source.index());
        let (mut least, mut first, mut strongest) = (i32::MAX, source, Refusal::NONE);
        for (i, entry) in self.table.iter().enumerate() {
            let ahead = entry.ack().diff(before);
            if i == source || ahead > least {
                continue;
            }
            if ahead < least {
                (least, self.lowest) = (ahead, 0);
                (first, strongest) = (i, Refusal::NONE);
            }
            self.lowest += 1;
            strongest = strongest.max(entry.refusal);
        }
        self.agg_ack = before.add(least);
        (first, strongest)
    }

    /// The strongest refusal of the PSN after AggAckPSN.
    fn refusal(&self) -> Refusal {
        let lowest = self.entries().filter(|(_, entry)| entry.ack() == self.agg_ack);
        lowest
            .map(|(_, entry)| entry.refusal)
            .max()
            .unwrap_or(Refusal::NONE)
    }

    fn send_ack(&self, out: &mut Effects) {
        self.acknowledge((self.agg_ack, self.msn()), Syndrome::Ack, out);
    }

    /// Sends the NAK of the PSN after AggAckPSN, if there is one and it has not been sent.
    fn send_nak(&mut self, out: &mut Effects) {
        if self.nak_sent {
            return;
        }
        if let Some(syndrome) = self.refusal().syndrome() {
            self.nak_sent = true;
            self.acknowledge((self.agg_ack.next(), self.msn()), syndrome, out);
        }
    }

    /// The message sequence number that came with the lowest AckPSN.
    fn msn(&self) -> u32 {
        self.table[self.waits_for().index()].msn()
    }

    fn acknowledge(&self, (psn, msn): (Psn, u32), syndrome: Syndrome, out: &mut Effects) {
        emit(
            out,
            Effect::Acknowledge {
                to: self.source,
                psn,
                msn,
                syndrome,
            },
        );
    }

    fn refuse_feedback(&self, from: PathId) -> Option<DropReason> {
        if from == self.source {
            Some(DropReason::FeedbackFromSource)
        } else if from.index() >= self.table.len() {
            Some(DropReason::NotMember)
        } else {
            None
        }
    }

    fn progress(&mut self, now: Nanos) {
        self.since = now;
        self.stall_at = now + self.stall_timeout;
    }

    fn is_outstanding(&self) -> bool {
        self.newest != self.agg_ack
    }

    /// The first path whose AckPSN is the lowest; the source's own if there is no other.
    fn waits_for(&self) -> PathId {
        let mut lowest = self.entries().filter(|(_, entry)| entry.ack() == self.agg_ack);
        lowest.next().map_or(self.source, |(path, _)| path)
    }

    /// The receivers.
    fn entries(&self) -> impl Iterator<Item = (PathId, &Entry)> {
        let paths = (0..).map_while(PathId::new).zip(&self.table);
        paths.filter(|(path, _)| *path != self.source)
    }

    /// Data that some receiver lacks, if there are receivers at all.
    fn replicate(&self, psn: Psn, out: &mut Effects) {
        if self.table.len() > 1 {
            emit(out, Effect::Replicate { psn });
        }
    }
}

fn emit(out: &mut Effects, effect: Effect) {
    let full = out.try_push(effect).is_err();
    debug_assert!(!full, "an event has at most two effects");
}
