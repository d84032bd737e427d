//! Repair from the switch: data is kept in a ring of slots until all paths have acknowledged it, and repeated from there (the broadcast pipe of
//! EPIC 4.4). The machine knows which PSN is in which slot; the engine has the bytes.
//!
//! **Order.** Each path has a cursor, the next packet that it gets. Data that arrives in order is sent at once to the paths whose cursor it
//! is. All others get it later, in order, from the ring ([`Multicast::poll_resend`]). So each path is served as by a requester of its own
//! that goes back. A path that repeats gets at most [`BURST`] packets beyond its AckPSN, each with AckReq, and one more with each ACK: if all
//! were queued at once, the next loss would make them worthless.
//!
//! **Losses towards a path.** A NAK moves the cursor back, and is not sent to the source. Silence is found by a tick: a path that was sent a
//! packet with AckReq and acknowledges nothing gets its oldest packet again after 2, 4, 8 and then each 16 ticks. The first two are the time after
//! which an answer is overdue; each tick without progress is twice as long, up to that of the rule. Without AckReq a responder need not
//! answer, and a slow source sends few packets in a tick. Silence of a switch may be that of a receiver below it: at first it gets its oldest
//! packet alone, and what is new with all others. If a path then acknowledges more than was repeated, the time-out came too early, and the cursor
//! returns to where it was.
//!
//! **Losses from the source.** Packets behind a gap are kept, but not sent. A source next to this switch gets a NAK of the gap when all
//! paths have everything before it (M2); a repeated packet with AckReq makes them acknowledge. A switch gets a [`Signal::Resend`] at once,
//! which acknowledges nothing and asks for one packet.
//!
//! **Beyond the ring** (the source has more outstanding than there are slots, or the rule was replaced) a packet is sent, but not kept. A
//! NAK of such a packet is sent to the source, as without repair.

use super::entry::Entry;
use super::machine::{Multicast, Phase, Special, emit};
use super::tick::Tick;
use super::{Effect, Effects, Signal};
use crate::path::{PathId, Paths};
use alloc::boxed::Box;
use alloc::vec;
use castnet_wire::{DropReason, Nanos, Psn};

/// Most repeated packets to a path that it has not acknowledged, at first. Each ACK allows one more, so that a long path catches up.
const BURST: u8 = 8;
/// Ticks of silence until a switch is sent its oldest packets from there on, as a host is at once.
const TRIED_TICKS: u8 = 4;
/// Ticks with a gap after which a NAK is sent to a switch, too: it may not repair.
const INSIST: u8 = 8;
/// Most ticks for which an ACK is withheld: an eighth of the time-out of the source, if the tick is its 64th part.
const WITHHELD_TICKS: u8 = 8;

/// The configuration of repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairConfig {
    /// Slots of the ring: a power of two, at most 32768.
    pub slots: u16,
    /// The longest period of the tick.
    pub tick: Nanos,
    /// The paths that lead to switches.
    pub switches: Paths,
}

/// A packet to send from the ring: [`Multicast::poll_resend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resend {
    /// The path that gets it.
    pub path: PathId,
    /// Its PSN.
    pub psn: Psn,
    /// Its slot.
    pub slot: u16,
    /// It must request an acknowledgement. Otherwise it requests one if the source did.
    pub ack_request: bool,
}

/// The ring of a group, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairStatus {
    /// Slots of the ring.
    pub slots: u16,
    /// Slots with a packet that a path has not acknowledged.
    pub held: u16,
    /// The first missing packet, if a later one has been received.
    pub missing: Option<Psn>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Repair {
    /// A bit for each slot: it has the packet of its PSN in the ring, which is the `slots` PSNs after AggAckPSN.
    held: Box<[u64]>,
    slots: u16,
    paths: Box<[Cursor]>,
    /// The first packet that has not been received. All paths that lack no earlier one wait for it.
    pub(super) frontier: Psn,
    /// The paths to which the packet in work is sent.
    takes: Paths,
    /// Paths that may have something to get from the ring.
    ready: Paths,
    switches: Paths,
    source_is_switch: bool,
    /// The gap at `frontier` has been reported.
    reported: bool,
    /// Ticks with this gap; of a source that is a host: since its NAK.
    gap_ticks: u8,
    /// The source has been sent a NAK. If it goes back, it repeats the gaps up to this PSN without another one.
    repeats_until: Option<Psn>,
    /// The newest data when the source was sent a NAK, until AggAckPSN reaches it.
    covers: Option<Psn>,
    /// Since that NAK it has repeated packets that this switch has.
    goes_back: bool,
    /// An ACK is withheld for so many ticks.
    withheld: Option<u8>,
    /// The newest packet with AckReq, until AggAckPSN reaches it.
    asked: Option<Psn>,
    tick: Tick,
    tick_at: Nanos,
}

