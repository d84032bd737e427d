//! Checks the multicast contract (M1, M2, M3) of a group while it runs.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;

use castnet_endpoint::{Completion, CompletionOp, Status};
use castnet_planner::{Plan, Role, TreeNode};
use castnet_wire::{
    Opcode, Parsed, PortId, Psn, Qpn, RoceHeader, Syndrome, counters, icrc, ipv4, parse_frame,
};

use crate::link::Fate;
use crate::node::NodeId;
use crate::simulation::Simulation;
use crate::watch::{Delivery, Hop, View, Watch};

/// Most violations that are kept; the first one matters most.
const VIOLATIONS_MAX: usize = 16;

/// Watches one group. It uses the frames and the state of the endpoints, never the state of the switches.
///
/// - M1, M2: feedback is checked when it leaves a switch towards the source, when it reaches the source, and when a send
///   completes there. Every receiver below that point must have what the feedback acknowledges.
/// - M3: no data leaves a switch by a path whose acknowledgement of it has reached that switch.
#[derive(Clone, Debug, Default)]
pub struct Contract {
    mcst_id: Option<Ipv4Addr>,
    source: Option<NodeId>,
    receivers: Vec<(NodeId, Qpn)>,
    switches: BTreeMap<NodeId, SwitchRecord>,
    messages: BTreeMap<u64, Psn>,
    violations: Vec<String>,
    sightings: Sightings,
}

counters! {
    /// Counts of observed events. Tests use them to check that their runs reached the interesting states.
    pub struct Sightings {
        /// ACKs that reached the source.
        acks,
        /// Sequence NAKs that reached the source.
        sequence_naks,
        /// RNR NAKs that reached the source.
        rnr_naks,
        /// Fatal NAKs that reached the source.
        fatal_naks,
        /// Data frames that the source sent.
        data,
        /// Data frames that left a switch towards receivers.
        copies,
        /// Data frames that reached a switch where some paths had acknowledged them and others had not.
        needed_by_some,
        /// ACKs sent by receivers.
        acks_of_receivers,
    }
}

#[derive(Clone, Debug)]
struct SwitchRecord {
    source_port: PortId,
    /// Newest data that arrived undamaged.
    newest: Option<Psn>,
    paths: BTreeMap<PortId, PathRecord>,
}

#[derive(Clone, Debug, Default)]
struct PathRecord {
    below: Vec<usize>,
    /// Newest PSN that the path has acknowledged.
    acknowledged: Option<Psn>,
}

impl Contract {
    /// The contract of the group of `plan` in `sim`.
    pub fn new(sim: &Simulation<Self>, plan: &Plan) -> Self {
        let mut contract = Self {
            mcst_id: plan.rules.values().next().map(|rule| rule.mcst_id.0),
            source: sim.node(&plan.tree.root.name),
            ..Self::default()
        };
        contract.walk(sim, &plan.tree.root);
        contract
    }

    fn walk(&mut self, sim: &Simulation<Self>, node: &TreeNode) -> Vec<usize> {
        let Some(id) = sim.node(&node.name) else {
            return Vec::new();
        };
        if let Role::Receiver { qpn, .. } = node.role {
            self.receivers.push((id, qpn));
            return vec![self.receivers.len() - 1];
        }
        let mut paths = BTreeMap::new();
        for child in &node.children {
            let below = self.walk(sim, child);
            let port = child
                .up
                .as_ref()
                .and_then(|up| up.near_port())
                .unwrap_or_default();
            paths.insert(
                port,
                PathRecord {
                    below,
                    acknowledged: None,
                },
            );
        }
        let all = paths.values().flat_map(|p| p.below.iter().copied()).collect();
        if let Some(source_port) = node.up.as_ref().and_then(|up| up.far_port()) {
            self.switches.insert(
                id,
                SwitchRecord {
                    source_port,
                    newest: None,
                    paths,
                },
            );
        }
        all
    }

    /// Records that the packet `last` completes the work request `wr_id` of the source.
    pub fn expect_message(&mut self, wr_id: u64, last: Psn) {
        self.messages.insert(wr_id, last);
    }

    /// The first 16 violations.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Counts of observed events.
    pub fn sightings(&self) -> &Sightings {
        &self.sightings
    }

