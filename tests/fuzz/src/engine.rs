//! The engine: groups of several shapes over the same ports, and frames from members and from anybody else.
//!
//! Each group has a twin engine of its own, which gets only what members of that group sent soundly, one frame at a time and
//! by the slow path where that can be had; the engine under test gets everything, in batches, and its groups are moved about.
//! What each group sends, and its whole state, must be the same in both (contract C4, and C3 for collectives). Beside that:
//! S1 by the counters, M1 and M2 by what receivers have said, C1 by a digit of each member in what is added.

mod frames;
mod oracle;

use crate::driver::{reached, tell};
// The builders of the engine's own tests.
#[path = "../../../dataplane/engine/tests/engine/common/mod.rs"]
#[allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
mod common;

use castnet_engine::plain::{PlainEgress, PlainFrame};
use castnet_engine::{Context, ContextStatus, Engine, EngineConfig, Tables};
use castnet_rules::{GroupRule, LossPolicy, NextHop, StragglerPolicy};
use castnet_wire::{Batch, McstId, Nanos, PortId, Qpn};
use common::collective::{collective_rule, collective_star, rank_at, switch_at};
use common::{far_switch, host, port, rule, star, switch};
use oracle::{Digits, Heard};
use std::mem::discriminant;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Bytes of a record: an event each.
pub const RECORD: usize = 16;

const PORTS: usize = 6;
const GROUPS: usize = 6;
/// Turns that timers may take at one time.
const TURNS_MAX: usize = 1000;

/// A frame, and where it leaves or comes in.
type Frame = (PortId, Vec<u8>);

/// Takes `data` for a row of events.
pub fn engine(data: &[u8]) {
    let mut world = World::new();
    for record in data.as_chunks::<RECORD>().0 {
        world.step(record);
        world.check_sent();
        world.check_state(usize::from(record[2]) % GROUPS);
    }
    (0..GROUPS).for_each(|index| world.check_state(index));
}

/// The rule of group number `index`.
fn rule_of(index: usize, generation: u64) -> GroupRule {
    let multicast = |b, rule| (Ipv4Addr::new(10, 9, 0, b), rule);
    let collective = |b, rule| (Ipv4Addr::new(10, 9, 1, b), rule);
    let (address, rule) = match index {
        0 => multicast(1, star(3)),
        1 => {
            let mut other = star(3).with_multicast(|rule| rule.source = 1);
            for endpoint in &mut other.endpoints {
                if let NextHop::Host(host) = &mut endpoint.next_hop {
                    host.qpn = Qpn::new(host.qpn.value() + 0x1000);
                }
            }
            multicast(2, other)
        }
        // Switches at two of them: anybody may be behind the adjacent one. The stream may have begun long ago.
        2 => {
            let rule = rule(vec![switch(0), far_switch(2), host(3)]);
            multicast(4, rule.with_multicast(|rule| rule.start_psn = None))
        }
        3 => collective(1, collective_star(3)),
        4 => {
            let below = vec![rank_at(0, 0), rank_at(1, 1), switch_at(2, &[2, 3])];
            let parent = switch_at(5, &[4, 5]);
            collective(2, collective_rule([below, vec![parent]].concat(), Some(5)))
        }
        _ => collective(
            3,
            collective_star(4).with_translated(|rule| {
                rule.reproducible = true;
                rule.loss_policy = LossPolicy::Reflect;
                rule.straggler_policy = StragglerPolicy::Rnr;
                rule.slots = 16;
            }),
        ),
    };
    GroupRule {
        mcst_id: McstId(address),
        generation,
        ..rule
    }
}

fn install(rule: &GroupRule, engine: &mut Engine) {
    let group = Context::compile(rule, &engine.config().ports).expect("a right rule");
    engine.install(group).expect("room");
}

/// The state of a group, but for the count of what was not for it.
fn status(rule: &GroupRule, engine: &Engine) -> Option<ContextStatus> {
    let mut status = engine.status(rule.mcst_id)?;
    match &mut status {
        ContextStatus::Multicast(status) => status.counters.dropped = 0,
        ContextStatus::Collective(status) => status.counters.dropped = 0,
        ContextStatus::Forwarding(status) => status.counters.dropped = 0,
    }
    Some(status)
}

