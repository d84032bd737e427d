//! What is explored: EPIC's appendix H and what it leaves out.

use super::{Collective, Config, Spoil};
use crate::report::{Outcome, Until, explore};
use castnet_collective::translated::{LossPolicy, StragglerPolicy};
use castnet_wire::Primitive;

/// A run: its name, and its bounds.
#[derive(Clone, Copy)]
pub struct Run {
    /// What it is.
    pub name: &'static str,
    /// How far it goes.
    pub config: Config,
}

impl Run {
    /// Explores all of it.
    pub fn explore(&self, threads: usize) -> Outcome {
        explore(self.name, Collective::new(self.config), Until::All, threads)
    }
}

const fn all_reduce(loss: LossPolicy) -> Config {
    Config::calm(Primitive::AllReduce, 0, loss)
}

const fn reduce(loss: LossPolicy) -> Config {
    Config::calm(Primitive::Reduce, 1, loss)
}

const fn broadcast(loss: LossPolicy) -> Config {
    Config::calm(Primitive::Broadcast, 2, loss)
}

const fn run(name: &'static str, config: Config) -> Run {
    Run { name, config }
}

const fn one_loss(config: Config) -> Config {
    Config { losses: 1, ..config }
}

use LossPolicy::{Reflect, Repair};

/// The switches repair: the default.
pub const REPAIR: &[Run] = &[
    run("AllReduce, repair: loss", one_loss(all_reduce(Repair))),
    run("Reduce, repair: loss", one_loss(reduce(Repair))),
    run("Broadcast, repair: loss", one_loss(broadcast(Repair))),
];

/// Losses are reflected to the hosts: the paper's policy.
pub const REFLECT: &[Run] = &[
    run("AllReduce, reflect: loss", one_loss(all_reduce(Reflect))),
    run("Reduce, reflect: loss", one_loss(reduce(Reflect))),
    run("Broadcast, reflect: loss", one_loss(broadcast(Reflect))),
];

/// A rank that comes late, and one that calls something else.
pub const STRAGGLERS: &[Run] = &[
    run(
        "AllReduce, repair: late rank",
        Config {
            late_rank: Some(3),
            ..all_reduce(Repair)
        },
    ),
    run(
        "Barrier, repair: loss, duplicate",
        Config {
            packets: 0,
            losses: 1,
            duplicates: 1,
            ..all_reduce(Repair)
        },
    ),
    run(
        "Barrier, repair: ranks disagree, loss",
        Config {
            packets: 0,
            dissenter: Some(2),
            losses: 1,
            ..all_reduce(Repair)
        },
    ),
];

/// What the tests leave out for its size.
pub const FULL: &[Run] = &[
    run(
        "Reduce, repair: late message",
        Config {
            delays: 1,
            ..reduce(Repair)
        },
    ),
    run(
        "AllReduce, repair: late rank, loss, no keep-alive",
        Config {
            late_rank: Some(0),
            straggler: StragglerPolicy::None,
            losses: 1,
            packets: 2,
            ..all_reduce(Repair)
        },
    ),
];

/// A fault put in on purpose.
pub const fn spoiled(spoil: Spoil) -> Config {
    Config {
        spoil,
        ..one_loss(all_reduce(Repair))
    }
}
