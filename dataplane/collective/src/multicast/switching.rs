//! Source switching (Cepheus III.E): the source of a group moves between its members, without a change at any host.
//!
//! **Who may send.** One switch of the tree, that next to the source, decides: the root. Each switch knows the path towards it
//! ([`Multicast::source`]). The root lets another member send if all data that it has received of the source is acknowledged by all paths,
//! and ends a message. So M1 and M2 hold for both sources, and no receiver gets parts of two messages as one.
//!
//! **How the source moves.** A member sends. If the switch next to it is the root, the data is accepted at once, or the member waits until
//! the root may switch. Other switches drop the data and send a request on the path towards the root; switches on the way forward it and
//! remember the path that waits. The root answers with a grant, which reverses each path on its way: source and receiver of each link change
//! roles. The last switch sends the new source a sequence NAK of its first packet. This is Raymond's algorithm for mutual exclusion on a
//! tree (1989), with data as requests of members. Requests and grants may be lost: the member repeats its data, which repeats the request,
//! and a switch that gets a request from the path that it has granted repeats the grant. Each grant has a number, the epoch, so late
//! duplicates have no effect. If a switch gets a request with a newer epoch from its source's path, the grant for itself was lost, and the
//! request stands for it.
//!
//! **PSN bridging.** The PSNs of the group, `g`, count the packets of all sources. A host counts on its own: `u` for the packets that it sends,
//! `d` for those that it receives, both from the first PSN of the group. The switch next to it stores how many packets it has sent, `sent`:
//!
//! - data to it: `d = g - sent`, as it does not receive its own packets;
//! - data from it: `u` begins with `start + sent` when it becomes the source, with the packet `first` of the group.
//!
//! MSNs (IBA 9.7.5.1.1) are bridged in the same way: a host counts the messages that it has received, and expects those that it has sent.

use super::entry::Entry;
use super::machine::{Multicast, Phase, Special, emit};
use super::{Effect, Effects, Signal};
use crate::path::PathId;
use alloc::boxed::Box;
use alloc::vec;
use castnet_wire::{AnySource, DropReason, NakCode, Nanos, Psn, RnrTimer, Syndrome};

/// Time of an RNR NAK to a member that must wait and repeats its data: 1.28 ms.
const WAIT: RnrTimer = RnrTimer::new(14);

/// After this time without a packet of a member that may send, another one that waits may: 50 ms. It is longer than an RNR NAK, during
/// which a member sends nothing.
const PATIENCE: Nanos = Nanos::from_millis(50);

/// State of a group whose source may change: seven bytes for each path, and what the group has once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Switching {
    members: Box<[Member]>,
    /// Whose PSNs the hosts have.
    numbers: AnySource,
    /// The first PSN of the group, and of all hosts.
    start: Psn,
    /// First PSN of the present source.
    first: Psn,
    /// The source before it, and its first PSN.
    before: (PathId, Psn),
    /// Messages of all sources before it, modulo 2^24.
    first_msn: u32,
    /// Number of grants, modulo 2^24, as far as this switch has taken part in them.
    epoch: u32,
    /// The path that has requested to send.
    waiting: Option<PathId>,
    /// The source was asked for its first packet at this time, and has not sent since.
    invited: Option<Nanos>,
    /// The packet in work begins a message, and ends one.
    pub(super) position: (bool, bool),
    /// The newest packet does not end its message.
    open: bool,
    /// The present conflict was reported.
    reported: bool,
}

/// The part of one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Member {
    kind: PeerKind,
    /// Packets of the group that it has sent before the present source, modulo 2^24.
    sent: [u8; 3],
    /// Messages of these packets, modulo 2^24.
    messages: [u8; 3],
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum PeerKind {
    /// Its numbers are those of the group.
    #[default]
    Switch,
    Host,
    /// A host that has sent packets with PSNs of other hosts' packets. Its packets cannot be told from those of its next turn.
    OutOfTurn,
}

