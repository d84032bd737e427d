//! Shufflecast: top-of-rack switches (ToRs) that one-to-p splitters connect, and static rules by source ToR.
//!
//! The ToRs stand in `k` columns of `p^k` rows. A ToR sends to a splitter, which copies to `p` ToRs of the next column
//! (3.1.1). To multicast, each ToR needs to know for which source ToRs it relays: sends what it receives to its own
//! splitter (3.1.3). These rules depend on nothing else, so they are installed once ([`Relaying::of`]), and are changed
//! only if a relay fails ([`Shufflecast::recovery`]). [`layout`] has them as routes of switches. Groups are known at the edges alone, where ToRs send to servers.
//!
//! ```
//! use castnet_planner::shufflecast::{Relaying, Shufflecast};
//!
//! let fabric = Shufflecast::new(2, 3)?; // figure 9: 24 ToRs
//! let mut relaying = Relaying::of(fabric);
//! let (source, failed) = (fabric.tor(0)?, fabric.tor(8)?);
//! assert_eq!(relaying.reach(source, Some(failed)).reached(), 8); // 3.3.1: 15 of the 23 others are cut off
//! relaying.apply(&fabric.recovery(failed)); // figure 5
//! assert_eq!(relaying.reach(source, Some(failed)).reached(), 23);
//! # Ok::<(), castnet_planner::shufflecast::ShufflecastError>(())
//! ```

mod failure;
mod layout;
mod reach;
mod relay;

pub use failure::Update;
pub use layout::{Relays, layout};
pub use reach::Reach;
pub use relay::Relaying;

use core::fmt;
use core::str::FromStr;

/// ToRs of a Shufflecast, at most.
pub const TORS_MAX: usize = 1 << 16;
/// Fan-out of a splitter, at most: a ToR receives at as many ports, and a switch has 64.
pub const FAN_OUT_MAX: usize = castnet_topology::PORTS_MAX;

/// Why there is no such Shufflecast, or no such ToR.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum ShufflecastError {
    /// `p` or `k` is out of range.
    #[error("{what}: {given} is not in {least} to {most}")]
    BadSize {
        what: &'static str,
        given: usize,
        least: usize,
        most: usize,
    },
    /// A text that is no `p,k`.
    #[error("{given:?} is not P,K, such as 4,3")]
    NotASize { given: String },
    /// More than [`TORS_MAX`].
    #[error("a {p},{k}-Shufflecast has more than {TORS_MAX} ToRs: give a smaller p or k")]
    TooManyTors { p: usize, k: usize },
    /// A number that no ToR has.
    #[error("there is no ToR {number}: the numbers are 0 to {}", tors - 1)]
    NoSuchTor { number: usize, tors: usize },
}

/// Number of a ToR, from 0, column by column. It belongs to the [`Shufflecast`] that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tor(usize);

impl Tor {
    /// The decimal representation `i` of 3.1.1.
    pub fn number(self) -> usize {
        self.0
    }
}

impl fmt::Display for Tor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A `p,k`-Shufflecast (3.1.1). Digits of a row are counted as in the paper: `r_0` is the least significant one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shufflecast {
    p: usize,
    k: usize,
    /// Of a column: `p^k`.
    rows: usize,
}

/// `p,k`
impl fmt::Display for Shufflecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.p, self.k)
    }
}

/// `p,k`
impl FromStr for Shufflecast {
    type Err = ShufflecastError;

    fn from_str(given: &str) -> Result<Self, ShufflecastError> {
        let size = given
            .split_once(',')
            .and_then(|(p, k)| Some((p.parse().ok()?, k.parse().ok()?)));
        let given = given.to_owned();
        let (p, k) = size.ok_or(ShufflecastError::NotASize { given })?;
        Self::new(p, k)
    }
}

