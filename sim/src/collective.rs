//! Collective groups in a simulation: rules on the switches, ranks on the hosts.

use castnet_comm::machine::{HostBased, HostBasedConfig, InNetwork, InNetworkConfig, Machine, Task, TaskId};
use castnet_endpoint::{QpConfig, QueueLimits, ReactionConfig, Repeat};
use castnet_planner::{LinkLoad, Member, Plan, Request, RoomTable, plan};
use castnet_rules::HostPart;
use castnet_topology::Topology;
use castnet_wire::{Nanos, Pmtu, Qpn};

use crate::node::Work;
use crate::rank::Rank;
use crate::simulation::{Event, SimError, Simulation};
use crate::task_memory::TaskMemory;
use crate::watch::Watch;

/// Configuration of the queue pairs of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankQp {
    /// Time-out exponent, as in [`QpConfig::timeout`].
    pub timeout: u8,
    /// Most packets that are sent and not acknowledged, as in [`QpConfig::window`].
    pub window: u32,
    /// As in [`QpConfig::repeat`].
    pub repeat: Repeat,
    /// As in [`QpConfig::probes`].
    pub probes: bool,
    /// Retries without progress, as in [`QpConfig::retry_cnt`]; 7: without limit.
    pub retry_cnt: u8,
    /// Code of the RNR timer, as in [`QpConfig::min_rnr_timer`].
    pub min_rnr_timer: u8,
    /// The slots of messages have no memory, for measurements of time with long messages. Only for [`HostBased`] machines, and
    /// for tasks without memory.
    pub void_slots: bool,
    /// As in [`QpConfig::reaction`]: how CNPs change the rate.
    pub reaction: Option<ReactionConfig>,
}

impl Default for RankQp {
    /// The values of [`QpConfig::new`]: a time-out of 67 ms, a window of 129 packets, retries without limit.
    fn default() -> Self {
        Self {
            timeout: 14,
            window: QpConfig::WINDOW,
            repeat: Repeat::All,
            probes: false,
            retry_cnt: 7,
            min_rnr_timer: 12,
            void_slots: false,
            reaction: None,
        }
    }
}

/// The remote end of a rank's channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelEnd {
    /// The rank.
    pub peer: u16,
    /// Channel of that rank.
    pub channel: u16,
}

fn qpn_of(channel: u16) -> Qpn {
    Qpn::new(0x100 + u32::from(channel))
}

impl<W: Watch> Simulation<W> {
    /// Places a group, installs its rules and starts its ranks on their hosts. `machine` is common to all ranks. Fails
    /// with [`SimError::Place`], as [`Simulation::install`] does, or with [`SimError::Rank`].
    pub fn join_group(
        &mut self,
        topology: &Topology,
        request: &Request,
        machine: InNetworkConfig,
        qp: RankQp,
    ) -> Result<Plan, SimError> {
        let plan = self.place(topology, request)?;
        let group = request
            .translated()
            .ok_or_else(|| refused(&request.name, "it has no ranks"))?;
        let size = request.members.len() as u16;
        for (rank, member) in (0..).zip(&request.members) {
            let mut config = self.group_qp(request, member)?;
            if let HostPart::Rank(part) = member.part {
                (config.sq_psn, config.rq_psn) = (part.sq_psn, part.rq_psn);
            }
            let machine = InNetwork::new(InNetworkConfig {
                rank,
                size,
                pmtu: request.pmtu,
                message_packets: group.message_packets.into(),
                reproducible: group.reproducible,
                ..machine
            });
            self.add_rank(
                &member.host,
                (rank, size),
                Box::new(machine),
                vec![config],
                request.pmtu,
                qp,
            )?;
        }
        Ok(plan)
    }

    /// Starts ranks on hosts that use CommLib's host-based algorithms, rank 0 on the first host; or [`SimError::Rank`].
    pub fn join_hosts(
        &mut self,
        hosts: &[String],
        pmtu: Pmtu,
        qp: RankQp,
        config: HostBasedConfig,
    ) -> Result<(), SimError> {
        let size = hosts.len() as u16;
        self.join_connected(hosts, pmtu, qp, |rank| {
            let of = |rank| HostBasedConfig { rank, size, ..config };
            let ends = of(rank).peers().into_iter().map(|peer| ChannelEnd {
                peer,
                channel: of(peer).peers().binary_search(&rank).unwrap_or_default() as u16,
            });
            (Box::new(HostBased::new(of(rank))), ends.collect())
        })
    }

    /// Places a multicast group, installs its rules and starts its members as ranks for Broadcasts of rank 0: the source of the
    /// group is rank 0 of two, and each receiver is rank 1. Fails as [`Simulation::join_group`] does.
    pub fn join_multicast(
        &mut self,
        topology: &Topology,
        request: &Request,
        qp: RankQp,
        config: HostBasedConfig,
    ) -> Result<Plan, SimError> {
        let plan = self.place(topology, request)?;
        for (index, member) in request.members.iter().enumerate() {
            let rank = u16::from(index > 0);
            let config = HostBasedConfig {
                rank,
                size: 2,
                ..config
            };
            let qps = vec![self.group_qp(request, member)?];
            let machine = Box::new(HostBased::new(config));
            self.add_rank(&member.host, (rank, 2), machine, qps, request.pmtu, qp)?;
        }
        Ok(plan)
    }

