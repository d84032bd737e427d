//! What a change of the state asks for outside of it. It is carried out when the change is complete, while the state is still locked.

use std::sync::Arc;
use std::time::Duration;

use castnet_proto::v1;
use tokio::time::Instant;

use crate::core::{Core, Shared};
use crate::driver;
use crate::kinds::collective::live::{Leased, Timer};
use crate::kinds::multicast::{refine, replan};
use crate::multicast_routes;

/// Work for later.
pub(crate) type Work = Box<dyn FnOnce(&mut Core) + Send>;

/// One such demand.
pub(crate) enum Effect {
    /// All who watch get an event.
    Publish(Box<v1::ControllerEvent>),
    /// Switches or hosts have something new, for those who wait for it.
    FabricChanged,
    /// There is something to write, or work to resume.
    Staged,
    /// A group needs a task that takes it to its next resting phase.
    Drive(String),
    /// The switches of a running group get its changed rules.
    Update {
        group: String,
        /// From the leaves to the top, or the other way.
        leaves_first: bool,
    },
    /// A running group that has lost a link of its tree gets another one.
    Replan { group: String, lost: String },
    /// A group gets its second stage soon.
    Refine(String),
    /// Whether a switch still answers is of interest now.
    Look(String),
    /// A switch gets the multicast routes that it should have.
    SyncRoutes(String),
    /// Exchanges of a job end of those who are none of its ranks.
    ForgetStrangers(String),
    /// Work after a pause, if the controller still runs.
    After(Duration, Work),
}

impl Core {
    /// Like [`Core::after`], for a group.
    pub(crate) fn later(
        &mut self,
        name: &str,
        pause: Duration,
        act: impl FnOnce(&mut Core, &str) + Send + 'static,
    ) {
        let name = name.to_owned();
        self.after(pause, move |core| act(core, &name));
    }

    /// Runs `act` after a pause, if the controller still runs.
    pub(crate) fn after(&mut self, pause: Duration, act: impl FnOnce(&mut Core) + Send + 'static) {
        self.effects.push(Effect::After(pause, Box::new(act)));
    }

    /// The lease of a member begins to run. One timer stands for it, however often that happens.
    pub(crate) fn run_timer(&mut self, group: &str, who: Leased, lease: Duration) {
        let ends = self.now + lease;
        let Some(entry) = self.groups.get_mut(group) else {
            return;
        };
        let timer = entry
            .live
            .leases
            .entry(who.clone())
            .or_insert(Timer { ends, fires: None });
        timer.ends = ends;
        if timer.fires.is_none_or(|fires| fires > ends) {
            timer.fires = Some(ends);
            self.later(group, lease, move |core, group| {
                core.timer_fires(group, who, ends)
            });
        }
    }

    fn timer_fires(&mut self, group: &str, who: Leased, at: Instant) {
        let Some(entry) = self.groups.get_mut(group) else {
            return;
        };
        let Some(timer) = entry
            .live
            .leases
            .get_mut(&who)
            .filter(|timer| timer.fires == Some(at))
        else {
            // Another one stands for it.
            return;
        };
        let ends = timer.ends;
        if ends > at {
            timer.fires = Some(ends);
            let pause = ends.duration_since(self.now);
            return self.later(group, pause, move |core, group| {
                core.timer_fires(group, who, ends)
            });
        }
        entry.live.leases.remove(&who);
        match who {
            Leased::Rank(rank) => self.rank_lease_over(group, rank),
            Leased::Host(host) => self.host_lease_over(group, &host),
        }
    }

    /// The switches of a running group get its changed rules.
    pub(crate) fn update(&mut self, group: &str, leaves_first: bool) {
        let group = group.to_owned();
        self.effects.push(Effect::Update { group, leaves_first });
    }
}

impl Shared {
    /// `core` is locked.
    pub(crate) fn carry_out(self: &Arc<Self>, core: &Core, effect: Effect) {
        let shared = self.clone();
        match effect {
            Effect::Publish(event) => self.release(*event),
            Effect::FabricChanged => {
                self.fabric.send_replace(());
            }
            Effect::Staged => self.staged.notify_one(),
            Effect::Drive(group) => self.spawn(driver::drive(shared, group)),
            Effect::Update { group, leaves_first } => {
                self.spawn(driver::update(shared, group, leaves_first));
            }
            Effect::Replan { group, lost } => self.spawn(replan::replan(shared, group, lost)),
            Effect::Refine(group) => self.spawn(refine::soon(shared, group)),
            Effect::Look(switch) => {
                if let Some(link) = self.links.get(&switch) {
                    link.look_now();
                }
            }
            Effect::SyncRoutes(switch) => multicast_routes::sync(self, &switch, None),
            Effect::ForgetStrangers(job) => {
                if let Ok((_, group)) = core.collective(&job) {
                    self.exchanges.forget_strangers(&job, &group.ranks);
                }
            }
            Effect::After(pause, act) => self.spawn(async move {
                tokio::time::sleep(pause).await;
                act(&mut shared.lock());
            }),
        }
    }
}
