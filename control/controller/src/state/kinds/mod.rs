//! What differs between kinds of groups: part of the record, requests, planning and view.
//!
//! All else (life cycle, driver, reconciliation, store) is common and asks `GroupKind`. A further kind is a folder here
//! that implements it and `Views`, and has an arm in `Kind::behaviour` and in `Kind::behaviour_mut`.

use std::time::Duration;

use castnet_planner::Request;
use castnet_proto::v1;
use castnet_rules::{GroupRule, HostEndpoint};
use serde::{Deserialize, Serialize};

use crate::state::shown::{Planned, Source};
use crate::state::{Core, Draws, Entry, Event, Phase, Record};

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

/// Whether a member has joined; `S`: what it joined with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Joining<S> {
    /// Has not joined, or must join again.
    Expected,
    /// Has joined.
    Joined(S),
    /// Has left; the rules still name it.
    Left(S),
}

impl<S> Joining<S> {
    /// `None` before it has joined.
    pub fn seat(&self) -> Option<&S> {
        match self {
            Self::Expected => None,
            Self::Joined(seat) | Self::Left(seat) => Some(seat),
        }
    }

    pub(crate) fn joined(&self) -> Option<&S> {
        match self {
            Self::Joined(seat) => Some(seat),
            Self::Expected | Self::Left(_) => None,
        }
    }
}

/// A member's ends of its connections, one for each lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// Of the first lane.
    pub endpoint: HostEndpoint,
    /// Of the other lanes.
    #[serde(default)]
    pub more: Vec<HostEndpoint>,
}

impl Ends {
    /// `None` without ends.
    pub(crate) fn new(ends: Vec<HostEndpoint>) -> Option<Self> {
        let mut ends = ends.into_iter();
        let (endpoint, more) = (ends.next()?, ends.collect());
        Some(Self { endpoint, more })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &HostEndpoint> {
        std::iter::once(&self.endpoint).chain(&self.more)
    }
}

pub(crate) struct Party<'r> {
    pub(crate) host: &'r str,
    /// `None` before it has joined.
    pub(crate) ends: Option<&'r Ends>,
}

/// Phase as members see it, generation and reason.
pub(crate) type News = (i32, u64, String);

/// How its state is shown.
pub(crate) trait Views {
    /// What members must not learn late. All else reaches them after a pause, also that a further member has joined.
    fn news(&self, entry: &Entry) -> News;

    /// Its state without the members.
    fn head(&self, entry: &Entry) -> v1::controller_event::Event;

    /// What the states of its members are made from, in the order of [`GroupKind::parties`].
    fn sources(&self, entry: &Entry) -> Vec<Source<'_>>;

    /// What its plan says about each member.
    fn planned(&self, entry: &Entry) -> Vec<Planned>;

    /// The state of a member, without what the plan says.
    fn member(&self, core: &Core, entry: &Entry, at: usize) -> v1::MemberState;

    fn view(&self, core: &Core, entry: &Entry) -> v1::Group;
}

pub(crate) trait GroupKind: Views {
    fn phase_name(&self, phase: Phase) -> &'static str;

    /// All members or ranks, in the order of the request.
    fn parties(&self) -> Vec<Party<'_>>;

    /// The field of the request that names a party's host.
    fn party_field(&self, party: usize) -> String;

    /// Whether a rule that a switch has lost can be installed again while data flows. If not, the group fails with it.
    fn outlives_switches(&self) -> bool;

    /// Whether a job created it: then it goes with its ranks, and stays for a moment after a failure.
    fn lingers(&self) -> bool {
        false
    }

    /// How long the rules of a broken generation stay, so that switches report the reason to its members.
    fn notice(&self) -> Duration {
        Duration::ZERO
    }

    /// Writes the queue pairs of one lane into a rule.
    fn address_lane(&self, rule: &mut GroupRule, lane: u8);

    /// The event that the state of a group leads to by itself.
    fn follows(&self, phase: Phase, generation: u64) -> Option<Event>;

    /// Its part of a step that led to `phase`.
    fn step(&mut self, event: Event, phase: Phase, generation: u64, draws: &mut Draws);

    fn after_restart(&mut self, _phase: Phase) {}

    /// The request for the planner. A member that has not joined yet gets a stand-in for its queue pair.
    fn request(&self, record: &Record) -> Request;

    /// Turns a field of the planner into that of the request to create the group.
    fn request_field(&self, planned: String) -> String {
        planned
    }
}

impl Kind {
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
