//! Which ranks share a host, and how they find each other.

use std::collections::BTreeMap;

/// Marks an offer, and the version of the protocol of this crate.
const MARK: u64 = 0x6c6f_6361_6c00_0001;

/// What each rank gives to all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Equal for ranks that can share memory.
    pub(crate) host: u128,
    /// Number of the process in the PID namespace that is a part of `host`.
    pub(crate) pid: u32,
    /// What must be the same at all ranks.
    pub(crate) settings: u64,
}

impl Offer {
    pub(crate) const WORDS: usize = 5;

    pub(crate) fn to_words(self) -> [u64; Self::WORDS] {
        let (high, low) = ((self.host >> 64) as u64, self.host as u64);
        [MARK, high, low, self.pid.into(), self.settings]
    }

    /// `None`: another call, or another version.
    pub(crate) fn from_words(words: &[u64]) -> Option<Self> {
        match *words {
            [MARK, high, low, pid, settings] => Some(Self {
                host: u128::from(high) << 64 | u128::from(low),
                pid: u32::try_from(pid).ok()?,
                settings,
            }),
            _ => None,
        }
    }
}

/// The ranks of each host. Hosts are ordered by their lowest rank, which is their leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    hosts: Vec<Vec<u16>>,
    /// For each rank: index of its host, and among the ranks of the host.
    places: Vec<(usize, usize)>,
}

impl Layout {
    /// From something that is equal for ranks of the same host, rank by rank.
    pub fn new<K: Ord>(keys: impl IntoIterator<Item = K>) -> Self {
        let (mut index, mut hosts, mut places) = (BTreeMap::new(), Vec::<Vec<u16>>::new(), Vec::new());
        for (rank, key) in (0..=u16::MAX).zip(keys) {
            let host = *index.entry(key).or_insert(hosts.len());
            if host == hosts.len() {
                hosts.push(Vec::new());
            }
            places.push((host, hosts[host].len()));
            hosts[host].push(rank);
        }
        Self { hosts, places }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.places.len()
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// The ranks of a host, lowest first.
    pub fn ranks_of(&self, host: usize) -> &[u16] {
        &self.hosts[host]
    }

    /// Index of the host of a rank, and of the rank among those of the host. The leader is number 0.
    pub fn place(&self, rank: u16) -> (usize, usize) {
        self.places[usize::from(rank)]
    }

    /// The most ranks that a host has.
    pub fn most_ranks(&self) -> usize {
        self.hosts.iter().map(Vec::len).max().unwrap_or_default()
    }

    /// Whether a reduction on each host and then between leaders, both in rank order, is the one of all ranks in rank
    /// order: only the first host has several ranks, and they are the first ones, or there is one host.
    pub fn keeps_rank_order(&self) -> bool {
        let is_first = |(own, place): (usize, &u16)| own == usize::from(*place);
        self.hosts.iter().skip(1).all(|ranks| ranks.len() == 1)
            && self
                .hosts
                .first()
                .is_none_or(|ranks| ranks.iter().enumerate().all(|(own, rank)| is_first((own, rank))))
    }
}

/// A hash that is the same in all builds (FNV-1a).
pub(crate) fn hash(parts: &[&[u8]]) -> u128 {
    let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let mut add = |byte: u8| {
        hash ^= u128::from(byte);
        hash = hash.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    };
    for part in parts {
        (part.len() as u64).to_le_bytes().into_iter().for_each(&mut add);
        part.iter().copied().for_each(&mut add);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_ordered_by_their_leaders() {
        let layout = Layout::new(["b", "a", "b", "c", "a"]);
        assert_eq!((layout.ranks(), layout.hosts(), layout.most_ranks()), (5, 3, 2));
        assert_eq!(layout.ranks_of(0), [0, 2]);
        assert_eq!(layout.ranks_of(1), [1, 4]);
        assert_eq!(layout.place(4), (1, 1));
        assert_eq!(layout.place(3), (2, 0));
    }

    #[test]
    fn rank_order_is_kept_if_only_the_first_ranks_are_together() {
        for (keys, keeps) in [
            (&[0, 0, 0][..], true),
            (&[0, 1, 2], true),
            (&[0, 0, 1, 2], true),
            (&[0, 1, 1], false),
            (&[0, 1, 0], false),
            (&[0, 0, 1, 1], false),
            (&[], true),
        ] {
            assert_eq!(Layout::new(keys).keeps_rank_order(), keeps, "{keys:?}");
        }
    }

    #[test]
    fn offers_are_decoded_as_encoded() {
        let offer = Offer {
            host: hash(&[b"h1", b"boot"]),
            pid: 77,
            settings: 3,
        };
        assert_eq!(Offer::from_words(&offer.to_words()), Some(offer));
        assert_ne!(hash(&[b"h1", b"boot"]), hash(&[b"h1b", b"oot"]));
        for words in [&[][..], &[MARK, 0, 0, u64::MAX, 0], &[0; 5], &[MARK; 6]] {
            assert_eq!(Offer::from_words(words), None, "{words:?}");
        }
    }
}