    fn violated(&mut self, view: &View<'_>, what: impl FnOnce() -> String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(format!("at {} ns: {}", view.now.0, what()));
        }
    }

    fn find_lacking(&self, view: &View<'_>, of: &[usize], psn: Psn) -> Option<String> {
        of.iter()
            .filter_map(|i| self.receivers.get(*i))
            .find_map(|(node, qpn)| {
                let expected = view.endpoint(*node)?.qp_status(*qpn).ok()?.psn_expected;
                let lacks = !expected.is_after(psn);
                lacks.then(|| format!("{} expects {expected}", view.name(*node)))
            })
    }

    fn check_claim(&mut self, view: &View<'_>, of: &[usize], psn: Psn, syndrome: Syndrome, place: &str) {
        let (rule, has) = match syndrome {
            Syndrome::Ack => ("M1", psn),
            _ => ("M2", psn.prev()),
        };
        if let Some(who) = self.find_lacking(view, of, has) {
            self.violated(view, || {
                format!("{rule}: {syndrome:?} of {psn} {place}, but {who}")
            });
        }
    }

    fn of_group(&self, frame: &[u8]) -> Option<RoceHeader> {
        let Ok(Parsed::Roce(header)) = parse_frame(frame, frame.len()) else {
            return None;
        };
        let (src, dst) = header.ip.v4()?;
        let mcst_id = self.mcst_id?;
        (src == mcst_id || dst == mcst_id).then_some(header)
    }

    fn data_leaves(&mut self, view: &View<'_>, hop: Hop, psn: Psn) {
        let path = self
            .switches
            .get(&hop.from)
            .and_then(|s| s.paths.get(&hop.from_port));
        let Some(path) = path else { return };
        self.sightings.copies += 1;
        if let Some(known) = path.acknowledged.filter(|known| !psn.is_after(*known)) {
            self.violated(view, || {
                let (switch, port) = (view.name(hop.from), hop.from_port);
                format!("M3: {switch} sends {psn} by port {port}, which has acknowledged {known}")
            });
        }
    }

    fn feedback_at_source(&mut self, view: &View<'_>, psn: Psn, syndrome: Syndrome) {
        match syndrome {
            Syndrome::Ack => self.sightings.acks += 1,
            Syndrome::RnrNak(_) => self.sightings.rnr_naks += 1,
            Syndrome::Nak(code) if code.is_fatal() => self.sightings.fatal_naks += 1,
            Syndrome::Nak(_) => self.sightings.sequence_naks += 1,
        }
        let all: Vec<usize> = (0..self.receivers.len()).collect();
        self.check_claim(view, &all, psn, syndrome, "reaches the source");
    }

    fn feedback_at_switch(&mut self, switch: NodeId, port: PortId, header: &RoceHeader) {
        let Some(record) = self.switches.get_mut(&switch) else {
            return;
        };
        let psn = header.bth.psn;
        if header.bth.opcode.info().is_request() && port == record.source_port {
            if record.newest.is_none_or(|newest| psn.is_after(newest)) {
                record.newest = Some(psn);
            }
            let has = |p: &PathRecord| p.acknowledged.is_some_and(|known| !psn.is_after(known));
            let count = record.paths.values().filter(|p| has(p)).count();
            self.sightings.needed_by_some += u64::from(count > 0 && count < record.paths.len());
        }
        // Ignore feedback about data that the switch has not forwarded, for example after its restart.
        let newest = record.newest;
        if let (Some(aeth), Some(path)) = (header.aeth, record.paths.get_mut(&port))
            && newest.is_some_and(|newest| !psn.is_after(newest))
        {
            let has = if aeth.syndrome == Syndrome::Ack {
                psn
            } else {
                psn.prev()
            };
            if path.acknowledged.is_none_or(|known| has.is_after(known)) {
                path.acknowledged = Some(has);
            }
        }
    }
}

impl Watch for Contract {
    fn sent(&mut self, view: &View<'_>, hop: Hop, frame: &[u8], _: Fate) {
        let Some(header) = self.of_group(frame) else {
            return;
        };
        let psn = header.bth.psn;
        if header.bth.opcode.info().is_request() {
            if Some(hop.from) == self.source {
                self.sightings.data += 1;
            }
            self.data_leaves(view, hop, psn);
        } else if let Some(aeth) = header.aeth.filter(|_| header.bth.opcode == Opcode::Ack) {
            self.sightings.acks_of_receivers +=
                u64::from(self.receivers.iter().any(|(node, _)| *node == hop.from));
            let record = self
                .switches
                .get(&hop.from)
                .filter(|s| s.source_port == hop.from_port);
            let below = record.map(|s| {
                s.paths
                    .values()
                    .flat_map(|p| p.below.iter().copied())
                    .collect::<Vec<_>>()
            });
            if let Some(below) = below {
                self.check_claim(
                    view,
                    &below,
                    psn,
                    aeth.syndrome,
                    &format!("leaves {}", view.name(hop.from)),
                );
            }
        }
    }

    fn delivered(&mut self, view: &View<'_>, delivery: Delivery<'_>) {
        let Delivery {
            to,
            port,
            frame,
            untouched,
        } = delivery;
        let Some(header) = self.of_group(frame).filter(|_| untouched) else {
            return;
        };
        let whole = frame.get(header.l3..).is_some_and(ipv4::checksum_is_right)
            && icrc::verify_bytes(frame, header.l3, header.frame_len);
        if !whole {
            return;
        }
        match header.aeth.filter(|_| header.bth.opcode == Opcode::Ack) {
            Some(aeth) if Some(to) == self.source => {
                self.feedback_at_source(view, header.bth.psn, aeth.syndrome)
            }
            // A request for a packet acknowledges nothing.
            _ if header.bth.opcode == Opcode::RepairRequest => {}
            _ => self.feedback_at_switch(to, port, &header),
        }
    }

    fn completed(&mut self, view: &View<'_>, host: NodeId, completion: &Completion) {
        let sent = matches!(completion.op, CompletionOp::Send | CompletionOp::Write);
        if Some(host) != self.source || !sent || completion.status != Status::Success {
            return;
        }
        let Some(last) = self.messages.get(&completion.wr_id).copied() else {
            return;
        };
        let all: Vec<usize> = (0..self.receivers.len()).collect();
        if let Some(who) = self.find_lacking(view, &all, last) {
            let wr_id = completion.wr_id;
            self.violated(view, || {
                format!("M1: message {wr_id}, up to {last}, completes, but {who}")
            });
        }
    }

    fn stopped(&mut self, switch: NodeId) {
        if let Some(record) = self.switches.get_mut(&switch) {
            record.newest = None;
            record
                .paths
                .values_mut()
                .for_each(|path| path.acknowledged = None);
        }
    }
}
