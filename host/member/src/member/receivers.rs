//! What became of the receivers of a stream, as its source knows it when all in its group have acknowledged everything.

use std::collections::BTreeMap;

use castnet_proto::v1 as api;

use super::{Member, Source};
use crate::config::Group;
use crate::error::MemberError;
use crate::registration::Others;

/// A receiver of a group, as its source sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverState {
    /// Its name; in a group without a controller its address.
    pub host: String,
    /// What became of it.
    pub fate: Fate,
}

/// What became of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has acknowledged everything.
    All,
    /// It has left, and has reported that it has everything.
    Reported,
    /// It joined while the stream ran, and has what came from then on.
    Late,
    /// It left, and has said that it has only so many bytes.
    Left {
        /// Bytes of the stream.
        bytes: u64,
        /// Why.
        why: String,
    },
    /// The group went on without it. It may have a part of the stream.
    Gone {
        /// Why.
        why: String,
    },
    /// It became a member while the group ran, and took no part.
    Absent,
}

impl Member<'_, Source> {
    /// What became of each receiver. Call it when the stream is acknowledged, before [`Member::leave`]. `None`: the group is that of a rule
    /// file, whose receivers this host does not know.
    ///
    /// # Errors
    /// The controller does not answer for a minute, or this host is interrupted.
    pub fn receivers(&mut self) -> Result<Option<Vec<ReceiverState>>, MemberError> {
        let (now, host) = match &self.host.config.group {
            Group::Fixed { .. } => return Ok(None),
            Group::InBand { registration, .. } => {
                let all = match &registration.others {
                    Others::Receivers(all) => all.iter(),
                    Others::Leader(_) => return Ok(None),
                };
                // It has no member that the switches go on without.
                let state = |ip: &std::net::Ipv4Addr| ReceiverState {
                    host: ip.to_string(),
                    fate: Fate::All,
                };
                return Ok(Some(all.map(state).collect()));
            }
            Group::Named { .. } => (
                self.host.start(|controller| controller.look()),
                self.host.config.host.clone(),
            ),
        };
        let Some(now) = now else {
            return Ok(None);
        };
        let now = self.host.await_call(now)??;
        // Without it, one that an operator has put out is not known.
        let begin = self.lease.as_ref().and_then(|lease| lease.at_begin.as_ref());
        Ok(Some(fates(&host, begin, &now)))
    }

    /// As [`Member::receivers`], and leaves the group. Receivers report what they have once their source has left; this waits for 3 seconds at
    /// most. One that has not reported by then has acknowledged everything ([`Fate::All`]), and may still fail to store it.
    ///
    /// # Errors
    /// As [`Member::receivers`]. The group is left in any case.
    pub fn leave_and_ask(mut self) -> Result<Option<Vec<ReceiverState>>, MemberError> {
        let receivers = self.receivers();
        let left = self.leave_group(None);
        self.release()?;
        if let Err(error) = left {
            tracing::warn!(%error, "not left");
        }
        let Some(receivers) = receivers? else {
            return Ok(None);
        };
        let reports = Reports::of(receivers.clone());
        let reports = self.host.start(|controller| controller.await_reports(reports));
        Ok(Some(match reports.map(|reports| self.host.await_call(reports)) {
            Some(Ok(reported)) => reported,
            Some(Err(_)) | None => receivers,
        }))
    }
}

/// The receivers of a source that has left, and whether each may still report what it has.
pub(crate) struct Reports(Vec<(ReceiverState, bool)>);

impl Reports {
    fn of(receivers: Vec<ReceiverState>) -> Self {
        let of = |receiver: ReceiverState| {
            let is_in = matches!(receiver.fate, Fate::All | Fate::Late);
            (receiver, is_in)
        };
        Self(receivers.into_iter().map(of).collect())
    }

    pub(crate) fn handle_state(&mut self, group: &api::GroupState) {
        let members: BTreeMap<_, _> = group.members.iter().map(|m| (m.host.as_str(), m)).collect();
        for (receiver, may_report) in self.0.iter_mut().filter(|(_, may_report)| *may_report) {
            let member = members.get(receiver.host.as_str());
            let reported = member.and_then(|member| reported(member));
            // One that joins again reports nothing of this stream.
            let has_left = member.is_some_and(|m| m.phase() == api::MemberPhase::Expected);
            *may_report = has_left && reported.is_none();
            match reported {
                Some(Fate::Reported) if receiver.fate == Fate::Late => {}
                Some(fate) => receiver.fate = fate,
                None => {}
            }
        }
    }

    pub(crate) fn are_complete(&self) -> bool {
        self.0.iter().all(|(_, may_report)| !may_report)
    }

    pub(crate) fn into_receivers(self) -> Vec<ReceiverState> {
        self.0.into_iter().map(|(receiver, _)| receiver).collect()
    }
}

pub(super) fn put_out(api::PutOut { host, reason: why }: api::PutOut) -> ReceiverState {
    let fate = Fate::Gone { why };
    ReceiverState { host, fate }
}

/// What a receiver has reported when it left, or why it was put out.
fn reported(member: &api::MemberState) -> Option<Fate> {
    match &member.received {
        Some(received) if received.lacks.is_empty() => Some(Fate::Reported),
        Some(api::Received { bytes, lacks }) => Some(Fate::Left {
            bytes: *bytes,
            why: lacks.clone(),
        }),
        None if member.put_out.is_empty() => None,
        None => Some(Fate::Gone {
            why: member.put_out.clone(),
        }),
    }
}

