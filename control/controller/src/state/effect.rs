//! What a change of the state asks for outside of it. It is carried out when the change is complete, while the state is still locked.

use std::any::Any;
use std::sync::Arc;

use castnet_proto::v1;

use crate::config::Checkpoint;
use crate::state::{Core, Layout, News, NoPlan, Record};

/// Work for later.
pub(crate) type Work = Box<dyn FnOnce(&mut Core) + Send>;

type Wanted = dyn FnMut(&mut Core) -> Option<Record> + Send;
type Then = dyn FnOnce(&mut Core, Record, Result<Layout, NoPlan>) + Send;

/// A group to be planned beside the state.
pub(crate) struct Planning {
    /// The group, while it is to be planned.
    pub(crate) record: Box<Wanted>,
    /// What follows, with the group as it was planned.
    pub(crate) then: Box<Then>,
}

/// A switch that is to have of a group what the group wants there now. [`Core::handle_synced`] is the answer.
pub(crate) struct Asked {
    pub(crate) group: String,
    pub(crate) switch: String,
    /// Of the step that waits for it.
    pub(crate) number: u64,
    pub(crate) after: Option<Checkpoint>,
    pub(crate) then: Option<Checkpoint>,
}

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
    Plan(Planning),
    Sync(Asked),
    /// A group gets its second stage soon.
    Refine(String),
    /// Whether a switch still answers is of interest now.
    Look(String),
    /// A switch gets the multicast routes that it should have.
    SyncRoutes(String),
}
