//! Settings and ranks of a collective group.

use std::sync::Arc;

use castnet_group::CollectiveSettings;
use castnet_wire::Psn;
use serde::{Deserialize, Serialize};

use super::secret::Secret;
use crate::error::{Refusal, list_text};
use crate::state::record::text;
use crate::state::{Ends, Joining};

/// The part of a record that only collective groups have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collective {
    pub(crate) settings: CollectiveSettings,
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

impl Collective {
    pub(crate) fn new(hosts: Vec<String>, settings: CollectiveSettings, by_call: bool) -> Self {
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
        self.ranks.get(usize::from(rank))?.state.joined()
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
        match *ranks {
            [rank] => Ok(rank),
            [] => {
                let members = self.ranks.iter().map(|r| r.host.as_str());
                Err(Refusal::not_a_member(host, group, members))
            }
            _ => {
                let ranks = list_text(&ranks);
                let reason =
                    format!("host {host:?} has several ranks of group {group:?}: {ranks}; say which rank");
                Err(Refusal::wrong("member", reason))
            }
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
        self.state
            .joined()
            .is_some_and(|seat| seat.generation > generation)
    }
}
