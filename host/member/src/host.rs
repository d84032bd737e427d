//! The RNIC of a member, and its calls to the controller.

use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_mrp::Roll;
use castnet_proto::transport::{Call, Connection};
use castnet_rnic::{MemoryRegion, Rnic, RnicError};
use castnet_wire::Qpn;
use crossbeam::channel::Receiver;

use crate::config::{Group, MemberConfig};
use crate::controller::Controller;
use crate::error::MemberError;
use crate::registration::{Registered, Told};

/// Longest sleep of a host that waits for a call.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(2);
/// How long an RNIC is polled that still carries the end of a registration: until the switch has taken it.
const LINGER: Duration = Duration::from_millis(20);
/// How often a waiting host announces itself: a later switch must learn it before the controller gives up.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// Starts calls to the controller beside this thread.
#[derive(Clone)]
pub(crate) struct Caller {
    connection: Arc<Connection>,
    controller: Controller,
}

impl Caller {
    pub(crate) fn start<F>(&self, call: impl FnOnce(Controller) -> F) -> Call<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.connection.spawn(call(self.controller.clone()))
    }
}

pub(crate) struct Host<'r> {
    pub(crate) rnic: &'r mut dyn Rnic,
    pub(crate) config: MemberConfig,
    controller: Option<Caller>,
    announced: Option<Instant>,
    /// Of a group that is registered in the band: kept up until this host is gone.
    pub(crate) registered: Option<Registered>,
    /// All members that go on from host to host with this source of such a group.
    pub(crate) roll: Option<Roll>,
}

impl<'r> Host<'r> {
    pub(crate) fn new(rnic: &'r mut dyn Rnic, config: MemberConfig) -> Result<Self, MemberError> {
        let controller = match &config.group {
            Group::Named {
                name,
                controller,
                security,
                ..
            } => {
                let connection = Connection::to(controller, security).map_err(MemberError::Thread)?;
                let controller = Controller {
                    clients: connection.clients(),
                    group: name.clone(),
                    host: config.host.clone(),
                    lease: config.lease,
                    from_next_message: config.from_next_message,
                    co_works: config.co_works,
                    passes_on: config.passes_on,
                };
                Some(Caller {
                    connection,
                    controller,
                })
            }
            Group::Fixed { .. } | Group::InBand { .. } => None,
        };
        Ok(Self {
            rnic,
            config,
            controller,
            announced: None,
            registered: None,
            roll: None,
        })
    }

    /// Starts a call to the controller beside this thread. `None`: there is no controller.
    pub(crate) fn start<F>(&self, call: impl FnOnce(Controller) -> F) -> Option<Call<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        Some(self.controller.as_ref()?.start(call))
    }

    /// For calls of those that have no access to this. `None`: there is no controller.
    pub(crate) fn caller(&self) -> Option<Caller> {
        self.controller.clone()
    }

    /// Polls the RNIC until a call to the controller has ended, or this host is interrupted.
    pub(crate) fn await_call<T>(&mut self, call: Call<T>) -> Result<T, MemberError> {
        self.await_call_within(None, call)
    }

    /// As [`Host::await_call`], and fails if that takes longer. The call is ended then.
    pub(crate) fn await_call_within<T>(
        &mut self,
        most: Option<Duration>,
        mut call: Call<T>,
    ) -> Result<T, MemberError> {
        let start = Instant::now();
        let is_late = |after: &Duration| start.elapsed() >= *after;
        self.poll_until(SLEEP_MAX, &mut |_| {
            call.is_finished() || most.as_ref().is_some_and(is_late)
        })?;
        call.poll().ok_or_else(|| match most.filter(is_late) {
            Some(after) => MemberError::NotInTime {
                group: self.config.group.name().unwrap_or_default().to_owned(),
                after,
            },
            None => MemberError::Interrupted,
        })
    }

    /// Polls the RNIC until `done`, so that this host answers ARP and repeated requests. Looks at `done` after each sleep,
    /// of `sleep_max` at most.
    pub(crate) fn poll_until(
        &mut self,
        sleep_max: Duration,
        done: &mut dyn FnMut(&mut dyn Rnic) -> bool,
    ) -> Result<(), MemberError> {
        while !done(self.rnic) && !self.config.is_interrupted() {
            if self.announced.is_none_or(|at| at.elapsed() >= ANNOUNCE_INTERVAL) {
                self.announced = Some(Instant::now());
                if let Err(error) = self.rnic.announce() {
                    tracing::warn!(%error, "switches may not know where this host is until it sends");
                }
            }
            self.rnic.poll_or_wait(sleep_max)?;
        }
        Ok(())
    }

    /// An RNIC that has failed is reported by its other calls.
    pub(crate) fn destroy_qps(&mut self, qpns: &[Qpn]) {
        for &qpn in qpns {
            if let Err(error) = self.rnic.destroy_qp(qpn) {
                tracing::debug!(%error, %qpn, "not destroyed");
            }
        }
    }

    /// Destroys the QPs of a member, and gives back the memory that they received into.
    pub(crate) fn release<'m>(&mut self, qpns: &[Qpn], rings: impl Iterator<Item = &'m MemoryRegion>) {
        self.destroy_qps(qpns);
        for ring in rings {
            if let Err(error) = self.rnic.deregister_memory(ring.key) {
                tracing::debug!(%error, "not deregistered");
            }
        }
    }

    /// What becomes of the registration of the group.
    pub(crate) fn told(&self) -> Option<Receiver<Told>> {
        self.registered.as_ref().map(Registered::results)
    }

    /// Ends the registration of the group: a leader withdraws it.
    pub(crate) fn end_registration(&mut self) {
        let Some(registered) = self.registered.take() else {
            return;
        };
        drop(registered);
        let start = Instant::now();
        while start.elapsed() < LINGER && self.rnic.poll_or_wait(SLEEP_MAX).is_ok() {}
    }

    pub(crate) fn idle(&mut self) -> Result<(), RnicError> {
        self.rnic.poll_or_wait(SLEEP_MAX).map(drop)
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        self.end_registration();
    }
}