impl Member {
    fn is_host(self) -> bool {
        self.kind != PeerKind::Switch
    }

    fn sent(self) -> u32 {
        Psn::from_bytes(self.sent).value()
    }

    fn messages(self) -> u32 {
        Psn::from_bytes(self.messages).value()
    }

    fn add(&mut self, packets: u32, messages: u32) {
        self.sent = Psn::new(self.sent().wrapping_add(packets)).to_bytes();
        self.messages = Psn::new(self.messages().wrapping_add(messages)).to_bytes();
    }
}

/// `a - b` modulo 2^24.
fn minus(a: u32, b: u32) -> u32 {
    Psn::new(a.wrapping_sub(b)).value()
}

/// Whether epoch `a` is newer than `b`.
fn is_newer(a: u32, b: u32) -> bool {
    Psn::new(a).is_after(Psn::new(b))
}

impl Switching {
    fn member(&self, path: PathId) -> Member {
        self.members.get(path.index()).copied().unwrap_or_default()
    }

    /// Whether a packet of a host that is not the source is one of its last turn, which ended with the PSN `last`.
    fn repeats_own(&self, from: PathId, psn: Psn, last: Psn) -> bool {
        let (before, first) = self.before;
        match self.numbers {
            AnySource::Bridged => !psn.is_after(last),
            AnySource::Synchronized => from == before && !psn.is_after(last) && !first.is_after(psn),
        }
    }

    /// Whether a packet of a host with the numbers of the group, which is not the source, may be its first one: if the host has received
    /// everything, its numbers are right.
    fn admits(&mut self, from: PathId, psn: Psn, next: Psn) -> bool {
        if next.is_after(psn) {
            self.note_out_of_turn(from);
        }
        psn == next && self.position.0 && self.member(from).kind == PeerKind::Host
    }

    /// The next PSN that a host which is not the source sends.
    fn next_own(&self, member: Member) -> Psn {
        Psn::new(self.start.value().wrapping_add(member.sent()))
    }

    /// Bytes of its entries.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.members)
    }

    pub(super) fn copy_state(&mut self, of: &Self) {
        let mut members = core::mem::take(&mut self.members);
        members.clone_from(&of.members);
        *self = Self { members, ..*of };
    }

    /// The source has sent a new packet. Returns the member to report: it waits to send while the source goes on.
    pub(super) fn on_new_data(&mut self) -> Option<PathId> {
        self.invited = None;
        self.open = !self.position.1;
        let conflict = self.waiting.filter(|path| self.reports(*path));
        // The PSNs of the member that waits are now those of other packets.
        if self.numbers == AnySource::Synchronized
            && let Some(path) = self.waiting.take()
        {
            self.note_out_of_turn(path);
        }
        conflict
    }

    fn note_out_of_turn(&mut self, path: PathId) {
        let host = self
            .members
            .get_mut(path.index())
            .filter(|member| member.is_host());
        if let Some(member) = host {
            member.kind = PeerKind::OutOfTurn;
        }
    }

    /// Whether a conflict of this member must be reported: once for each source.
    fn reports(&mut self, path: PathId) -> bool {
        self.member(path).is_host() && !core::mem::replace(&mut self.reported, true)
    }
}

impl Multicast {
    /// Lets the source of a new machine with a known start change. `hosts` are the paths that lead to members; all others lead to switches.
    #[must_use]
    pub fn with_switching(mut self, numbers: AnySource, hosts: impl IntoIterator<Item = PathId>) -> Self {
        let (Phase::Baseline, None) = (self.phase, &self.rare.special) else {
            debug_assert!(false, "the start is known, and no path joins");
            return self;
        };
        let mut members = vec![Member::default(); self.table.len()].into_boxed_slice();
        for path in hosts {
            if let Some(member) = members.get_mut(path.index()) {
                member.kind = PeerKind::Host;
            }
        }
        self.fast = false;
        self.rare.special = Some(Special::Switching(Switching {
            members,
            numbers,
            start: self.newest.next(),
            first: self.newest.next(),
            before: (self.source, self.newest.next()),
            first_msn: 0,
            epoch: 0,
            waiting: None,
            invited: None,
            position: (true, true),
            open: false,
            reported: false,
        }));
        self
    }

