//! The explorations: EPIC's appendix H and additions.

use super::nodes::SWITCHES;
use super::{Collective, Config, Fault, Losable};
use crate::report::{Outcome, Until, explore};
use castnet_collective::translated::{CollectiveMode, LossPolicy, StragglerPolicy};
use castnet_wire::Primitive;

/// A named run.
#[derive(Clone, Copy)]
pub struct Run {
    /// Name.
    pub name: &'static str,
    /// Bounds.
    pub config: Config,
}

impl Run {
    /// Explores all states of the run.
    pub fn explore(&self, threads: usize) -> Outcome {
        explore(self.name, Collective::new(self.config), Until::All, threads)
    }
}

const fn all_reduce(loss: LossPolicy) -> Config {
    Config::without_faults(Primitive::AllReduce, 0, loss)
}

const fn reduce(loss: LossPolicy) -> Config {
    Config::without_faults(Primitive::Reduce, 1, loss)
}

const fn broadcast(loss: LossPolicy) -> Config {
    Config::without_faults(Primitive::Broadcast, 2, loss)
}

const fn run(name: &'static str, config: Config) -> Run {
    Run { name, config }
}

const fn one_loss(config: Config) -> Config {
    Config { losses: 1, ..config }
}

use CollectiveMode::{Augmented, Terminated, Translated};
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

/// A rank that starts late, and one that makes another call.
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

const fn asked(config: Config) -> Config {
    Config {
        asks: 1,
        ..two_packets(one_loss(config))
    }
}

/// Switches ask for what is missing, as they do after a silence, before or after any tick and time-out.
pub const ASKED: &[Run] = &[
    run("AllReduce, repair: loss, switches ask", asked(all_reduce(Repair))),
    run("Reduce, repair: loss, switches ask", asked(reduce(Repair))),
    run("Broadcast, repair: loss, switches ask", asked(broadcast(Repair))),
    run(
        "AllReduce, augmented: loss, switches ask",
        augmented(asked(all_reduce(Repair))),
    ),
    run(
        "AllReduce, repair: late rank, switches ask",
        Config {
            late_rank: Some(3),
            losses: 0,
            ..asked(all_reduce(Repair))
        },
    ),
];

const fn two_packets(config: Config) -> Config {
    Config { packets: 2, ..config }
}

const fn duplicate_and_late(config: Config) -> Config {
    Config {
        duplicates: 1,
        delays: 1,
        ..two_packets(config)
    }
}

/// Pipes of two slots.
pub const fn short(config: Config) -> Config {
    Config { slots: 4, ..config }
}

/// No timer expires, and what is lost shows at once.
pub const fn without_timers(config: Config) -> Config {
    Config {
        losable: Losable::Followed,
        ticks: 0,
        time_outs: 0,
        ..config
    }
}

const fn augmented(config: Config) -> Config {
    Config {
        modes: [Augmented; SWITCHES],
        ..config
    }
}

/// Mode-III.
pub const AUGMENTED: &[Run] = &[
    run(
        "AllReduce, augmented: loss",
        augmented(one_loss(all_reduce(Repair))),
    ),
    run("Reduce, augmented: loss", augmented(one_loss(reduce(Repair)))),
    run(
        "Broadcast, augmented: loss",
        augmented(one_loss(broadcast(Repair))),
    ),
    run(
        "AllReduce, augmented: late rank",
        augmented(Config {
            late_rank: Some(3),
            ..all_reduce(Repair)
        }),
    ),
    run(
        "Barrier, augmented: loss, duplicate",
        augmented(Config {
            packets: 0,
            losses: 1,
            duplicates: 1,
            ..all_reduce(Repair)
        }),
    ),
    run(
        "Barrier, augmented: ranks disagree, loss",
        augmented(Config {
            packets: 0,
            dissenter: Some(2),
            losses: 1,
            ..all_reduce(Repair)
        }),
    ),
];

/// Pipes that are shorter than what a rank sends: what is refused is called back.
pub const SHORT: &[Run] = &[
    run(
        "AllReduce, augmented: short pipes",
        two_packets(short(augmented(all_reduce(Repair)))),
    ),
    run(
        "Broadcast, augmented: short pipes, loss",
        two_packets(short(augmented(one_loss(broadcast(Repair))))),
    ),
    run(
        "Broadcast, augmented: short pipes, three packets, loss",
        short(augmented(one_loss(broadcast(Repair)))),
    ),
];