/// A group in service.
struct Member {
    rule: GroupRule,
    /// Its state when it was installed.
    fresh: Option<ContextStatus>,
    /// From the first frame that is for it: an engine takes longer to make than a frame.
    twin: Option<Engine>,
    /// What the twin sends.
    sent: PlainEgress,
    heard: Heard,
    digits: Digits,
}

struct World {
    engine: Engine,
    egress: PlainEgress,
    now: Nanos,
    groups: [Option<Member>; GROUPS],
    generation: u64,
    up: u8,
    /// Earlier frames.
    history: Vec<Frame>,
}

fn is_due(engine: &Engine, now: Nanos) -> bool {
    engine.poll_timeout().is_some_and(|at| at <= now)
}

fn new_engine() -> Engine {
    let config = EngineConfig {
        groups_max: 8,
        next_hops_max: 64,
        fdb_capacity: 64,
        neighbours_max: 16,
        events_max: 64,
        addresses: vec![Ipv4Addr::new(10, 0, 9, 9)],
        ..common::config(PORTS)
    };
    Engine::new(config).expect("a right configuration")
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            engine: new_engine(),
            egress: PlainEgress::default(),
            now: common::T0,
            groups: [const { None }; GROUPS],
            generation: 1,
            up: u8::MAX,
            history: Vec::new(),
        };
        (0..GROUPS).for_each(|index| world.install(index));
        world
    }

    fn install(&mut self, index: usize) {
        let rule = rule_of(index, self.generation);
        install(&rule, &mut self.engine);
        self.groups[index] = Some(Member {
            fresh: status(&rule, &self.engine),
            rule,
            twin: None,
            sent: PlainEgress::default(),
            heard: Heard::default(),
            digits: Digits::default(),
        });
    }

    fn tables(&self) -> Arc<Tables> {
        let up = (0..PORTS).filter(|n| self.up & 1 << n != 0).map(port);
        Arc::new(Tables::new(1, [], &[], up))
    }

    /// The twins that there are, and what they send.
    fn twins(&mut self) -> impl Iterator<Item = (&mut Engine, &mut PlainEgress)> {
        let members = self.groups.iter_mut().flatten();
        members.filter_map(|m| Some((m.twin.as_mut()?, &mut m.sent)))
    }

    fn step(&mut self, record: &[u8; RECORD]) {
        let (index, what) = (usize::from(record[2]) % GROUPS, record[5]);
        match record[0] % 16 {
            11 => self.time(self.engine.poll_timeout().unwrap_or_default()),
            12 => self.time(self.now + Nanos::from_micros(20 * u64::from(what))),
            13 if what < 64 => {
                if let Some(member) = self.groups[index].take() {
                    tell(|| format!("remove group {index}"));
                    assert!(self.engine.remove(member.rule.mcst_id).is_some());
                }
            }
            13 if what < 128 => {
                tell(|| format!("install group {index} anew"));
                self.generation += 1;
                self.install(index);
            }
            13 => {
                tell(|| "all groups move to another engine".into());
                common::move_on(&mut self.engine, self.now);
                self.engine.set_tables(self.now, self.tables());
            }
            14 => {
                self.up = what | what >> 4;
                tell(|| format!("ports up: {:06b}", self.up));
                let (now, tables) = (self.now, self.tables());
                self.engine.set_tables(now, tables.clone());
                self.twins()
                    .for_each(|(twin, _)| twin.set_tables(now, tables.clone()));
            }
            _ => {
                let (ingress, frames) = self.frames(record);
                self.frames_come_in(ingress, frames);
            }
        }
    }

    fn time(&mut self, to: Nanos) {
        self.now = self.now.max(to);
        tell(|| format!("time {}", self.now));
        let now = self.now;
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "a timer that is always due");
            self.engine.handle_timeout(now, &mut self.egress);
            let mut due = is_due(&self.engine, now);
            for (twin, sent) in self.twins() {
                twin.handle_timeout(now, sent);
                due |= is_due(twin, now);
            }
            if !due {
                break;
            }
        }
    }

    fn frames_come_in(&mut self, ingress: PortId, frames: Vec<Vec<u8>>) {
        let (now, tables, before) = (self.now, self.tables(), self.engine.totals());
        for frame in &frames {
            tell(|| format!("by {ingress}: {:#}", castnet_wire::describe(frame, frame.len())));
            for member in self.groups.iter_mut().flatten() {
                if !oracle::is_for(&member.rule, ingress, frame) {
                    continue;
                }
                let twin = member.twin.get_or_insert_with(|| {
                    let mut twin = new_engine();
                    install(&member.rule, &mut twin);
                    twin
                });
                member.heard.note(&member.rule, twin, ingress, frame);
                member.digits.note(&member.rule, ingress, frame);
                // So that it takes the slow path.
                twin.set_tables(now, tables.clone());
                let mut batch = Batch::new();
                batch.push(PlainFrame::from(&frame[..]));
                twin.process(now, ingress, &mut batch, &mut member.sent);
            }
        }
        let mut batch = Batch::new();
        for frame in frames {
            batch.push(PlainFrame::from(&frame[..]));
            self.history.push((ingress, frame));
        }
        self.engine.process(now, ingress, &mut batch, &mut self.egress);
        assert!(batch.is_empty());
        let after = self.engine.totals();
        reached((
            after.dropped > before.dropped,
            after.replicated > before.replicated,
            after.absorbed > before.absorbed,
            after.originated.abs_diff(before.originated).min(4),
        ));
    }

    /// What was sent in the name of a group is what the group sends by itself, and right.
    fn check_sent(&mut self) {
        common::assert_conserved(&self.engine);
        while let Some(event) = self.engine.pop_event() {
            reached(discriminant(&event.kind));
        }
        let mut sent: [Vec<Frame>; GROUPS] = Default::default();
        for (port, frame) in self.egress.sent.drain(..) {
            tell(|| {
                format!(
                    "    out by {port}: {}",
                    castnet_wire::describe(&frame.0, frame.0.len())
                )
            });
            if let Some(index) = oracle::group_of(&self.groups, &frame.0) {
                sent[index].push((port, frame.0));
            }
        }
        for (index, (member, mut sent)) in self.groups.iter_mut().zip(sent).enumerate() {
            let Some(member) = member else { continue };
            let mut expected: Vec<Frame> = member.sent.sent.drain(..).map(|(p, f)| (p, f.0)).collect();
            // Between ports there is no order.
            sent.sort_by_key(|(port, _)| *port);
            expected.sort_by_key(|(port, _)| *port);
            if sent != expected {
                oracle::explain(&sent, &expected);
                panic!("C4: group {index} does not send what it does by itself");
            }
            member.heard.check(&member.rule, &sent);
            member.digits.check(&member.rule, &sent);
        }
        let mut snapshot = castnet_engine::CountersSnapshot::with_capacity(0, 0);
        self.engine.snapshot(&mut snapshot);
        for (reason, count) in snapshot.drops.iter().filter(|(_, n)| *n > 0) {
            reached(("drop", reason.index(), count.ilog2().min(2)));
        }
    }

    /// A group is as it would be by itself.
    fn check_state(&self, index: usize) {
        let Some(member) = &self.groups[index] else { return };
        let status = status(&member.rule, &self.engine);
        let twin = match &member.twin {
            Some(twin) => &self::status(&member.rule, twin),
            None => &member.fresh,
        };
        assert_eq!(status, *twin, "C4: group {index} is not as it is by itself");
        report(index, status.as_ref());
    }
}

