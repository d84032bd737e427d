//! What switches report of collective groups.

use std::sync::Arc;

use castnet_proto::v1;

use super::lifecycle::{Event, Phase};
use super::record::{CollectiveRecord, Ending};
use crate::core::Shared;

impl Shared {
    /// A switch reports that a member ended its connection.
    pub(crate) fn member_failed(self: &Arc<Self>, switch: &str, failed: v1::MemberFailed) {
        let v1::MemberFailed {
            mcst_id,
            group,
            next_hop,
            syndrome,
            ..
        } = failed;
        tracing::warn!(switch, group, next_hop, syndrome, "member failed");
        let rank = self
            .lock()
            .collective_by_mcst_id(&mcst_id)
            .and_then(|e| e.record.rank_at(&next_hop));
        self.publish(v1::controller_event::Event::FailedMember(v1::FailedMember {
            group,
            switch_name: switch.into(),
            host: next_hop.clone(),
            rank: rank.map(u32::from),
            syndrome,
        }));
        self.broke(&mcst_id, switch, |record| {
            let who = rank.map_or_else(|| format!("host {next_hop}"), |rank| record.rank_name(rank));
            let reason = format!("{who} has ended its connection, with NAK syndrome {syndrome:#04x}");
            (rank, reason)
        });
    }

    /// A switch reports that ranks disagree.
    pub(crate) fn conflict(self: &Arc<Self>, switch: &str, conflict: v1::CollectiveConflict) {
        self.broke(&conflict.mcst_id, switch, |record| {
            let name = |rank: u32| match u16::try_from(rank) {
                Ok(rank) => record.rank_name(rank),
                Err(_) => format!("rank {rank}"),
            };
            let reason = format!(
                "the ranks disagree about collective {}: {} called {}, {} called {}",
                conflict.sequence,
                name(conflict.rank),
                conflict.call,
                name(conflict.other_rank),
                conflict.other_call
            );
            (None, reason)
        });
    }

    /// A switch reports that a generation cannot go on; `why` makes the reason from the record, and the rank at fault.
    fn broke(
        self: &Arc<Self>,
        mcst_id: &str,
        switch: &str,
        why: impl FnOnce(&CollectiveRecord) -> (Option<u16>, String),
    ) {
        let mut core = self.lock();
        let Some(entry) = core.collective_by_mcst_id(mcst_id) else {
            return;
        };
        let name = entry.record.name.clone();
        let (rank, reason) = why(&entry.record);
        let ending = Ending::failed(&entry.record, rank, None, reason);
        match entry.record.phase {
            Phase::Active => {
                tracing::warn!(
                    group = name,
                    switch,
                    reason = ending.reason,
                    "collective group broke"
                );
                self.try_step_collective(&mut core, &name, Event::Broke, Some(ending));
            }
            // The ranks were faster than the switch's report: those that come to hear of it hear the cause.
            Phase::Broken => self.try_change_collective(&mut core, &name, |r| {
                let unexplained = |e: &Ending| e.generation == ending.generation && e.rank.is_none();
                if r.ended.as_ref().is_some_and(unexplained) {
                    r.ended = Some(ending);
                }
            }),
            _ => {}
        }
    }

    /// A switch reports ranks that a collective waits for.
    pub(crate) fn waits(&self, mcst_id: &str, switch: &str, ranks: &[u32], for_ns: u64) {
        let mut core = self.lock();
        let Some(entry) = core.collective_by_mcst_id(mcst_id) else {
            return;
        };
        let (name, record) = (entry.record.name.clone(), &entry.record);
        let ranks: Vec<u16> = ranks.iter().filter_map(|r| u16::try_from(*r).ok()).collect();
        let host = |rank: &u16| {
            let known = record.ranks.get(usize::from(*rank));
            known.map_or_else(String::new, |r| r.host.clone())
        };
        tracing::warn!(group = name, switch, ?ranks, "collective stalls");
        self.publish(v1::controller_event::Event::StalledCollective(
            v1::StalledCollective {
                group: name.clone(),
                switch_name: switch.into(),
                hosts: ranks.iter().map(host).collect(),
                ranks: ranks.iter().map(|r| u32::from(*r)).collect(),
                for_ns,
            },
        ));
        if let Some(entry) = core.collectives.get_mut(&name)
            && entry.record.phase == Phase::Active
            && entry.waiting_for != ranks
        {
            entry.waiting_for = ranks;
            self.told_collective(&core, &name);
        }
    }
}