/// The state of a path: 17 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cursor {
    /// The next packet, after AckPSN and at most `frontier`.
    next: [u8; 3],
    /// It has been sent all before this: a tick has gone back from here.
    until: Option<[u8; 3]>,
    /// A packet to repeat once, out of order.
    wanted: Option<[u8; 3]>,
    /// A tick has repeated this packet for a switch that is silent, and nothing after it.
    tried: Option<[u8; 3]>,
    /// Most packets beyond AckPSN; 0 without limit, as for a path that has missed nothing.
    window: u8,
    /// Ticks without progress.
    quiet: u8,
}

impl Cursor {
    const fn at(next: Psn) -> Self {
        Self {
            next: next.to_bytes(),
            until: None,
            wanted: None,
            tried: None,
            window: 0,
            quiet: 0,
        }
    }

    const fn next(&self) -> Psn {
        Psn::from_bytes(self.next)
    }

    fn go_back(&mut self, psn: Psn, window: u8) {
        self.next = psn.to_bytes();
        self.window = window;
    }

    /// Tries a switch with one packet: what follows has arrived there, or it asks for it. One that has lost its state does neither.
    fn try_switch(&mut self, oldest: Psn, frontier: Psn) -> bool {
        let tries = self.next() == frontier && self.quiet <= TRIED_TICKS;
        if tries {
            (self.wanted, self.tried) = (Some(oldest.to_bytes()), Some(oldest.to_bytes()));
        }
        tries
    }

    /// All up to `ack` have arrived. If that is more than was repeated after a time-out, the time-out came too early, and nothing was lost.
    fn acknowledge(&mut self, ack: Psn) {
        if self.next().is_before(ack.next()) {
            let sent = self.until.take().map_or(ack.next(), Psn::from_bytes);
            let is_early = sent.is_after(ack.next());
            self.next = if is_early { sent } else { ack.next() }.to_bytes();
            self.window = if is_early { 0 } else { self.window };
        }
    }

    /// Counts a tick without progress. Returns the number of packets to repeat: more each time, because a neighbour that has lost its state
    /// cannot use an ACK of more than it is sent.
    fn overdue(&mut self) -> Option<u8> {
        self.quiet = if self.quiet == 31 { 16 } else { self.quiet + 1 };
        matches!(self.quiet, 2 | 4 | 8 | 16).then_some(self.quiet / 2)
    }
}

impl Repair {
    fn new(config: RepairConfig, paths: usize, frontier: Psn, source: PathId) -> Self {
        let slots = config.slots.clamp(1, 1 << 15);
        debug_assert!(slots.is_power_of_two(), "PSNs wrap at a multiple of the slots");
        Self {
            held: vec![0; usize::from(slots).div_ceil(64)].into_boxed_slice(),
            slots,
            paths: vec![Cursor::at(frontier); paths].into_boxed_slice(),
            frontier,
            takes: Paths::EMPTY,
            ready: Paths::EMPTY,
            switches: config.switches,
            source_is_switch: config.switches.contains(source),
            reported: false,
            gap_ticks: 0,
            repeats_until: None,
            covers: None,
            goes_back: false,
            withheld: None,
            asked: None,
            tick: Tick::new(config.tick),
            tick_at: Nanos::ZERO,
        }
    }

    /// Forgets all packets. All paths are sent data from `frontier` on.
    pub(super) fn restart(&mut self, frontier: Psn) {
        self.held.fill(0);
        self.paths.fill(Cursor::at(frontier));
        self.frontier = frontier;
        self.ready = Paths::EMPTY;
        self.close_gap();
        (self.repeats_until, self.covers, self.withheld) = (None, None, None);
        (self.goes_back, self.asked) = (false, None);
        self.tick.restart();
    }

    /// The source changes. All paths have acknowledged all data, so the ring is empty, and all cursors are at `frontier`.
    pub(super) fn change_source(&mut self, frontier: Psn, source: PathId) {
        debug_assert!(
            self.held.iter().all(|word| *word == 0),
            "all data is acknowledged"
        );
        self.restart(frontier);
        self.source_is_switch = self.switches.contains(source);
    }

