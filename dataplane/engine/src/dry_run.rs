//! Dry runs determine what would happen to a frame, on a copy of the state.
//!
//! A dry run must not delay a worker. The calling thread allocates all memory ([`DryRun::new`]), the worker copies the state that
//! affects the frame ([`Engine::copy_into`]), and the stages run on the calling thread ([`DryRun::run`]). The copy is bounded by the
//! packets in flight in the frame's groups or, without a group, by the address tables. Payload in slots is not copied.

use std::sync::Arc;

use castnet_rules::ENDPOINTS_MAX;
use castnet_wire::{Arp, Nanos, Parsed, PortId, parse_frame, parse_network};

use crate::address::{self, GroupKey};
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::group::context::{Context, with_group};
use crate::group::kind::Kind;
use crate::observe::trace::{Recorder, Trace};
use crate::output::cx::Cx;
use crate::plain::PlainEgress;
use crate::tables::published::Tables;

/// Most groups that can affect a frame: those of its two addresses.
const GROUPS_MAX: usize = 2;
const NEXT_HOPS_MAX: usize = GROUPS_MAX * ENDPOINTS_MAX;

/// One frame, and memory for the state that affects it.
#[derive(Debug)]
pub struct DryRun {
    at: Nanos,
    ingress: PortId,
    frame: Vec<u8>,
    engine: Engine,
    tables: Option<Arc<Tables>>,
    groups: Vec<Option<Context>>,
}

impl DryRun {
    /// Allocates all memory. `compile` returns the group of a key, compiled by [`Context::compile_dry`] from the running rule.
    pub fn new(
        config: &EngineConfig,
        ingress: PortId,
        frame: Vec<u8>,
        compile: impl FnMut(GroupKey) -> Option<Context>,
    ) -> Self {
        let mut engine = Engine::build(EngineConfig {
            groups_max: GROUPS_MAX,
            next_hops_max: NEXT_HOPS_MAX,
            flows: 0,
            events_max: 0,
            ..config.clone()
        });
        let own = config.addresses.first().copied();
        let mut groups: Vec<_> = keys(&frame).into_iter().flatten().map(compile).collect();
        for group in groups.iter_mut().flatten() {
            let next_hops = &mut engine.services.output.next_hops;
            let bound = with_group!(group, group => group.bind(next_hops, own));
            debug_assert!(bound.is_ok(), "the table has capacity for all next hops");
        }
        Self {
            at: Nanos::ZERO,
            ingress,
            frame,
            engine,
            tables: None,
            groups,
        }
    }

    /// The trace of the frame. Payload from a group's slots is zeros.
    pub fn run(mut self) -> Trace {
        self.engine.bridge.tables = self.tables.unwrap_or_default();
        self.engine.services.output.routes = self.engine.bridge.tables.routes.clone();
        let mut recorder = Recorder::new(self.at, self.ingress, self.frame.clone());
        let mut egress = PlainEgress::default();
        let mut cx = Cx {
            now: self.at,
            ingress: self.ingress,
            egress: &mut egress,
            observer: &mut recorder,
        };
        let verdict = self.engine.forward(&mut cx, self.frame);
        recorder.finish(verdict)
    }
}

fn keys(frame: &[u8]) -> [Option<GroupKey>; GROUPS_MAX] {
    let to = GroupKey::To;
    let [a, b] = match parse_network(frame, frame.len()) {
        Ok(Parsed::Arp(Arp {
            sender_ip, target_ip, ..
        })) => [Some(to(sender_ip)), Some(to(target_ip))],
        _ => [GroupKey::of_frame(frame), address::source(frame).map(to)],
    };
    [a, b.filter(|_| a != b)]
}

impl Engine {
    /// The trace of a frame: a whole [`DryRun`], which changes nothing.
    pub fn trace(&self, now: Nanos, ingress: PortId, frame: &[u8]) -> Trace {
        let ports = &self.config.ports;
        let compile = |key| {
            let group = self.groups.at(self.groups.find_key(key)?)?;
            Context::compile_dry(group.rule(), ports).ok()
        };
        let mut dry = DryRun::new(&self.config, ingress, frame.to_vec(), compile);
        self.copy_into(now, &mut dry);
        dry.run()
    }

    /// Copies the state that affects the frame. Neither allocates nor frees memory.
    pub fn copy_into(&self, now: Nanos, dry: &mut DryRun) {
        let DryRun {
            at,
            frame,
            engine,
            tables,
            groups,
            ..
        } = dry;
        *at = now;
        engine.services.output.ports = self.services.output.ports.clone();
        *tables = Some(self.bridge.tables.clone());
        for entry in groups {
            let running = entry.as_ref().and_then(|group| self.groups.get(group.mcst_id()));
            if let Some(running) = running
                && let Some(mut group) = entry.take_if(|group| group.same_rule(running))
            {
                group.copy_state(running);
                engine.groups.insert(group);
            }
        }
        // Frames of a group do not read the address tables.
        let of_group = matches!(parse_frame(frame, frame.len()), Ok(Parsed::Roce(_)))
            && GroupKey::of_frame(frame).is_some_and(|key| engine.groups.find_key(key).is_some());
        if !of_group {
            engine.bridge.fdb.table.copy_from(&self.bridge.fdb.table);
            engine.bridge.neighbours.copy_from(&self.bridge.neighbours);
        }
        engine.bridge.fdb_full_reported = self.bridge.fdb_full_reported;
        engine.bridge.lldp_at = self.bridge.lldp_at;
        engine.bridge.lldp_fresh = self.bridge.lldp_fresh;
        engine.bridge.lldp_answers = self.bridge.lldp_answers;
        engine.bridge.ageing_at = self.bridge.ageing_at;
    }
}
