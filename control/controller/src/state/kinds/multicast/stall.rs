//! Paths that a group waits for, as its switches report. A receiver that stalls is put out, or the group fails with it, if its
//! policy says so. A group that goes on without one that stalls does so at once without one that refuses its stream with a fatal NAK:
//! its switch holds the NAK, and reports the receiver as failed and, in case that is lost, as a path that stalls.
//!
//! The report of the switch next to the receiver counts: those above it name the switch below. It says how often the switch has
//! sent the packet that the receiver lacks, again. Without that, nothing arrives there: a switch, a link or the source above
//! stands still, and not the receiver.

use std::time::{Duration, Instant};

use castnet_proto::v1;
use castnet_wire::{NakCode, Syndrome};

use super::late::has_host;
use crate::state::{Core, Effect, Entry};

/// A receiver that stalls was sent the packet that it lacks so often again. Each time, a request for an ACK follows that packet.
const TRIES_MIN: u32 = 4;
/// How late the next report of a stall may come.
const REPORT_MARGIN: Duration = Duration::from_millis(500);

/// The last report of a switch about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathStall {
    at: Instant,
    generation: u64,
    pub(crate) next_hop: String,
    pub(crate) waited: Duration,
}

/// The path that a switch still waits for, by its last report. It reports it again after each stall time-out.
pub(crate) fn waits_for<'e>(entry: &'e Entry, switch: &str, now: Instant) -> Option<&'e PathStall> {
    let record = entry.record();
    let every = Duration::from_millis(record.multicast()?.report_stalls_ms().into());
    let stall = entry.path_stalls.get(switch)?;
    let is_fresh = stall.at + 2 * every + REPORT_MARGIN >= now;
    (is_fresh && stall.generation == record.generation).then_some(stall)
}

impl Core {
    /// A switch reports that a group waits for a path. Returns whether to ask the switch which neighbours it hears.
    pub(crate) fn path_stalled(&mut self, switch: &str, stalled: v1::PathStalled) -> bool {
        let stalled = v1::PathStalled {
            switch_name: switch.into(),
            ..stalled
        };
        self.publish(v1::controller_event::Event::PathStalled(stalled.clone()));
        let entry = self.at_address(&stalled.mcst_id);
        let name = entry.map_or_else(String::new, |entry| entry.record().name.clone());
        if self.may_warn_of(&name) {
            tracing::warn!(?stalled, "path stalled");
        }
        let Some(record) = self.groups.get(&name).map(Entry::record) else {
            return false;
        };
        let hop = stalled.next_hop.as_str();
        let rule = record.wanted_rule(switch);
        let Some(rule) = rule.filter(|_| record.phase.has_run() && record.generation == stalled.generation)
        else {
            return false;
        };
        if has_host(rule, hop) {
            self.member_stalls(&name, &stalled);
            return false;
        }
        let stall = PathStall {
            at: self.now,
            generation: stalled.generation,
            next_hop: hop.into(),
            waited: Duration::from_nanos(stalled.for_ns),
        };
        if let Some(entry) = self.groups.get_mut(&name) {
            entry.path_stalls.insert(switch.into(), stall);
        }
        self.signs.note_stall(switch, &name);
        // One that hangs answers no more.
        self.effects.push(Effect::Look(hop.into()));
        true
    }

    /// Receivers that are connected to a dead switch stall with it: the address that they have connected to is there.
    pub(crate) fn lose_cut_off(&mut self, group: &str, cut_off: Vec<(String, String)>) {
        for (host, why) in cut_off {
            let Ok((_, kind)) = self.multicast(group) else {
                return;
            };
            let Some(policy) = kind.settings.on_stall.filter(|_| !kind.needs(&host)) else {
                continue;
            };
            // If that cannot be stored, the next look at the links does it.
            if let Err(error) = self.lose_or_fail(group, &host, why, policy.fails) {
                tracing::error!(group, host, %error, "cannot take out a member");
            }
        }
    }

    fn member_stalls(&mut self, group: &str, stalled: &v1::PathStalled) {
        let Ok((_, kind)) = self.multicast(group) else {
            return;
        };
        let Some(policy) = kind.settings.on_stall else {
            return;
        };
        let (host, waited) = (&stalled.next_hop, Duration::from_nanos(stalled.for_ns));
        if let Some(code) = stalled
            .syndrome
            .and_then(fatal)
            .filter(|_| kind.settings.outlives_refusals())
        {
            return self.lose_refusing(group, host, code);
        }
        if waited < Duration::from_millis(policy.after_ms.into()) || stalled.tries < TRIES_MIN {
            return;
        }
        let acknowledged = match stalled.ack_psn {
            Some(psn) => format!("PSN {psn}"),
            None => "nothing".into(),
        };
        let syndrome = stalled.syndrome.and_then(|byte| u8::try_from(byte).ok());
        let refuses = match syndrome.and_then(Syndrome::from_byte) {
            Some(Syndrome::RnrNak(_)) => ", and refuses it: it has posted no receives".into(),
            Some(syndrome) => format!(", and answers {syndrome}"),
            None => String::new(),
        };
        let reason = format!(
            "host {host} stalls: it has acknowledged {acknowledged}, and no more for {waited:.1?}, although switch {} \
             has sent it the next packet {} times again{refuses}",
            stalled.switch_name, stalled.tries
        );
        // If that cannot be stored, the next report does it.
        if let Err(error) = self.lose_or_fail(group, host, reason, policy.fails) {
            tracing::error!(group, host, %error, "cannot take out a member");
        }
    }

    /// A switch reports that a receiver of a multicast group has ended its connection with a fatal NAK.
    pub(crate) fn receiver_failed(&mut self, switch: &str, failed: &v1::MemberFailed) {
        let Some(entry) = self.at_address(&failed.mcst_id) else {
            return;
        };
        let (record, host) = (entry.record(), failed.next_hop.as_str());
        let Some(kind) = record
            .multicast()
            .filter(|kind| kind.settings.outlives_refusals())
        else {
            return;
        };
        let rule = record.wanted_rule(switch).filter(|_| record.phase.has_run());
        let Some(rule) = rule.filter(|rule| has_host(rule, host)) else {
            return;
        };
        // Who was in the stream from its beginning has had one connection, also while others were put out.
        let since = rule.multicast().and_then(|rule| rule.carries_on);
        let since = since.filter(|_| {
            kind.member(host)
                .is_some_and(|(_, member)| member.late().is_none())
        });
        let generations = since.unwrap_or(record.generation)..=record.generation;
        if let Some(code) = fatal(failed.syndrome).filter(|_| generations.contains(&failed.generation)) {
            let name = record.name.clone();
            self.lose_refusing(&name, host, code);
        }
    }

    fn lose_refusing(&mut self, group: &str, host: &str, code: NakCode) {
        let reason = format!("host {host} sent a fatal NAK: {code}");
        // If that cannot be stored, a report of its path does it.
        if let Err(error) = self.lose_or_fail(group, host, reason, false) {
            tracing::error!(group, host, %error, "cannot take out a member");
        }
    }
}

/// The code of a NAK that ends a connection, from its AETH syndrome byte.
fn fatal(syndrome: u32) -> Option<NakCode> {
    match Syndrome::from_byte(u8::try_from(syndrome).ok()?)? {
        Syndrome::Nak(code) => Some(code).filter(|code| code.is_fatal()),
        Syndrome::Ack | Syndrome::RnrNak(_) => None,
    }
}
