//! Compares every kernel of every instruction set of this processor with the slow twin, bit by bit.

use crate::common::{Fill, calls, name, scalar};
use castnet_reduce::{Kernel, Level, reduce};
use proptest::prelude::*;

/// Bytes around the slices that must not change.
const GUARD: usize = 64;

/// Reduces `length` bytes that begin `at` bytes after an alignment of 64, on all levels and with the twin.
fn hold_equal(call: crate::common::Call, length: usize, at: [usize; 2], fill: &mut Fill) {
    let (op, ty, flags) = call;
    let mut acc = vec![0xA5; GUARD + at[0] + length + GUARD];
    let mut contribution = vec![0x5A; at[1] + length];
    let start = GUARD + at[0];
    fill.elements(ty, &mut acc[start..start + length]);
    fill.elements(ty, &mut contribution[at[1]..]);
    let contribution = &contribution[at[1]..];
    let mut wanted = acc.clone();
    scalar::reduce(op, ty, flags, &mut wanted[start..start + length], contribution);
    for level in Level::available() {
        let mut got = acc.clone();
        Kernel::with(level, op, ty, flags).apply(&mut got[start..start + length], contribution);
        if got != wanted {
            let i = (0..got.len())
                .find(|i| got[*i] != wanted[*i])
                .expect("a difference");
            let whole = (i - start) / ty.size() * ty.size();
            panic!(
                "{level:?} {}, {length} bytes at {at:?}: element at byte {whole}: {:x?} op {:x?} is {:x?}, should be {:x?}",
                name(call),
                &acc[start + whole..][..ty.size()],
                &contribution[whole..][..ty.size()],
                &got[start + whole..][..ty.size()],
                &wanted[start + whole..][..ty.size()],
            );
        }
    }
}

#[test]
fn levels_of_this_processor() {
    let levels: Vec<Level> = Level::available().collect();
    let lacking = &Level::ALL[levels.len()..];
    eprintln!("instruction sets compared: {levels:?}; this processor has none of {lacking:?}");
    assert_eq!(levels.last(), Some(&Level::best()));
}

#[test]
fn all_calls_at_lengths_round_the_edges_of_vectors() {
    let mut fill = Fill::new(1);
    for call in calls() {
        for length in [
            0, 1, 2, 3, 4, 7, 8, 15, 31, 32, 33, 63, 64, 65, 127, 255, 256, 1024, 1027,
        ] {
            hold_equal(call, length, [0, 0], &mut fill);
            hold_equal(call, length, [1, 2], &mut fill);
        }
    }
}

/// All pairs of bytes, and every half with the special ones.
#[test]
fn small_types_exhaustively() {
    for call in calls() {
        let (op, ty, flags) = call;
        let (a, b): (Vec<u8>, Vec<u8>) = match ty.size() {
            1 => (0..=u16::MAX).map(|n| ((n >> 8) as u8, n as u8)).unzip(),
            2 => {
                let specials = crate::common::specials(ty);
                let pairs = (0..=u16::MAX).flat_map(|a| specials.iter().map(move |b| (a, *b as u16)));
                let (a, b): (Vec<u16>, Vec<u16>) = pairs.unzip();
                let bytes = |v: Vec<u16>| v.into_iter().flat_map(u16::to_le_bytes).collect();
                (bytes(a), bytes(b))
            }
            _ => continue,
        };
        let mut wanted = a.clone();
        scalar::reduce(op, ty, flags, &mut wanted, &b);
        for level in Level::available() {
            let mut got = a.clone();
            Kernel::with(level, op, ty, flags).apply(&mut got, &b);
            assert!(got == wanted, "{level:?} {}", name(call));
        }
    }
}

