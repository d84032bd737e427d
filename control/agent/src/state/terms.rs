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
        let (owner, epoch) = (&term.owner, term.epoch);
        let at = self.0.iter().position(|t| t.owner == *owner);
        if let Some((at, last)) = at.and_then(|at| Some((at, self.0.get(at)?))) {
            let (has, other) = (last.epoch, &last.address);
            if (epoch, term.instance) == (has, last.instance) {
                // Who is heard of is forgotten last.
                self.0[at..].rotate_left(1);
                return Ok(());
            }
            if epoch < has {
                return Err(Refusal::TermOver(format!(
                    "the controller at {other} has taken over the groups of {owner:?} with epoch {has}: epoch {epoch} is over"
                )));
            }
            if epoch == has {
                return Err(Refusal::TermOver(format!(
                    "the controller at {other} runs on a copy of the same store (owner {owner:?}, epoch {epoch}): stop one of them"
                )));
            }
        }
        tracing::info!(owner, epoch, address = term.address, "a controller takes over");
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

    #[test]
    fn a_larger_epoch_takes_over_and_an_older_one_is_refused_by_name() {
        let mut terms = Terms::default();
        check(&mut terms, term(1, 5, 1)).unwrap();
        check(&mut terms, term(1, 5, 1)).unwrap();
        check(&mut terms, term(2, 1, 9)).unwrap();
        let copy = check(&mut terms, term(1, 5, 2)).unwrap_err().to_string();
        assert!(copy.contains("c1:7470 runs on a copy"), "{copy}");
        check(&mut terms, term(1, 6, 2)).unwrap();
        for instance in [1, 2] {
            let old = check(&mut terms, term(1, 5, instance)).unwrap_err().to_string();
            assert!(old.contains("c2:7470 has taken over"), "{old}");
        }
        check(&mut terms, term(1, 6, 2)).unwrap();
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
