//! Hosts without a controller: they exchange their queue pairs over the source of their group.

use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_comm::Rendezvous;
use castnet_member::{Group, Hosts, MeetingPoint, MemberConfig, MemberError};
use castnet_rnic::Rnic;

use super::{FallbackArg, Ranks};

/// Longest sleep of a host that waits for the others.
const SLEEP_MAX: Duration = Duration::from_millis(2);

#[derive(Debug)]
struct Met(MeetingPoint);

impl Rendezvous for Met {
    fn begin(&self, round: u8, gift: Vec<u8>, wanted: &[u16]) -> Result<(), String> {
        self.0
            .begin(round, gift, wanted)
            .map_err(|error| error.to_string())
    }

    fn poll(&self) -> Option<Vec<Vec<u8>>> {
        self.0.take()
    }

    fn missing(&self) -> Vec<u16> {
        self.0.missing()
    }
}

/// Opens the meeting of these hosts. `None`: they meet at the controller.
pub(super) fn open(
    rnic: &mut dyn Rnic,
    config: &MemberConfig,
    hosts: &Hosts,
    reason: &str,
) -> Result<Option<Arc<dyn Rendezvous>>, MemberError> {
    let Some(roll) = &hosts.roll else {
        return Ok(None);
    };
    let point = MeetingPoint::open(rnic, config, roll, reason)?;
    Ok(Some(Arc::new(Met(point))))
}

/// A member of a group that is registered with MRP goes on from host to host if `fallback` says so.
pub(in crate::host) fn called(mut config: MemberConfig, fallback: FallbackArg) -> MemberConfig {
    if let Group::InBand { registration, .. } = &mut config.group {
        registration.calls = fallback == FallbackArg::Auto;
    }
    config
}

/// How long to wait until the group is active again.
pub(super) fn joining_within(mut config: MemberConfig, most: Duration) -> MemberConfig {
    if let Group::InBand { registration, .. } = &mut config.group {
        registration.patience = most;
    }
    config.join_within = Some(most);
    config
}

impl Ranks {
    /// All hosts are out of the group that was tried again, or this one has waited for so long. The queue pairs from host to host are there
    /// already.
    pub(super) fn gather(
        &mut self,
        (rnic, config): (&mut dyn Rnic, &MemberConfig),
        (hosts, reason): (&Hosts, &str),
        patience: Duration,
    ) -> Result<(), MemberError> {
        self.meeting = open(rnic, config, hosts, reason)?;
        let Some(meeting) = &self.meeting else {
            return Ok(());
        };
        let invalid = |what| MemberError::Invalid { what };
        meeting.begin(0, Vec::new(), &[]).map_err(invalid)?;
        let start = Instant::now();
        while meeting.poll().is_none() && start.elapsed() < patience {
            rnic.poll_or_wait(SLEEP_MAX)?;
        }
        Ok(())
    }
}
