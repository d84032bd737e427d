//! The machine of Mode-II and Mode-III: any events from any endpoint in any order, compared with what was sent, and by which
//! endpoint.
//!
//! For each slot the oracle stores its packet and contributors (contract C1). For each endpoint it stores what was
//! sent to it and what it has acknowledged (M1, M2, in both directions); in Mode-III also what was accepted from it. It derives the position of a rank's packet
//! from all collectives since the group began; the machine derives it from the last acknowledged packet.

mod events;
#[path = "../../../dataplane/collective/tests/translated/paths.rs"]
mod paths;

use crate::driver::{print_step, reached};
use castnet_collective::translated::{Effect, Effects, Event};
use castnet_collective::{
    CollectiveMode, EndpointId, EndpointKind, EndpointSet, Translated, TranslatedConfig, TranslatedStatus,
};
use castnet_wire::{Call, Nanos, Primitive, Psn, Syndrome};
use events::config;
use std::collections::BTreeSet;
use std::mem::discriminant;
use std::ops::Range;

/// Bytes of a record: the first one describes the group, each other one an event or time.
pub const RECORD: usize = 8;

const RANKS: u16 = 5;
/// Most packets sent by one call; more is a storm.
const EMISSIONS_MAX: usize = 4096;

/// Runs `data` as a group and its events.
pub fn translated(data: &[u8]) {
    let (records, _) = data.as_chunks::<RECORD>();
    let Some((setting, steps)) = records.split_first() else {
        return;
    };
    let mut world = World::new(setting);
    for step in steps {
        world.step(step);
    }
}

/// A collective since the group began.
#[derive(Clone, Copy, Debug)]
struct Past {
    start: u64,
    call: Call,
}

impl Past {
    fn data_end(&self) -> u64 {
        self.start + 1 + self.call.all_packets()
    }

    /// The data packets of a block.
    fn block(&self, nth: u16) -> Range<u64> {
        let packets = u64::from(self.call.packets);
        let start = self.start + 1 + packets * u64::from(nth);
        start..start + packets
    }

    /// The block of a data packet.
    fn block_of(&self, g: u64) -> u16 {
        let mut blocks = 0..self.call.roots;
        blocks.find(|&nth| self.block(nth).contains(&g)).unwrap_or(0)
    }
}

/// Content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    g: u64,
    from: EndpointSet,
    stored: bool,
}

/// What is known of an endpoint, counted in its own packets: of a rank those it exchanges, of a switch positions.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    sent_to: u64,
    acknowledged: u64,
}

struct World {
    machine: Translated,
    config: TranslatedConfig,
    now: Nanos,
    past: Vec<Past>,
    slots: Vec<Option<Held>>,
    known: Vec<Known>,
    /// Mode-III: the accepted packets.
    accepted: BTreeSet<(EndpointId, u64)>,
    finished: u64,
}

fn endpoint(index: usize) -> EndpointId {
    EndpointId::new(index).expect("below the most")
}

/// Position of `psn`, given that position `near` has the PSN `wire`.
fn unwrapped(psn: Psn, near: u64, wire: Psn) -> Option<u64> {
    near.checked_add_signed(psn.diff(wire).into())
}

impl World {
    fn new(setting: &[u8; RECORD]) -> Self {
        let config = config(setting);
        print_step(|| format!("{config:#?}"));
        let machine = Translated::new(config.clone());
        Self {
            now: Nanos::from_secs(1),
            past: Vec::new(),
            slots: vec![None; machine.slots().into()],
            known: vec![Known::default(); config.endpoints.len()],
            accepted: BTreeSet::new(),
            finished: 0,
            machine,
            config,
        }
    }

    fn step(&mut self, record: &[u8; RECORD]) {
        match record[0] % 16 {
            14 => self.time(self.machine.poll_timeout().map_or(Nanos::ZERO, |(at, _)| at)),
            15 => self.time(self.now + Nanos::from_micros(20 * u64::from(record[2]))),
            _ => self.event(record),
        }
    }

    fn time(&mut self, to: Nanos) {
        self.now = self.now.max(to);
        print_step(|| format!("time {}", self.now));
        let mut calls = 0;
        while let Some((_, reason)) = self.machine.poll_timeout().filter(|(at, _)| *at <= self.now) {
            let mut effects = Effects::new();
            self.machine.handle_timeout(self.now, &mut effects);
            reached((
                "time",
                reason,
                effects.iter().map(discriminant).collect::<Vec<_>>(),
            ));
            self.carry_out(&effects, None);
            self.drain();
            calls += 1;
            assert!(calls < 100, "a timer is always due: {reason:?}");
        }
    }