    /// True if the source may change.
    pub fn is_switching(&self) -> bool {
        self.switching().is_some()
    }

    /// The path towards the source. Feedback is sent to it (AckOutPort).
    pub fn source(&self) -> PathId {
        self.source
    }

    /// Whether the packet that [`handle`](Self::handle) gets next begins and ends a message. Needed before each data packet if the source
    /// may change.
    pub fn handle_position(&mut self, begins_message: bool, ends_message: bool) {
        if let Some(switching) = self.switching_mut() {
            switching.position = (begins_message, ends_message);
        }
    }

    fn switching(&self) -> Option<&Switching> {
        match &self.rare.special {
            Some(Special::Switching(switching)) => Some(switching),
            _ => None,
        }
    }

    pub(super) fn switching_mut(&mut self) -> Option<&mut Switching> {
        switching_of(&mut self.rare.special)
    }

    fn bridged(&self, path: PathId) -> Option<(&Switching, Member)> {
        let switching = self.switching().filter(|s| s.numbers == AnySource::Bridged)?;
        let member = switching.member(path);
        member.is_host().then_some((switching, member))
    }

    fn leads_to_host(&self, path: PathId) -> bool {
        self.switching().is_some_and(|s| s.member(path).is_host())
    }

    /// The first PSN of the group that data of `path` has, now or as the next source.
    fn turn_of(&self, path: PathId, switching: &Switching) -> Psn {
        if path == self.source {
            switching.first
        } else {
            self.newest.next()
        }
    }

    /// The PSN in the group of a data packet from `from`.
    pub fn group_psn(&self, from: PathId, psn: Psn) -> Psn {
        match self.bridged(from) {
            Some((switching, member)) => {
                let ahead = psn.diff(switching.next_own(member));
                self.turn_of(from, switching).add(ahead)
            }
            None => psn,
        }
    }

    /// The PSN at `to` of a data packet of the group.
    pub fn member_psn(&self, to: PathId, psn: Psn) -> Psn {
        match self.bridged(to) {
            Some((_, member)) => Psn::new(minus(psn.value(), member.sent())),
            None => psn,
        }
    }

    /// PSN and MSN in the group of feedback from `from`.
    pub fn group_feedback(&self, from: PathId, psn: Psn, msn: u32) -> (Psn, u32) {
        match self.bridged(from) {
            Some((_, member)) => (
                Psn::new(psn.value().wrapping_add(member.sent())),
                Psn::new(msn.wrapping_add(member.messages())).value(),
            ),
            None => (psn, msn),
        }
    }

    /// PSN and MSN at `to` of feedback of the group: of the packets and messages that it has sent.
    pub fn member_feedback(&self, to: PathId, psn: Psn, msn: u32) -> (Psn, u32) {
        let Some((switching, member)) = self.bridged(to) else {
            return (psn, msn);
        };
        let ahead = psn.diff(self.turn_of(to, switching));
        let of_turn = match to == self.source {
            true => minus(msn, switching.first_msn),
            false => 0,
        };
        let msn = Psn::new(member.messages().wrapping_add(of_turn)).value();
        (switching.next_own(member).add(ahead), msn)
    }

