//! Which controller may change the groups of an owner: the one with the largest epoch.

use castnet_proto::v1::ControllerTerm;

use crate::state::refusal::Refusal;

/// Owners without groups that are remembered. A controller without a store is a new owner at each start.
const OWNERS_MAX: usize = 64;

/// The last controller of each owner, the one that was heard of last at the end.
#[derive(Debug, Default)]
pub(crate) struct Terms(Vec<ControllerTerm>);

impl Terms {
    /// Whether a controller of this owner is remembered.
    pub(crate) fn knows(&self, owner: &str) -> bool {
        self.0.iter().any(|term| term.owner == owner)
    }

    /// Fails if another controller has taken over. A larger epoch takes over. An owner that `has_groups` is never forgotten: an earlier
    /// controller of it would come back.
    pub(crate) fn check(
        &mut self,
        term: &ControllerTerm,
        has_groups: impl Fn(&str) -> bool,
    ) -> Result<(), Refusal> {
        let at = self.0.iter().position(|t| t.owner == term.owner);
        if let Some((at, last)) = at.and_then(|at| Some((at, self.0.get(at)?))) {
            if (term.epoch, term.instance) == (last.epoch, last.instance) {
                // Who is heard of is forgotten last.
                self.0[at..].rotate_left(1);
                return Ok(());
            }
            if term.epoch <= last.epoch {
                let (term, last) = (term.clone().into(), last.clone().into());
                return Err(Refusal::TermOver { term, last });
            }
        }
        let ControllerTerm {
            owner,
            epoch,
            address,
            ..
        } = term;
        tracing::info!(owner, epoch, address, "a controller takes over");
        let forgotten = || match self.0.len() < OWNERS_MAX {
            true => None,
            false => self.0.iter().position(|t| !has_groups(&t.owner)),
        };
        if let Some(at) = at.or_else(forgotten) {
            self.0.remove(at);
        }
        self.0.push(term.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(owner: u64, epoch: u64, instance: u64) -> ControllerTerm {
        ControllerTerm {
            owner: format!("controller-{owner}"),
            epoch,
            instance,
            address: format!("http://c{instance}:7470"),
            in_memory: false,
        }
    }

    /// Owner 3 has groups.
    fn check(terms: &mut Terms, term: ControllerTerm) -> Result<(), Refusal> {
        terms.check(&term, |owner| owner == "controller-3")
    }

    /// Each call after those before it: owner, epoch and instance of its controller, and the start of the refusal.
    const CALLS: [((u64, u64, u64), &str); 9] = [
        ((1, 5, 1), ""),
        ((1, 5, 1), ""),
        ((2, 1, 9), ""),
        (
            (1, 5, 2),
            "the controller at http://c1:7470 runs on a copy of the same store",
        ),
        ((1, 6, 2), ""),
        (
            (1, 5, 1),
            "the controller at http://c2:7470 has taken over the groups of \"controller-1\" with epoch 6",
        ),
        ((1, 5, 2), "the controller at http://c2:7470 has taken over"),
        ((2, 1, 9), ""),
        ((1, 6, 2), ""),
    ];

    #[test]
    fn a_larger_epoch_takes_over_and_an_older_one_is_refused_by_name() {
        let mut terms = Terms::default();
        for (call, refusal) in CALLS {
            let (owner, epoch, instance) = call;
            let refused = check(&mut terms, term(owner, epoch, instance)).err();
            let refused = refused.map(|refusal| refusal.to_string()).unwrap_or_default();
            assert!(refused.starts_with(refusal), "{call:?}: {refused:?}");
            assert_eq!(refused.is_empty(), refusal.is_empty(), "{call:?}: {refused:?}");
        }
    }

    #[test]
    fn owners_are_bounded_and_the_oldest_without_groups_is_forgotten_first() {
        let mut terms = Terms::default();
        for owner in 0..=OWNERS_MAX as u64 {
            check(&mut terms, term(owner, 2, 1)).unwrap();
        }
        assert_eq!(terms.0.len(), OWNERS_MAX);
        check(&mut terms, term(1, 1, 1)).unwrap_err();
        check(&mut terms, term(0, 1, 1)).unwrap();
        for owner in 100..300 {
            check(&mut terms, term(owner, 2, 1)).unwrap();
            // One that lives is heard of all the time.
            check(&mut terms, term(60, 2, 1)).unwrap();
        }
        assert!(terms.knows("controller-60"));
        assert_eq!(terms.0.len(), OWNERS_MAX);
        assert!(terms.knows("controller-3") && !terms.knows("controller-1"));
        check(&mut terms, term(3, 1, 1)).unwrap_err();
        check(&mut terms, term(1, 1, 1)).unwrap();
    }
}
