//! Which path a call takes. All ranks choose the same one: it follows from the call, its bytes and the layout alone.

use std::fmt;
use std::str::FromStr;

use castnet_comm::machine::Collective;

use crate::layout::Layout;

/// The way of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RankPath {
    /// Each rank takes part in the network, with a queue pair of its own.
    Direct,
    /// The ranks of a host share memory, and their leader takes part in the network.
    Hierarchical,
}

impl RankPath {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Hierarchical => "hierarchical",
        }
    }
}

impl fmt::Display for RankPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which paths are allowed. The same at all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PathChoice {
    /// Direct only. Nobody asks which ranks share a host.
    #[default]
    Direct,
    /// Hierarchical only. Calls fail if it cannot be used.
    Hierarchical,
    /// The faster one, chosen for each call.
    Auto,
}

impl fmt::Display for PathChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => RankPath::Direct.name(),
            Self::Hierarchical => RankPath::Hierarchical.name(),
            Self::Auto => "auto",
        })
    }
}

impl FromStr for PathChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Direct, Self::Hierarchical, Self::Auto];
        let found = all.into_iter().find(|choice| choice.to_string() == text);
        found.ok_or_else(|| format!("'{text}': direct, hierarchical or auto"))
    }
}

/// The faster path of a call of `bytes`, those of all ranks' blocks together for ReduceScatter and AllGather.
pub fn choose(_collective: Collective, _bytes: u64, layout: &Layout) -> RankPath {
    match layout.most_ranks() {
        0 | 1 => RankPath::Direct,
        _ => RankPath::Hierarchical,
    }
}
