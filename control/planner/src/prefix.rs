//! Covers of power-of-two blocks (PEEL 3.2). The switches below one switch, such as the ToRs of a pod, have identifiers.
//! A rule for each block of them is installed once, and a packet names the one that it is replicated by. So a group
//! needs no state there: it is a set of prefixes, with one packet for each.
//!
//! ```
//! use castnet_planner::prefix::Space;
//!
//! let tors = Space::new(8)?;
//! let cover = tors.cover(&[2, 3, 4, 5, 6, 7].into(), &[].into())?;
//! let shown: Vec<String> = cover.prefixes.iter().map(|prefix| tors.show(*prefix)).collect();
//! assert_eq!(shown, ["01*", "1**"]);
//! # Ok::<(), castnet_planner::prefix::PrefixError>(())
//! ```

use std::collections::BTreeSet;
use std::ops::Range;

/// Most identifiers of a [`Space`].
pub const IDS_MAX: u32 = 1 << 16;

/// Why there is no such space, prefix or cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum PrefixError {
    #[error("count: {count} identifiers; a switch replicates to 1 to {IDS_MAX}")]
    BadCount { count: u32 },
    #[error("identifier {id}: there are {count}, from 0")]
    NoSuchId { id: u32, count: u32 },
    #[error("packets_max: a cover has at least one packet")]
    NoPackets,
    #[error("length {length}: identifiers have {bits} bits")]
    TooLong { length: u8, bits: u8 },
    /// The value has bits that its length leaves out, or more than an identifier has.
    #[error("value {value:#b}: not the first {length} of {bits} bits, followed by zeros")]
    BadValue { value: u32, length: u8, bits: u8 },
    /// No identifier has this prefix, or a shorter one has the same identifiers.
    #[error("value {value:#b}, length {length}: there is no rule of its own for it")]
    NoRule { value: u32, length: u8 },
    #[error("header {header:#x}: longer than {bits} bits")]
    BadHeader { header: u32, bits: u8 },
}

/// A block of identifiers: all that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    value: u32,
    length: u8,
}

impl Prefix {
    /// The least identifier of the block: the bits of the prefix, and zeros.
    pub fn value(self) -> u32 {
        self.value
    }

    /// Number of bits of the prefix.
    pub fn length(self) -> u8 {
        self.length
    }
}

/// The prefixes of a group, one packet each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cover {
    /// Disjoint, by value.
    pub prefixes: Vec<Prefix>,
    /// Identifiers in these blocks that are no members. Each gets a copy that it drops.
    pub over: u32,
}

/// The identifiers below one switch: `0..count`. They have the fewest bits that suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    count: u32,
    bits: u8,
}

impl Space {
    /// # Errors
    /// [`PrefixError::BadCount`].
    pub fn new(count: u32) -> Result<Self, PrefixError> {
        match count {
            1..=IDS_MAX => Ok(Self {
                count,
                bits: bits_for(count),
            }),
            _ => Err(PrefixError::BadCount { count }),
        }
    }

    /// Number of identifiers.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Bits of an identifier.
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// Bits in the header of a packet: the value, and the length, 0 to [`Space::bits`].
    pub fn header_bits(self) -> u8 {
        self.bits + self.length_bits()
    }

    fn length_bits(self) -> u8 {
        bits_for(u32::from(self.bits) + 1)
    }

    /// The prefix of that value and length, if there is a rule for it.
    ///
    /// # Errors
    /// [`PrefixError::TooLong`], [`PrefixError::BadValue`], [`PrefixError::NoRule`].
    pub fn prefix(self, value: u32, length: u8) -> Result<Prefix, PrefixError> {
        let bits = self.bits;
        if length > bits {
            return Err(PrefixError::TooLong { length, bits });
        }
        let block = Block::of(value, bits - length);
        if value >> bits != 0 || value & (block.size() - 1) != 0 {
            return Err(PrefixError::BadValue { value, length, bits });
        }
        match block.is_distinct(self) {
            true => Ok(block.prefix(self)),
            false => Err(PrefixError::NoRule { value, length }),
        }
    }

    /// The identifiers of a prefix of this space.
    pub fn ids(self, prefix: Prefix) -> Range<u32> {
        let size = 1 << self.bits.saturating_sub(prefix.length);
        prefix.value..(prefix.value + size).min(self.count)
    }

