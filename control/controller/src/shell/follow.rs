//! Who follows a group: open calls, and clients that wait for what they have asked for.

use std::any::Any;
use std::ptr::addr_eq;
use std::sync::Arc;

use tokio::sync::watch;

use super::shared::Locked;
use crate::error::Refusal;
use crate::state::{Core, News};

/// Shared by all who follow a group.
struct Signals {
    changes: watch::Sender<()>,
    news: watch::Sender<News>,
}

/// The changes of a group since it is followed.
pub(crate) struct Follow {
    group: String,
    signals: Arc<Signals>,
    pub(crate) changes: watch::Receiver<()>,
    /// Of its phase, generation and reason, as far as members learn them at once, and of its end.
    pub(crate) news: watch::Receiver<News>,
}

impl Locked<'_> {
    pub(crate) fn follow(&mut self, group: &str) -> Result<Follow, Refusal> {
        let entry = self.group(group)?;
        let others = entry
            .followers
            .upgrade()
            .and_then(|all| all.downcast::<Signals>().ok());
        let signals = match others {
            Some(signals) => signals,
            None => {
                let signals = Arc::new(Signals {
                    changes: watch::Sender::new(()),
                    news: watch::Sender::new(entry.record().kind.behaviour().news(entry)),
                });
                let followers = Arc::downgrade(&signals);
                if let Some(entry) = self.groups.get_mut(group) {
                    entry.followers = followers;
                }
                signals
            }
        };
        Ok(Follow {
            group: group.into(),
            changes: signals.changes.subscribe(),
            news: signals.news.subscribe(),
            signals,
        })
    }
}

impl Follow {
    /// Whether the group is there: another one may have its name.
    pub(crate) fn is_there(&self, core: &Core) -> bool {
        let followers = core.groups.get(&self.group).map(|entry| &entry.followers);
        followers.is_some_and(|followers| addr_eq(followers.as_ptr(), Arc::as_ptr(&self.signals)))
    }
}

/// `news`: see [`Effect::Changed`].
///
/// [`Effect::Changed`]: crate::state::effect::Effect::Changed
pub(crate) fn tell(followers: Arc<dyn Any + Send + Sync>, news: Option<News>) {
    let Ok(signals) = followers.downcast::<Signals>() else {
        return;
    };
    signals.changes.send_replace(());
    match news {
        Some(news) => {
            signals
                .news
                .send_if_modified(|told| std::mem::replace(told, news) != *told);
        }
        None => signals.news.send_modify(|_| {}),
    }
}