    fn event(&mut self, record: &[u8; RECORD]) {
        let status = self.machine.status();
        let event = self.decode(record, &status);
        print_step(|| format!("{event:?}"));
        // Position of the packet according to the oracle, before the machine handles it.
        let at = self.position(&event, &status);
        self.note_feedback(&event, &status);
        let mut effects = Effects::new();
        paths::handle(&mut self.machine, self.now, event, &mut effects);
        print_step(|| format!("    {effects:?}"));
        assert!(!effects.is_empty());
        assert!(effects.len() == 1 || !effects.contains(&Effect::Absorb));
        self.note_calls();
        self.carry_out(&effects, Some((event, at)));
        self.drain();
        self.report(&event, &effects);
    }

    fn drain(&mut self) {
        let mut effects = Effects::new();
        for _ in 0..EMISSIONS_MAX {
            if !self.machine.poll_emit(self.now, &mut effects) && !self.machine.catch_up() {
                return self.check_state();
            }
            print_step(|| format!("    then {effects:?}"));
            self.carry_out(&effects.clone(), None);
        }
        panic!("the machine does not stop sending");
    }

    fn check_state(&mut self) {
        let status = self.machine.status();
        assert!(
            status.finished >= self.finished,
            "finished positions stay finished"
        );
        self.finished = status.finished;
        assert!(
            self.machine.poll_timeout().is_none()
                || !status.collectives.is_empty()
                || status.endpoints.iter().any(|e| e.rnr_until.is_some()),
            "a timer without a reason"
        );
        for (e, known) in status.endpoints.iter().zip(&self.known) {
            let in_order = |a: Psn, b: Psn| a.diff(b) <= 0;
            assert!(in_order(e.unconfirmed, e.expected), "{e:?}");
            assert!(in_order(e.unacknowledged, e.next), "{e:?}");
            assert!(in_order(status.base, e.unacknowledged), "{e:?}");
            let acked = known.acknowledged.min(known.sent_to);
            assert!(
                e.packets.1 <= acked || !is_rank(e.kind),
                "the endpoint has not acknowledged that: {e:?} {known:?}"
            );
        }
    }

    fn note_calls(&mut self) {
        for collective in self.machine.status().collectives {
            if collective.sequence as usize == self.past.len() {
                let start = self.past.last().map_or(0, Past::data_end);
                self.past.push(Past {
                    start,
                    call: collective.call,
                });
            }
        }
    }

    fn collective_at(&self, g: u64) -> Option<&Past> {
        let index = self.past.partition_point(|p| p.start <= g).checked_sub(1)?;
        Some(&self.past[index]).filter(|p| g < p.data_end())
    }

    fn root(&self, call: &Call, nth: u16) -> Option<EndpointId> {
        let root = self
            .config
            .endpoints
            .iter()
            .position(|e| e.ranks.contains(call.root + nth));
        root.filter(|_| call.primitive != Primitive::AllReduce)
            .map(endpoint)
    }

    /// Senders of the data of a block of `call`, if not all ranks send.
    fn senders(&self, call: &Call, nth: u16) -> EndpointSet {
        let all = EndpointSet::first(self.config.endpoints.len());
        match (call.primitive, self.root(call, nth)) {
            (Primitive::Reduce, Some(root)) => all.without(root),
            (Primitive::Broadcast, Some(root)) => EndpointSet::only(root),
            _ => all,
        }
    }

    fn receivers(&self, call: &Call, nth: u16) -> EndpointSet {
        let all = EndpointSet::first(self.config.endpoints.len());
        match (call.primitive, self.root(call, nth)) {
            (Primitive::Reduce, Some(root)) => EndpointSet::only(root),
            (Primitive::Broadcast, Some(root)) => all.without(root),
            _ => all,
        }
    }

    /// Number of packets below `g` that `e` sends or, if `sends` is false, receives.
    fn count(&self, e: EndpointId, sends: bool, g: u64) -> u64 {
        let mut count = 0;
        for past in self.past.iter().take_while(|p| p.start < g) {
            count += 1;
            for nth in 0..past.call.roots {
                let (goes, block) = match sends {
                    true => (self.senders(&past.call, nth), past.block(nth)),
                    false => (self.receivers(&past.call, nth), past.block(nth)),
                };
                if goes.contains(e) {
                    count += block.end.min(g).saturating_sub(block.start);
                }
            }
        }
        count
    }

