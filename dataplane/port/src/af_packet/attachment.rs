//! Which interface a port is on: a pure machine.
//!
//! A port is on the interface that has the port's name. Another interface may get the name at any time, because interfaces
//! are deleted, renamed, made again, or moved to other network namespaces. The machine takes a [`Sight`], a fresh reading of
//! the kernel's state, and decides whether the port closes its sockets, and whether it opens new ones. It does not depend on
//! which changes led there. So a message about a change only causes a reading, and lost or repeated messages do no harm.
//!
//! The port does not follow a renamed interface. A name is what is configured: a port that follows would be on another
//! interface after a restart of the switch than before.

use castnet_wire::Nanos;

/// Interval of further attempts after the sockets could not be opened.
const RETRY_INTERVAL: Nanos = Nanos::from_secs(1);

/// Why a port is on no interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum Detached {
    /// It was not there when the port was opened.
    #[error("there is no interface of this name yet")]
    Absent,
    /// It was deleted, or moved to another network namespace.
    #[error("the interface is gone")]
    Gone,
    /// It has another name.
    #[error("the interface was renamed to {}", .to.escape_debug())]
    Renamed { to: String },
    /// There is an interface with the port's name, but its sockets cannot be opened.
    #[error("{reason}")]
    Refused { reason: String },
}

/// A reading of the kernel's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sight {
    /// The interface that the sockets opened last are bound to: its index and name. They may be closed already.
    pub(super) bound: Option<(u32, String)>,
    /// Index of the interface that has the port's name.
    pub(super) named: Option<u32>,
}

/// A port and its interface. At first it counts as attached.
#[derive(Clone, Debug)]
pub(super) struct Attachment {
    detached: Option<Detached>,
    /// It has had an interface.
    was_bound: bool,
    /// The interface that was refused last, and the time of the next attempt.
    retry: Option<(u32, Nanos)>,
}

impl Attachment {
    /// `is_bound`: its sockets are bound to an interface.
    pub(super) fn new(is_bound: bool) -> Self {
        Self {
            detached: None,
            was_bound: is_bound,
            retry: None,
        }
    }

    /// Why the port has no interface. While there is a reason, its sockets must be closed.
    pub(super) fn detached(&self) -> Option<&Detached> {
        self.detached.as_ref()
    }

    /// The time at which [`Attachment::handle_sight`] has work, though nothing may have changed.
    pub(super) fn poll_timeout(&self) -> Option<Nanos> {
        self.retry.map(|(_, at)| at)
    }

    /// Takes a reading. Returns the index of the interface to open sockets on. Then [`Attachment::handle_opened`] follows.
    pub(super) fn handle_sight(&mut self, now: Nanos, sight: &Sight) -> Option<u32> {
        let bound = sight.bound.as_ref();
        let was_attached = self.detached.is_none();
        if was_attached && bound.is_some_and(|(index, _)| sight.named == Some(*index)) {
            return None;
        }
        if was_attached || sight.named.is_none() {
            self.detached = Some(match bound {
                Some((_, name)) => Detached::Renamed { to: name.clone() },
                None if self.was_bound => Detached::Gone,
                None => Detached::Absent,
            });
        }
        let due = |retry: &(u32, Nanos)| sight.named != Some(retry.0) || now >= retry.1;
        if self.retry.as_ref().is_none_or(due) {
            self.retry = None;
            return sight.named;
        }
        None
    }