/// Losses that no timer needs to repair.
pub const WITHOUT_TIMERS: &[Run] = &[
    run(
        "AllReduce, repair: loss, no timers",
        two_packets(without_timers(one_loss(all_reduce(Repair)))),
    ),
    run(
        "AllReduce, augmented: loss, no timers",
        two_packets(without_timers(augmented(one_loss(all_reduce(Repair))))),
    ),
];

/// Runs of Mode-III that are too large for the tests.
pub const AUGMENTED_FULL: &[Run] = &[
    run(
        "Reduce, augmented: short pipes, loss",
        two_packets(short(augmented(one_loss(reduce(Repair))))),
    ),
    run(
        "Reduce, augmented: short pipes, three packets, loss",
        short(augmented(one_loss(reduce(Repair)))),
    ),
    run(
        "Reduce, augmented: duplicate, late message",
        augmented(duplicate_and_late(reduce(Repair))),
    ),
    run(
        "Broadcast, augmented: duplicate, late message",
        augmented(duplicate_and_late(broadcast(Repair))),
    ),
];

const fn mixed(modes: [CollectiveMode; SWITCHES], config: Config) -> Config {
    Config {
        modes,
        ..two_packets(one_loss(config))
    }
}

/// Switches of several modes in one tree: each edge between two modes is an RC connection for both its ends. The order is that of
/// [`Config::modes`].
pub const MIXED: &[Run] = &[
    run(
        "AllReduce, Mode-III above II and III: loss",
        mixed([Augmented, Translated, Augmented], all_reduce(Repair)),
    ),
    run(
        "Reduce, Mode-III above II and III: loss",
        mixed([Augmented, Translated, Augmented], reduce(Repair)),
    ),
    run(
        "Broadcast, Mode-III above II and III: loss",
        mixed([Augmented, Translated, Augmented], broadcast(Repair)),
    ),
    run(
        "AllReduce, Mode-II above III and II: loss",
        mixed([Translated, Augmented, Translated], all_reduce(Repair)),
    ),
    run(
        "AllReduce, Mode-I above II and III: loss",
        mixed([Terminated, Translated, Augmented], all_reduce(Repair)),
    ),
    run(
        "Reduce, Mode-I above II and III: loss",
        mixed([Terminated, Translated, Augmented], reduce(Repair)),
    ),
    run(
        "Broadcast, Mode-I above II and III: loss",
        mixed([Terminated, Translated, Augmented], broadcast(Repair)),
    ),
    run(
        "AllReduce, Mode-II above I and III: loss",
        mixed([Translated, Terminated, Augmented], all_reduce(Repair)),
    ),
    run(
        "AllReduce, Mode-III above I and II: loss",
        mixed([Augmented, Terminated, Translated], all_reduce(Repair)),
    ),
];

/// Results of EPIC's table 8 for the same tree, packets and bounds, in TLA+: mode and primitive, states, distinct states. Its switches
/// neither bridge PSNs nor aggregate control messages nor, in Mode-II, repair.
pub const EPIC_TABLE_8: &[(&str, u64, u64)] = &[
    ("Mode-II AllReduce", 3_981_257, 901_703),
    ("Mode-II Reduce", 52_105, 14_136),
    ("Mode-II Broadcast", 1_763_880, 320_128),
    ("Mode-III AllReduce", 2_242_781_644, 439_476_508),
    ("Mode-III Reduce", 2_291_727, 447_972),
    ("Mode-III Broadcast", 67_902_618, 9_911_424),
];

/// Runs that are too large for the tests.
pub const FULL: &[Run] = &[
    run(
        "AllReduce, repair: duplicate, late message",
        duplicate_and_late(all_reduce(Repair)),
    ),
    run(
        "Broadcast, repair: duplicate, late message",
        duplicate_and_late(broadcast(Repair)),
    ),
    run(
        "Reduce, reflect: duplicate, late message",
        duplicate_and_late(reduce(Reflect)),
    ),
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
            ticks: 4,
            time_outs: 4,
            kept: 2,
            straggler: StragglerPolicy::None,
            losses: 1,
            packets: 2,
            ..all_reduce(Repair)
        },
    ),
];

/// A run with a deliberate fault, with so many packets of each rank.
pub const fn with_fault(fault: Fault, mode: CollectiveMode, packets: u8) -> Config {
    Config {
        fault,
        modes: [mode; SWITCHES],
        packets,
        ..one_loss(all_reduce(Repair))
    }
}
