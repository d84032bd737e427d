//! What a change of the state asks for outside of it. It is carried out when the change is complete, while the state is still locked.

use std::any::Any;
use std::sync::Arc;

use castnet_proto::v1;

use crate::state::core::Core;
use crate::state::kinds::News;

/// Work for later.
pub(crate) type Work = Box<dyn FnOnce(&mut Core) + Send>;

/// One such demand.
pub(crate) enum Effect {
    /// All who watch get an event.
    Publish(Box<v1::ControllerEvent>),
    /// Who follows a group is to look at it.
    Changed {
        followers: Arc<dyn Any + Send + Sync>,
        /// What members learn at once, as it is now; `None`: the group is gone.
        news: Option<News>,
    },
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
}

impl Core {
    /// The switches of a running group get its changed rules.
    pub(crate) fn update(&mut self, group: &str, leaves_first: bool) {
        let group = group.to_owned();
        self.effects.push(Effect::Update { group, leaves_first });
    }
}
