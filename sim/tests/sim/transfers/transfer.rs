//! A file from one host to others, in messages of 32 KiB, by SEND or by WRITE.

use castnet_endpoint::{
    Access, CompletionOp, LocalSlice, MemoryKey, QpConfig, QueueLimits, RecvWr, Repeat, SendOp, SendWr,
    Stats, Status,
};
use castnet_planner::{LinkLoad, Member, Plan, Request, RoomTable, plan};
use castnet_rules::{HostPart, MulticastRule, RemoteMemory, RepairRule};
use castnet_sim::{LinkProfile, SimConfig, Simulation};
use castnet_topology::{LinkId, Topology};
use castnet_wire::{McstId, Nanos, Pmtu, Psn, Qpn};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const MESSAGE: usize = 32 << 10;
const VA_BASE: u64 = 0x10_0000;
/// Most virtual time of a transfer.
pub(crate) const DEADLINE: Nanos = Nanos::from_secs(30);

/// A network whose links lose this share of the frames, in each direction.
pub(crate) fn network(topology: &Topology, seed: u64, loss: f64) -> Simulation {
    let mut sim = Simulation::new(topology, SimConfig::new(seed), ()).expect("a network");
    let profile = LinkProfile {
        rate_bps: 10_000_000_000,
        loss,
        ..LinkProfile::default()
    };
    (0..topology.links().count()).for_each(|link| sim.set_profile(LinkId(link as u32), [profile; 2]));
    sim
}

/// A transfer that has begun.
pub(crate) struct Transfer {
    pub(crate) request: Request,
    bytes: Vec<u8>,
    messages: u64,
    /// Memory of each receiver.
    keys: Vec<MemoryKey>,
}