    /// All prefixes that a switch has a rule for, the shortest first: one for each different set, `2 * count - 1`. These
    /// are the k - 1 of PEEL for the k/2 ToRs of a pod, if k is a power of two.
    pub fn rules(self) -> impl Iterator<Item = Prefix> {
        (0..=self.bits).flat_map(move |length| {
            let blocks = (0..1 << length).map(move |number| {
                let free = self.bits - length;
                Block::of(number << free, free)
            });
            let distinct = blocks.filter(move |block| block.is_distinct(self));
            distinct.map(move |block| block.prefix(self))
        })
    }

    /// The header of a prefix of this space, in the low [`Space::header_bits`]: the value, then the length.
    pub fn encode(self, prefix: Prefix) -> u32 {
        prefix.value << self.length_bits() | u32::from(prefix.length)
    }

    /// The prefix that a header names.
    ///
    /// # Errors
    /// [`PrefixError::BadHeader`], and those of [`Space::prefix`].
    pub fn decode(self, header: u32) -> Result<Prefix, PrefixError> {
        let bits = self.header_bits();
        if header >> bits != 0 {
            return Err(PrefixError::BadHeader { header, bits });
        }
        let length = header & ((1 << self.length_bits()) - 1);
        // At most five bits: identifiers have at most 16.
        self.prefix(header >> self.length_bits(), length as u8)
    }

    /// The bits of a prefix, with a star for each that it leaves open: `01*`.
    pub fn show(self, prefix: Prefix) -> String {
        let bit = |bit: u8| match (bit < prefix.length, prefix.value >> (self.bits - 1 - bit) & 1) {
            (false, _) => '*',
            (true, 0) => '0',
            (true, _) => '1',
        };
        (0..self.bits).map(bit).collect()
    }

    /// The fewest prefixes that have all `members` and no identifier that is neither member nor `free`. A copy to one
    /// that is `free` costs nothing: it is the port where the packet came in. Time grows as members * bits.
    ///
    /// # Errors
    /// [`PrefixError::NoSuchId`].
    pub fn cover(self, members: &BTreeSet<u32>, free: &BTreeSet<u32>) -> Result<Cover, PrefixError> {
        let ids = Ids::new(self, members, free)?;
        let mut prefixes = Vec::new();
        self.exact(Block::of(0, self.bits), ids.all(), &mut prefixes);
        Ok(Cover { prefixes, over: 0 })
    }

    fn exact(self, block: Block, ids: Slices<'_>, cover: &mut Vec<Prefix>) {
        match block.over(self, ids) {
            _ if ids.members.is_empty() => (),
            0 => cover.push(block.prefix(self)),
            _ => {
                for (half, ids) in block.halves().into_iter().zip(ids.halves(block)) {
                    self.exact(half, ids, cover);
                }
            }
        }
    }

    /// Covers of at most `packets_max` prefixes, each with the fewest over-covered identifiers for its number of
    /// prefixes. From one to the next, packets increase and over-covered identifiers decrease; the last one is that of
    /// [`Space::cover`], if that is short enough. What a packet and a copy cost decides between them. Empty without
    /// members. Time grows at most as members * (bits + packets_max^2).
    ///
    /// # Errors
    /// [`PrefixError::NoSuchId`], [`PrefixError::NoPackets`].
    pub fn pack(
        self,
        members: &BTreeSet<u32>,
        free: &BTreeSet<u32>,
        packets_max: usize,
    ) -> Result<Vec<Cover>, PrefixError> {
        if packets_max == 0 {
            return Err(PrefixError::NoPackets);
        }
        let ids = Ids::new(self, members, free)?;
        Ok(self.packed(Block::of(0, self.bits), ids.all(), packets_max))
    }

    fn packed(self, block: Block, ids: Slices<'_>, packets_max: usize) -> Vec<Cover> {
        if ids.members.is_empty() {
            return Vec::new();
        }
        let whole = Cover {
            prefixes: vec![block.prefix(self)],
            over: block.over(self, ids),
        };
        if whole.over == 0 {
            return vec![whole];
        }
        let [low, high] = ids.halves(block);
        let [lower, upper] = block.halves();
        let low = self.packed(lower, low, packets_max);
        let high = self.packed(upper, high, packets_max);
        let mut covers = match (low.is_empty(), high.is_empty()) {
            (true, _) => high,
            (_, true) => low,
            _ => join(&low, &high, packets_max),
        };
        // Among equals the shorter prefix: only that has a rule if the rest of the block does not exist.
        covers.retain(|cover| cover.over < whole.over);
        if covers.first().is_none_or(|first| first.prefixes.len() > 1) {
            covers.insert(0, whole);
        }
        covers
    }
}

