//! Numbers that nobody can foresee who does not know the seed.

use std::hash::{DefaultHasher, Hash, Hasher};

use castnet_wire::Psn;

pub(crate) struct Draws {
    seed: u64,
    count: u64,
}

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, count: 0 }
    }

    pub(crate) fn psn(&mut self) -> Psn {
        self.count += 1;
        let mut hasher = DefaultHasher::new();
        (self.seed, self.count).hash(&mut hasher);
        Psn::new(hasher.finish() as u32)
    }
}
