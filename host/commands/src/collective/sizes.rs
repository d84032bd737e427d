//! Sizes on the command line: one, several, or a range.

use std::str::FromStr;

use castnet_console::units::Size;

/// Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Each of them.
    List(Vec<u64>),
    /// From the first to the second.
    Range(u64, u64),
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |text: &str| text.parse::<Size>().map(|s| s.0);
        match text.split_once("..") {
            Some((from, to)) => {
                let (from, to) = (size(from)?, size(to)?);
                if from == 0 || from > to {
                    return Err(format!("'{text}': a range goes from a size above 0 upwards"));
                }
                Ok(Self::Range(from, to))
            }
            None => text
                .split(',')
                .map(size)
                .collect::<Result<_, _>>()
                .map(Self::List),
        }
    }
}

impl Sizes {
    /// All sizes; those of a range differ by `factor`.
    pub fn list(&self, factor: u64) -> Vec<u64> {
        match self {
            Self::List(sizes) => sizes.clone(),
            &Self::Range(from, to) => {
                let next = |&size: &u64| size.checked_mul(factor.max(2)).filter(|&s| s <= to);
                std::iter::successors(Some(from), next).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_one_several_or_a_range() {
        let list = |text: &str, factor| text.parse::<Sizes>().map(|s| s.list(factor));
        assert_eq!(list("4K", 2), Ok(vec![4096]));
        assert_eq!(list("0,8,1M", 2), Ok(vec![0, 8, 1 << 20]));
        assert_eq!(list("4K..32K", 2), Ok(vec![4096, 8192, 16384, 32768]));
        assert_eq!(list("4K..33K", 4), Ok(vec![4096, 16384]));
        for bad in ["", "x", "4K..1K", "0..4", "1..x"] {
            assert!(list(bad, 2).is_err(), "{bad}");
        }
    }
}
