//! Settings and ranks of a collective group.

use std::collections::BTreeMap;
use std::sync::Arc;

use castnet_proto::convert::GivenSettings;
use castnet_rules::{
    CollectiveMode, DEFAULT_ACK_TIMEOUT_US, DEFAULT_MESSAGE_PACKETS, DEFAULT_STALL_TIMEOUT_MS, LossPolicy,
    StragglerPolicy,
};
use castnet_wire::{Pmtu, Psn, RateLimit};
use serde::{Deserialize, Serialize};

use super::secret::Secret;
use crate::error::Refusal;
use crate::state::kinds::{Ends, Joining};
use crate::state::record::text;

const DEFAULT_WINDOW_PACKETS: u16 = 64;

/// The part of a record that only collective groups have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collective {
    pub(crate) settings: Settings,
    /// First PSN of the group, drawn for each generation.
    #[serde(with = "text::psn")]
    pub(crate) start_psn: Psn,
    /// Whether a rank's call created it: then it is forgotten with its last rank.
    pub(crate) by_call: bool,
    /// What ranks must give to join.
    #[serde(default, skip_serializing_if = "Secret::is_none")]
    pub(crate) secret: Secret,
    /// The ranks, rank 0 first. Copies of the record share those that are the same.
    pub ranks: Vec<Arc<RankRecord>>,
}

/// Settings of a collective group. Units are in the names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    #[serde(with = "text::pmtu")]
    pub(crate) pmtu: Pmtu,
    /// Packets that a rank may have in flight.
    pub(crate) window_packets: u16,
    /// Packets of a full message, at most the window.
    pub(crate) message_packets: u16,
    pub(crate) reproducible: bool,
    /// `None`: Mode-II or, where that has no room, Mode-III.
    #[serde(
        with = "text::optional_mode",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) mode: Option<CollectiveMode>,
    /// Switches with another mode.
    #[serde(with = "text::modes", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) modes: BTreeMap<String, CollectiveMode>,
    #[serde(with = "text::display")]
    pub(crate) loss_policy: LossPolicy,
    #[serde(with = "text::display")]
    pub(crate) straggler_policy: StragglerPolicy,
    pub(crate) ack_timeout_us: u32,
    pub(crate) stall_timeout_ms: u32,
    #[serde(default = "one")]
    pub(crate) lanes: u8,
}