    /// Takes over the gap and the cursors, but not the packets.
    pub(super) fn carry_on(&mut self, of: &Self, kept: (PathId, PathId)) {
        if let (Some(cursor), Some(old)) = (self.paths.get_mut(kept.0.index()), of.paths.get(kept.1.index()))
        {
            cursor.next = old.next;
        }
        self.asked = of.asked;
    }

    fn note_asked(&mut self, psn: Psn) {
        if self.asked.is_none_or(|asked| psn.is_after(asked)) {
            self.asked = Some(psn);
        }
    }

    pub(super) fn copy_state(&mut self, of: &Self) {
        let (mut held, mut paths) = (core::mem::take(&mut self.held), core::mem::take(&mut self.paths));
        held.clone_from(&of.held);
        paths.clone_from(&of.paths);
        *self = Self { held, paths, ..*of };
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.held) + size_of_val(&*self.paths)
    }

    fn slot(&self, psn: Psn) -> u16 {
        (psn.value() % u32::from(self.slots)) as u16
    }

    fn bit(&self, psn: Psn) -> (usize, u64) {
        let slot = self.slot(psn);
        (usize::from(slot / 64), 1 << (slot % 64))
    }

    fn is_in_ring(&self, agg_ack: Psn, psn: Psn) -> bool {
        (1..=i32::from(self.slots)).contains(&psn.diff(agg_ack))
    }

    fn holds(&self, agg_ack: Psn, psn: Psn) -> bool {
        let (word, bit) = self.bit(psn);
        self.is_in_ring(agg_ack, psn) && self.held.get(word).is_some_and(|w| w & bit != 0)
    }

    /// Returns the slot, if the packet is in the ring.
    fn keep(&mut self, agg_ack: Psn, psn: Psn) -> Option<u16> {
        let (word, bit) = self.bit(psn);
        if !self.is_in_ring(agg_ack, psn) {
            return None;
        }
        *self.held.get_mut(word)? |= bit;
        Some(self.slot(psn))
    }

    /// AggAckPSN has risen.
    pub(super) fn answered(&mut self, now: Nanos, agg_ack: Psn) {
        let waits = self.tick.is_long();
        self.tick.answered(now, agg_ack);
        if waits {
            self.tick_at = self.tick_at.min(now + self.tick.period());
        }
    }

    /// AggAckPSN has risen: the slots up to it are free.
    pub(super) fn release(&mut self, before: Psn, agg_ack: Psn) {
        let count = agg_ack.diff(before).clamp(0, self.slots.into());
        for ahead in 1..=count {
            let (word, bit) = self.bit(before.add(ahead));
            if let Some(w) = self.held.get_mut(word) {
                *w &= !bit;
            }
        }
        // After a restart of this switch, paths may have what it has not seen.
        if !self.frontier.is_after(agg_ack) {
            self.frontier = agg_ack;
            self.advance(agg_ack);
            self.ready = Paths::first(self.paths.len());
        }
    }

    fn close_gap(&mut self) {
        (self.reported, self.gap_ticks) = (false, 0);
    }

    /// The packet `frontier` was received: the next one that was not.
    fn advance(&mut self, agg_ack: Psn) {
        self.frontier = self.frontier.next();
        while self.holds(agg_ack, self.frontier) {
            self.frontier = self.frontier.next();
        }
        self.close_gap();
        self.repeats_until = self.repeats_until.filter(|until| !self.frontier.is_after(*until));
    }

    /// Whether the ACK of AggAckPSN is withheld. A requester that has gone back sends the next packets with each ACK, although this switch
    /// has them: one ACK of all that was sent before the NAK lets it go on behind that.
    pub(super) fn withholds(&mut self, agg_ack: Psn) -> bool {
        self.covers = self.covers.filter(|until| until.is_after(agg_ack));
        let waits = self.covers.is_some() && self.goes_back && self.holds(agg_ack, agg_ack.next());
        self.withheld = waits.then(|| self.withheld.unwrap_or(0));
        waits
    }

    /// A NAK of `psn` needs nothing from the source but what it is asked for anyway.
    pub(super) fn serves(&self, agg_ack: Psn, psn: Psn) -> bool {
        psn == self.frontier || self.holds(agg_ack, psn)
    }

    pub(super) fn clear_takes(&mut self) {
        self.takes = Paths::EMPTY;
    }

    pub(super) fn takes(&self, path: PathId) -> bool {
        self.takes.contains(path)
    }

    /// A path has acknowledged all up to `ack`, and refused `refused`, which is held. `again`: also if it was repeated for an earlier NAK.
    pub(super) fn on_feedback(
        &mut self,
        from: PathId,
        ack: Psn,
        (progress, again): (bool, bool),
        refused: Option<Psn>,
    ) {
        let frontier = self.frontier;
        let Some(cursor) = self.paths.get_mut(from.index()) else {
            return;
        };
        cursor.acknowledge(ack);
        let caught_up = cursor.next() == frontier;
        if caught_up {
            cursor.until = None;
        }
        let tried = cursor.tried.take_if(|_| progress).map(Psn::from_bytes);
        if tried == Some(ack) && ack.next().is_before(cursor.next()) {
            // It has what was repeated, and nothing after it.
            cursor.until = Some(cursor.next);
            cursor.go_back(ack.next(), BURST);
        }
        if progress {
            cursor.quiet = 0;
            cursor.window = match cursor.window {
                _ if caught_up => 0,
                0 => 0,
                window => window.saturating_add(1).max(BURST),
            };
        }
        if let Some(psn) = refused.filter(|_| again || cursor.window == 0) {
            cursor.until = None;
            cursor.go_back(psn, BURST);
        }
        if cursor.next() != frontier || cursor.wanted.is_some() {
            self.ready.insert(from);
        }
    }

    /// A packet after all that was sent before is sent to the paths that wait for `frontier`, and have refused nothing. True if there are any.
    #[inline]
    fn send_next(&mut self, psn: Psn, table: &[Entry], source: PathId) -> bool {
        let (frontier, next) = (self.frontier.to_bytes(), psn.next().to_bytes());
        self.takes = Paths::EMPTY;
        let mut any = false;
        for ((path, entry), cursor) in (0..).map_while(PathId::new).zip(table).zip(&mut self.paths) {
            if path != source && cursor.next == frontier && entry.refusal.is_none() {
                cursor.next = next;
                self.takes.insert(path);
                any = true;
            }
        }
        any
    }
}

