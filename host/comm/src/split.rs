//! How the ranks of a communicator agree on a split: what each offers, and what all compute from it.

use std::collections::BTreeMap;

/// Marks an offer, so that an AllGather of a program is not taken for one.
const MARK: u64 = 0x6361_7374_0053_504c;

/// What a rank gives to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) colour: Option<u32>,
    pub(crate) key: i32,
    /// A number that no group of this rank has had.
    pub(crate) next: u64,
    /// Groups of several ranks that communicators of this rank use.
    pub(crate) in_use: u64,
    /// The most of these that it may have.
    pub(crate) max: u64,
}

impl Offer {
    pub(crate) const WORDS: usize = 6;

    pub(crate) fn to_words(self) -> [u64; Self::WORDS] {
        let colour = self.colour.map_or(0, |colour| u64::from(colour) + 1);
        let key = u64::from(self.key as u32);
        [MARK, colour, key, self.next, self.in_use, self.max]
    }

    pub(crate) fn from_words(words: &[u64]) -> Option<Self> {
        match *words {
            [MARK, colour, key, next, in_use, max] => Some(Self {
                colour: match colour.checked_sub(1) {
                    Some(colour) => Some(u32::try_from(colour).ok()?),
                    None => None,
                },
                key: u32::try_from(key).ok()? as i32,
                next,
                in_use,
                max,
            }),
            _ => None,
        }
    }
}

/// The ranks of each new communicator, in the order of its ranks.
pub(crate) fn parts(offers: &[Offer]) -> BTreeMap<u32, Vec<u16>> {
    let mut parts: BTreeMap<u32, Vec<u16>> = BTreeMap::new();
    for (rank, offer) in (0..).zip(offers) {
        if let Some(colour) = offer.colour {
            parts.entry(colour).or_default().push(rank);
        }
    }
    for part in parts.values_mut() {
        // A stable sort: equal keys stay in the order of ranks.
        part.sort_by_key(|rank| offers[usize::from(*rank)].key);
    }
    parts
}

/// The number of the groups that this split makes.
pub(crate) fn next(offers: &[Offer]) -> u64 {
    offers.iter().map(|offer| offer.next).max().unwrap_or_default()
}

/// The number of the group that all ranks of a part have for it already. `held` is 0 at a rank that has none.
pub(crate) fn shared(part: &[u16], held: &[u64]) -> Option<u64> {
    let mut numbers = part.iter().map(|rank| held[usize::from(*rank)]);
    let first = numbers.next().filter(|number| *number > 0)?;
    numbers.all(|number| number == first).then_some(first)
}

/// The first rank that would get a new group, and has as many in use as it may have.
pub(crate) fn without_room(offers: &[Offer], parts: &BTreeMap<u32, Vec<u16>>, held: &[u64]) -> Option<u16> {
    let new = parts
        .values()
        .filter(|part| part.len() > 1 && shared(part, held).is_none());
    let full = |rank: &u16| {
        let offer = &offers[usize::from(*rank)];
        offer.in_use >= offer.max
    };
    new.flatten().copied().filter(full).min()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offer(colour: Option<u32>, key: i32) -> Offer {
        Offer {
            colour,
            key,
            next: 2,
            in_use: 1,
            max: 4,
        }
    }

    #[test]
    fn ranks_are_ordered_by_key_and_then_by_rank() {
        let offers = [
            (Some(7), 3),
            (Some(7), -1),
            (None, 0),
            (Some(0), 0),
            (Some(7), -1),
        ];
        let parts = parts(&offers.map(|(colour, key)| offer(colour, key)));
        assert_eq!(parts, [(0, vec![3]), (7, vec![1, 4, 0])].into());
    }

    #[test]
    fn a_group_is_shared_if_all_have_the_same() {
        let held = [5, 5, 0, 6];
        assert_eq!(shared(&[1, 0], &held), Some(5));
        for part in [&[0, 2][..], &[2], &[0, 3], &[2, 2]] {
            assert_eq!(shared(part, &held), None, "{part:?}");
        }
    }

    #[test]
    fn only_new_groups_of_several_ranks_need_room() {
        let mut offers = [offer(Some(0), 0), offer(Some(0), 0), offer(Some(1), 0)];
        offers[1].in_use = 4;
        offers[2].in_use = 9;
        let parts = parts(&offers);
        assert_eq!(without_room(&offers, &parts, &[0, 0, 0]), Some(1));
        assert_eq!(without_room(&offers, &parts, &[3, 3, 0]), None);
    }

    proptest! {
        #[test]
        fn offers_are_decoded_as_encoded(colour: Option<u32>, key: i32, next: u64, in_use: u64, max: u64) {
            let offer = Offer { colour, key, next, in_use, max };
            prop_assert_eq!(Offer::from_words(&offer.to_words()), Some(offer));
        }

        #[test]
        fn other_words_are_refused_or_read_without_panic(words in prop::collection::vec(any::<u64>(), 0..8)) {
            prop_assert_eq!(Offer::from_words(&words), None);
            let mut words = words;
            if let Some(first) = words.first_mut() {
                *first = MARK;
            }
            let _ = Offer::from_words(&words);
        }
    }
}