fn report(index: usize, status: Option<&ContextStatus>) {
    match status {
        Some(ContextStatus::Multicast(status)) => {
            let m = &status.machine;
            let ahead = m.newest_psn.zip(m.agg_ack_psn).map(|(n, a)| n.diff(a).min(3));
            reached((index, ahead, m.me_psn.is_some(), m.nak_sent, m.waiting_for));
            let counters = &status.counters;
            reached((
                index,
                counters.retransmitted_in.min(2),
                counters.filtered.min(2),
                counters.cnps_out.min(1),
            ));
        }
        Some(ContextStatus::Collective(status)) => {
            let m = &status.machine;
            let primitive = m.collectives.first().map(|c| c.call.primitive);
            reached((
                index,
                m.collectives.len().min(2),
                m.conflict.is_some(),
                m.waiting_for.clone(),
            ));
            for e in &m.endpoints {
                let (ahead, behind) = (
                    e.expected.diff(e.unconfirmed).min(2),
                    e.next.diff(e.unacknowledged).min(2),
                );
                reached((
                    index,
                    e.endpoint,
                    primitive,
                    ahead,
                    behind,
                    e.nak_sent,
                    e.rnr_until.is_some(),
                ));
            }
        }
        Some(ContextStatus::Forwarding(_)) | None => {}
    }
}
