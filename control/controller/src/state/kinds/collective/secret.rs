//! The secret of a job, which keeps ranks of others out. Only a digest is kept.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::record::Collective;
use crate::error::Refusal;
use crate::state::Core;

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
    /// Refuses a rank that gives another secret than those that are in. The first rank of a job sets it.
    pub(crate) fn check_secret(&self, job: &str, rank: u16, given: &Secret) -> Result<(), Refusal> {
        let group = self.collective(job).ok();
        match group.and_then(|(_, group)| group.secret_of_ranks()) {
            Some(secret) if !secret.same(given) => {
                let job = job.into();
                Err(Refusal::OtherSecret { job, rank })
            }
            _ => Ok(()),
        }
    }
}

impl Collective {
    /// The secret of its ranks, once one is in.
    pub(crate) fn secret_of_ranks(&self) -> Option<&Secret> {
        let has_begun = self.ranks.iter().any(|rank| rank.state.seat().is_some());
        has_begun.then_some(&self.secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_of_the_same_job_is_the_same() {
        let secret = Secret::new("a", b"s");
        assert!(secret.same(&Secret::new("a", b"s")));
        for other in [("a", &b"t"[..]), ("b", b"s"), ("a", b"")] {
            assert!(!secret.same(&Secret::new(other.0, other.1)), "{other:?}");
        }
        assert!(Secret::new("a", b"").same(&Secret::new("b", b"")));
    }
}
