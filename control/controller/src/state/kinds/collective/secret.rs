//! The secret of a job, which keeps ranks of others out. Only a digest is kept.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::Refusal;
use crate::state::{After, Core, Phase, Record};

/// The digest of a secret; `None`: the job has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Secret(Option<[u8; 32]>);

impl Secret {
    /// Of the bytes that a rank of `job` gave. Equal secrets of two jobs have different digests.
    pub(crate) fn new(job: &str, given: &[u8]) -> Self {
        let digest = || {
            let mut hash = Sha256::new();
            hash.update(job.as_bytes());
            hash.update([0]);
            hash.update(given);
            hash.finalize().into()
        };
        Self((!given.is_empty()).then(digest))
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// In constant time.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let bytes = |secret: &Self| secret.0.unwrap_or_default();
        let equal: bool = bytes(self).ct_eq(&bytes(other)).into();
        equal && self.is_none() == other.is_none()
    }
}

impl Core {
    /// Refuses a rank that gives another secret than those that are in, or come back. The first rank of a job sets it.
    pub(crate) fn check_secret(&self, job: &str, rank: u16, given: &Secret) -> Result<(), Refusal> {
        let group = self.collective(job).ok();
        match group.and_then(|(entry, _)| entry.record().secret_of_ranks()) {
            Some(secret) if !secret.same(given) => {
                let job = job.into();
                Err(Refusal::OtherSecret { job, rank })
            }
            _ => Ok(()),
        }
    }
}

impl Record {
    /// The secret of the ranks of a job, once one is in. A job that its ranks have created keeps it after a failure until it is forgotten,
    /// also while none is in: they come back. That of an operator takes the next secret, as it is never forgotten.
    pub(crate) fn secret_of_ranks(&self) -> Option<&Secret> {
        let group = self.collective()?;
        let has_begun = group.ranks.iter().any(|rank| rank.state.seat().is_some());
        let has_failed = matches!(
            self.phase,
            Phase::Broken | Phase::Failed | Phase::Refused | Phase::Removing(After::Failed | After::Refused)
        );
        let come_back = group.by_call && has_failed && !group.secret.is_none();
        (has_begun || come_back).then_some(&group.secret)
    }
}

#[cfg(test)]
mod tests {
    use castnet_group::CollectiveSettings;
    use castnet_wire::McstId;

    use super::*;
    use crate::state::core::tests::{core, join};
    use crate::state::lifecycle::PHASES;
    use crate::state::{Collective, Ending, Event, Kind};

    #[test]
    fn only_the_same_secret_of_the_same_job_is_the_same() {
        let secret = Secret::new("a", b"s");
        assert!(secret.same(&Secret::new("a", b"s")));
        for other in [("a", &b"t"[..]), ("b", b"s"), ("a", b"")] {
            assert!(!secret.same(&Secret::new(other.0, other.1)), "{other:?}");
        }
        assert!(Secret::new("a", b"").same(&Secret::new("b", b"")));
    }

    /// A stranger joined a job that had failed, with another secret, and kept its ranks out.
    #[test]
    fn a_job_that_has_failed_keeps_its_secret_until_it_is_forgotten() {
        let mut core = core(|_| {});
        core.seat_rank(join("job", 0, 2, "s"), "h0").map(drop).unwrap();
        core.seat_rank(join("job", 1, 2, "s"), "h1").map(drop).unwrap();
        core.try_change("job", |r| (r.phase, r.generation) = (Phase::Active, 1));
        let ending = Ending::failed(1, None, None, "a link is down".into());
        core.step("job", Event::Broke, Some(ending)).unwrap();
        let other = |core: &mut Core| core.seat_rank(join("job", 1, 2, "x"), "h1").map(drop);
        for phase in [Phase::Broken, Phase::Removing(After::Failed), Phase::Failed] {
            core.try_change("job", |r| r.phase = phase);
            let refused = other(&mut core);
            assert!(
                matches!(refused, Err(Refusal::OtherSecret { rank: 1, .. })),
                "{phase:?}"
            );
        }
        core.seat_rank(join("job", 1, 2, "s"), "h1").map(drop).unwrap();
        core.forget("job").unwrap();
        other(&mut core).unwrap();
    }

    /// The next job of the same name may have another one.
    #[test]
    fn a_job_that_is_over_and_a_group_of_an_operator_take_the_next_secret() {
        for phase in PHASES {
            let keeps = |by_call: bool, secret: &str| {
                let hosts = vec![String::new(); 2];
                let mut group = Collective::new(hosts, CollectiveSettings::default(), by_call);
                group.secret = Secret::new("job", secret.as_bytes());
                let mcst_ids = (McstId([10, 200, 0, 1].into()), Vec::new());
                let mut record = Record::new("job".into(), mcst_ids, Kind::Collective(group));
                record.phase = phase;
                record.secret_of_ranks().is_some()
            };
            let comes_back = match phase {
                Phase::Broken | Phase::Refused | Phase::Failed => true,
                Phase::Removing(after) => matches!(after, After::Refused | After::Failed),
                Phase::Registered | Phase::Installing | Phase::Active | Phase::Degraded => false,
            };
            assert_eq!(keeps(true, "s"), comes_back, "{phase:?}");
            assert!(!keeps(true, "") && !keeps(false, "s"), "{phase:?}");
        }
    }
}
