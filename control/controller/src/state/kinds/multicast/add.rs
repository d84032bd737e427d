//! Receivers that become members of a group that exists.

use std::sync::Arc;

use castnet_proto::v1;

use super::record::MemberRecord;
use super::view;
use crate::error::Refusal;
use crate::state::{After, Core, Phase};

impl Core {
    /// Adds a receiver that has not joined. A group that waits also waits for it. One that runs goes on: the receiver joins as
    /// one that was put out does.
    pub(crate) fn add_member(&mut self, group: &str, host: &str) -> Result<v1::AddMemberResponse, Refusal> {
        let refuse = |state: &str, way_out: &str| {
            Refusal::not_now("group", format!("group {group:?} {state}: {way_out}"))
        };
        let record = self.group(group)?.record();
        let Some(kind) = record.multicast() else {
            let way_out = "the number of its ranks is fixed, create it anew";
            return Err(refuse("is a collective group", way_out));
        };
        let added = kind.member(host).is_none();
        match record.phase {
            _ if !added => {}
            // Its plan has been made for the members that have joined.
            Phase::Installing => return Err(refuse("is being installed", "try again soon")),
            Phase::Removing(After::Gone) => return Err(refuse("is being removed", "create it anew")),
            _ if !record.own_mcst_ids.is_empty() => {
                let way_out = "its addresses were chosen for its members, create it anew";
                return Err(refuse("passes routers", way_out));
            }
            _ => {}
        }
        self.check_no_switch("host", host)?;
        self.check_known("host", host)?;
        if added {
            self.change(group, |r| {
                if let Some(kind) = r.multicast_mut() {
                    Arc::make_mut(&mut kind.members).push(Arc::new(MemberRecord::expected(host.into())));
                }
            })?;
            tracing::info!(group, host, "is a member");
        }
        Ok(v1::AddMemberResponse {
            added,
            phase: view::phase(self.group(group)?.record().phase) as i32,
        })
    }
}