    /// Position of the packet with index `index` that `e` sends.
    fn sent_at(&self, e: EndpointId, mut index: u64) -> Option<u64> {
        for past in &self.past {
            let sends = |nth: &u16| self.senders(&past.call, *nth).contains(e);
            let blocks = (0..past.call.roots).filter(sends).map(|nth| past.block(nth));
            for part in std::iter::once(past.start..past.start + 1).chain(blocks) {
                let packets = part.end - part.start;
                if index < packets {
                    return Some(part.start + index);
                }
                index -= packets;
            }
        }
        // The control message of the next collective, which no endpoint has opened.
        (index == 0).then(|| self.past.last().map_or(0, Past::data_end))
    }

    fn position(&self, event: &Event, status: &TranslatedStatus) -> Option<u64> {
        let (Event::Data { from, psn, .. } | Event::Control { from, psn, .. }) = *event else {
            return None;
        };
        match self.config.endpoints.get(from.index())?.kind {
            EndpointKind::Rank { sq_psn, .. } => {
                let confirmed = status.endpoints[from.index()].packets.0;
                self.sent_at(from, unwrapped(psn, confirmed, sq_psn.add(confirmed as i32))?)
            }
            EndpointKind::Switch => self.unwrapped_near(psn, status.endpoints[from.index()].expected, status),
        }
    }

    fn is_augmented(&self) -> bool {
        self.config.mode == CollectiveMode::Augmented
    }

    /// The position of a PSN between switches: near what the endpoint was at in Mode-III, whose pipes may be far apart.
    fn unwrapped_near(&self, psn: Psn, near: Psn, status: &TranslatedStatus) -> Option<u64> {
        if !self.is_augmented() {
            return unwrapped(psn, status.finished, status.base);
        }
        unwrapped(psn, unwrapped(near, status.finished, status.base)?, near)
    }

    /// The slot of a position.
    fn slot(&self, g: u64, of_results: bool) -> u64 {
        let all = self.slots.len() as u64;
        match (self.is_augmented(), of_results) {
            (false, _) => g % all,
            (true, false) => g % (all / 2),
            (true, true) => all / 2 + g % (all / 2),
        }
    }

    /// EPIC H.4: nothing is written over a result that some receiver has not acknowledged.
    fn check_overwritten(&self, slot: usize) {
        let Some(held) = self.slots[slot].filter(|_| self.is_augmented()) else {
            return;
        };
        let past = self.collective_at(held.g).expect("a collective");
        let receivers = match past.call.primitive {
            Primitive::AllReduce => self.config.parent.map_or_else(
                || EndpointSet::first(self.config.endpoints.len()),
                |parent| EndpointSet::first(self.config.endpoints.len()).without(parent),
            ),
            _ => self.receivers(&past.call, past.block_of(held.g)),
        };
        for e in receivers {
            let number = match self.config.endpoints[e.index()].kind {
                EndpointKind::Rank { .. } => self.count(e, false, held.g),
                EndpointKind::Switch => held.g,
            };
            assert!(
                number < self.known[e.index()].acknowledged,
                "H.4: {held:?} is overwritten, and {e} has not acknowledged it"
            );
        }
    }

    fn carry_out(&mut self, effects: &[Effect], cause: Option<(Event, Option<u64>)>) {
        for effect in effects {
            if let (
                Effect::Aggregate { .. } | Effect::Store { .. } | Effect::Merged,
                Some((Event::Data { from, .. } | Event::Control { from, .. }, Some(g))),
            ) = (effect, cause)
            {
                self.accepted.insert((from, g));
            }
            match *effect {
                Effect::Aggregate {
                    slot, from, first, ..
                } => self.aggregate(slot, from, first, cause),
                Effect::Store { slot } => {
                    let (Some((Event::Data { from, .. }, Some(g))), at) = (cause, usize::from(slot)) else {
                        panic!("no packet to store");
                    };
                    assert_eq!(self.slot(g, true), u64::from(slot));
                    self.check_overwritten(at);
                    let from = EndpointSet::only(from);
                    self.slots[at] = Some(Held {
                        g,
                        from,
                        stored: true,
                    });
                }
                Effect::Emit { slot, g, to, .. } => {
                    let position = self.emitted(g, to);
                    let held = self.slots[usize::from(slot)].expect("a payload");
                    assert_eq!(held.g, position, "C1: another packet's payload");
                    self.check_whole(&held, to);
                }
                Effect::EmitControl { g, to, control } => {
                    let position = self.emitted(g, to);
                    let past = self.collective_at(position).expect("a collective");
                    assert_eq!(past.start, position);
                    assert_eq!(
                        control.sequence as usize,
                        self.past.partition_point(|p| p.start < position)
                    );
                }
                Effect::Acknowledge {
                    to, psn, syndrome, ..
                } => self.acknowledge(to, psn, syndrome),
                Effect::Request { to, .. } => {
                    let kind = self.config.endpoints[to.index()].kind;
                    let is_host = matches!(kind, EndpointKind::Rank { is_host: true, .. });
                    assert!(is_host, "a switch is asked by a NAK");
                }
                Effect::Stalled { waiting_for, .. } => assert!(!waiting_for.is_empty()),
                Effect::Cnp { to } => assert!(!to.is_empty()),
                Effect::HandOver { from, to } => {
                    let held = self.slots[usize::from(from)].expect("a sum");
                    assert!(self.is_augmented() && self.config.parent.is_none());
                    assert_eq!(self.slot(held.g, true), u64::from(to));
                    self.check_overwritten(to.into());
                    self.slots[usize::from(to)] = Some(held);
                }
                Effect::Complete { .. }
                | Effect::Merged
                | Effect::Absorb
                | Effect::Drop(_)
                | Effect::Conflict { .. }
                | Effect::Refused { .. }
                | Effect::MemberFailed { .. } => {}
            }
        }
    }

