//! What differs from kind to kind of group: its section of the record, its requests, its planning and its view.
//!
//! All else (life cycle, driver, reconciliation, store) is one for all and asks `GroupKind`. A further kind is a folder
//! here that meets this contract, and one more arm in `Kind::behaviour`.

use std::time::Duration;

use castnet_planner::Request;
use castnet_proto::v1;
use castnet_rules::{GroupRule, HostEndpoint};
use serde::{Deserialize, Serialize};

use crate::core::Core;
use crate::lifecycle::{Event, Phase};
use crate::record::Record;
use crate::table::Entry;

pub(crate) mod collective;
pub mod multicast;

/// A group's kind, with what only groups of that kind have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// One source, many receivers (Cepheus).
    Multicast(multicast::record::Multicast),
    /// Ranks that compute together (EPIC).
    Collective(collective::record::Collective),
}

/// A member or rank of a group.
pub(crate) struct Party<'r> {
    pub(crate) host: &'r str,
    /// Its end of the first lane's connection; `None` before it has joined.
    pub(crate) first: Option<&'r HostEndpoint>,
    /// The same of the other lanes.
    pub(crate) more: &'r [HostEndpoint],
}

impl<'r> Party<'r> {
    /// Its ends of the connections, one for each lane.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &'r HostEndpoint> + use<'r> {
        self.first.into_iter().chain(self.more)
    }
}

/// What differs from kind to kind.
pub(crate) trait GroupKind {
    /// The name of a phase.
    fn phase_name(&self, phase: Phase) -> &'static str;

    /// All members or ranks, in the order of the request.
    fn parties(&self) -> Vec<Party<'_>>;

    /// The field of the request that names the host of one of them.
    fn party_field(&self, party: usize) -> String;

    /// Whether a rule that a switch has lost can be installed again while data flows. If not, the group is lost with it.
    fn outlives_switches(&self) -> bool;

    /// Whether a group that a switch refused is placed elsewhere where the fabric allows.
    fn tries_elsewhere(&self) -> bool {
        !self.outlives_switches()
    }

    /// Whether a group that has ended is forgotten after a time.
    fn lingers(&self) -> bool {
        false
    }

    /// How long the rules of a broken generation stay, so that switches report the reason to its members.
    fn notice(&self) -> Duration {
        Duration::ZERO
    }

    /// Gives a rule the queue pairs of one lane.
    fn address_lane(&self, rule: &mut GroupRule, lane: u8);

    /// The event that follows by itself on how a group is.
    fn follows(&self, phase: Phase, generation: u64) -> Option<Event>;

    /// Its part of a step that led to `phase`.
    fn step(&mut self, event: Event, phase: Phase, generation: u64);

    /// Its part of a restart of the controller.
    fn after_restart(&mut self, _phase: Phase) {}

    /// What the planner is to plan. A member that has not joined yet gets a stand-in for its queue pair.
    fn request(&self, record: &Record) -> Request;

    /// The field of the request to create a group for a field of the planner.
    fn request_field(&self, planned: String) -> String {
        planned
    }

    /// How a group is now, as an event.
    fn event(&self, core: &Core, entry: &Entry) -> v1::controller_event::Event;

    /// A group with its tree.
    fn view(&self, core: &Core, entry: &Entry) -> v1::Group;
}

impl Kind {
    /// The one place that knows all kinds.
    pub(crate) fn behaviour(&self) -> &dyn GroupKind {
        match self {
            Self::Multicast(kind) => kind,
            Self::Collective(kind) => kind,
        }
    }

    pub(crate) fn behaviour_mut(&mut self) -> &mut dyn GroupKind {
        match self {
            Self::Multicast(kind) => kind,
            Self::Collective(kind) => kind,
        }
    }
}
