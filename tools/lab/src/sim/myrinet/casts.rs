//! Broadcasts on the machines of the paper, by the NICs or by the hosts.

use castnet_group::TreeShape;
use castnet_wire::Nanos;

use super::machines::Costs;
use crate::sim::figures::Failed;
use crate::sim::lab::{Broadcast, Method};

/// Payload bytes of a packet, in GM as here.
const PACKET: u64 = 4096;
/// Virtual time between two calls: longer than any takes.
const PERIOD: Nanos = Nanos::from_millis(5);
/// Destinations of the broadcast that the cost of one more is taken from.
const MORE: u16 = 5;

/// Who passes data on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scheme {
    /// NIC-based: the NIC of each host, in a tree of this shape.
    Nic(TreeShape),
    /// Host-based: the hosts, in a binomial tree.
    Tree,
    /// The same; a host sends one message after the other.
    TreeInTurn,
    /// Host-based: the source sends to each host.
    Unicasts,
}

/// What calls of the hosts cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Level {
    Gm,
    Mpi,
}

/// Broadcasts of the first of `nodes` hosts to the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cast {
    pub(super) scheme: Scheme,
    pub(super) level: Level,
    pub(super) nodes: u16,
    pub(super) bytes: u64,
}

/// The times of a host's call, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// From its call to the data; 0 at the source.
    pub(super) arrived: f64,
    /// From its call until it has the data and has posted all its messages. Sends are eager: the call returns then.
    pub(super) in_call: f64,
    /// From its call until all that it has sent is acknowledged.
    pub(super) acknowledged: f64,
}

impl Cast {
    /// The calls of all hosts, for each time that they call. Each host computes for so long before its call; one value for each.
    /// They have called once before, as the ordinary switch has to learn where the NICs are.
    pub(super) fn calls(
        &self,
        costs: &Costs,
        delays: &[Vec<Nanos>],
    ) -> Result<(Vec<Vec<Call>>, u64), Failed> {
        let fabric = costs.fabric(self.nodes)?;
        let method = match self.scheme {
            Scheme::Nic(_) => Method::Cepheus,
            Scheme::Tree | Scheme::TreeInTurn => Method::BinomialTree,
            Scheme::Unicasts => Method::Unicasts,
        };
        let broadcast = Broadcast {
            host_cost: match self.level {
                Level::Gm => costs.gm,
                Level::Mpi => costs.mpi,
            },
            tree: match self.scheme {
                Scheme::Nic(tree) => tree,
                _ => TreeShape::Shortest,
            },
            in_turn_above: match self.scheme {
                Scheme::TreeInTurn => 0,
                _ => u32::MAX,
            },
            ..Broadcast::new(method, self.nodes, self.bytes)
        };
        let mut sim = broadcast.build(&fabric)?;
        costs.apply(&mut sim, &fabric.topology)?;
        let hosts: Vec<String> = broadcast.hosts().collect();
        let at_once = vec![Nanos::ZERO; hosts.len()];
        for (number, delays) in (0..).zip(std::iter::once(&at_once).chain(delays)) {
            let start = Nanos(PERIOD.0 * number);
            sim.run(start);
            let mut calls: Vec<_> = hosts.iter().zip(delays).collect();
            calls.sort_by_key(|(_, delay)| **delay);
            for (host, delay) in calls.iter().filter(|(_, delay)| **delay > Nanos::ZERO) {
                sim.compute(host, **delay);
            }
            for (host, delay) in calls {
                sim.run(start + *delay);
                sim.start_task(host, broadcast.task(), None).ok_or("no rank")?;
            }
        }
        broadcast.run_to_end(&mut sim)?;
        let mut calls = vec![Vec::new(); delays.len()];
        for host in &hosts {
            let tasks = sim.rank(host).ok_or("no rank")?.tasks().skip(1);
            for (calls, task) in calls.iter_mut().zip(tasks) {
                let since = |at: Option<Nanos>| at.map_or(0.0, |at| at.since(task.started).0 as f64);
                calls.push(Call {
                    arrived: since(task.delivered),
                    in_call: since(task.delivered.max(task.posted)),
                    acknowledged: since(task.ended.map(|(at, _)| at)),
                });
            }
        }
        Ok((calls, sim.events()))
    }

    /// One call, which all make at once.
    fn once(&self, costs: &Costs) -> Result<(Vec<Call>, u64), Failed> {
        let (mut calls, events) = self.calls(costs, &[vec![Nanos::ZERO; self.nodes.into()]])?;
        Ok((calls.pop().ok_or("no call")?, events))
    }

    /// Until the last host has the data.
    pub(super) fn arrived(&self, costs: &Costs) -> Result<(f64, u64), Failed> {
        let (calls, events) = self.once(costs)?;
        Ok((
            calls.iter().fold(0.0, |last, call| call.arrived.max(last)),
            events,
        ))
    }

    /// Until the source knows that all have them.
    pub(super) fn acknowledged(&self, costs: &Costs) -> Result<(f64, u64), Failed> {
        let (calls, events) = self.once(costs)?;
        let source = calls.first().ok_or("no source")?;
        Ok((source.acknowledged, events))
    }
}

/// The paper's optimal tree (5.5) for messages of this length. Whole messages are what it counts in.
pub(super) fn optimal(costs: &Costs, bytes: u64) -> Result<TreeShape, Failed> {
    Ok(TreeShape::Postal {
        latency: latency(costs, bytes)?,
        packets: 1,
    })
}

/// Castnet's tree for the same, which counts in packets: a relay passes each on as it comes.
pub(super) fn by_packets(costs: &Costs, bytes: u64) -> Result<TreeShape, Failed> {
    Ok(TreeShape::Postal {
        latency: latency(costs, bytes.min(PACKET))?,
        packets: bytes.div_ceil(PACKET).max(1) as u32,
    })
}

/// The time of a message between two hosts, in hundredths of the time of one more destination at the source.
fn latency(costs: &Costs, bytes: u64) -> Result<u32, Failed> {
    let to = |nodes| {
        let cast = Cast {
            scheme: Scheme::Nic(TreeShape::Star),
            level: Level::Gm,
            nodes: nodes + 1,
            bytes,
        };
        cast.arrived(costs).map(|(time, _)| time)
    };
    let (one, more) = (to(1)?, to(MORE)?);
    let copy = (more - one) / f64::from(MORE - 1);
    Ok((one / copy * 100.0) as u32)
}