impl Multicast {
    /// Lets a new machine repair losses: after [`with_switching`](Self::with_switching), if the source may change.
    #[must_use]
    pub fn with_repair(mut self, config: RepairConfig) -> Self {
        let repair = Repair::new(config, self.table.len(), self.newest.next(), self.source);
        self.rare.repair = Some(Box::new(repair));
        self.fast = false;
        self
    }

    /// True if it keeps packets.
    pub fn repairs(&self) -> bool {
        self.rare.repair.is_some()
    }

    /// True if the data packet in work is sent to `path` at once: after [`Effect::Replicate`].
    #[inline]
    pub fn takes(&self, path: PathId, psn: Psn) -> bool {
        match &self.rare.repair {
            Some(repair) => repair.takes(path),
            None => self.lacks(path, psn),
        }
    }

    /// The paths to which the data packet in work is sent at once, if it repairs.
    pub fn taking(&self) -> Paths {
        self.rare
            .repair
            .as_ref()
            .map_or(Paths::EMPTY, |repair| repair.takes)
    }

    /// True if [`poll_resend`](Self::poll_resend) may return a packet.
    pub fn has_resends(&self) -> bool {
        self.rare
            .repair
            .as_ref()
            .is_some_and(|repair| !repair.ready.is_empty())
    }

    /// The next packet to send from the ring: after each call of `handle` and `handle_timeout`, until it returns `None`. Between two calls
    /// of `handle` the caller may stop early, and go on later.
    pub fn poll_resend(&mut self) -> Option<Resend> {
        let Self {
            table,
            agg_ack,
            source,
            rare,
            ..
        } = self;
        let (agg_ack, repair) = (*agg_ack, rare.repair.as_deref_mut()?);
        loop {
            let path = repair.ready.iter().next()?;
            let entry = table
                .get(path.index())
                .filter(|e| path != *source && e.refusal.is_none());
            let next = entry.and_then(|entry| repair.next_for(path, entry.ack(), agg_ack));
            match next {
                Some(next) => return Some(next),
                None => repair.ready.remove(path),
            }
        }
    }