const fn one() -> u8 {
    1
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRecord {
    /// Its host; empty until a rank has called.
    pub(crate) host: String,
    pub(crate) state: RankState,
    /// First PSN that it receives in the present generation.
    #[serde(with = "text::psn")]
    pub(crate) rq_psn: Psn,
}

pub(crate) type RankState = Joining<Seat>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seat {
    #[serde(flatten)]
    pub(crate) ends: Ends,
    /// First PSN that it sends.
    #[serde(with = "text::psn")]
    pub(crate) sq_psn: Psn,
    pub(crate) lease_ms: u64,
    /// The generation that it is in, or waits for.
    pub(crate) generation: u64,
}

impl Settings {
    pub(crate) fn new(given: &GivenSettings) -> Self {
        // A full message is never larger than the window, whichever of the two was given.
        let default = DEFAULT_WINDOW_PACKETS.max(given.message_packets.unwrap_or(0));
        let window = given.window_packets.unwrap_or(default);
        let message = given.message_packets.unwrap_or(DEFAULT_MESSAGE_PACKETS);
        Self {
            pmtu: given.pmtu.unwrap_or(Pmtu::B1024),
            window_packets: window,
            message_packets: message.min(window),
            reproducible: given.reproducible.unwrap_or(false),
            mode: given.mode,
            modes: given.modes.clone(),
            loss_policy: given.loss_policy.unwrap_or_default(),
            straggler_policy: given.straggler_policy.unwrap_or_default(),
            ack_timeout_us: given.ack_timeout_us.unwrap_or(DEFAULT_ACK_TIMEOUT_US),
            stall_timeout_ms: given.stall_timeout_ms.unwrap_or(DEFAULT_STALL_TIMEOUT_MS),
            lanes: given.lanes.unwrap_or(1),
        }
    }

    /// The first setting that differs from the given ones, with the limit of the group: field, given value, present value.
    pub(crate) fn differs(
        &self,
        given: &GivenSettings,
        rate_limit: Option<RateLimit>,
    ) -> Option<(&'static str, String, String)> {
        macro_rules! texts {
            ($($name:ident),*) => {
                [$((
                    concat!("settings.", stringify!($name)),
                    given.$name.map(|given| given.to_string()),
                    self.$name.to_string(),
                )),*]
            };
        }
        let pmtu = |pmtu: Pmtu| pmtu.bytes().to_string();
        let pmtu = ("settings.pmtu", given.pmtu.map(pmtu), pmtu(self.pmtu));
        let mode = (
            "settings.mode",
            given.mode.map(|given| given.to_string()),
            self.mode
                .map_or_else(|| "the controller's choice".into(), |mode| mode.to_string()),
        );
        let others = texts!(
            window_packets,
            message_packets,
            reproducible,
            loss_policy,
            straggler_policy,
            ack_timeout_us,
            stall_timeout_ms,
            lanes
        );
        let limit = rate_limit.map_or_else(|| "no limit".into(), |limit| limit.to_string());
        let limit = (
            "settings.rate_limit",
            given.rate_limit.map(|given| given.to_string()),
            limit,
        );
        let mut all = [pmtu, limit, mode].into_iter().chain(others);
        all.find_map(|(field, given, is)| Some((field, given.filter(|given| *given != is)?, is)))
    }
}

impl Collective {
    pub(crate) fn new(hosts: Vec<String>, settings: Settings, by_call: bool) -> Self {
        let rank = |host| {
            Arc::new(RankRecord {
                host,
                state: Joining::Expected,
                rq_psn: Psn::new(0),
            })
        };
        Self {
            settings,
            start_psn: Psn::new(0),
            by_call,
            secret: Secret::default(),
            ranks: hosts.into_iter().map(rank).collect(),
        }
    }

    /// The seat of a rank that is in.
    pub(crate) fn seat(&self, rank: u16) -> Option<&Seat> {
        match &self.ranks.get(usize::from(rank))?.state {
            Joining::Joined(seat) => Some(seat),
            Joining::Expected | Joining::Left(_) => None,
        }
    }

    pub(crate) fn all_joined(&self, generation: u64) -> bool {
        self.ranks.iter().all(|r| r.waits_after(generation))
    }

    pub(crate) fn some_joined(&self, generation: u64) -> bool {
        self.ranks.iter().any(|r| r.waits_after(generation))
    }

    pub(crate) fn all_left(&self) -> bool {
        self.ranks.iter().all(|r| matches!(r.state, Joining::Left(_)))
    }

    /// Ranks that have not joined the next generation.
    pub(crate) fn expected(&self, generation: u64) -> Vec<u16> {
        let ranks = (0..).zip(&self.ranks);
        ranks
            .filter(|(_, r)| !r.waits_after(generation))
            .map(|(rank, _)| rank)
            .collect()
    }

    /// Ends a generation: ranks that were in it must call again.
    pub(crate) fn end(&mut self, generation: u64) {
        for rank in &mut self.ranks {
            if rank.state.seat().is_some_and(|s| s.generation <= generation) {
                Arc::make_mut(rank).state = Joining::Expected;
            }
        }
    }

    /// Cancels a generation: ranks that are in it wait for the next.
    pub(crate) fn put_off(&mut self, generation: u64) {
        for rank in &mut self.ranks {
            if let Joining::Joined(seat) = &mut Arc::make_mut(rank).state {
                seat.generation = seat.generation.max(generation + 1);
            }
        }
    }

    /// `rank 2 (host h3)`.
    pub(crate) fn rank_name(&self, rank: u16) -> String {
        match self.ranks.get(usize::from(rank)).map(|r| r.host.as_str()) {
            None | Some("") => format!("rank {rank}"),
            Some(host) => format!("rank {rank} (host {host})"),
        }
    }

    /// The rank of a host that has one.
    pub(crate) fn only_rank_at(&self, group: &str, host: &str) -> Result<u16, Refusal> {
        let ranks = (0..).zip(&self.ranks).filter(|(_, r)| r.host == host);
        let ranks: Vec<u16> = ranks.map(|(rank, _)| rank).collect();
        let (host, group) = (host.to_owned(), group.to_owned());
        match *ranks {
            [rank] => Ok(rank),
            [] => Err(Refusal::NotAMember {
                host,
                group,
                members: self.ranks.iter().map(|r| r.host.clone()).collect(),
            }),
            _ => Err(Refusal::SeveralRanks { host, group, ranks }),
        }
    }

    pub(crate) fn rank_at(&self, host: &str) -> Option<u16> {
        self.ranks.iter().position(|r| r.host == host).map(|r| r as u16)
    }

    /// Slots that it requests of each of its switches.
    pub(crate) fn slots(&self) -> u16 {
        let settings = &self.settings;
        let mode = settings.mode.unwrap_or_default();
        castnet_planner::slots(settings.window_packets, settings.message_packets, mode)
    }
}

impl RankRecord {
    fn waits_after(&self, generation: u64) -> bool {
        matches!(&self.state, Joining::Joined(seat) if seat.generation > generation)
    }
}
