//! Dry runs: what would happen to a frame, found out on a copy.
//!
//! A worker must not stand still for it. So the thread that asks allocates all memory beforehand ([`DryRun::new`]), the worker
//! copies into it the state that decides on that frame ([`Engine::copy_into`]), and the stages run on the thread that asked
//! ([`DryRun::run`]). The copy is bounded by what is in flight in the frame's groups, or for a frame of no group by the
//! capacities of the tables of addresses; payload in the slots of collective groups is never copied.

use core::net::Ipv4Addr;
use std::sync::Arc;

use castnet_rules::ENDPOINTS_MAX;
use castnet_wire::{Arp, McstId, Nanos, Parsed, PortId, parse_frame, parse_network};

use crate::address;
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::group::context::Context;
use crate::observe::trace::{Recorder, Trace};
use crate::output::cx::Cx;
use crate::plain::{PlainEgress, PlainFrame};
use crate::tables::published::Tables;

/// Groups that the way of one frame can depend on: those of its two addresses.
const GROUPS_MAX: usize = 2;
/// Next hops that they can have.
const NEXT_HOPS_MAX: usize = GROUPS_MAX * ENDPOINTS_MAX;

/// One frame, and room for what its way depends on.
#[derive(Debug)]
pub struct DryRun {
    at: Nanos,
    ingress: PortId,
    frame: Vec<u8>,
    engine: Engine,
    tables: Option<Arc<Tables>>,
    /// Compiled groups that the frame may be of, until their state is there.
    groups: Vec<Option<Context>>,
}

impl DryRun {
    /// Takes all memory for a dry run of a frame on an engine that runs with this configuration. `compile` makes the group
    /// of an address, where there is one, by [`Context::compile_dry`] from the rule that runs.
    pub fn new(
        config: &EngineConfig,
        ingress: PortId,
        frame: Vec<u8>,
        compile: impl FnMut(Ipv4Addr) -> Option<Context>,
    ) -> Self {
        let mut engine = Engine::build(EngineConfig {
            groups_max: GROUPS_MAX,
            next_hops_max: NEXT_HOPS_MAX,
            events_max: 0,
            ..config.clone()
        });
        let own = config.addresses.first().copied();
        let mut groups: Vec<_> = addresses(&frame).into_iter().flatten().map(compile).collect();
        for group in groups.iter_mut().flatten() {
            let bound = group.bind(&mut engine.services.output.next_hops, own);
            debug_assert!(bound.is_ok(), "there is a place for each");
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

    /// What would happen to the frame, stage by stage. In frames that would be sent from a group's slots, zeros stand for the
    /// payload.
    pub fn run(mut self) -> Trace {
        self.engine.bridge.tables = self.tables.unwrap_or_default();
        let mut recorder = Recorder::new(self.at, self.ingress, self.frame.clone());
        let mut egress = PlainEgress::default();
        let mut cx = Cx {
            now: self.at,
            ingress: self.ingress,
            egress: &mut egress,
            observer: &mut recorder,
        };
        let verdict = self.engine.forward(&mut cx, PlainFrame(self.frame));
        recorder.finish(verdict)
    }
}

/// The addresses of a frame that may be groups', none of them twice.
fn addresses(frame: &[u8]) -> [Option<Ipv4Addr>; GROUPS_MAX] {
    let [a, b] = match parse_network(frame, frame.len()) {
        Ok(Parsed::Arp(Arp {
            sender_ip, target_ip, ..
        })) => [Some(sender_ip), Some(target_ip)],
        _ => [address::destination(frame), address::source(frame)],
    };
    [a, b.filter(|_| a != b)]
}

impl Engine {
    /// Says what would happen to a frame, stage by stage, and changes nothing. See [`DryRun`], whose parts this is all of.
    pub fn trace(&self, now: Nanos, ingress: PortId, frame: &[u8]) -> Trace {
        let ports = &self.config.ports;
        let compile = |address| {
            let group = self.groups.get(McstId(address))?;
            Context::compile_dry(group.rule(), ports).ok()
        };
        let mut dry = DryRun::new(&self.config, ingress, frame.to_vec(), compile);
        self.copy_into(now, &mut dry);
        dry.run()
    }

    /// Copies into `dry` what the way of its frame depends on. Takes no memory, and frees none.
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
        for place in groups {
            let running = place.as_ref().and_then(|group| self.groups.get(group.mcst_id()));
            if let Some(running) = running
                && let Some(mut group) = place.take_if(|group| group.same_rule(running))
            {
                group.copy_state(running);
                engine.groups.insert(group);
            }
        }
        // Frames of a group touch no table of addresses.
        let of_group = matches!(parse_frame(frame, frame.len()), Ok(Parsed::Roce(_)))
            && address::destination(frame).is_some_and(|dst| engine.groups.find(dst).is_some());
        if !of_group {
            engine.bridge.fdb.copy_from(&self.bridge.fdb);
            engine.bridge.neighbours.copy_from(&self.bridge.neighbours);
        }
        engine.bridge.fdb_full_told = self.bridge.fdb_full_told;
        engine.bridge.lldp_at = self.bridge.lldp_at;
        engine.bridge.lldp_answers = self.bridge.lldp_answers;
        engine.bridge.ageing_at = self.bridge.ageing_at;
    }
}