    /// Data after AggAckPSN, from the source.
    pub(super) fn on_ring_data(&mut self, now: Nanos, psn: Psn, ack_request: bool, out: &mut Effects) {
        let (agg_ack, newest, outstanding) = (self.agg_ack, self.newest, self.is_outstanding());
        let Some(repair) = self.rare.repair.as_deref_mut() else {
            return;
        };
        if ack_request {
            repair.note_asked(psn);
            if psn == repair.frontier {
                repair.tick.sent(now, psn);
            }
        }
        let (frontier, held) = (repair.frontier, repair.holds(agg_ack, psn));
        let gap = !newest.is_before(frontier);
        if psn.is_before(frontier) || held {
            return self.on_repeated(psn, ack_request, out);
        }
        let slot = repair.keep(agg_ack, psn);
        if slot.is_none() && gap && psn != frontier {
            // A receiver may have it from before a restart of this switch.
            self.raise_newest(psn, out);
            return emit(out, Effect::Drop(DropReason::EarlyContribution));
        }
        if let Some(slot) = slot {
            emit(out, Effect::Keep { psn, slot });
        }
        // Nothing is kept behind a gap that is beyond the ring: the receivers refuse what follows.
        if psn == frontier || slot.is_none() {
            repair.send_next(psn, &self.table, self.source);
            repair.frontier = psn;
            repair.advance(agg_ack);
            if psn == agg_ack.next() {
                self.nak_sent = false;
            }
            if repair.frontier != psn.next() {
                self.poll_all_paths();
            }
        }
        if !outstanding {
            self.progress(now);
            self.begin_ticks(now);
        }
        self.raise_newest(psn, out);
        if self.is_waiting() {
            let last = self.rare.repair.as_ref().map_or(psn, |r| r.frontier.prev());
            self.pass_waiting(now, last, out);
        }
        self.replicate_taken(psn, out);
        self.report_gap(out);
    }

    /// The fast path of [`handle`](Self::handle) in a group that repairs and has one source, for data of the source with the next expected
    /// PSN. Returns the slot in which it must be kept; the paths that [take](Self::takes) it are those of the packets before it, until
    /// another method is called. Otherwise `None`: nothing changes.
    #[inline]
    pub fn next_kept(&mut self, now: Nanos, psn: Psn, ack_request: bool) -> Option<u16> {
        let (agg_ack, source) = (self.agg_ack, self.source);
        let expected = self.phase != Phase::Learning && psn == self.newest.next() && psn.is_after(agg_ack);
        let fixed = match &self.rare.special {
            None => true,
            Some(Special::Joining(_)) => !self.is_waiting(),
            Some(Special::Switching(_)) => false,
        };
        let repair = self.rare.repair.as_deref_mut().filter(|_| expected && fixed)?;
        if psn != repair.frontier || !repair.is_in_ring(agg_ack, psn) {
            return None;
        }
        if !repair.send_next(psn, &self.table, source) {
            return None;
        }
        let slot = repair.keep(agg_ack, psn)?;
        if ack_request {
            repair.note_asked(psn);
            repair.tick.sent(now, psn);
        }
        repair.advance(agg_ack);
        if !self.is_outstanding() {
            self.begin_ticks(now);
        }
        self.on_new_data(now, psn);
        Some(slot)
    }

    fn begin_ticks(&mut self, now: Nanos) {
        if let Some(repair) = &mut self.rare.repair {
            repair.tick_at = now + repair.tick.period();
        }
    }

    /// Data that was received before, and that a path has not acknowledged.
    fn on_repeated(&mut self, psn: Psn, ack_request: bool, out: &mut Effects) {
        let agg_ack = self.agg_ack;
        self.serve_refusals(psn);
        let Some(repair) = self.rare.repair.as_deref_mut() else {
            return;
        };
        let (frontier, held) = (repair.frontier, repair.holds(agg_ack, psn));
        repair.goes_back |= held && !repair.source_is_switch;
        if !held && let Some(slot) = repair.keep(agg_ack, psn) {
            emit(out, Effect::Keep { psn, slot });
        }
        for (path, entry) in (0..).map_while(PathId::new).zip(&self.table) {
            let lacks = path != self.source && psn.is_after(entry.ack()) && entry.refusal.is_none();
            let Some(cursor) = repair.paths.get_mut(path.index()).filter(|_| lacks) else {
                continue;
            };
            let next = cursor.next();
            // A path that has been sent everything acknowledges what it has. Behind a gap, the missing packet was lost again, or is needed
            // by no receiver: this switch has restarted, and the source has been sent its ACK before.
            let asks = next == frontier && (ack_request || psn.is_after(frontier));
            if next == psn {
                cursor.next = psn.next().to_bytes();
            }
            if next == psn || asks || (!held && psn.is_before(next)) {
                repair.takes.insert(path);
            }
        }
        let sent = !repair.takes.is_empty();
        if psn == frontier.next() {
            // The source has gone back, and the missing packet was lost again.
            repair.reported = false;
            repair.repeats_until = None;
        }
        if psn == agg_ack.next() || psn == frontier.next() {
            self.nak_sent = false;
        }
        if sent {
            self.count_try(psn);
        }
        self.poll_all_paths();
        self.replicate_taken(psn, out);
        self.report_gap(out);
        self.send_nak(out);
    }