impl Transfer {
    /// Group `number`, whose first member sends `messages` drawn from `seed` to the others. Hosts have queue pairs of their own for it.
    pub(crate) fn start(
        sim: &mut Simulation,
        topology: &Topology,
        (number, seed): (u8, u64),
        members: &[&str],
        messages: u64,
        repair: Option<RepairRule>,
    ) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let is_write: bool = rng.random();
        let first = Psn::new(if rng.random() {
            Psn::MODULUS - 50
        } else {
            rng.random_range(0..Psn::MODULUS)
        });
        let mut bytes = vec![0; MESSAGE * messages as usize];
        rng.fill(&mut bytes[..]);
        let (mut keys, mut all) = (Vec::new(), Vec::new());
        for (i, host) in members.iter().enumerate() {
            let va = 0x7000_0000 + 0x1000_0000 * i as u64;
            let (access, memory) = match i {
                0 => (Access::READ, bytes.clone()),
                _ => (Access::REMOTE_WRITE, vec![0xEE; bytes.len()]),
            };
            let key = sim.with_endpoint(host, |endpoint, _| endpoint.register_memory(va, memory, access));
            let key = key.expect("a host").expect("registered");
            let memory = RemoteMemory {
                va,
                rkey: key.rkey(),
                length: bytes.len() as u64,
            };
            let part = if i == 0 {
                HostPart::Plain
            } else {
                HostPart::Memory(memory)
            };
            keys.push(key);
            all.push(Member {
                part,
                ..Member::new(host, Qpn::new(0x100 * u32::from(number) + i as u32))
            });
        }
        let rule = MulticastRule {
            start_psn: Some(first),
            va_base: VA_BASE,
            repair,
            ..MulticastRule::default()
        };
        let mcst_id = McstId([10, 255, 0, number].into());
        let mut request = Request::multicast("g", mcst_id, Pmtu::B1024, all, rule);
        request.name = format!("g{number}");
        let made = place(topology, &request);
        sim.install_plan(&made).expect("installed");
        for (i, member) in request.members.iter().enumerate() {
            let mac = sim.first_hop_mac(&member.host).expect("a first hop");
            let config = QpConfig {
                sq_psn: first,
                rq_psn: first,
                timeout: 10,
                // As CommLib and `castnet host` have it.
                repeat: match repair.is_some() {
                    true => Repeat::One,
                    false => Repeat::All,
                },
                // As the software RNIC does, and as RNICs do.
                probes: seed.is_multiple_of(2),
                limits: QueueLimits {
                    send: messages as usize + 1,
                    receive: messages as usize + 1,
                },
                ..QpConfig::new(member.qpn, mcst_id.0, mac, Qpn::VIRTUAL)
            };
            let post = |endpoint: &mut castnet_endpoint::Endpoint| {
                for wr_id in 0..messages {
                    let offset = wr_id * MESSAGE as u64;
                    let local = LocalSlice {
                        key: keys[i],
                        offset,
                        length: MESSAGE as u32,
                    };
                    let (va, rkey, imm) = (VA_BASE + offset, 0xDEAD, wr_id as u32);
                    let op = match is_write {
                        true => SendOp::WriteImm { va, rkey, imm },
                        false => SendOp::Send,
                    };
                    match i {
                        0 => endpoint.post_send(member.qpn, SendWr::new(wr_id, op, local))?,
                        _ => endpoint.post_recv(member.qpn, RecvWr { wr_id, local })?,
                    }
                }
                Ok::<_, castnet_endpoint::PostError>(())
            };
            sim.with_endpoint(&member.host, |endpoint, _| {
                endpoint.create_qp(config).expect("a QP");
                post(endpoint).expect("posted");
            });
        }
        Self {
            request,
            bytes,
            messages,
            keys,
        }
    }

    fn source(&self) -> &str {
        &self.request.members[0].host
    }

    /// Messages that all receivers have, as the source knows it.
    pub(crate) fn completed(&self, sim: &Simulation) -> u64 {
        let all = sim.completions(self.source()).iter();
        let own = all.filter(|(_, c)| c.qpn == self.request.members[0].qpn);
        let own = own.filter(|(_, c)| matches!(c.op, CompletionOp::Send | CompletionOp::Write));
        own.inspect(|(_, c)| assert_eq!(c.status, Status::Success))
            .count() as u64
    }

    pub(crate) fn is_done(&self, sim: &Simulation) -> bool {
        self.completed(sim) == self.messages
    }

    /// Runs until the source has so many messages through.
    pub(crate) fn run_until(&self, sim: &mut Simulation, messages: u64, seed: u64) {
        sim.run_until(DEADLINE, |sim| self.completed(sim) >= messages);
        let completed = self.completed(sim);
        assert!(completed >= messages, "seed {seed}: {completed} of {messages}");
    }

    /// All receivers but those named have every byte.
    pub(crate) fn check(&self, sim: &Simulation, without: &[&str], seed: u64) {
        let receivers = self.request.members.iter().zip(&self.keys).skip(1);
        for (member, key) in receivers.filter(|(m, _)| !without.contains(&m.host.as_str())) {
            let endpoint = sim.endpoint(&member.host).expect("a host");
            assert!(
                endpoint.memory(*key).expect("memory") == self.bytes,
                "seed {seed}: {} has other bytes",
                member.host
            );
        }
    }

    pub(crate) fn stats(&self, sim: &Simulation) -> Stats {
        sim.endpoint(self.source()).expect("a host").stats().clone()
    }

    /// The switches that have it, by plan, in another tree of the same group: a new generation that carries nothing on.
    pub(crate) fn placed_again(&mut self, topology: &Topology) -> Plan {
        self.request.generation += 1;
        if let castnet_planner::RequestKind::Multicast(rule) = &mut self.request.kind {
            rule.start_psn = None;
        }
        place(topology, &self.request)
    }
}

pub(crate) fn place(topology: &Topology, request: &Request) -> Plan {
    plan(topology, &LinkLoad::new(), &RoomTable::new(), request).expect("a plan")
}
