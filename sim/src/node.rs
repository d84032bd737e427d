//! The nodes of a simulation: switches and hosts.

use std::collections::VecDeque;

use castnet_comm::machine::TaskId;
use castnet_endpoint::{Completion, CompletionOp, Endpoint, SendWr};
use castnet_engine::{Engine, EngineConfig};
use castnet_pfc::Gate;
use castnet_reduce::prefetch;
use castnet_wire::{Nanos, PortId, Qpn};

use crate::flow::FlowControl;
use crate::frame::Frame;
use crate::profile::HostCost;
use crate::rank::Rank;
use crate::service::Service;

/// Identifier of a switch or host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) usize);

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Time of the node's timer event in the queue, if there is one.
    pub(crate) timer: Option<Nanos>,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Switch(Box<SwitchNode>),
    Host(Box<HostNode>),
    /// A node of another shard.
    Elsewhere,
}

/// A frame that waits for the worker of a switch.
#[derive(Debug)]
pub(crate) struct ReceivedFrame {
    pub(crate) port: PortId,
    pub(crate) frame: Frame,
    /// Whether it arrived unchanged.
    pub(crate) untouched: bool,
}

#[derive(Debug)]
pub(crate) struct SwitchNode {
    /// `None` while the switch is stopped.
    pub(crate) engine: Option<Engine>,
    pub(crate) config: EngineConfig,
    /// Outgoing direction of each port.
    pub(crate) out: [Option<usize>; PortId::COUNT],
    /// In order of arrival.
    pub(crate) received: Vec<ReceivedFrame>,
    pub(crate) flow: Option<Box<FlowControl>>,
    pub(crate) poll_waits: bool,
    /// Its processor takes time for each frame.
    pub(crate) service: Option<Box<Service>>,
    pub(crate) missed: u64,
}

#[derive(Debug)]
pub(crate) struct HostNode {
    pub(crate) endpoint: Endpoint,
    pub(crate) out: Option<usize>,
    pub(crate) ready_waits: bool,
    /// Holds paused classes back. `None` without flow control.
    pub(crate) gate: Option<Gate<Frame>>,
    pub(crate) completions: Vec<(Nanos, Completion)>,
    /// Handles the completions, if the host is a rank.
    pub(crate) rank: Option<Box<Rank>>,
    /// What the processor has to do for the rank, oldest first.
    pub(crate) work: VecDeque<Work>,
    /// The end of the oldest piece of work is in the queue of events.
    pub(crate) works: bool,
}

/// A piece of work of a host's processor.
#[derive(Debug)]
pub(crate) enum Work {
    /// The process of the rank does something else.
    Compute(Nanos),
    Complete(Completion),
    Post(Post),
}

/// A send that is ready to be posted.
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) task: TaskId,
    pub(crate) qpn: Qpn,
    pub(crate) wr: SendWr,
    /// Bytes of data in it.
    pub(crate) bytes: u32,
}

impl SwitchNode {
    /// Prefetches what a frame that arrives or waits touches. Step 1 reads what step 0 has prefetched.
    pub(crate) fn prefetch(&self, step: usize) {
        match step {
            0 => {
                prefetch(&self.received);
                prefetch(&self.flow);
                prefetch(&self.poll_waits);
                prefetch(&self.missed);
                self.engine.iter().for_each(Engine::prefetch_state);
            }
            _ => {
                if let Some(first) = self.received.first() {
                    prefetch(first);
                }
            }
        }
    }
}

impl HostNode {
    /// Takes up the oldest piece of work, unless there is one in hand; returns its duration.
    pub(crate) fn begin_work(&mut self, cost: HostCost) -> Option<Nanos> {
        let oldest = self.work.front().filter(|_| !self.works)?;
        let duration = oldest.duration(cost);
        self.works = true;
        Some(duration)
    }
}

impl Work {
    pub(crate) fn duration(&self, cost: HostCost) -> Nanos {
        match self {
            Self::Compute(time) => *time,
            Self::Post(post) => cost.send + cost.copies(post.bytes),
            Self::Complete(completion) => match completion.op {
                CompletionOp::Recv | CompletionOp::RecvWriteImm => {
                    cost.receive + cost.copies(completion.byte_len)
                }
                CompletionOp::Send | CompletionOp::Write => Nanos::ZERO,
            },
        }
    }
}

impl Node {
    /// A node of another shard.
    pub(crate) const ELSEWHERE: Self = Self {
        name: String::new(),
        kind: Kind::Elsewhere,
        timer: None,
    };

    pub(crate) fn host(&self) -> Option<&HostNode> {
        match &self.kind {
            Kind::Host(host) => Some(host),
            Kind::Switch(_) | Kind::Elsewhere => None,
        }
    }

    pub(crate) fn host_mut(&mut self) -> Option<&mut HostNode> {
        match &mut self.kind {
            Kind::Host(host) => Some(host),
            Kind::Switch(_) | Kind::Elsewhere => None,
        }
    }

    pub(crate) fn switch(&self) -> Option<&SwitchNode> {
        match &self.kind {
            Kind::Switch(switch) => Some(switch),
            Kind::Host(_) | Kind::Elsewhere => None,
        }
    }

    pub(crate) fn switch_mut(&mut self) -> Option<&mut SwitchNode> {
        match &mut self.kind {
            Kind::Switch(switch) => Some(switch),
            Kind::Host(_) | Kind::Elsewhere => None,
        }
    }

    /// The next timer, or end of a pause.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        match &self.kind {
            Kind::Switch(switch) => {
                let engine = switch.engine.as_ref()?.poll_timeout();
                let flow = switch.flow.as_ref().and_then(|flow| flow.poll_timeout());
                engine.into_iter().chain(flow).min()
            }
            Kind::Host(host) => {
                let endpoint = host.endpoint.poll_timeout().map(|(at, _)| at);
                let gate = host.gate.as_ref().and_then(Gate::pause_ends);
                endpoint.into_iter().chain(gate).min()
            }
            Kind::Elsewhere => None,
        }
    }
}
