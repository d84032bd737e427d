//! Power-of-two covers (PEEL 3.2) beside every set of rules that there is.

use std::collections::BTreeSet;

use castnet_planner::prefix::{Cover, IDS_MAX, Prefix, PrefixError, Space};
use proptest::prelude::*;

fn space(count: u32) -> Space {
    Space::new(count).expect("a count in range")
}

fn set(ids: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    ids.into_iter().collect()
}

fn shown(space: Space, cover: &Cover) -> Vec<String> {
    cover.prefixes.iter().map(|prefix| space.show(*prefix)).collect()
}

/// Copies to identifiers that are neither members nor free, and second copies to members; `None`: a member has none.
fn over(space: Space, prefixes: &[Prefix], members: &BTreeSet<u32>, free: &BTreeSet<u32>) -> Option<u32> {
    let mut copies = vec![0u32; space.count() as usize];
    for id in prefixes.iter().flat_map(|prefix| space.ids(*prefix)) {
        copies[id as usize] += 1;
    }
    let over = |(id, copies): (u32, u32)| match (members.contains(&id), free.contains(&id)) {
        (true, _) => copies.checked_sub(1),
        (_, true) => Some(0),
        _ => Some(copies),
    };
    (0..).zip(copies).map(over).sum()
}

/// The least over-coverage with exactly so many prefixes, by trying all sets of rules.
fn brute(space: Space, members: &BTreeSet<u32>, free: &BTreeSet<u32>) -> Vec<Option<u32>> {
    let rules: Vec<Prefix> = space.rules().collect();
    let mut least = vec![None::<u32>; rules.len() + 1];
    for choice in 0u32..1 << rules.len() {
        let chosen = rules.iter().enumerate();
        let chosen = chosen.filter(|(number, _)| choice >> number & 1 == 1);
        let chosen: Vec<Prefix> = chosen.map(|(_, rule)| *rule).collect();
        if let Some(over) = over(space, &chosen, members, free) {
            let known = &mut least[chosen.len()];
            *known = Some(known.map_or(over, |known| known.min(over)));
        }
    }
    least
}

#[test]
fn the_example_of_the_paper_needs_two_packets() {
    let tors = space(8);
    let cover = tors.cover(&set([2, 3, 4, 5, 6, 7]), &set([])).expect("a cover");
    assert_eq!(shown(tors, &cover), ["01*", "1**"]);
    assert_eq!((cover.over, tors.bits()), (0, 3));
    // One packet to all reaches two ToRs too many.
    let packed = tors.pack(&set([2, 3, 4, 5, 6, 7]), &set([]), 8).expect("covers");
    let packed: Vec<_> = packed
        .iter()
        .map(|cover| (shown(tors, cover), cover.over))
        .collect();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(packed, [(names(&["***"]), 2), (names(&["01*", "1**"]), 0)]);
}

#[test]
fn a_fat_tree_of_k_ports_needs_k_minus_one_rules_and_a_short_header() {
    // k, rules, bits of the header: log2(k/2) + ceil(log2(log2(k/2) + 1)).
    for (k, rules, bits) in [
        (4, 3, 2),
        (8, 7, 4),
        (16, 15, 5),
        (32, 31, 7),
        (64, 63, 8),
        (128, 127, 9),
    ] {
        let tors = space(k / 2);
        assert_eq!(tors.rules().count(), rules, "k = {k}");
        assert_eq!(tors.header_bits(), bits, "k = {k}");
    }
    // The pod of eight ToRs in the paper's example.
    assert_eq!((space(8).rules().count(), space(8).header_bits()), (15, 5));
}

#[test]
fn a_single_switch_needs_no_bits() {
    let one = space(1);
    assert_eq!((one.bits(), one.header_bits(), one.rules().count()), (0, 0, 1));
    let cover = one.cover(&set([0]), &set([])).expect("a cover");
    assert_eq!(one.decode(one.encode(cover.prefixes[0])), Ok(cover.prefixes[0]));
    assert_eq!(one.show(cover.prefixes[0]), "");
}

#[test]
fn what_does_not_exist_is_covered_for_free() {
    // Of six identifiers, 11* does not exist.
    let six = space(6);
    let cover = six.cover(&set([4, 5]), &set([])).expect("a cover");
    assert_eq!(shown(six, &cover), ["1**"]);
    assert_eq!(six.rules().count(), 11);
    // The port where the packet came in gets no copy.
    let eight = space(8);
    let cover = eight.cover(&set([1, 2, 3]), &set([0])).expect("a cover");
    assert_eq!(shown(eight, &cover), ["0**"]);
}

#[test]
fn one_more_packet_does_not_always_help() {
    // Half of 0** and half of 1**, each in two places: a packet for each half saves no copy.
    let packed = space(8).pack(&set([0, 3, 4, 7]), &set([]), 4).expect("covers");
    let packed: Vec<_> = packed.iter().map(|c| (c.prefixes.len(), c.over)).collect();
    assert_eq!(packed, [(1, 4), (3, 2), (4, 0)]);
}

