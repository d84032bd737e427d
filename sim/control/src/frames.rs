//! The network of frames: real engines and real endpoints, at the time of the test.

use std::net::Ipv4Addr;

use castnet_endpoint::{
    Access, LocalSlice, MemoryKey, QpConfig, QueueLimits, RecvWr, SendOp, SendWr, Status,
};
use castnet_proto::v1;
use castnet_sim::{SimConfig, SimError, Simulation};
use castnet_topology::Topology;
use castnet_wire::{Nanos, Pmtu, Psn, Qpn};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// Bytes of a message.
const MESSAGE_BYTES: u32 = 3000;

/// The network, which has gone on whenever it is seen.
pub(crate) struct Frames {
    began: Instant,
    simulation: Mutex<Simulation>,
}

impl Frames {
    pub(crate) fn new(topology: &Topology, seed: u64) -> Result<Self, SimError> {
        Ok(Self {
            began: Instant::now(),
            simulation: Mutex::new(Simulation::new(topology, SimConfig::new(seed), ())?),
        })
    }

    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.began.elapsed().as_nanos() as u64)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Simulation> {
        let mut simulation = self.simulation.lock();
        simulation.run_until(self.now(), |_| false);
        simulation
    }
}

/// The queue pair of a member of a group.
#[derive(Debug)]
struct End {
    host: String,
    memory: MemoryKey,
    /// Completions of the host that have been looked at.
    seen: usize,
    /// Messages that are sent, or received.
    done: u64,
    /// It posts receives that are too short, and so ends its connection with a NAK.
    refuses: bool,
}

/// The traffic of a multicast group. The source sends one message after the other.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The source is the first.
    ends: Vec<End>,
    qpn: Qpn,
    sent: u64,
}

impl Stream {
    /// Connects the queue pairs of a group that runs. All have one number.
    pub(crate) fn open(frames: &mut Simulation, group: &v1::GroupState, qpn: u32) -> Result<Self, String> {
        let remote = group.mcst_id.parse::<Ipv4Addr>();
        let remote = remote.map_err(|e| format!("{}: {e}", group.mcst_id))?;
        let (qpn, psn) = (Qpn::new(qpn), Psn::new(group.start_psn));
        let pmtu = Pmtu::ALL.into_iter().find(|p| p.bytes() == group.pmtu as usize);
        let pmtu = pmtu.ok_or_else(|| format!("{}: a PMTU of {}", group.name, group.pmtu))?;
        let names = group.members.iter().map(|member| &member.host);
        let receivers = names.filter(|name| **name != group.source);
        let mut ends = Vec::new();
        for host in std::iter::once(&group.source).chain(receivers) {
            let mac = frames
                .first_hop_mac(host)
                .ok_or_else(|| format!("{host} has no link"))?;
            let config = QpConfig {
                sq_psn: psn,
                rq_psn: psn,
                pmtu,
                limits: QueueLimits { send: 4, receive: 4 },
                ..QpConfig::new(qpn, remote, mac, Qpn::VIRTUAL)
            };
            let opened = frames.with_endpoint(host, |endpoint, _| {
                let memory = endpoint.register_memory(0, vec![0; MESSAGE_BYTES as usize], Access::LOCAL);
                endpoint.create_qp(config).map_err(|e| e.to_string())?;
                memory.map_err(|e| e.to_string())
            });
            ends.push(End {
                host: host.clone(),
                memory: opened.ok_or_else(|| format!("no host {host}"))??,
                seen: frames.completions(host).len(),
                done: 0,
                refuses: false,
            });
        }
        Ok(Self { ends, qpn, sent: 0 })
    }

    /// Messages that all have received, and the source knows it; or what is wrong.
    pub(crate) fn done(&mut self, frames: &Simulation) -> Result<u64, String> {
        for end in &mut self.ends {
            let new = &frames.completions(&end.host)[end.seen..];
            end.seen += new.len();
            let own = new.iter().map(|(_, completion)| completion);
            for completion in own.filter(|completion| completion.qpn == self.qpn) {
                let is_next = completion.status == Status::Success && completion.wr_id == end.done;
                if !is_next && !end.refuses {
                    return Err(format!("{}: message {}: {completion:?}", end.host, end.done));
                }
                end.done += u64::from(is_next);
            }
        }
        Ok(self.ends.iter().map(|end| end.done).min().unwrap_or(0))
    }

    /// Sends a message if the last one is done. Returns how many have been sent.
    pub(crate) fn go_on(&mut self, frames: &mut Simulation) -> Result<u64, String> {
        if self.done(frames)? < self.sent {
            return Ok(self.sent);
        }
        let (qpn, wr_id) = (self.qpn, self.sent);
        for (n, end) in self.ends.iter().enumerate().rev() {
            let End {
                host,
                memory,
                refuses,
                ..
            } = end;
            let local = LocalSlice {
                key: *memory,
                offset: 0,
                length: if *refuses { 1 } else { MESSAGE_BYTES },
            };
            let posted = frames.with_endpoint(host, |endpoint, _| match n {
                0 => endpoint.post_send(qpn, SendWr::new(wr_id, SendOp::Send, local)),
                _ => endpoint.post_recv(qpn, RecvWr { wr_id, local }),
            });
            let posted = posted.ok_or_else(|| format!("no host {host}"))?;
            posted.map_err(|e| format!("{host}: {e}"))?;
        }
        self.sent += 1;
        Ok(self.sent)
    }

    /// A receiver refuses each message from the next on.
    pub(crate) fn refuse(&mut self, host: &str) {
        let end = self.ends.iter_mut().find(|end| end.host == host);
        end.into_iter().for_each(|end| end.refuses = true);
    }

    /// It goes on without a receiver.
    pub(crate) fn leave(&mut self, frames: &mut Simulation, host: &str) {
        self.close_ends(frames, |end| end.host == host);
    }

    pub(crate) fn close(mut self, frames: &mut Simulation) {
        self.close_ends(frames, |_| true);
    }

    fn close_ends(&mut self, frames: &mut Simulation, goes: impl Fn(&End) -> bool) {
        let ends = std::mem::take(&mut self.ends).into_iter();
        let (gone, stay): (Vec<End>, Vec<End>) = ends.partition(goes);
        self.ends = stay;
        for End { host, memory, .. } in gone {
            frames.with_endpoint(&host, |endpoint, _| {
                let _ = endpoint.destroy_qp(self.qpn);
                let _ = endpoint.deregister_memory(memory);
            });
        }
    }
}