    /// Data of a path that is not the source's. Returns true if it is now: then the data is handled as any of the source.
    pub(super) fn take_turn(
        &mut self,
        now: Nanos,
        from: PathId,
        psn: Psn,
        ack_request: bool,
        out: &mut Effects,
    ) -> bool {
        let (newest, root, may_switch) = (self.newest, self.is_root(), self.may_switch());
        let acknowledged = self.phase == Phase::Acknowledged;
        let switching = match switching_of(&mut self.rare.special) {
            Some(switching) if switching.member(from).is_host() => switching,
            // Of the time before the last switching.
            _ => {
                emit(out, Effect::Drop(DropReason::NotSource));
                return false;
            }
        };
        let last = match switching.numbers {
            AnySource::Bridged => newest,
            AnySource::Synchronized => switching.first.prev(),
        };
        if switching.repeats_own(from, psn, last) {
            // All its packets are acknowledged by all paths, but it has missed the ACK.
            if acknowledged && (ack_request || psn == last) {
                self.answer(from, last, Syndrome::Ack, out);
            }
            return false;
        }
        if switching.numbers == AnySource::Synchronized && !switching.admits(from, psn, newest.next()) {
            let conflict = switching.member(from).kind == PeerKind::OutOfTurn && switching.reports(from);
            emit(out, Effect::Drop(DropReason::NotSource));
            if conflict {
                emit(out, Effect::Compete { path: from });
            }
            return false;
        }
        if root && may_switch && switching.waiting.is_none() {
            self.switch_to(now, from, self.next_epoch());
            return true;
        }
        let repeats = switching.waiting.is_some();
        let turn = *switching.waiting.get_or_insert(from) == from;
        let (conflict, epoch) = (!turn && switching.reports(from), switching.epoch);
        emit(out, Effect::Drop(DropReason::NotSource));
        if conflict {
            emit(out, Effect::Compete { path: from });
        }
        let next = newest.next();
        if !root && (!repeats || psn == next) {
            let to = self.source;
            emit(out, request(to, next, epoch));
        }
        // A member that repeats its data would use up its retries otherwise. After an RNR NAK it waits.
        if psn == next && repeats {
            self.answer(from, next, Syndrome::RnrNak(WAIT), out);
        }
        false
    }

    /// A request or grant of a neighbour.
    pub(super) fn on_signal(
        &mut self,
        now: Nanos,
        from: PathId,
        (signal, psn, epoch): (Signal, Psn, u32),
        out: &mut Effects,
    ) {
        let (source, next) = (self.source, self.newest.next());
        let outstanding = self.is_outstanding();
        let known = from.index() < self.table.len();
        let Some(switching) =
            switching_of(&mut self.rare.special).filter(|s| known && !s.member(from).is_host())
        else {
            return emit(out, Effect::Drop(DropReason::NotSource));
        };
        let own = switching.epoch;
        match signal {
            Signal::Request if from != source => {
                switching.waiting.get_or_insert(from);
                // Also for another path that waits: nobody repeats the request of a member that has gone.
                if !self.settle(now, out) && !self.is_root() {
                    emit(out, request(source, next, own));
                }
            }
            // It has not received the grant.
            Signal::Request if is_newer(own, epoch) => emit(out, grant(from, next, own)),
            // The grant for this switch was lost, and the neighbour wants to send again.
            Signal::Request if is_newer(epoch, own) && !outstanding => match switching.waiting {
                Some(path) => {
                    self.pass_on(now, path, epoch, out);
                    if let Some(switching) = self.switching_mut() {
                        switching.waiting = Some(from);
                    }
                }
                // Nobody here wants to send any more.
                None => {
                    switching.epoch = Psn::new(epoch).next().value();
                    emit(out, grant(from, next, switching.epoch));
                }
            },
            Signal::Grant if from == source && is_newer(epoch, own) && psn == next && !outstanding => {
                // Without a member that wants to send, it waits for a request of the neighbour.
                if let Some(path) = switching.waiting {
                    self.pass_on(now, path, epoch, out);
                }
            }
            _ => emit(out, Effect::Drop(DropReason::NotSource)),
        }
    }

    /// Switches to the path that waits, if there is one and this is the root and may switch. Returns true if it has.
    pub(super) fn settle(&mut self, now: Nanos, out: &mut Effects) -> bool {
        let waiting = self.switching().and_then(|s| s.waiting);
        match waiting {
            Some(path) if self.is_root() && self.may_switch() => {
                self.pass_on(now, path, self.next_epoch(), out);
                true
            }
            _ => false,
        }
    }

