//! One run of a scenario, from the plan to the last byte.

use castnet_endpoint::{
    Access, CompletionOp, Endpoint, LocalSlice, MemoryKey, QpConfig, QpState, QueueLimits, RecvWr, SendOp,
    SendWr, Status,
};
use castnet_planner::{LinkLoad, Member, Plan, Request, RoomTable, plan};
use castnet_rules::HostPart;
use castnet_sim::{Contract, End, LinkStats, Sightings, SimConfig, Simulation};
use castnet_topology::LinkId;
use castnet_wire::{Nanos, Psn, Qpn};

use super::scenario::{Message, Op, Scenario, VA_BASE};

/// Most virtual time of a run.
const DEADLINE: Nanos = Nanos::from_secs(3);
/// Bytes that must not be overwritten.
const CANARY: u8 = 0xEE;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) sightings: Sightings,
    pub(crate) links: LinkStats,
    pub(crate) events: u64,
    pub(crate) retransmits: u64,
    pub(crate) missed: u64,
    pub(crate) tiers: usize,
    pub(crate) virtual_time: Nanos,
}

/// Runs a scenario. The error says what went wrong; with a trace it includes the last frames.
pub(crate) fn run(scenario: &Scenario, trace_frames_max: usize) -> Result<Outcome, String> {
    let config = SimConfig {
        poll_delay: scenario.poll_delay,
        trace_frames_max,
        ..SimConfig::new(scenario.seed)
    };
    let mut sim =
        Simulation::new(&scenario.topology, config, Contract::default()).map_err(|e| e.to_string())?;
    let mut run = Run {
        scenario,
        request: scenario.request.clone(),
        regions: Vec::new(),
    };
    run.prepare(&mut sim)
        .and_then(|plan| {
            run.start(&mut sim, &plan)?;
            run.finish(&mut sim, &plan)
        })
        .map_err(|wrong| match trace_frames_max {
            0 => wrong,
            _ => format!("{wrong}\nthe last frames:\n{}", sim.trace()),
        })
}

struct Run<'s> {
    scenario: &'s Scenario,
    request: Request,
    /// Memory of each receiver: for WRITEs, and for SENDs.
    regions: Vec<[MemoryKey; 2]>,
}

type Sim = Simulation<Contract>;