    fn aggregate(&mut self, slot: u16, from: EndpointId, first: bool, cause: Option<(Event, Option<u64>)>) {
        let Some((Event::Data { from: sender, .. }, Some(g))) = cause else {
            panic!("no packet to add");
        };
        assert_eq!((sender, self.slot(g, false)), (from, slot.into()));
        let slot = &mut self.slots[usize::from(slot)];
        if first {
            assert!(slot.is_none_or(|held| held.g < g), "C1: contributions are lost");
            *slot = Some(Held {
                g,
                from: EndpointSet::only(from),
                stored: false,
            });
            return;
        }
        let held = slot.as_mut().expect("a slot to add to");
        assert_eq!(held.g, g, "C1: added to another packet");
        assert!(!held.from.contains(from), "C1: a contribution is added twice");
        held.from.insert(from);
    }

    /// Checks a packet sent to all of `to`: its numbers must be right. Returns its position.
    fn emitted(&mut self, g: Psn, to: EndpointSet) -> u64 {
        let status = self.machine.status();
        let position = unwrapped(g, status.finished, status.base).expect("a position since the group began");
        let past = *self
            .collective_at(position)
            .expect("a collective that was opened");
        assert!(!to.is_empty());
        for e in to {
            assert!(
                position == past.start || self.receivers(&past.call, past.block_of(position)).contains(e)
            );
            let psn = self.machine.header(g).psn(e);
            let number = match self.config.endpoints[e.index()].kind {
                EndpointKind::Rank { rq_psn, .. } => {
                    let d = self.count(e, false, position);
                    assert_eq!(psn, rq_psn.add(d as i32), "bridged to another number");
                    d
                }
                EndpointKind::Switch => {
                    assert_eq!(psn, g);
                    position
                }
            };
            let known = &mut self.known[e.index()];
            known.sent_to = known.sent_to.max(number + 1);
        }
        position
    }

    /// Checks a sent packet: it must hold all contributions, or the one result.
    fn check_whole(&self, held: &Held, to: EndpointSet) {
        let past = self.collective_at(held.g).expect("a collective");
        let call = past.call;
        let all = EndpointSet::first(self.config.endpoints.len());
        let up = |set: EndpointSet| self.config.parent.map_or(set, |parent| set.without(parent));
        let from = match (
            call.primitive,
            self.root(&call, past.block_of(held.g)),
            self.config.parent,
        ) {
            (Primitive::Reduce, Some(root), _) => (all.without(root), false),
            (Primitive::Broadcast, Some(root), _) => (EndpointSet::only(root), true),
            (_, _, Some(parent)) if !to.contains(parent) => (EndpointSet::only(parent), true),
            _ => (up(all), false),
        };
        assert_eq!((held.from, held.stored), from, "C1: {call:?} to {to:?}");
    }