impl Shufflecast {
    /// `p`: fan-out of a splitter, 2 to [`FAN_OUT_MAX`]. `k`: number of columns, at least 2. In a single column, splitters
    /// would connect ToRs with themselves.
    ///
    /// # Errors
    /// `p` or `k` is out of range, or there would be more than [`TORS_MAX`] ToRs.
    pub fn new(p: usize, k: usize) -> Result<Self, ShufflecastError> {
        for (what, given, most) in [("p", p, FAN_OUT_MAX), ("k", k, TORS_MAX.ilog2() as usize)] {
            if !(2..=most).contains(&given) {
                let least = 2;
                return Err(ShufflecastError::BadSize {
                    what,
                    given,
                    least,
                    most,
                });
            }
        }
        let rows = p.checked_pow(k as u32).filter(|rows| *rows <= TORS_MAX / k);
        let rows = rows.ok_or(ShufflecastError::TooManyTors { p, k })?;
        Ok(Self { p, k, rows })
    }

    /// Fan-out of a splitter; also the number of partitions of a column, and of receive ports of a ToR.
    pub fn p(self) -> usize {
        self.p
    }

    /// Number of columns, and of digits of a row.
    pub fn k(self) -> usize {
        self.k
    }

    /// Number of ToRs: `k * p^k`.
    pub fn size(self) -> usize {
        self.k * self.rows
    }

    /// All ToRs, by number.
    pub fn tors(self) -> impl DoubleEndedIterator<Item = Tor> + ExactSizeIterator {
        (0..self.size()).map(Tor)
    }

    /// The ToR with a number.
    ///
    /// # Errors
    /// There is none.
    pub fn tor(self, number: usize) -> Result<Tor, ShufflecastError> {
        let tors = self.size();
        match number < tors {
            true => Ok(Tor(number)),
            false => Err(ShufflecastError::NoSuchTor { number, tors }),
        }
    }

    /// Column of a ToR, from 0.
    pub fn column(self, tor: Tor) -> usize {
        tor.0 / self.rows
    }

    /// Row of a ToR, from 0.
    pub fn row(self, tor: Tor) -> usize {
        tor.0 % self.rows
    }

    /// Digit `r_i` of the row of a ToR.
    pub fn digit(self, tor: Tor, i: usize) -> usize {
        self.row(tor) / self.power(i) % self.p
    }

    /// Partition of a ToR in its column: the most significant digit of its row. A partition of `p^(k-1)` ToRs reaches the
    /// whole next column.
    pub fn partition(self, tor: Tor) -> usize {
        self.digit(tor, self.k - 1)
    }

    /// The `p` ToRs that receive what `tor` sends to its splitter.
    pub fn splitter(self, tor: Tor) -> impl ExactSizeIterator<Item = Tor> {
        let first = self.next(tor, 0).0;
        (first..first + self.p).map(Tor)
    }

    /// The ToR of the previous column, in partition `digit`, whose splitter reaches `tor`.
    fn previous(self, tor: Tor, digit: usize) -> Tor {
        let column = (self.column(tor) + self.k - 1) % self.k;
        self.at(column, self.row(tor) / self.p + digit * self.power(self.k - 1))
    }

    /// The ToR of the next column with the digits of `tor`, shifted to the left, and `digit` as `r_0`.
    fn next(self, tor: Tor, digit: usize) -> Tor {
        let column = (self.column(tor) + 1) % self.k;
        self.at(column, self.row(tor) * self.p % self.rows + digit)
    }

    /// The same row, in the next partition: its splitter reaches the same ToRs (3.3.1, mirrored relay).
    pub fn mirror(self, tor: Tor) -> Tor {
        let row = (self.row(tor) + self.power(self.k - 1)) % self.rows;
        self.at(self.column(tor), row)
    }

    /// Columns from that of `from` to that of `to`: 0 to `k - 1`.
    fn columns_between(self, from: Tor, to: Tor) -> usize {
        (self.k + self.column(to) - self.column(from)) % self.k
    }

    fn at(self, column: usize, row: usize) -> Tor {
        Tor(column * self.rows + row)
    }

    /// `p^i`, for `i` up to `k`.
    fn power(self, i: usize) -> usize {
        self.p.pow(i as u32)
    }
}
