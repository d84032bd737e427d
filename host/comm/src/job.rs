//! The groups that this rank has in its job.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::group::{Group, GroupRef};

/// The number of the group of the whole job. 0 is no number.
pub(crate) const OWN_GROUP: u64 = 1;

/// What the communicators of a rank have in common.
pub(crate) struct Job {
    /// The oldest first. A group that only this list has is kept for a new communicator of the same members.
    groups: RefCell<Vec<GroupRef>>,
    /// A number that no group of this rank has had.
    next: Cell<u64>,
    /// Whether the communicator of the whole job is closed: nothing is kept any more.
    is_closed: Cell<bool>,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            groups: RefCell::default(),
            next: Cell::new(OWN_GROUP + 1),
            is_closed: Cell::new(false),
        }
    }
}

fn is_used(group: &GroupRef) -> bool {
    Rc::strong_count(group) > 1
}

/// Whether it takes one of the places of [`crate::CommConfig::groups_max`].
fn counts(group: &Group) -> bool {
    group.members.len() > 1
}

impl Job {
    pub(crate) fn next(&self) -> u64 {
        self.next.get()
    }

    /// Number `used` is taken, here or at another rank.
    pub(crate) fn advance(&self, used: u64) {
        self.next.set(self.next.get().max(used.saturating_add(1)));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    pub(crate) fn add(&self, group: Group) -> GroupRef {
        let group = Rc::new(RefCell::new(group));
        self.groups.borrow_mut().push(group.clone());
        group
    }

    pub(crate) fn remove(&self, group: &GroupRef) {
        self.groups.borrow_mut().retain(|one| !Rc::ptr_eq(one, group));
    }

    pub(crate) fn find(&self, number: u64) -> Option<GroupRef> {
        let groups = self.groups.borrow();
        groups.iter().find(|one| one.borrow().number == number).cloned()
    }

    /// The newest group that these members can use; 0: there is none.
    pub(crate) fn number_of(&self, members: &[u16]) -> u64 {
        let groups = self.groups.borrow();
        let fits = |one: &&GroupRef| *one.borrow().members == *members && one.borrow().is_reusable();
        groups
            .iter()
            .rev()
            .find(fits)
            .map_or(0, |one| one.borrow().number)
    }

    /// Number of groups that communicators use.
    pub(crate) fn in_use(&self) -> u64 {
        let groups = self.groups.borrow();
        groups
            .iter()
            .filter(|one| is_used(one) && counts(&one.borrow()))
            .count() as u64
    }

    /// Leaves the groups that nobody can use any more.
    pub(crate) fn tidy(&self) {
        self.leave_unused(|one| !one.is_reusable());
    }

    /// Leaves unused groups, the oldest first, until a new group of `members` fits.
    pub(crate) fn make_room(&self, members: &[u16], max: u16) {
        // A rank has left the group that these members had.
        self.leave_unused(|one| *one.members == *members);
        while members.len() > 1 {
            let oldest = {
                let groups = self.groups.borrow();
                let all = groups.iter().filter(|one| counts(&one.borrow())).count();
                let oldest = groups.iter().find(|one| !is_used(one) && counts(&one.borrow()));
                oldest
                    .filter(|_| all >= usize::from(max))
                    .map(|one| one.borrow().number)
            };
            match oldest {
                Some(number) => self.leave_unused(|one| one.number == number),
                None => return,
            }
        }
    }

    /// Leaves all groups that no communicator uses, and keeps none from now on.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
        self.leave_unused(|_| true);
    }

    fn leave_unused(&self, which: impl Fn(&Group) -> bool) {
        let unused: Vec<GroupRef> = {
            let groups = self.groups.borrow();
            let unused = |one: &&GroupRef| !is_used(one) && which(&one.borrow());
            groups.iter().filter(unused).cloned().collect()
        };
        for group in unused {
            self.remove(&group);
            group.borrow_mut().leave();
        }
    }

    /// Progresses the groups that nobody waits for now. Returns true if there was work.
    pub(crate) fn progress(&self) -> bool {
        let groups = self.groups.borrow();
        groups.iter().fold(false, |worked, one| {
            let one = one.try_borrow_mut();
            worked | one.is_ok_and(|mut one| one.progress_aside())
        })
    }

    /// Whether no group that nobody waits for now has anything to do.
    pub(crate) fn is_drained(&self) -> bool {
        let groups = self.groups.borrow();
        let is_drained = |one: &GroupRef| {
            one.try_borrow()
                .map_or(true, |one| one.broken || one.is_drained())
        };
        groups.iter().all(is_drained)
    }
}