    /// M1, M2: what is acknowledged to `to` has been acknowledged by all endpoints that it depends on.
    fn acknowledge(&self, to: EndpointId, psn: Psn, syndrome: Syndrome) {
        let status = self.machine.status();
        let nak = syndrome != Syndrome::Ack;
        let (sends, below) = match self.config.endpoints[to.index()].kind {
            EndpointKind::Rank { sq_psn, .. } => {
                let confirmed = status.endpoints[to.index()].packets.0;
                let next = if nak { psn } else { psn.next() };
                let index =
                    unwrapped(next, confirmed, sq_psn.add(confirmed as i32)).expect("a packet that it sent");
                (index, self.sent_at(to, index).expect("a packet that it sent"))
            }
            // Between switches a NAK requests a packet and, with the policy repair, acknowledges nothing.
            EndpointKind::Switch if nak => return,
            EndpointKind::Switch => {
                let g = unwrapped(psn.next(), status.finished, status.base).expect("a packet of the group");
                (1, g)
            }
        };
        if sends == 0 {
            return;
        }
        for past in self.past.iter().take_while(|p| p.start < below) {
            self.check_acknowledged(to, past, past.start);
            for nth in 0..past.call.roots {
                let block = past.block(nth);
                let end = block.end.min(below);
                if end > block.start && self.senders(&past.call, nth).contains(to) {
                    self.check_acknowledged(to, past, end - 1);
                }
            }
        }
    }

    fn check_acknowledged(&self, sender: EndpointId, past: &Past, g: u64) {
        if self.is_augmented() {
            let block = past.block(past.block_of(g));
            let first = if g == past.start { g } else { block.start };
            let missing = (first..=g).find(|&g| !self.accepted.contains(&(sender, g)));
            return assert_eq!(
                missing, None,
                "it is acknowledged to {sender}, and was not accepted"
            );
        }
        let parent = self.config.parent;
        let up_down = g == past.start || past.call.primitive == Primitive::AllReduce;
        let deciders = match up_down {
            true if parent != Some(sender) => EndpointSet::only(sender),
            true => EndpointSet::first(self.config.endpoints.len()).without(sender),
            false => self.receivers(&past.call, past.block_of(g)),
        };
        for e in deciders {
            let number = match self.config.endpoints[e.index()].kind {
                EndpointKind::Rank { .. } => self.count(e, false, g),
                EndpointKind::Switch => g,
            };
            assert!(
                number < self.known[e.index()].acknowledged,
                "M1: {g} is acknowledged to {sender}, but {e} has not acknowledged it: {:?}",
                self.known
            );
        }
    }

    /// Records an acknowledgement of an endpoint.
    fn note_feedback(&mut self, event: &Event, status: &TranslatedStatus) {
        let Event::Feedback {
            from, psn, syndrome, ..
        } = *event
        else {
            return;
        };
        let Some(state) = status.endpoints.get(from.index()) else {
            return;
        };
        let all_of_it = u64::from(syndrome == Syndrome::Ack);
        let known = self.known[from.index()];
        let upto = match state.kind {
            EndpointKind::Rank { rq_psn, .. } => {
                let acked = state.packets.1;
                unwrapped(psn, acked, rq_psn.add(acked as i32)).map(|d| d + all_of_it)
            }
            EndpointKind::Switch if all_of_it == 0 => None,
            EndpointKind::Switch => {
                let g = self.unwrapped_near(psn, state.unacknowledged, status);
                g.map(|g| g + 1)
            }
        };
        // An acknowledgement of unsent packets must be ignored. Skipped positions are not packets.
        let beyond = |upto: u64| is_rank(state.kind) && upto > known.sent_to;
        if let Some(upto) = upto.filter(|&upto| !beyond(upto)) {
            let known = &mut self.known[from.index()];
            known.acknowledged = known.acknowledged.max(upto);
        }
    }

    fn report(&self, event: &Event, effects: &Effects) {
        let status = self.machine.status();
        let kinds: Vec<_> = effects.iter().map(discriminant).collect();
        let drop = effects.iter().find_map(|e| match e {
            Effect::Drop(reason) => Some(*reason),
            _ => None,
        });
        let primitive = status.collectives.first().map(|c| c.call.primitive);
        reached((
            discriminant(event),
            drop,
            primitive,
            (self.config.loss, self.config.mode),
            self.config.parent,
        ));
        reached((discriminant(event), kinds, self.config.loss, self.config.mode));
        let flight = status.collectives.len().min(3);
        reached((
            flight,
            status.conflict.is_some(),
            status.waiting_for,
            self.config.endpoints.len(),
        ));
        for e in &status.endpoints {
            let (ahead, behind) = (
                e.expected.diff(e.unconfirmed).min(3),
                e.next.diff(e.unacknowledged).min(3),
            );
            reached((
                is_rank(e.kind),
                e.is_parent,
                ahead,
                behind,
                e.nak_sent,
                e.rnr_until.is_some(),
                self.config.loss,
                primitive,
            ));
        }
    }
}

fn is_rank(kind: EndpointKind) -> bool {
    matches!(kind, EndpointKind::Rank { .. })
}