#[test]
fn bad_values_are_named() {
    let tors = space(6);
    let bits = 3;
    for count in [0, IDS_MAX + 1, u32::MAX] {
        assert_eq!(Space::new(count), Err(PrefixError::BadCount { count }));
    }
    let no_such = Err(PrefixError::NoSuchId { id: 6, count: 6 });
    assert_eq!(tors.cover(&set([1, 6]), &set([])), no_such);
    assert_eq!(tors.cover(&set([1]), &set([6])), no_such);
    assert_eq!(tors.pack(&set([1]), &set([]), 0), Err(PrefixError::NoPackets));
    let of = |value, length| tors.prefix(value, length);
    assert_eq!(of(0, 4), Err(PrefixError::TooLong { length: 4, bits }));
    for (value, length) in [(1, 2), (8, 3), (u32::MAX, 0)] {
        assert_eq!(
            of(value, length),
            Err(PrefixError::BadValue { value, length, bits })
        );
    }
    // 110 does not exist; 10* is all of 1**.
    for (value, length) in [(6, 3), (4, 2)] {
        assert_eq!(of(value, length), Err(PrefixError::NoRule { value, length }));
    }
    assert_eq!(
        tors.decode(1 << 5).map_err(|error| error.to_string()),
        Err("header 0x20: longer than 5 bits".to_owned())
    );
}

#[test]
fn of_all_headers_those_of_rules_are_accepted() {
    for count in 1..=40 {
        let space = space(count);
        let rules: BTreeSet<Prefix> = space.rules().collect();
        assert_eq!(rules.len(), 2 * count as usize - 1);
        let headers = 0..1u32 << space.header_bits();
        let decoded: Vec<Prefix> = headers.filter_map(|header| space.decode(header).ok()).collect();
        assert_eq!(decoded.len(), rules.len(), "one header each");
        assert_eq!(rules, decoded.into_iter().collect());
        for rule in rules {
            assert_eq!(space.decode(space.encode(rule)), Ok(rule));
        }
    }
}

/// A space, members and free identifiers of it.
fn case(counts: std::ops::RangeInclusive<u32>) -> impl Strategy<Value = (u32, BTreeSet<u32>, BTreeSet<u32>)> {
    counts.prop_flat_map(|count| {
        let ids = proptest::collection::vec(0u8..6, count as usize);
        ids.prop_map(move |kinds| {
            let of = |kind: &[u8]| {
                let ids = (0..count).zip(&kinds);
                set(ids.filter(|(_, k)| kind.contains(k)).map(|(id, _)| id))
            };
            (count, of(&[0, 1, 2]), of(&[3]))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_set_of_rules_is_better((count, members, free) in case(1..=6), packets_max in 1usize..8) {
        let space = space(count);
        let least = brute(space, &members, &free);
        let cover = space.cover(&members, &free)?;
        let exact = least.iter().position(|over| *over == Some(0));
        prop_assert_eq!(Some(cover.prefixes.len()), exact);
        let packed = space.pack(&members, &free, packets_max)?;
        // Of the numbers of packets, those at which the least over-coverage decreases.
        let mut expected: Vec<(usize, u32)> = Vec::new();
        for (packets, over) in (0..).zip(&least).skip(1).take(packets_max) {
            if let Some(over) = *over && expected.last().is_none_or(|(_, least)| over < *least) {
                expected.push((packets, over));
            }
        }
        if members.is_empty() {
            expected.clear();
        }
        let found: Vec<(usize, u32)> = packed.iter().map(|c| (c.prefixes.len(), c.over)).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn covers_have_all_members_with_rules_that_exist((count, members, free) in case(1..=300), packets_max in 1usize..40) {
        let space = space(count);
        let cover = space.cover(&members, &free)?;
        let mut packed = space.pack(&members, &free, packets_max)?;
        if cover.prefixes.len() <= packets_max {
            prop_assert_eq!(&packed.last().cloned().unwrap_or_default(), &cover);
        }
        packed.push(cover);
        for cover in packed {
            prop_assert_eq!(over(space, &cover.prefixes, &members, &free), Some(cover.over));
            prop_assert!(cover.prefixes.is_sorted());
            for prefix in cover.prefixes {
                prop_assert_eq!(space.prefix(prefix.value(), prefix.length()), Ok(prefix));
                prop_assert_eq!(space.decode(space.encode(prefix)), Ok(prefix));
            }
        }
    }
}

/// As many identifiers as there are hosts in a fat tree of 64 ports, every other one a member: no two share a block.
#[test]
fn a_group_in_the_largest_space_is_covered() {
    let all = space(IDS_MAX);
    let cover = all
        .cover(&set((0..IDS_MAX).step_by(2)), &set([]))
        .expect("a cover");
    assert_eq!((cover.prefixes.len(), cover.over), (1 << 15, 0));
    let packed = all
        .pack(&set((0..IDS_MAX).step_by(2)), &set([]), 4)
        .expect("covers");
    assert_eq!(packed.len(), 1, "to leave half a block out saves nothing");
    assert_eq!(packed[0].over, 1 << 15);
}
