//! Hosts without a controller: they exchange their queue pairs over the source of their group.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use castnet_comm::Rendezvous;
use castnet_mrp::TooMuch;
use castnet_rnic::Rnic;

use super::Ranks;
use crate::config::{Group, MemberConfig};
use crate::error::MemberError;
use crate::meeting::{Hosts, MeetingPoint};

/// Longest sleep of a host that waits for the others.
const SLEEP_MAX: Duration = Duration::from_millis(2);

/// A meeting, until it is closed.
#[derive(Debug)]
struct Met(Weak<MeetingPoint>);

impl Rendezvous for Met {
    fn begin(&self, round: u8, gift: Vec<u8>, wanted: &[u16]) -> Result<(), String> {
        let point = self.0.upgrade().ok_or("the meeting has been closed")?;
        let begun = point.begin(round, gift, wanted);
        begun.map_err(|error| error.to_string())
    }

    fn poll(&self) -> Option<Vec<Vec<u8>>> {
        self.0.upgrade()?.take()
    }

    fn missing(&self) -> Vec<u16> {
        self.0.upgrade().map_or_else(Vec::new, |point| point.missing())
    }
}

/// Opens the meeting of these hosts. `None`: they meet at the controller.
fn open(
    rnic: &mut dyn Rnic,
    config: &MemberConfig,
    hosts: &Hosts,
    reason: &str,
) -> Result<Option<Arc<MeetingPoint>>, MemberError> {
    let open = |roll| MeetingPoint::open(rnic, config, roll, reason).map(Arc::new);
    hosts.roll.as_ref().map(open).transpose()
}

/// As `config`, but so long at most until the group is active again.
pub fn joining_within(mut config: MemberConfig, most: Duration) -> MemberConfig {
    if let Group::InBand { registration, .. } = &mut config.group {
        registration.patience = most;
    }
    config.join_within = Some(most);
    config
}

impl Ranks {
    /// The members of `group` that go on from host to host, the source first. Those without a controller are called, for this reason.
    ///
    /// # Errors
    /// As [`MeetingPoint::open`].
    pub fn meet(
        rnic: &mut dyn Rnic,
        config: &MemberConfig,
        group: String,
        hosts: Hosts,
        reason: &str,
    ) -> Result<Self, MemberError> {
        let meeting = open(rnic, config, &hosts, reason)?;
        Ok(Self {
            group,
            members: hosts.names,
            source: 0,
            meeting,
        })
    }

    /// Where they exchange their queue pairs. `None`: at the controller.
    pub fn rendezvous(&self) -> Option<Arc<dyn Rendezvous>> {
        let met =
            |meeting: &Arc<MeetingPoint>| -> Arc<dyn Rendezvous> { Arc::new(Met(Arc::downgrade(meeting))) };
        self.meeting.as_ref().map(met)
    }

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
        let invalid = |error: TooMuch| MemberError::Invalid {
            what: error.to_string(),
        };
        meeting.begin(0, Vec::new(), &[]).map_err(invalid)?;
        let start = Instant::now();
        while meeting.take().is_none() && start.elapsed() < patience {
            if config.is_interrupted() {
                return Err(MemberError::Interrupted);
            }
            rnic.poll_or_wait(SLEEP_MAX)?;
        }
        Ok(())
    }
}