    /// Places a group and installs its rules.
    fn place(&mut self, topology: &Topology, request: &Request) -> Result<Plan, SimError> {
        let plan =
            plan(topology, &LinkLoad::new(), &RoomTable::new(), request).map_err(|e| SimError::Place {
                reason: e.to_string(),
            })?;
        self.install_plan(&plan)?;
        Ok(plan)
    }

    /// The QP of a member of a group.
    fn group_qp(&self, request: &Request, member: &Member) -> Result<QpConfig, SimError> {
        let mac = self
            .first_hop_mac(&member.host)
            .ok_or_else(|| refused(&member.host, "it has no link"))?;
        Ok(QpConfig::new(member.qpn, request.mcst_id.0, mac, Qpn::VIRTUAL))
    }

    /// Starts ranks with machines of any kind, or fails with [`SimError::Rank`]. `make` returns the machine of a rank
    /// and the remote end of each of its channels.
    pub fn join_connected(
        &mut self,
        hosts: &[String],
        pmtu: Pmtu,
        qp: RankQp,
        mut make: impl FnMut(u16) -> (Box<dyn Machine + Send>, Vec<ChannelEnd>),
    ) -> Result<(), SimError> {
        let size = hosts.len() as u16;
        for (rank, host) in (0..).zip(hosts) {
            let (machine, ends) = make(rank);
            let mut configs = Vec::new();
            for (channel, remote) in (0..).zip(&ends) {
                let peer = hosts
                    .get(usize::from(remote.peer))
                    .and_then(|h| self.endpoint(h))
                    .ok_or_else(|| refused(host, "its peer is not a host"))?
                    .config();
                let mac = if self.is_routed {
                    self.first_hop_mac(host)
                } else {
                    None
                };
                let remote = qpn_of(remote.channel);
                configs.push(QpConfig::new(
                    qpn_of(channel),
                    peer.ip,
                    mac.unwrap_or(peer.mac),
                    remote,
                ));
            }
            self.add_rank(host, (rank, size), machine, configs, pmtu, qp)?;
        }
        Ok(())
    }

    fn add_rank(
        &mut self,
        host: &str,
        (rank, size): (u16, u16),
        machine: Box<dyn Machine + Send>,
        qps: Vec<QpConfig>,
        pmtu: Pmtu,
        options: RankQp,
    ) -> Result<(), SimError> {
        let shape = machine.shape();
        let limits = QueueLimits {
            send: shape.send_slots as usize,
            receive: shape.receive_slots as usize,
        };
        let made = self.with_endpoint(host, |endpoint, _| {
            let mut qpns = Vec::new();
            for qp in qps {
                qpns.push(qp.qpn);
                endpoint
                    .create_qp(QpConfig {
                        limits,
                        pmtu,
                        timeout: options.timeout,
                        window: options.window,
                        repeat: options.repeat,
                        probes: options.probes,
                        retry_cnt: options.retry_cnt,
                        min_rnr_timer: options.min_rnr_timer,
                        reaction: options.reaction,
                        ..qp
                    })
                    .map_err(|e| e.to_string())?;
            }
            Rank::new(rank, size, machine, &qpns, endpoint, options.void_slots).map_err(|e| e.to_string())
        });
        let rank = made
            .ok_or_else(|| refused(host, "no such host"))?
            .map_err(|reason| refused(host, &reason))?;
        if let Some(node) = self.node(host).and_then(|n| self.nodes[n.0].host_mut()) {
            node.rank = Some(Box::new(rank));
        }
        Ok(())
    }

    /// Starts a collective at the rank of a host; `None` if it has no rank. `input` is its contribution and the kind of its
    /// memory. Without it the task has no memory, and only its time is meaningful.
    pub fn start_task(
        &mut self,
        host: &str,
        task: Task,
        input: Option<(Vec<u8>, TaskMemory)>,
    ) -> Option<TaskId> {
        let (node, now) = (self.node(host)?, self.now);
        let here = self.nodes[node.0].host_mut()?;
        let id = here.rank.as_mut()?.start(now, task, input);
        self.serve_host(node);
        Some(id)
    }

    /// The process of a rank computes for some time from now on: messages arrive, and wait for it. False: the host has no rank.
    pub fn compute(&mut self, host: &str, time: Nanos) -> bool {
        let cost = self.host_cost;
        let Some(node) = self.node(host) else { return false };
        let Some(host) = self.nodes[node.0].host_mut().filter(|h| h.rank.is_some()) else {
            return false;
        };
        host.work.push_back(Work::Compute(time));
        if let Some(duration) = host.begin_work(cost) {
            self.schedule(self.now + duration, Event::Work(node));
        }
        true
    }

    /// The rank of a host.
    pub fn rank(&self, host: &str) -> Option<&Rank> {
        self.nodes[self.node(host)?.0].host()?.rank.as_deref()
    }

    /// The rank of a host.
    pub fn rank_mut(&mut self, host: &str) -> Option<&mut Rank> {
        let node = self.node(host)?;
        self.nodes[node.0].host_mut()?.rank.as_deref_mut()
    }
}

fn refused(host: &str, reason: &str) -> SimError {
    SimError::Rank {
        host: host.into(),
        reason: reason.into(),
    }
}