/// The best covers of two blocks together.
fn join(low: &[Cover], high: &[Cover], packets_max: usize) -> Vec<Cover> {
    let packets = |cover: &Cover| cover.prefixes.len();
    let most = low.iter().map(packets).max().unwrap_or(0) + high.iter().map(packets).max().unwrap_or(0);
    let mut best: Vec<Option<(u32, &Cover, &Cover)>> = vec![None; most.min(packets_max) + 1];
    for (a, b) in low.iter().flat_map(|a| high.iter().map(move |b| (a, b))) {
        let over = a.over + b.over;
        if let Some(known) = best.get_mut(packets(a) + packets(b))
            && known.is_none_or(|(least, ..)| over < least)
        {
            *known = Some((over, a, b));
        }
    }
    let mut least = u32::MAX;
    let better = best.into_iter().flatten().filter(|(over, ..)| {
        let is_better = *over < least;
        least = least.min(*over);
        is_better
    });
    let joined = better.map(|(over, a, b)| Cover {
        prefixes: [&a.prefixes[..], &b.prefixes].concat(),
        over,
    });
    joined.collect()
}

/// Bits of the numbers below `count`.
fn bits_for(count: u32) -> u8 {
    count.next_power_of_two().trailing_zeros() as u8
}

/// Identifiers that differ in the last `free` bits only. Those from the end of the space on do not exist.
#[derive(Clone, Copy)]
struct Block {
    first: u32,
    free: u8,
}

impl Block {
    fn of(first: u32, free: u8) -> Self {
        Self { first, free }
    }

    fn size(self) -> u32 {
        1 << self.free
    }

    fn prefix(self, space: Space) -> Prefix {
        Prefix {
            value: self.first,
            length: space.bits - self.free,
        }
    }

    /// Whether no shorter prefix has the same identifiers, and it has any.
    fn is_distinct(self, space: Space) -> bool {
        let is_upper = self.first & self.size() != 0;
        let is_all = self.free == space.bits;
        self.first < space.count && (is_all || is_upper || self.first + self.size() < space.count)
    }

    /// Its identifiers that are neither members nor free.
    fn over(self, space: Space, ids: Slices<'_>) -> u32 {
        let exist = (self.first + self.size())
            .min(space.count)
            .saturating_sub(self.first);
        exist - (ids.members.len() + ids.free.len()) as u32
    }

    fn halves(self) -> [Self; 2] {
        let free = self.free - 1;
        [self.first, self.first + (1 << free)].map(|first| Self { first, free })
    }
}

/// Members and those that are free, and no members; both in order.
struct Ids {
    members: Vec<u32>,
    free: Vec<u32>,
}

/// Those of a block.
#[derive(Clone, Copy)]
struct Slices<'a> {
    members: &'a [u32],
    free: &'a [u32],
}

impl Ids {
    fn new(space: Space, members: &BTreeSet<u32>, free: &BTreeSet<u32>) -> Result<Self, PrefixError> {
        let count = space.count;
        match [members, free].iter().filter_map(|ids| ids.last()).max() {
            Some(&id) if id >= count => Err(PrefixError::NoSuchId { id, count }),
            _ => Ok(Self {
                members: members.iter().copied().collect(),
                free: free.difference(members).copied().collect(),
            }),
        }
    }

    fn all(&self) -> Slices<'_> {
        Slices {
            members: &self.members,
            free: &self.free,
        }
    }
}

impl<'a> Slices<'a> {
    fn halves(self, block: Block) -> [Self; 2] {
        let [_, upper] = block.halves();
        let split = |ids: &'a [u32]| ids.split_at(ids.partition_point(|id| *id < upper.first));
        let ((m0, m1), (f0, f1)) = (split(self.members), split(self.free));
        [(m0, f0), (m1, f1)].map(|(members, free)| Self { members, free })
    }
}
