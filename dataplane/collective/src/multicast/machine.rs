//! The multicast machine (Cepheus III.B, III.D).

use super::congestion::CnpFilter;
use super::entry::{Entry, Refusal};
use super::joining::Joining;
use super::repair::Repair;
use super::stall::Tries;
use super::switching::Switching;
use super::{Effect, Effects, Event, MulticastConfig, MulticastStatus, PathStatus, Signal, TimerReason};
use crate::path::{PATHS_MAX, PathId, Paths};
use crate::prefetch::Prefetch;
use alloc::boxed::Box;
use alloc::vec;
use castnet_wire::{DropReason, NakCode, Nanos, Psn, Syndrome};

/// The assumed distance of the paths behind the first data if the start PSN is unknown: half of the half circle that can be compared.
/// It is more than any requester has outstanding, and leaves the same distance ahead.
const UNKNOWN_BEHIND: i32 = 1 << 22;
/// The largest number of packets by which a path may be ahead of the newest data. No source has so many outstanding.
const AHEAD_MAX: i32 = 1 << 16;
/// The largest number of packets by which data other than the next may be ahead of AggAckPSN. No source has so many outstanding: such a packet
/// is forged, and would make the genuine ones look repeated.
const WINDOW_MAX: i32 = 1 << 20;

/// The state of one group at one switch: Cepheus' MFT without the fields for rewriting.
///
/// Replication. Data of the source is sent to every path that has not acknowledged it: a new packet to all, a retransmitted one only to
/// those that need it (M3). For data that all paths have acknowledged, the source has missed the ACK: it gets it again if the packet
/// requests one, or with the last acknowledged packet. In a tree, the lowest switch whose feedback was lost answers.
///
/// Acknowledgement. AggAckPSN is always the lowest AckPSN; each rise is sent to the source (M1). The paper scans all entries when one
/// path with that value (triPort) moves. This machine counts the paths with that value, and scans when the last of them has moved: once
/// per aggregated ACK, for every order of answers.
///
/// Refusal. A NAK of `e` acknowledges all before `e`, so the pending NAK of a path is that of its AckPSN + 1: one byte per entry. The
/// paper's single MePSN loses the NAK of one path when a lower one of another path is received or served. A NAK is sent once, when
/// AggAckPSN reaches the PSN before it (checked on ACKs and on NAKs, M2), until the source goes back. Of several refusals of a PSN the
/// strongest is sent: one that ends the connection, then the longest RNR wait, then a gap. One that ends the connection is kept, because
/// its receiver does not repeat it, and sent each time the source goes back to that PSN or requests an acknowledgement. That of a path which
/// the group can do without is held ([`with_held_naks`](Self::with_held_naks)).
///
/// Congestion. Of the CNPs of the paths, those of the most congested path are sent to the source ([`Event::Cnp`], M4).
///
/// Only [`handle_message`](Self::handle_message), [`handle`](Self::handle), [`next_data`](Self::next_data) and
/// [`handle_timeout`](Self::handle_timeout) advance the state. Call `handle` for each frame, then `poll_timeout`, and `handle_timeout` at
/// the returned time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Multicast {
    /// The Path Table. The entry of the source is unused.
    pub(super) table: Box<[Entry]>,
    /// Time of the last progress, or of the first data after none was outstanding.
    pub(super) since: Nanos,
    stall_at: Nanos,
    pub(super) stall_timeout: Nanos,
    /// Newest data. No AckPSN is beyond it.
    pub(super) newest: Psn,
    pub(super) agg_ack: Psn,
    pub(super) source: PathId,
    /// The number of paths with AckPSN `agg_ack`; the paper's triPort is one of them.
    lowest: u16,
    pub(super) phase: Phase,
    /// The NAK of `agg_ack + 1` has been sent, and the source has not gone back since.
    pub(super) nak_sent: bool,
    pub(super) start: Start,
    /// The start is known and no path waits: [`next_data`](Multicast::next_data) may handle data.
    pub(super) fast: bool,
    pub(super) rare: Box<Rare>,
}