impl Run<'_> {
    /// Registers memory, plans, installs groups and creates QPs.
    fn prepare(&mut self, sim: &mut Sim) -> Result<Plan, String> {
        let scenario = self.scenario;
        for (i, profiles) in scenario.links.iter().enumerate() {
            sim.set_profile(LinkId(i as u32), *profiles);
        }
        let total = scenario.bytes.len().max(1);
        for member in &mut self.request.members {
            let HostPart::Memory(memory) = &mut member.part else {
                continue;
            };
            let keys = sim.with_endpoint(&member.host, |endpoint, _| {
                let written = endpoint.register_memory(memory.va, vec![CANARY; total], Access::REMOTE_WRITE);
                let received = endpoint.register_memory(0, vec![CANARY; total], Access::LOCAL);
                Ok::<_, String>([
                    written.map_err(|e| e.to_string())?,
                    received.map_err(|e| e.to_string())?,
                ])
            });
            let keys = keys.ok_or("no host")??;
            memory.rkey = keys[0].rkey();
            self.regions.push(keys);
        }
        let plan = plan(
            &scenario.topology,
            &LinkLoad::new(),
            &RoomTable::new(),
            &self.request,
        )
        .map_err(|e| e.to_string())?;
        sim.install_plan(&plan).map_err(|e| e.to_string())?;
        let contract = Contract::new(sim, &plan);
        *sim.watch_mut() = contract;
        for member in &self.request.members {
            self.create_qp(sim, member)?;
        }
        Ok(plan)
    }

    fn create_qp(&self, sim: &mut Sim, member: &Member) -> Result<(), String> {
        let scenario = self.scenario;
        let mac = sim.first_hop_mac(&member.host).ok_or("a host has no link")?;
        let config = QpConfig {
            sq_psn: scenario.psn,
            rq_psn: scenario.psn,
            pmtu: self.request.pmtu,
            timeout: scenario.timeout,
            window: scenario.window,
            min_rnr_timer: scenario.min_rnr_timer,
            repeat: scenario.repeat,
            probes: scenario.probes,
            limits: QueueLimits {
                send: 64,
                receive: 64,
            },
            ..QpConfig::new(member.qpn, self.request.mcst_id.0, mac, Qpn::VIRTUAL)
        };
        let created = sim.with_endpoint(&member.host, |endpoint, _| endpoint.create_qp(config));
        created.ok_or("no host")?.map_err(|e| e.to_string())
    }

    /// Posts receives and sends, and schedules faults.
    fn start(&self, sim: &mut Sim, plan: &Plan) -> Result<(), String> {
        let scenario = self.scenario;
        let receives: Vec<Message> = scenario
            .messages
            .iter()
            .copied()
            .filter(|m| m.op.takes_receive())
            .collect();
        for ((member, keys), posts) in self.request.members[1..]
            .iter()
            .zip(&self.regions)
            .zip(&scenario.posts)
        {
            for (i, (message, at)) in receives.iter().zip(posts).enumerate() {
                let local = slice(keys[1], message);
                let wr = RecvWr {
                    wr_id: i as u64,
                    local,
                };
                let (host, qpn) = (member.host.clone(), member.qpn);
                let post = move |endpoint: &mut Endpoint, _| endpoint.post_recv(qpn, wr);
                if *at == Nanos::ZERO {
                    sim.with_endpoint(&host, post)
                        .ok_or("no host")?
                        .map_err(|e| e.to_string())?;
                } else {
                    sim.at(*at, move |sim| {
                        let posted = sim.with_endpoint(&host, post);
                        assert_eq!(posted, Some(Ok(())), "a receive cannot be posted");
                    });
                }
            }
        }
        if let Some(restart) = &scenario.restart {
            let index = restart.switch_index % plan.rules.len();
            let Some((switch, rule)) = plan.rules.iter().nth(index) else {
                return Err("no switch".into());
            };
            let (stopped, started) = (switch.clone(), switch.clone());
            let rule = rule.clone().with_multicast(|rule| rule.start_psn = None);
            sim.at(restart.at, move |sim| sim.stop_switch(&stopped));
            sim.at(restart.at + restart.outage, move |sim| {
                let started = sim
                    .start_switch(&started)
                    .and_then(|()| sim.install(&started, &rule));
                assert_eq!(started, Ok(()), "the switch does not start again");
            });
        }
        self.post_sends(sim)
    }

    fn post_sends(&self, sim: &mut Sim) -> Result<(), String> {
        let scenario = self.scenario;
        let source = &self.request.members[0];
        let bytes = scenario.bytes.clone();
        let registered = sim.with_endpoint(&source.host, |e, _| e.register_memory(0, bytes, Access::READ));
        let key = registered.ok_or("no host")?.map_err(|e| e.to_string())?;
        let mut psn = scenario.psn;
        for (i, message) in scenario.messages.iter().enumerate() {
            psn = psn.add(self.request.pmtu.packets(message.length.into()) as i32);
            sim.watch_mut().expect_message(i as u64, psn.prev());
        }
        let posted = sim.with_endpoint(&source.host, |endpoint, _| {
            scenario.messages.iter().enumerate().try_for_each(|(i, message)| {
                let (va, rkey) = (VA_BASE + message.offset, 0xDEAD);
                let op = match message.op {
                    Op::Send => SendOp::Send,
                    Op::SendImm(imm) => SendOp::SendImm(imm),
                    Op::Write => SendOp::Write { va, rkey },
                    Op::WriteImm(imm) => SendOp::WriteImm { va, rkey, imm },
                };
                endpoint.post_send(source.qpn, SendWr::new(i as u64, op, slice(key, message)))
            })
        });
        posted.ok_or("no host")?.map_err(|e| e.to_string())
    }

    /// Runs the simulation and checks the final state.
    fn finish(&self, sim: &mut Sim, plan: &Plan) -> Result<Outcome, String> {
        let (source, count) = (&self.request.members[0].host, self.scenario.messages.len());
        let broken = |sim: &Sim| !sim.watch().violations().is_empty();
        let end = sim.run_until(DEADLINE, |sim| {
            broken(sim) || sim.completions(source).len() >= count
        });
        let outcome = self.outcome(sim, plan);
        self.check_contract(sim)?;
        if end != End::Done {
            return Err(format!(
                "the run ended with {end:?} at {}: {}",
                sim.now(),
                self.progress(sim)
            ));
        }
        self.check_source(sim)?;
        self.check_receivers(sim)?;
        // Frames in flight may arrive. After that no frame may be sent.
        let settled = sim.now() + Nanos::from_millis(20);
        sim.run_until(settled, broken);
        let sent = sim.totals().sent;
        sim.run_until(settled + Nanos::from_millis(500), broken);
        self.check_contract(sim)?;
        self.check_receivers(sim)?;
        if sim.totals().sent != sent {
            return Err("frames are sent although everything is done".into());
        }
        Ok(outcome)
    }

    fn outcome(&self, sim: &Sim, plan: &Plan) -> Outcome {
        Outcome {
            sightings: *sim.watch().sightings(),
            links: sim.totals(),
            events: sim.events(),
            retransmits: sim
                .endpoint(&self.request.members[0].host)
                .map_or(0, |e| e.stats().retransmits),
            missed: plan.rules.keys().map(|s| sim.missed(s)).sum(),
            tiers: plan.tree.tiers(),
            virtual_time: sim.now(),
        }
    }

    fn check_contract(&self, sim: &Sim) -> Result<(), String> {
        match sim.watch().violations() {
            [] => Ok(()),
            violations => Err(violations.join("\n")),
        }
    }

    fn check_source(&self, sim: &Sim) -> Result<(), String> {
        let completions = sim.completions(&self.request.members[0].host);
        for (i, ((_, completion), message)) in completions.iter().zip(&self.scenario.messages).enumerate() {
            let good = completion.status == Status::Success
                && completion.wr_id == i as u64
                && completion.byte_len == message.length;
            if !good {
                return Err(format!("send {i} completed as {completion:?}"));
            }
        }
        Ok(())
    }

    fn check_receivers(&self, sim: &Sim) -> Result<(), String> {
        let scenario = self.scenario;
        let last = scenario.messages.iter().fold(scenario.psn, |psn, m| {
            psn.add(self.request.pmtu.packets(m.length.into()) as i32)
        });
        let mut written = vec![CANARY; scenario.bytes.len().max(1)];
        let mut received = written.clone();
        for message in &scenario.messages {
            let region = if message.op.is_write() {
                &mut written
            } else {
                &mut received
            };
            let range = message.offset as usize..message.offset as usize + message.length as usize;
            region[range.clone()].copy_from_slice(&scenario.bytes[range]);
        }
        for (member, keys) in self.request.members[1..].iter().zip(&self.regions) {
            let host = &member.host;
            let endpoint = sim.endpoint(host).ok_or("no host")?;
            self.check_receives(sim, member, last)?;
            for (what, key, expected) in [("WRITE", keys[0], &written), ("SEND", keys[1], &received)] {
                let got = endpoint.memory(key).map_err(|e| e.to_string())?;
                if let Some(at) = got.iter().zip(expected).position(|(a, b)| a != b) {
                    let (got, expected) = (got[at], expected[at]);
                    return Err(format!(
                        "{what} memory of {host}: byte {at} is {got:#x}, should be {expected:#x}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_receives(&self, sim: &Sim, member: &Member, last: Psn) -> Result<(), String> {
        let host = &member.host;
        let completions = sim.completions(host);
        let receives: Vec<&Message> = self
            .scenario
            .messages
            .iter()
            .filter(|m| m.op.takes_receive())
            .collect();
        if completions.len() != receives.len() {
            return Err(format!(
                "{host} has {} completions, should have {}",
                completions.len(),
                receives.len()
            ));
        }
        for (i, ((_, completion), message)) in completions.iter().zip(receives).enumerate() {
            let (op, imm) = match message.op {
                Op::SendImm(imm) => (CompletionOp::Recv, Some(imm)),
                Op::WriteImm(imm) => (CompletionOp::RecvWriteImm, Some(imm)),
                Op::Send | Op::Write => (CompletionOp::Recv, None),
            };
            let good = completion.status == Status::Success
                && (completion.op, completion.imm) == (op, imm)
                && (completion.wr_id, completion.byte_len) == (i as u64, message.length);
            if !good {
                return Err(format!(
                    "receive {i} of {host} completed as {completion:?}, should be {message:?}"
                ));
            }
        }
        let status = sim
            .endpoint(host)
            .and_then(|e| e.qp_status(member.qpn).ok())
            .ok_or("no QP")?;
        if (status.state, status.psn_expected) != (QpState::Ready, last) {
            return Err(format!(
                "{host} is {:?} and expects {}",
                status.state, status.psn_expected
            ));
        }
        Ok(())
    }

    fn progress(&self, sim: &Sim) -> String {
        let source = &self.request.members[0];
        let mut text = format!(
            "{} of {} sends",
            sim.completions(&source.host).len(),
            self.scenario.messages.len()
        );
        for member in &self.request.members {
            let status = sim
                .endpoint(&member.host)
                .and_then(|e| e.qp_status(member.qpn).ok());
            text += &format!("\n{}: {status:?}", member.host);
        }
        text
    }
}

fn slice(key: MemoryKey, message: &Message) -> LocalSlice {
    match message.length {
        0 => LocalSlice::EMPTY,
        length => LocalSlice {
            key,
            offset: message.offset,
            length,
        },
    }
}