    /// Refusals have been served: paths may have something to get.
    pub(super) fn poll_all_paths(&mut self) {
        if let Some(repair) = self.rare.repair.as_deref_mut() {
            repair.ready = Paths::first(self.table.len());
        }
    }

    fn replicate_taken(&self, psn: Psn, out: &mut Effects) {
        if self.rare.repair.as_ref().is_some_and(|r| !r.takes.is_empty()) {
            emit(out, Effect::Replicate { psn });
        }
    }

    /// Asks for the first missing packet, once.
    fn report_gap(&mut self, out: &mut Effects) {
        let (agg_ack, newest, source) = (self.agg_ack, self.newest, self.source);
        let Some(repair) = self.rare.repair.as_deref_mut() else {
            return;
        };
        let missing = repair.frontier;
        if newest.is_before(missing) || core::mem::replace(&mut repair.reported, true) {
            return;
        }
        if repair.source_is_switch {
            let signal = Signal::Resend;
            let (to, psn, epoch) = (source, missing, 0);
            emit(
                out,
                Effect::Signal {
                    to,
                    signal,
                    psn,
                    epoch,
                },
            );
        }
        // The source may have a NAK once all paths have acknowledged what is before.
        if !repair.source_is_switch || repair.gap_ticks >= INSIST {
            let last = missing.prev();
            for (path, entry) in (0..).map_while(PathId::new).zip(&self.table) {
                let lags = path != source && last.is_after(entry.ack()) && repair.holds(agg_ack, last);
                if let Some(cursor) = repair.paths.get_mut(path.index()).filter(|_| lags)
                    && cursor.next() == missing
                {
                    cursor.wanted = Some(last.to_bytes());
                    repair.ready.insert(path);
                }
            }
            self.send_nak(out);
        }
    }

    /// True if the source must be sent a NAK of the packet after AggAckPSN, because this switch lacks it.
    pub(super) fn lacks_next(&self) -> bool {
        self.rare.repair.as_ref().is_some_and(|repair| {
            let missing = repair.frontier;
            let due = !repair.source_is_switch || repair.gap_ticks >= INSIST;
            missing == self.agg_ack.next()
                && !self.newest.is_before(missing)
                && due
                && !(repair.goes_back && repair.repeats_until.is_some_and(|until| !missing.is_after(until)))
        })
    }

    /// A NAK has been sent to the source: it repeats everything up to the newest data.
    pub(super) fn note_nak(&mut self) {
        let newest = self.newest;
        if let Some(repair) = self.rare.repair.as_deref_mut() {
            (repair.repeats_until, repair.covers) = (Some(newest), Some(newest));
            repair.goes_back = false;
        }
    }

    /// A switch lacks this packet, but has later ones.
    pub(super) fn on_resend_request(&mut self, from: PathId, psn: Psn) {
        let agg_ack = self.agg_ack;
        let Some(repair) = self.rare.repair.as_deref_mut() else {
            return;
        };
        let held = repair.holds(agg_ack, psn);
        if let Some(cursor) = repair.paths.get_mut(from.index())
            && held
            && psn.is_before(cursor.next())
        {
            cursor.wanted = Some(psn.to_bytes());
            cursor.quiet = 0;
            repair.ready.insert(from);
        }
    }

    pub(super) fn repair_timeout(&self) -> Option<Nanos> {
        let repair = self.rare.repair.as_deref()?;
        self.is_outstanding().then_some(repair.tick_at)
    }