/// State that plain data and feedback do not touch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rare {
    pub(super) special: Option<Special>,
    pub(super) repair: Option<Box<Repair>>,
    pub(super) tries: Tries,
    pub(super) cnps: CnpFilter,
    /// Paths whose NAKs are held if they end the connection. `None`: no path.
    holds: Option<Box<Paths>>,
}

/// How the machine has come to know the start of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Start {
    Given,
    /// From the data of a stream that runs: a path may have received more of it before.
    Learned,
    /// So, and the source has gone back since.
    WentBack,
}

/// State that few groups have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Special {
    Joining(Joining),
    Switching(Switching),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// No data has been received; the start is unknown.
    Learning,
    /// `agg_ack` is only the start of counting. It is never sent: a requester accepts any ACK, even of a PSN that it never sent.
    Baseline,
    Acknowledged,
}

impl Multicast {
    /// The machine of a new group. Allocates all memory of the machine.
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
            start: Start::Given,
            fast: start_psn.is_some(),
            rare: Box::new(Rare {
                special: None,
                repair: None,
                tries: Tries::NONE,
                cnps: CnpFilter::new(paths),
                holds: None,
            }),
        }
    }

    /// Lets a new machine hold NAKs of these paths that end their connections: they are stored, and never sent to the source. Such a path
    /// acknowledges no more, so AggAckPSN stays before what it has refused (M1) until a machine without the path [carries on](Self::carry_on).
    #[must_use]
    pub fn with_held_naks(mut self, paths: impl IntoIterator<Item = PathId>) -> Self {
        self.rare.holds = Some(Box::new(paths.into_iter().collect()));
        self
    }

    /// Whether only CNPs of the most congested path are sent to the source (M4), which is the default. False: all of them.
    pub fn filter_cnps(&mut self, filters: bool) {
        self.rare.cnps.filters = filters;
    }

    /// Carries on the stream of `of`, whose rule this machine's replaces: keeps the state of the paths that both have, as pairs of the
    /// index here and there. The others, and those that join, need nothing of the data so far. Does not allocate.
    pub fn carry_on(&mut self, of: &Self, kept: impl IntoIterator<Item = (PathId, PathId)>) {
        if of.phase == Phase::Learning {
            return;
        }
        self.table.fill(Entry::new(of.newest));
        let of_repair = of.rare.repair.as_deref();
        let frontier = of_repair.map_or(of.newest.next(), |old| old.frontier);
        if let Some(repair) = self.rare.repair.as_deref_mut() {
            repair.restart(of.newest.next());
            repair.frontier = frontier;
        }
        for (path, before) in kept {
            let joins = self.joins(path);
            let entries = (self.table.get_mut(path.index()), of.table.get(before.index()));
            if let (false, (Some(entry), Some(old))) = (joins, entries) {
                *entry = *old;
                if let (Some(repair), Some(old)) = (self.rare.repair.as_deref_mut(), of_repair) {
                    repair.carry_on(old, (path, before));
                }
                self.rare.cnps.carry_on(&of.rare.cnps, path, before);
            }
        }
        (self.newest, self.agg_ack, self.phase) = (of.newest, of.agg_ack, of.phase);
        (self.since, self.stall_at) = (of.since, of.stall_at);
        self.start = of.start;
        if self.table.len() > 1 {
            self.raise_agg_ack();
        }
        if self.agg_ack != of.agg_ack {
            self.phase = Phase::Acknowledged;
        }
        self.fast = self.joining().is_none() && !self.repairs();
    }

    /// Copies the state of a machine of the same configuration, without allocating.
    pub fn copy_state(&mut self, of: &Self) {
        self.table.clone_from(&of.table);
        self.rare.tries = of.rare.tries;
        self.rare.cnps.copy_state(&of.rare.cnps);
        match (&mut self.rare.special, &of.rare.special) {
            (Some(Special::Joining(own)), Some(Special::Joining(of))) => own.copy_state(of),
            (Some(Special::Switching(own)), Some(Special::Switching(of))) => own.copy_state(of),
            _ => {}
        }
        if let (Some(repair), Some(of)) = (self.rare.repair.as_deref_mut(), of.rare.repair.as_deref()) {
            repair.copy_state(of);
        }
        let Self {
            table: _,
            rare: _,
            since,
            stall_at,
            stall_timeout,
            newest,
            agg_ack,
            source,
            lowest,
            phase,
            nak_sent,
            start,
            fast,
        } = *of;
        (self.since, self.stall_at, self.stall_timeout) = (since, stall_at, stall_timeout);
        (self.newest, self.agg_ack, self.source, self.lowest) = (newest, agg_ack, source, lowest);
        (self.phase, self.nak_sent, self.start, self.fast) = (phase, nak_sent, start, fast);
    }

    /// Handles a frame. Clears `out`, and writes one or two effects to it.
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
                None if self.rare.cnps.passes(now, from) => emit(out, Effect::Cnp { to: self.source }),
                None => {}
            },
            Event::Signal {
                from,
                signal: Signal::Resend,
                psn,
                ..
            } if self.repairs() => match self.refuse_feedback(from) {
                Some(reason) => emit(out, Effect::Drop(reason)),
                None => self.on_resend_request(from, psn),
            },
            Event::Signal {
                from,
                signal,
                psn,
                epoch,
            } => self.on_signal(now, from, (signal, psn, epoch), out),
        }
        if out.is_empty() {
            emit(out, Effect::Absorb);
        }
    }

    /// The fast path of [`handle`](Self::handle), for data of the source with the next expected PSN. Otherwise false: nothing changes.
    #[inline]
    pub fn next_data(&mut self, now: Nanos, psn: Psn) -> bool {
        let next = self.fast && psn == self.newest.next();
        let taken = next && psn.is_after(self.agg_ack) && self.table.len() > 1;
        if taken {
            self.on_new_data(now, psn);
        }
        taken
    }

    /// True if data of `psn` must be sent to `path`: not the source, and it has not acknowledged it (M3).
    #[inline]
    pub fn lacks(&self, path: PathId, psn: Psn) -> bool {
        let entry = self.table.get(path.index());
        // AggAckPSN comes first: only PSNs after it can be compared without wrapping.
        path != self.source && psn.is_after(self.agg_ack) && entry.is_some_and(|e| psn.is_after(e.ack()))
    }

    /// Whether a path has refused a packet that it lacks with a NAK that ends its connection.
    pub fn has_failed(&self, path: PathId) -> bool {
        let entry = self.table.get(path.index());
        entry.is_some_and(|entry| entry.refusal.is_fatal())
    }

    /// Prefetches the memory outside of the machine that feedback of `from` touches.
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

    /// The time at which [`handle_timeout`](Self::handle_timeout) is due, and the reason.
    pub fn poll_timeout(&self) -> Option<(Nanos, TimerReason)> {
        let watched = self.is_outstanding() && self.stall_timeout > Nanos::ZERO;
        let stall = watched.then_some((self.stall_at, TimerReason::Stall));
        let tick = self.repair_timeout().map(|at| (at, TimerReason::Repair));
        let turn = self.turn_timeout().map(|at| (at, TimerReason::Turn));
        stall.into_iter().chain(tick).chain(turn).min()
    }

    /// Handles a due timer. Clears `out` first. A stall is reported once per stall time-out.
    pub fn handle_timeout(&mut self, now: Nanos, out: &mut Effects) {
        out.clear();
        if self.repair_timeout().is_some_and(|at| now >= at) {
            self.on_tick(now, out);
        }
        if self.turn_timeout().is_some_and(|at| now >= at) {
            self.on_turn_timeout(now, out);
        }
        if self
            .poll_timeout()
            .is_some_and(|(at, why)| now >= at && why == TimerReason::Stall)
        {
            self.stall_at = now + self.stall_timeout;
            emit(
                out,
                Effect::Stalled {
                    path: self.waits_for(),
                    since: self.since,
                    tries: self.tries(),
                },
            );
        }
    }

    /// The next expected PSN of data; `None` while the start PSN is unknown. A frame with another PSN may change other state, so its
    /// ICRC must be verified first.
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
            // The value assumed when joining a running stream is not reported as an AckPSN.
            let known = entry.ack().is_after(self.agg_ack) || self.phase == Phase::Acknowledged;
            PathStatus {
                path,
                ack_psn: known.then(|| entry.ack()),
                msn: entry.msn(),
                refusal: entry.refusal.syndrome(),
                cnps: self.rare.cnps.count(path),
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
            repair: self.repair_status(),
        }
    }

    /// Bytes of the machine and its Path Table, which plain data and feedback touch.
    pub fn hot_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.table)
    }

    /// Bytes of the state that plain data and feedback do not touch: paths that join, sources that change, and counts of CNPs.
    pub fn cold_bytes(&self) -> usize {
        let special = match &self.rare.special {
            Some(Special::Joining(joining)) => joining.bytes(),
            Some(Special::Switching(switching)) => switching.bytes(),
            None => 0,
        };
        let repair = self.rare.repair.as_ref().map_or(0, |repair| repair.bytes());
        let holds = self.rare.holds.as_deref().map_or(0, size_of_val);
        size_of::<Rare>() + special + repair + holds + self.rare.cnps.heap_bytes()
    }

    fn on_data(&mut self, now: Nanos, from: PathId, psn: Psn, ack_request: bool, out: &mut Effects) {
        if from.index() >= self.table.len() {
            return emit(out, Effect::Drop(DropReason::NotMember));
        }
        if self.is_ahead_of_window(psn) {
            return emit(out, Effect::Drop(DropReason::AheadOfWindow));
        }
        if from != self.source && !self.take_turn(now, from, psn, ack_request, out) {
            return;
        }
        if self.phase == Phase::Learning {
            self.learn(psn);
        }
        if let Some(repair) = &mut self.rare.repair {
            repair.clear_takes();
        }
        // First, because a PSN beyond the half circle after AggAckPSN is not newer. So all stored PSNs can be compared.
        let is_acknowledged = !psn.is_after(self.agg_ack);
        if self.start == Start::Learned && (is_acknowledged || !psn.is_after(self.newest)) {
            self.start = Start::WentBack;
        }
        if is_acknowledged {
            self.on_acknowledged_data(psn, ack_request, out);
        } else if self.repairs() {
            self.on_ring_data(now, psn, ack_request, out);
        } else if psn.is_after(self.newest) {
            if !self.is_outstanding() {
                self.progress(now);
            }
            self.raise_newest(psn, out);
            if self.is_waiting() {
                self.pass_waiting(now, psn, out);
            }
            // If all paths wait, none needs it.
            if psn.is_after(self.agg_ack) {
                self.replicate(psn, out);
            }
        } else {
            self.on_retransmission(psn, out);
        }
    }

    /// Whether no source that waits for the paths of this switch has this packet outstanding. Paths that wait to join hold up no source.
    fn is_ahead_of_window(&self, psn: Psn) -> bool {
        let assumed = match (self.phase, self.start) {
            (Phase::Learning, _) => return false,
            (Phase::Baseline, Start::Learned | Start::WentBack) => UNKNOWN_BEHIND,
            _ => 0,
        };
        psn.diff(self.agg_ack) > WINDOW_MAX + assumed
            && psn != self.newest.next()
            && self.table.len() > 1 + self.waiting()
    }

    /// Data of the source was received that may be new.
    pub(super) fn raise_newest(&mut self, psn: Psn, out: &mut Effects) {
        if !psn.is_after(self.newest) {
            return;
        }
        self.newest = psn;
        if let Some(path) = self.switching_mut().and_then(Switching::on_new_data) {
            emit(out, Effect::Compete { path });
        }
    }

    /// No AckPSN is beyond the newest data, so all paths need the packet.
    #[inline]
    pub(super) fn on_new_data(&mut self, now: Nanos, psn: Psn) {
        if !self.is_outstanding() {
            self.progress(now);
        }
        self.newest = psn;
    }

    /// Sets the start of counting from the first data of a stream that may already be running.
    ///
    /// Data before that PSN must not count as acknowledged: the source may have older PSNs outstanding that a receiver lacks, and their
    /// retransmissions would be filtered and acknowledged. So the paths are assumed to be as far behind as possible: all data is
    /// replicated, and nothing is acknowledged, until each path has sent feedback.
    fn learn(&mut self, psn: Psn) {
        self.start_after(psn.add(-UNKNOWN_BEHIND));
        if let Some(repair) = &mut self.rare.repair {
            repair.restart(psn);
        }
        self.phase = Phase::Baseline;
        self.start = Start::Learned;
        self.fast = self.joining().is_none() && !self.repairs();
    }

    /// Counts as if all paths had acknowledged all data up to `psn`.
    pub(super) fn start_after(&mut self, psn: Psn) {
        self.table.fill(Entry::new(psn));
        self.newest = psn;
        self.agg_ack = psn;
        self.lowest = (self.table.len() - 1) as u16;
        if let Some(repair) = &mut self.rare.repair {
            repair.restart(psn.next());
        }
    }

    /// Whether feedback beyond the newest data comes from a path that was ahead when this switch joined the stream. Such a path has received
    /// every packet that has passed this switch. Its feedback must count: a source that cannot send its whole window within its time-out
    /// never reaches the position of that path, and would go back again and again. It counts only after the source has gone back once. By
    /// then, no feedback is left in the network that was sent before the tree changed.
    fn is_ahead(&self, psn: Psn) -> bool {
        self.start == Start::WentBack && psn.diff(self.newest) <= AHEAD_MAX
    }

    /// A requester that goes back repeats all packets from there on, which serves all later refusals.
    pub(super) fn serve_refusals(&mut self, psn: Psn) {
        for entry in &mut self.table {
            if !psn.is_after(entry.ack().next()) {
                entry.refusal.serve();
            }
        }
    }

    fn on_retransmission(&mut self, psn: Psn, out: &mut Effects) {
        self.serve_refusals(psn);
        self.count_try(psn);
        self.replicate(psn, out);
        if psn == self.agg_ack.next() {
            self.nak_sent = false;
            self.send_nak(out);
        }
    }

    /// All paths have acknowledged this data: the source has missed the ACK, and has gone back further than any NAK requires. The ACK is
    /// sent again on request, and for the last acknowledged packet, which the source always repeats: packets with a request may be lost.
    fn on_acknowledged_data(&mut self, psn: Psn, ack_request: bool, out: &mut Effects) {
        for entry in &mut self.table {
            entry.refusal.serve();
        }
        self.poll_all_paths();
        let answer = self.phase == Phase::Acknowledged && (ack_request || psn == self.agg_ack);
        if answer {
            self.send_ack(out);
        }
        // A refusal left now ends the connection. It is sent again to a source that requests an answer.
        if answer || self.refusal().is_none() {
            self.nak_sent = false;
            self.send_nak(out);
        }
    }

    pub(super) fn on_feedback(
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
        // First, because only PSNs between AggAckPSN and the newest data can be compared without wrapping.
        if !psn.is_after(self.agg_ack) {
            return;
        }
        let refusal = match Refusal::of(syndrome) {
            fatal if fatal.is_fatal() && self.holds(from) => fatal.held(),
            refusal => refusal,
        };
        let ack = if refusal.is_none() { psn } else { psn.prev() };
        if psn.is_after(self.newest) {
            return match self.is_ahead(psn) {
                true => self.on_feedback(now, from, self.newest, msn, Syndrome::Ack, out),
                false => emit(out, Effect::Drop(DropReason::AckAhead)),
            };
        }
        let entry = &mut self.table[from.index()];
        if !psn.is_after(entry.ack()) {
            return;
        }
        let before = entry.ack();
        let progress = ack.is_after(before);
        let mut stored = refusal;
        if let Some(repair) = self.rare.repair.as_deref_mut() {
            let held = repair.serves(self.agg_ack, psn);
            // The ring has the packet, or the gap is reported as one of this switch.
            if held && syndrome == Syndrome::Nak(NakCode::PsnSequenceError) {
                stored = Refusal::NONE;
            }
            let again = progress || !stored.is_none();
            repair.on_feedback(
                from,
                ack,
                (progress, again),
                (held && !refusal.is_none()).then_some(psn),
            );
        }
        if progress {
            entry.advance(ack, msn, stored);
            if before == self.agg_ack {
                self.lowest -= 1;
            }
            if self.lowest == 0 {
                let (first, strongest) = self.raise_agg_ack();
                let strongest = strongest.max(self.own_refusal());
                self.progress(now);
                if let Some(repair) = self.rare.repair.as_deref_mut() {
                    repair.answered(now, self.agg_ack);
                }
                self.phase = Phase::Acknowledged;
                let msn = match self.start {
                    Start::WentBack => self.msn(),
                    _ => self.table[first].msn(),
                };
                let agg_ack = self.agg_ack;
                let repair = self.rare.repair.as_deref_mut();
                let withheld = repair.is_some_and(|repair| repair.withholds(agg_ack)) && strongest.is_none();
                if !withheld {
                    self.acknowledge((agg_ack, msn), Syndrome::Ack, out);
                }
                self.nak_sent = !strongest.is_none();
                if let Some(syndrome) = strongest.syndrome() {
                    self.note_nak();
                    self.acknowledge((self.agg_ack.next(), msn), syndrome, out);
                }
                self.settle(now, out);
            }
        } else {
            entry.refusal = entry.refusal.max(stored);
        }
        // The paper evaluates a NAK only when an ACK is sent. Then the NAK of the path with the lowest AckPSN would never be sent.
        if !refusal.is_none() {
            self.send_nak(out);
        }
    }

    /// Raises AggAckPSN. Returns the first path with the new value, and the strongest refusal of all paths with it.
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
            strongest = strongest.max(entry.refusal.to_source());
        }
        self.agg_ack = before.add(least);
        if let Some(repair) = self.rare.repair.as_deref_mut() {
            repair.release(before, self.agg_ack);
        }
        (first, strongest)
    }

    /// The refusal that the source is sent.
    fn refusal(&self) -> Refusal {
        let lowest = self.entries().filter(|(_, entry)| entry.ack() == self.agg_ack);
        lowest
            .map(|(_, entry)| entry.refusal.to_source())
            .max()
            .unwrap_or(Refusal::NONE)
            .max(self.own_refusal())
    }

    /// The refusal of this switch itself.
    fn own_refusal(&self) -> Refusal {
        match self.lacks_next() {
            true => Refusal::of(Syndrome::Nak(NakCode::PsnSequenceError)),
            false => Refusal::NONE,
        }
    }

    pub(super) fn send_ack(&self, out: &mut Effects) {
        self.acknowledge((self.agg_ack, self.msn()), Syndrome::Ack, out);
    }

    pub(super) fn send_nak(&mut self, out: &mut Effects) {
        if self.nak_sent {
            return;
        }
        if let Some(syndrome) = self.refusal().syndrome() {
            self.nak_sent = true;
            self.note_nak();
            self.acknowledge((self.agg_ack.next(), self.msn()), syndrome, out);
        }
    }

    /// The MSN of the slowest path. One that is ahead has completed more messages than others with the same AckPSN here.
    pub(super) fn msn(&self) -> u32 {
        let first = self.table[self.waits_for().index()].msn();
        if self.start != Start::WentBack {
            return first;
        }
        let slowest = self.entries().filter(|(_, entry)| entry.ack() == self.agg_ack);
        let behind = slowest.map(|(_, entry)| Psn::new(entry.msn()).diff(Psn::new(first)));
        Psn::new(first).add(behind.min().unwrap_or(0)).value()
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

    fn holds(&self, path: PathId) -> bool {
        self.rare.holds.as_ref().is_some_and(|paths| paths.contains(path))
    }

    pub(super) fn progress(&mut self, now: Nanos) {
        self.since = now;
        self.stall_at = now + self.stall_timeout;
    }

    pub(super) fn is_outstanding(&self) -> bool {
        self.newest != self.agg_ack
    }

    /// The first path with the lowest AckPSN; the source if there is no other path.
    fn waits_for(&self) -> PathId {
        let mut lowest = self.entries().filter(|(_, entry)| entry.ack() == self.agg_ack);
        lowest.next().map_or(self.source, |(path, _)| path)
    }

    fn entries(&self) -> impl Iterator<Item = (PathId, &Entry)> {
        let paths = (0..).map_while(PathId::new).zip(&self.table);
        paths.filter(|(path, _)| *path != self.source)
    }

    fn replicate(&self, psn: Psn, out: &mut Effects) {
        if self.table.len() > 1 {
            emit(out, Effect::Replicate { psn });
        }
    }
}

pub(super) fn emit(out: &mut Effects, effect: Effect) {
    let full = out.try_push(effect).is_err();
    debug_assert!(!full, "an event has at most four effects");
}