    /// Makes `path` the source and reports it there: to a member by a NAK, as its data was dropped, to a switch by a grant.
    fn pass_on(&mut self, now: Nanos, path: PathId, epoch: u32, out: &mut Effects) {
        self.switch_to(now, path, epoch);
        let next = self.newest.next();
        let host = self.leads_to_host(path);
        if let Some(switching) = self.switching_mut() {
            switching.invited = host.then_some(now);
        }
        if host {
            self.answer(path, next, Syndrome::Nak(NakCode::PsnSequenceError), out);
        } else {
            emit(out, grant(path, next, epoch));
        }
    }

    /// All data is acknowledged, so all AckPSNs are equal.
    fn switch_to(&mut self, now: Nanos, path: PathId, epoch: u32) {
        let (before, newest, msn) = (self.source, self.newest, self.msn());
        let Some(switching) = switching_of(&mut self.rare.special) else {
            return;
        };
        let (packets, messages) = (
            minus(newest.next().value(), switching.first.value()),
            minus(msn, switching.first_msn),
        );
        if let Some(member) = switching.members.get_mut(before.index()).filter(|m| m.is_host()) {
            member.add(packets, messages);
        }
        switching.before = (before, switching.first);
        switching.first = newest.next();
        switching.first_msn = msn;
        switching.epoch = epoch;
        switching.waiting = None;
        switching.invited = None;
        switching.open = false;
        switching.reported = false;
        let mut entry = Entry::new(newest);
        entry.advance(newest, msn, super::entry::Refusal::NONE);
        self.table[before.index()] = entry;
        self.table[path.index()] = Entry::new(newest);
        self.source = path;
        self.nak_sent = false;
        self.rare.cnps.forget(path);
        if let Some(repair) = self.rare.repair.as_deref_mut() {
            repair.change_source(newest.next(), path);
        }
        self.progress(now);
    }

    /// When another member may send, because the source has not sent its first packet.
    pub(super) fn turn_timeout(&self) -> Option<Nanos> {
        let switching = self.switching().filter(|s| s.waiting.is_some())?;
        switching.invited.map(|at| at + PATIENCE)
    }

    /// The source has not sent since it may. Nothing of it is on the way but what was dropped, so the next one begins where it would have.
    pub(super) fn on_turn_timeout(&mut self, now: Nanos, out: &mut Effects) {
        if let Some(switching) = self.switching_mut() {
            switching.invited = None;
        }
        self.settle(now, out);
    }

    /// True if the source is a host next to this switch.
    fn is_root(&self) -> bool {
        self.leads_to_host(self.source)
    }

    fn may_switch(&self) -> bool {
        let settled = |s: &Switching| !s.open && s.invited.is_none();
        !self.is_outstanding() && self.switching().is_some_and(settled)
    }

    fn next_epoch(&self) -> u32 {
        let epoch = self.switching().map_or(0, |s| s.epoch);
        Psn::new(epoch).next().value()
    }

    fn answer(&self, to: PathId, psn: Psn, syndrome: Syndrome, out: &mut Effects) {
        let msn = self.msn();
        emit(
            out,
            Effect::Acknowledge {
                to,
                psn,
                msn,
                syndrome,
            },
        );
    }
}

/// Borrows only this field of the machine.
fn switching_of(special: &mut Option<Special>) -> Option<&mut Switching> {
    match special {
        Some(Special::Switching(switching)) => Some(switching),
        _ => None,
    }
}

fn request(to: PathId, psn: Psn, epoch: u32) -> Effect {
    let signal = Signal::Request;
    Effect::Signal {
        to,
        signal,
        psn,
        epoch,
    }
}

fn grant(to: PathId, psn: Psn, epoch: u32) -> Effect {
    let signal = Signal::Grant;
    Effect::Signal {
        to,
        signal,
        psn,
        epoch,
    }
}
