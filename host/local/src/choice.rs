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

/// With fewer ranks per host, the direct path is faster for large ReduceScatters and for AllGathers.
const RANKS_PER_HOST: usize = 3;
/// Bytes up to which a ReduceScatter of fewer ranks per host is faster over shared memory.
const SCATTER_MAX: u64 = 128 << 10;

/// The faster path of a call of `bytes`, those of all ranks' blocks together for ReduceScatter and AllGather. `docs/collectives.md`
/// has the measurement.
///
/// The ranks of a host send the same bytes once where they are reduced or broadcast. The blocks of ReduceScatter and AllGather
/// differ from rank to rank: sharing them saves frames to the ranks of the own host only.
pub fn choose(collective: Collective, bytes: u64, layout: &Layout) -> RankPath {
    let few = layout.ranks() < RANKS_PER_HOST * layout.hosts();
    match collective {
        _ if layout.most_ranks() <= 1 => RankPath::Direct,
        Collective::AllGather if few => RankPath::Direct,
        Collective::ReduceScatter if few && bytes > SCATTER_MAX => RankPath::Direct,
        _ => RankPath::Hierarchical,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_follows_from_the_call_its_bytes_and_the_layout() {
        let (one, two, four) = (
            Layout::new([0, 1, 2, 3]),
            Layout::new([0, 1, 0, 1]),
            Layout::new([0, 1, 0, 1, 0, 1, 0, 1]),
        );
        let hierarchical =
            |collective, bytes, layout| choose(collective, bytes, layout) == RankPath::Hierarchical;
        for bytes in [0, 4 << 10, 1 << 20] {
            for collective in [
                Collective::AllReduce,
                Collective::Reduce { root: 0 },
                Collective::Broadcast { root: 0 },
                Collective::Barrier,
            ] {
                assert!(!hierarchical(collective, bytes, &one));
                assert!(hierarchical(collective, bytes, &two));
            }
            assert!(!hierarchical(Collective::AllGather, bytes, &two));
            assert!(hierarchical(Collective::AllGather, bytes, &four));
            assert!(hierarchical(Collective::ReduceScatter, bytes, &four));
        }
        assert!(hierarchical(Collective::ReduceScatter, SCATTER_MAX, &two));
        assert!(!hierarchical(Collective::ReduceScatter, SCATTER_MAX + 1, &two));
    }

    #[test]
    fn choices_are_read_as_they_are_written() {
        for choice in [PathChoice::Direct, PathChoice::Hierarchical, PathChoice::Auto] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("both".parse::<PathChoice>().is_err());
    }
}