    /// Takes the result of opening sockets on the interface `index`. An interface that is gone meanwhile is not tried again: a
    /// message about the next one with its name follows.
    pub(super) fn handle_opened(&mut self, now: Nanos, index: u32, opened: Result<(), Detached>) {
        self.retry = matches!(opened, Err(Detached::Refused { .. })).then_some((index, now + RETRY_INTERVAL));
        self.was_bound |= opened.is_ok();
        self.detached = opened.err();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PORT: &str = "p";

    fn sight(bound: Option<(u32, &str)>, named: Option<u32>) -> Sight {
        Sight {
            bound: bound.map(|(index, name)| (index, name.to_owned())),
            named,
        }
    }

    #[test]
    fn an_interface_is_absent_until_there_is_one_and_gone_after_that() {
        let mut attachment = Attachment::new(false);
        let now = Nanos::ZERO;
        assert_eq!(attachment.handle_sight(now, &sight(None, None)), None);
        assert_eq!(attachment.detached(), Some(&Detached::Absent));
        assert_eq!(attachment.handle_sight(now, &sight(None, Some(3))), Some(3));
        attachment.handle_opened(now, 3, Ok(()));
        assert_eq!(attachment.detached(), None);
        assert_eq!(attachment.handle_sight(now, &sight(None, None)), None);
        assert_eq!(attachment.detached(), Some(&Detached::Gone));
    }

    #[test]
    fn an_interface_that_is_deleted_and_made_again_is_opened_again() {
        let mut attachment = Attachment::new(true);
        let now = Nanos::ZERO;
        assert_eq!(
            attachment.handle_sight(now, &sight(Some((3, PORT)), Some(3))),
            None
        );
        assert_eq!(attachment.detached(), None);
        assert_eq!(attachment.handle_sight(now, &sight(None, None)), None);
        assert_eq!(attachment.detached(), Some(&Detached::Gone));
        assert_eq!(attachment.handle_sight(now, &sight(None, Some(9))), Some(9));
        attachment.handle_opened(now, 9, Ok(()));
        assert_eq!(attachment.detached(), None);
        // The same index again, between two readings: the sockets are not bound any more.
        assert_eq!(attachment.handle_sight(now, &sight(None, Some(9))), Some(9));
        assert_eq!(attachment.detached(), Some(&Detached::Gone));
    }

    #[test]
    fn a_renamed_interface_is_not_followed_and_its_name_is_reported() {
        let mut attachment = Attachment::new(true);
        let now = Nanos::ZERO;
        assert_eq!(attachment.handle_sight(now, &sight(Some((3, "q")), None)), None);
        let text = attachment.detached().map(ToString::to_string);
        assert_eq!(text.as_deref(), Some("the interface was renamed to q"));
        attachment.handle_sight(now, &sight(Some((3, "r\u{1b}")), None));
        let text = attachment.detached().map(ToString::to_string);
        assert_eq!(text.as_deref(), Some("the interface was renamed to r\\u{1b}"));
        assert_eq!(attachment.handle_sight(now, &sight(None, None)), None);
        assert_eq!(attachment.detached(), Some(&Detached::Gone));

        // Back to its name.
        let mut attachment = Attachment::new(true);
        attachment.handle_sight(now, &sight(Some((3, "q")), None));
        assert_eq!(
            attachment.handle_sight(now, &sight(Some((3, PORT)), Some(3))),
            Some(3)
        );
        // Another interface has the name.
        let mut attachment = Attachment::new(true);
        assert_eq!(
            attachment.handle_sight(now, &sight(Some((3, "q")), Some(4))),
            Some(4)
        );
        assert_eq!(attachment.detached(), Some(&Detached::Renamed { to: "q".into() }));
    }

    #[test]
    fn a_refused_interface_is_tried_again_after_an_interval_and_another_one_at_once() {
        let mut attachment = Attachment::new(true);
        let mut now = Nanos::ZERO;
        assert_eq!(attachment.handle_sight(now, &sight(None, Some(4))), Some(4));
        let refused = || {
            let reason = "no memory".to_owned();
            Err(Detached::Refused { reason })
        };
        attachment.handle_opened(now, 4, refused());
        let at = attachment.poll_timeout().expect("a further attempt");
        assert_eq!(attachment.handle_sight(now, &sight(None, Some(4))), None);
        now = at;
        assert_eq!(attachment.handle_sight(now, &sight(None, Some(4))), Some(4));
        attachment.handle_opened(now, 4, refused());
        assert_eq!(
            attachment.detached().map(ToString::to_string).as_deref(),
            Some("no memory")
        );
        assert_eq!(attachment.handle_sight(now, &sight(None, Some(5))), Some(5));
        attachment.handle_opened(now, 5, Ok(()));
        assert_eq!((attachment.detached(), attachment.poll_timeout()), (None, None));
    }

    /// A change of the kernel's interfaces, by position in the list of those that exist.
    #[derive(Clone, Debug)]
    enum Change {
        Create { name: usize, index: u32 },
        Delete(usize),
        Rename { which: usize, name: usize },
        Refuse(bool),
    }

    /// A change, and what the watcher learns of it: how often it reads, and what changes between a reading and the opening.
    #[derive(Clone, Debug)]
    struct Step {
        change: Change,
        readings: usize,
        meanwhile: Option<Change>,
        wait: Nanos,
    }

    const NAMES: [&str; 3] = [PORT, "q", "r"];

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            // Few indices, so that they are used again.
            3 => (0..NAMES.len(), 1..4_u32).prop_map(|(name, index)| Change::Create { name, index }),
            3 => (0..3_usize).prop_map(Change::Delete),
            3 => (0..3_usize, 0..NAMES.len()).prop_map(|(which, name)| Change::Rename { which, name }),
            1 => any::<bool>().prop_map(Change::Refuse),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        let meanwhile = prop_oneof![4 => Just(None), 1 => change().prop_map(Some)];
        let wait = prop_oneof![3 => Just(Nanos::ZERO), 1 => Just(RETRY_INTERVAL)];
        (change(), 0..3_usize, meanwhile, wait).prop_map(|(change, readings, meanwhile, wait)| Step {
            change,
            readings,
            meanwhile,
            wait,
        })
    }