    /// Repeats for paths that are silent, and asks again for what is missing.
    pub(super) fn on_tick(&mut self, now: Nanos, out: &mut Effects) {
        let (agg_ack, newest, source, since) = (self.agg_ack, self.newest, self.source, self.since);
        let Some(repair) = self.rare.repair.as_deref_mut() else {
            return;
        };
        // The timer is not changed for each ACK.
        let at = since + repair.tick.period();
        if at > now {
            repair.tick_at = at;
            return;
        }
        repair.tick.pass();
        repair.tick_at = now + repair.tick.period();
        let ticks = repair.withheld.map(|ticks| ticks + 1);
        repair.withheld = ticks.filter(|ticks| *ticks < WITHHELD_TICKS);
        let acknowledges = ticks.is_some() && repair.withheld.is_none();
        let mut tries = false;
        repair.asked = repair.asked.filter(|asked| asked.is_after(agg_ack));
        let asked = repair.asked;
        for (path, entry) in (0..).map_while(PathId::new).zip(&mut self.table) {
            let oldest = entry.ack().next();
            let held = repair.holds(agg_ack, oldest);
            let fatal = entry.refusal.is_fatal();
            let Some(cursor) = repair.paths.get_mut(path.index()) else {
                break;
            };
            let is_asked = cursor.window != 0 || asked.is_some_and(|asked| asked.is_after(entry.ack()));
            let idle = (cursor.next() == oldest || !is_asked) && entry.refusal.is_none();
            if path == source || fatal || idle {
                cursor.quiet = 0;
            } else if let Some(window) = cursor.overdue().filter(|_| held) {
                entry.refusal.serve();
                if !repair.switches.contains(path) || !cursor.try_switch(oldest, repair.frontier) {
                    cursor.until.get_or_insert(cursor.next);
                    cursor.go_back(oldest, window);
                }
                repair.ready.insert(path);
                tries |= oldest == agg_ack.next();
            }
        }
        // A source that is a host is asked again from its NAK on, which may come late: all paths must have what is before.
        if !newest.is_before(repair.frontier) && (repair.source_is_switch || self.nak_sent) {
            repair.gap_ticks = repair.gap_ticks.checked_add(1).unwrap_or(128);
            let gap = repair.gap_ticks;
            // A source that ignores NAKs must time out, and each one re-arms its timer.
            let again = if repair.source_is_switch {
                gap.is_power_of_two()
            } else {
                matches!(gap, 2 | 4 | 8)
            };
            if again {
                // The request or NAK was lost, or what it asked for.
                (repair.reported, repair.repeats_until) = (false, None);
                self.nak_sent &= repair.source_is_switch;
                self.report_gap(out);
            }
        }
        if tries {
            self.count_try(agg_ack.next());
        }
        if acknowledges {
            self.send_ack(out);
        }
    }

    pub(super) fn repair_status(&self) -> Option<RepairStatus> {
        let repair = self.rare.repair.as_deref()?;
        let held: u32 = repair.held.iter().map(|word| word.count_ones()).sum();
        let gap = !self.newest.is_before(repair.frontier);
        Some(RepairStatus {
            slots: repair.slots,
            held: held as u16,
            missing: gap.then_some(repair.frontier),
        })
    }
}

impl Repair {
    fn next_for(&mut self, path: PathId, ack: Psn, agg_ack: Psn) -> Option<Resend> {
        let frontier = self.frontier;
        let mut cursor = *self.paths.get(path.index())?;
        let wanted = cursor.wanted.take().map(Psn::from_bytes);
        let wanted = wanted.filter(|psn| psn.is_after(ack) && self.holds(agg_ack, *psn));
        let next = cursor.next();
        let found = if let Some(psn) = wanted {
            Some((psn, true))
        } else if !next.is_before(frontier) {
            None
        } else if !self.holds(agg_ack, next) {
            // It was sent or dropped, but never kept. The path refuses what follows.
            cursor.next = frontier.to_bytes();
            None
        } else if cursor.window != 0 && next.diff(ack) > cursor.window.into() {
            None
        } else {
            cursor.next = next.next().to_bytes();
            Some((next, cursor.window != 0 || next.next() == frontier))
        };
        if let Some(slot) = self.paths.get_mut(path.index()) {
            *slot = cursor;
        }
        let (psn, ack_request) = found?;
        self.tick.sent_again(psn);
        Some(Resend {
            path,
            psn,
            slot: self.slot(psn),
            ack_request,
        })
    }
}