/// `begin`, `now`: the group when the stream began, and when it is acknowledged.
fn fates(source: &str, begin: Option<&api::GroupState>, now: &api::GroupState) -> Vec<ReceiverState> {
    let find = |state: &api::GroupState, host: &str| state.members.iter().any(|m| m.host == host);
    let fate = |member: &api::MemberState| match (member.phase(), reported(member)) {
        (api::MemberPhase::Joined, _) if member.from_psn.is_some() => Fate::Late,
        (api::MemberPhase::Joined, _) => Fate::All,
        (_, Some(fate)) => fate,
        (api::MemberPhase::Joining, None) => Fate::Absent,
        _ if begin.is_some_and(|begin| !find(begin, &member.host)) => Fate::Absent,
        _ => Fate::Gone {
            why: "it left before the end, and did not say why".to_owned(),
        },
    };
    let present = now.members.iter().map(|member| ReceiverState {
        host: member.host.clone(),
        fate: fate(member),
    });
    let evicted = begin.into_iter().flat_map(|begin| &begin.members);
    let evicted = evicted.filter(|m| !find(now, &m.host));
    let evicted = evicted.map(|m| ReceiverState {
        host: m.host.clone(),
        fate: Fate::Gone {
            why: "an operator has put it out".to_owned(),
        },
    });
    let mut all: Vec<_> = present.chain(evicted).collect();
    all.retain(|receiver| receiver.host != source);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::MemberPhase::{Expected, Joined, Joining};

    fn member(host: &str, phase: api::MemberPhase) -> api::MemberState {
        api::MemberState {
            host: host.into(),
            phase: phase.into(),
            ..Default::default()
        }
    }

    fn group(receivers: impl IntoIterator<Item = api::MemberState>) -> api::GroupState {
        let members = [member("h1", Joined)].into_iter().chain(receivers);
        api::GroupState {
            members: members.collect(),
            ..Default::default()
        }
    }

    /// The fate of h2.
    fn fate(begin: Option<api::MemberState>, now: Option<api::MemberState>) -> Fate {
        let all = fates("h1", Some(&group(begin)), &group(now));
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].fate.clone()
    }

    fn left(bytes: u64, lacks: &str) -> api::MemberState {
        let received = Some(api::Received {
            bytes,
            lacks: lacks.into(),
        });
        api::MemberState {
            received,
            ..member("h2", Expected)
        }
    }

    #[test]
    fn each_receiver_has_its_fate() {
        let joined = || Some(member("h2", Joined));
        let gone = |why: &str| Fate::Gone { why: why.to_owned() };
        assert_eq!(fate(joined(), joined()), Fate::All);
        // It left before the source had asked for the first time.
        let why = "its interface has an MTU of 1500".to_owned();
        let nothing = Fate::Left { bytes: 0, why };
        let without = || Some(left(0, "its interface has an MTU of 1500"));
        assert_eq!(fate(without(), without()), nothing);
        assert_eq!(fate(joined(), without()), nothing);
        assert_eq!(fate(joined(), Some(left(9, ""))), Fate::Reported);
        let put_out = api::MemberState {
            put_out: "host h2 stalls".into(),
            ..member("h2", Expected)
        };
        assert_eq!(fate(joined(), Some(put_out)), gone("host h2 stalls"));
        let silent = "it left before the end, and did not say why";
        assert_eq!(fate(joined(), Some(member("h2", Expected))), gone(silent));
        assert_eq!(fate(joined(), None), gone("an operator has put it out"));
        // Added while the group ran, and those that join then.
        assert_eq!(fate(None, Some(member("h2", Expected))), Fate::Absent);
        assert_eq!(fate(None, Some(member("h2", Joining))), Fate::Absent);
        let late = api::MemberState {
            from_psn: Some(7),
            ..member("h2", Joined)
        };
        assert_eq!(fate(joined(), Some(late)), Fate::Late);
    }

    /// The disk of h2 is full after its RNIC has acknowledged everything.
    #[test]
    fn receivers_report_what_they_have_after_their_source_has_left() {
        let of = |host: &str, member: api::MemberState| api::MemberState {
            host: host.into(),
            ..member
        };
        let late = api::MemberState {
            from_psn: Some(7),
            ..member("h4", Joined)
        };
        let receivers = ["h2", "h3", "h5", "h6"].map(|host| member(host, Joined));
        let mut reports = Reports::of(fates("h1", None, &group(receivers.into_iter().chain([late]))));
        assert!(!reports.are_complete());
        let full = "No space left on device";
        reports.handle_state(&group([
            of("h2", left(9, full)),
            of("h3", left(9, "")),
            of("h4", left(4, "")),
            member("h5", Expected),
            member("h6", Expected),
        ]));
        assert!(!reports.are_complete());
        // One report stays what it was, h5 has joined again, and h6 was put out before the source had left.
        let put_out = api::MemberState {
            put_out: "host h6 is gone".into(),
            ..member("h6", Expected)
        };
        reports.handle_state(&group([member("h2", Joining), member("h5", Joining), put_out]));
        assert!(reports.are_complete());
        let fates: Vec<_> = reports.into_receivers().into_iter().map(|r| r.fate).collect();
        let gone = Fate::Gone {
            why: "host h6 is gone".to_owned(),
        };
        let part = Fate::Left {
            bytes: 9,
            why: full.to_owned(),
        };
        assert_eq!(fates, [part, Fate::Reported, Fate::All, gone, Fate::Late]);
    }

    #[test]
    fn without_a_controller_at_the_begin_those_that_are_in_have_all() {
        let now = group([member("h2", Joined), member("h3", Expected)]);
        let all = fates("h1", None, &now);
        assert_eq!(all[0].fate, Fate::All);
        assert!(matches!(all[1].fate, Fate::Gone { .. }), "{all:?}");
    }
}
