//! What a change of the state asks for outside of it. It is carried out when the change is complete, while the state is still locked.

use std::time::Duration;

use castnet_proto::v1;
use tokio::sync::oneshot;

use crate::state::core::Core;

/// Work for later.
pub(crate) type Work = Box<dyn FnOnce(&mut Core) + Send>;

/// A timer that runs. When this is dropped, the timer ends without effect.
#[derive(Debug)]
pub(crate) struct TimerGuard {
    _held: oneshot::Sender<()>,
}

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
    /// Work after a pause, if the controller still runs.
    After(Duration, Work),
    /// The same, unless the sender is dropped before: see [`TimerGuard`].
    Timer(Duration, Work, oneshot::Receiver<()>),
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

    /// Like [`Core::later`], as long as the result is held.
    pub(crate) fn timer(
        &mut self,
        name: &str,
        pause: Duration,
        act: impl FnOnce(&mut Core, &str) + Send + 'static,
    ) -> TimerGuard {
        let (name, (_held, dropped)) = (name.to_owned(), oneshot::channel());
        let work: Work = Box::new(move |core| act(core, &name));
        self.effects.push(Effect::Timer(pause, work, dropped));
        TimerGuard { _held }
    }

    /// The switches of a running group get its changed rules.
    pub(crate) fn update(&mut self, group: &str, leaves_first: bool) {
        let group = group.to_owned();
        self.effects.push(Effect::Update { group, leaves_first });
    }
}
