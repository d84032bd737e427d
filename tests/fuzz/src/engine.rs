//! The engine: groups of several shapes on the same ports, and frames from members and from others.
//!
//! Each group has its own twin engine. The twin receives only the valid frames of that group's members, one at a time
//! and by the slow path where possible. The engine under test receives all frames in batches, and its groups are
//! moved to other engines. The frames and the state of each group must be equal in both (contract C4, and C3 for
//! collectives). In addition, S1 is checked by the counters, M1 and M2 by the feedback of the receivers, and C1 by a
//! digit of each member in the sums.

mod frames;
mod oracle;

use crate::driver::{print_step, reached};
// Builders of the engine's own tests.
#[path = "../../../dataplane/engine/tests/engine/common/mod.rs"]
#[allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
mod common;

use castnet_engine::plain::PlainEgress;
use castnet_engine::{Context, ContextStatus, Engine, EngineConfig, Tables};
use castnet_rules::{GroupRule, LossPolicy, NextHop, StragglerPolicy};
use castnet_wire::{Batch, McstId, Nanos, PortId, Qpn};
use common::collective::{collective_rule, collective_star, rank_at, switch_at};
use common::{far_switch, host, port, rule, star, switch};
use oracle::{Digits, Feedback};
use std::mem::discriminant;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Bytes of a record. Each record is an event.
pub const RECORD: usize = 16;

const PORTS: usize = 6;
const GROUPS: usize = 6;
/// Most iterations of timers at one point in time.
const ITERATIONS_MAX: usize = 1000;

/// A frame with its ingress or egress port.
type Frame = (PortId, Vec<u8>);

/// Runs `data` as a sequence of events.
pub fn engine(data: &[u8]) {
    let mut world = World::new();
    for record in data.as_chunks::<RECORD>().0 {
        world.step(record);
        world.check_sent();
        world.check_state(usize::from(record[2]) % GROUPS);
    }
    (0..GROUPS).for_each(|index| world.check_state(index));
}

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
        // Two endpoints are switches. Frames behind the adjacent one may have any source. The stream may have begun
        // earlier.
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
    let group = Context::compile(rule, &engine.config().ports).expect("a valid rule");
    engine.install(Nanos::ZERO, group).expect("room");
}

/// The state of a group, without the count of frames that do not belong to it.
fn status(rule: &GroupRule, engine: &Engine) -> Option<ContextStatus> {
    let mut status = engine.status(rule.mcst_id)?;
    match &mut status {
        ContextStatus::Multicast(status) => status.counters.dropped = 0,
        ContextStatus::Collective(status) => status.counters.dropped = 0,
        ContextStatus::Forwarding(status) => status.counters.dropped = 0,
    }
    Some(status)
}

/// An installed group.
struct Member {
    rule: GroupRule,
    /// Its state after installation.
    initial: Option<ContextStatus>,
    /// Created with the group's first frame: creating an engine takes longer than handling a frame.
    twin: Option<Engine>,
    /// Frames that the twin sent.
    sent: PlainEgress,
    feedback: Feedback,
    digits: Digits,
}