#[test]
fn an_operation_that_is_not_for_the_type_changes_nothing() {
    for (op, ty, flags) in crate::common::all().filter(|(op, ty, _)| !op.supports(*ty)) {
        let mut acc = [7; 64];
        reduce(op, ty, flags, &mut acc, &[9; 64]);
        scalar::reduce(op, ty, flags, &mut acc, &[9; 64]);
        assert_eq!(acc, [7; 64]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn any_call_length_and_place(
        which in any::<prop::sample::Index>(),
        length in prop_oneof![0usize..=300, 0usize..=4096],
        at in [0usize..64, 0usize..64],
        seed in any::<u64>(),
    ) {
        let calls: Vec<_> = calls().collect();
        hold_equal(calls[which.index(calls.len())], length, at, &mut Fill::new(seed));
    }

    /// Contributions in two pieces, also cut within an element.
    #[test]
    fn a_contribution_in_two_pieces(
        which in any::<prop::sample::Index>(),
        length in prop_oneof![0usize..=300, 0usize..=1200],
        cut in prop_oneof![any::<prop::sample::Index>().prop_map(|i| i.index(1201)), 0usize..160],
        at in 0usize..64,
        seed in any::<u64>(),
    ) {
        let calls: Vec<_> = calls().collect();
        let (op, ty, flags) = calls[which.index(calls.len())];
        let mut fill = Fill::new(seed);
        let mut acc = vec![0xA5; GUARD + at + length + GUARD];
        let mut contribution = vec![0; length];
        fill.elements(ty, &mut acc[GUARD + at..][..length]);
        fill.elements(ty, &mut contribution);
        let mut wanted = acc.clone();
        scalar::reduce(op, ty, flags, &mut wanted[GUARD + at..][..length], &contribution);
        // Each piece has its own allocation, so that nothing lies behind it.
        let (first, second) = contribution.split_at(cut.min(length));
        let (first, second) = (first.to_vec(), second.to_vec());
        for level in Level::available() {
            let mut got = acc.clone();
            Kernel::with(level, op, ty, flags).apply_pieces(&mut got[GUARD + at..][..length], &first, &second);
            prop_assert_eq!(&got, &wanted, "{:?} {}", level, name((op, ty, flags)));
        }
    }

    #[test]
    fn the_shorter_length_counts_and_incomplete_elements_do_not_change(
        which in any::<prop::sample::Index>(),
        lengths in [0usize..600, 0usize..600],
        seed in any::<u64>(),
    ) {
        let calls: Vec<_> = calls().collect();
        let (op, ty, flags) = calls[which.index(calls.len())];
        let mut fill = Fill::new(seed);
        let [mut acc, mut contribution] = lengths.map(|n| vec![0; n]);
        fill.elements(ty, &mut acc);
        fill.elements(ty, &mut contribution);
        let whole = lengths[0].min(lengths[1]) / ty.size() * ty.size();
        let mut wanted = acc.clone();
        scalar::reduce(op, ty, flags, &mut wanted[..whole], &contribution[..whole]);
        let mut slow = acc.clone();
        scalar::reduce(op, ty, flags, &mut slow, &contribution);
        reduce(op, ty, flags, &mut acc, &contribution);
        prop_assert_eq!(&acc, &wanted);
        prop_assert_eq!(&slow, &wanted);
    }

    /// The order of contributions, as documented for the crate.
    #[test]
    fn commutative_always_and_associative_where_it_should_be(
        which in any::<prop::sample::Index>(),
        seed in any::<u64>(),
    ) {
        let calls: Vec<_> = calls().collect();
        let (op, ty, flags) = calls[which.index(calls.len())];
        let mut fill = Fill::new(seed);
        let [a, b, c] = [(); 3].map(|()| {
            let mut bytes = vec![0; 256];
            fill.elements(ty, &mut bytes);
            bytes
        });
        let both = |a: &[u8], b: &[u8]| {
            let mut acc = a.to_vec();
            reduce(op, ty, flags, &mut acc, b);
            acc
        };
        prop_assert_eq!(both(&a, &b), both(&b, &a), "{}", name((op, ty, flags)));
        if crate::common::is_associative((op, ty, flags)) {
            prop_assert_eq!(both(&both(&a, &b), &c), both(&a, &both(&b, &c)), "{}", name((op, ty, flags)));
        }
    }
}