    #[derive(Clone, Debug)]
    struct Interface {
        index: u32,
        name: &'static str,
        /// Unique. Sockets are bound to it, whatever has its index later.
        identity: u64,
    }

    /// The kernel's interfaces, and a port whose sockets are bound to one of them.
    struct Model {
        interfaces: Vec<Interface>,
        refuses: bool,
        identities: u64,
        attachment: Attachment,
        /// Of the sockets opened last.
        bound: u64,
    }

    impl Model {
        fn apply(&mut self, change: &Change) {
            match *change {
                Change::Create { name, index } => {
                    let name = NAMES[name];
                    if !self.interfaces.iter().any(|i| i.name == name || i.index == index) {
                        self.identities += 1;
                        let identity = self.identities;
                        self.interfaces.push(Interface {
                            index,
                            name,
                            identity,
                        });
                    }
                }
                Change::Delete(which) if which < self.interfaces.len() => {
                    self.interfaces.remove(which);
                }
                Change::Rename { which, name } if which < self.interfaces.len() => {
                    if !self.interfaces.iter().any(|i| i.name == NAMES[name]) {
                        self.interfaces[which].name = NAMES[name];
                    }
                }
                Change::Delete(_) | Change::Rename { .. } => {}
                Change::Refuse(refuses) => self.refuses = refuses,
            }
        }

        fn named(&self) -> Option<&Interface> {
            self.interfaces.iter().find(|i| i.name == PORT)
        }

        fn sight(&self) -> Sight {
            let bound = self.interfaces.iter().find(|i| i.identity == self.bound);
            Sight {
                bound: bound.map(|i| (i.index, i.name.to_owned())),
                named: self.named().map(|i| i.index),
            }
        }

        /// What the watcher does at a message.
        fn read(&mut self, now: Nanos, meanwhile: Option<&Change>) {
            let Some(index) = self.attachment.handle_sight(now, &self.sight()) else {
                return;
            };
            if let Some(change) = meanwhile {
                self.apply(change);
            }
            let opened = match self.named() {
                Some(_) if self.refuses => Err(Detached::Refused {
                    reason: "refused".to_owned(),
                }),
                Some(interface) => {
                    self.bound = interface.identity;
                    Ok(())
                }
                None => Err(Detached::Gone),
            };
            self.attachment.handle_opened(now, index, opened);
        }

        fn is_right(&self) -> bool {
            match (self.named(), self.attachment.detached()) {
                (Some(interface), None) => interface.identity == self.bound,
                (Some(_), Some(Detached::Refused { .. })) => self.refuses,
                (Some(_), Some(_)) => false,
                (None, Some(Detached::Gone)) => !self.interfaces.iter().any(|i| i.identity == self.bound),
                (None, Some(Detached::Renamed { to })) => self
                    .interfaces
                    .iter()
                    .any(|i| i.identity == self.bound && i.name == to),
                (None, _) => false,
            }
        }
    }

    proptest! {
        /// Whatever changes, and whichever messages are lost, repeated or late: a reading leaves the port on the interface with
        /// its name or without one, never on another, and once all is quiet the reason is the right one.
        #[test]
        fn a_port_is_on_the_interface_with_its_name(steps in prop::collection::vec(step(), 1..40)) {
            let first = Interface { index: 1, name: PORT, identity: 1 };
            let mut model = Model {
                interfaces: vec![first],
                refuses: false,
                identities: 1,
                attachment: Attachment::new(true),
                bound: 1,
            };
            let mut now = Nanos::ZERO;
            for step in &steps {
                model.apply(&step.change);
                now += step.wait;
                for reading in 0..step.readings {
                    let meanwhile = step.meanwhile.as_ref().filter(|_| reading == 0);
                    model.read(now, meanwhile);
                    if reading > 0 {
                        prop_assert!(model.attachment.detached().is_some() || model.is_right());
                        // A repeated message changes nothing.
                        let before = model.attachment.detached().cloned();
                        model.read(now, None);
                        prop_assert_eq!(before.as_ref(), model.attachment.detached());
                    }
                }
            }
            // The last message, and the attempt that may be due.
            model.read(now, None);
            if let Some(at) = model.attachment.poll_timeout() {
                model.read(at, None);
            }
            prop_assert!(model.is_right(), "{:?} of {:?}", model.attachment, model.interfaces);
        }
    }
}