struct World {
    engine: Engine,
    egress: PlainEgress,
    now: Nanos,
    groups: [Option<Member>; GROUPS],
    generation: u64,
    up: u8,
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
    Engine::new(config).expect("a valid configuration")
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
            initial: status(&rule, &self.engine),
            rule,
            twin: None,
            sent: PlainEgress::default(),
            feedback: Feedback::default(),
            digits: Digits::default(),
        });
    }

    fn tables(&self) -> Arc<Tables> {
        let up = (0..PORTS).filter(|n| self.up & 1 << n != 0).map(port);
        let mut tables = Tables::default();
        (tables.generation, tables.up) = (1, up.collect());
        Arc::new(tables)
    }

    /// The existing twins, and the frames that they sent.
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
                    print_step(|| format!("remove group {index}"));
                    assert!(self.engine.remove(member.rule.mcst_id).is_some());
                }
            }
            13 if what < 128 => {
                print_step(|| format!("install group {index} again"));
                self.generation += 1;
                self.install(index);
            }
            13 => {
                print_step(|| "all groups move to another engine".into());
                common::move_on(&mut self.engine, self.now);
                self.engine.set_tables(self.now, self.tables());
            }
            14 => {
                self.up = what | what >> 4;
                print_step(|| format!("ports up: {:06b}", self.up));
                let (now, tables) = (self.now, self.tables());
                self.engine.set_tables(now, tables.clone());
                self.twins()
                    .for_each(|(twin, _)| twin.set_tables(now, tables.clone()));
            }
            _ => {
                let (ingress, frames) = self.frames(record);
                self.receive_frames(ingress, frames);
            }
        }
    }

    fn time(&mut self, to: Nanos) {
        self.now = self.now.max(to);
        print_step(|| format!("time {}", self.now));
        let now = self.now;
        for iteration in 0.. {
            assert!(iteration < ITERATIONS_MAX, "a timer is always due");
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

    fn receive_frames(&mut self, ingress: PortId, frames: Vec<Vec<u8>>) {
        let (now, tables, before) = (self.now, self.tables(), self.engine.totals());
        for frame in &frames {
            print_step(|| format!("by {ingress}: {:#}", castnet_wire::describe(frame, frame.len())));
            for member in self.groups.iter_mut().flatten() {
                if !oracle::is_for(&member.rule, ingress, frame) {
                    continue;
                }
                let twin = member.twin.get_or_insert_with(|| {
                    let mut twin = new_engine();
                    install(&member.rule, &mut twin);
                    twin
                });
                member.feedback.record_frame(&member.rule, twin, ingress, frame);
                member.digits.record_frame(&member.rule, ingress, frame);
                // Makes the twin take the slow path.
                twin.set_tables(now, tables.clone());
                let mut batch = Batch::new();
                batch.push(frame.to_vec());
                twin.process(now, ingress, &mut batch, &mut member.sent);
            }
        }
        let mut batch = Batch::new();
        for frame in frames {
            batch.push(frame.to_vec());
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

    /// The frames of each group equal those of its twin, and are valid.
    fn check_sent(&mut self) {
        common::assert_conserved(&self.engine);
        while let Some(event) = self.engine.pop_event() {
            reached(discriminant(&event.kind));
        }
        let mut sent: [Vec<Frame>; GROUPS] = Default::default();
        for (port, frame) in self.egress.sent.drain(..) {
            print_step(|| {
                format!(
                    "    out by {port}: {}",
                    castnet_wire::describe(&frame, frame.len())
                )
            });
            if let Some(index) = oracle::group_of(&self.groups, &frame) {
                sent[index].push((port, frame));
            }
        }
        for (index, (member, mut sent)) in self.groups.iter_mut().zip(sent).enumerate() {
            let Some(member) = member else { continue };
            let mut expected: Vec<Frame> = member.sent.sent.drain(..).collect();
            // The order between ports is undefined.
            sent.sort_by_key(|(port, _)| *port);
            expected.sort_by_key(|(port, _)| *port);
            if sent != expected {
                oracle::explain(&sent, &expected);
                panic!("C4: group {index} does not send the frames of its twin");
            }
            member.feedback.check(&member.rule, &sent);
            member.digits.check(&member.rule, &sent);
        }
        let mut snapshot = castnet_engine::CountersSnapshot::with_capacity(0, 0);
        self.engine.snapshot(&mut snapshot);
        for (reason, count) in snapshot.drops.iter().filter(|(_, n)| *n > 0) {
            reached(("drop", reason.index(), count.ilog2().min(2)));
        }
    }

    /// The state of a group equals that of its twin.
    fn check_state(&self, index: usize) {
        let Some(member) = &self.groups[index] else { return };
        let status = status(&member.rule, &self.engine);
        let twin = match &member.twin {
            Some(twin) => &self::status(&member.rule, twin),
            None => &member.initial,
        };
        assert_eq!(
            status, *twin,
            "C4: the state of group {index} differs from its twin"
        );
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
