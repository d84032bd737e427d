//! Contract M4: of the CNPs of all paths, those of the most congested one reach the source.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Switch, path};
use castnet_collective::translated::{CNP_INTERVAL, CNP_WINDOW};
use castnet_collective::{Effect, Event, Multicast};
use castnet_wire::Nanos;
use proptest::prelude::*;

/// True if the CNP is forwarded.
fn cnp(s: &mut Switch, from: u8) -> bool {
    match s.event(Event::Cnp { from: path(from) }).as_slice() {
        [told] if *told == Effect::Cnp { to: path(0) } => true,
        [told] if *told == Effect::Absorb => false,
        told => panic!("{told:?}"),
    }
}

/// The slow twin: the degree of congestion of a path from all CNPs that it has sent, a window at a time.
#[derive(Default)]
struct Twin {
    sent: BTreeMap<u8, BTreeMap<u64, u32>>,
    /// Windows with CNPs of any path.
    windows: BTreeSet<u64>,
}

impl Twin {
    fn degree(&self, from: u8, window: u64) -> u32 {
        let Some(sent) = self.sent.get(&from) else {
            return 0;
        };
        (self.windows.first().copied().unwrap_or(window)..=window).fold(0, |degree, at| {
            let new = sent.get(&at).copied().unwrap_or(0);
            degree / 2 + new
        })
    }

    fn passes(&mut self, now: Nanos, from: u8) -> bool {
        let window = now.0 / CNP_WINDOW.0;
        let before = |twin: &Self| (1..7).map(|path| twin.degree(path, window)).max();
        let most = before(self).unwrap_or(0);
        self.windows.insert(window);
        *self.sent.entry(from).or_default().entry(window).or_default() += 1;
        self.degree(from, window) > most
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// For CNPs of any paths at any times: a CNP passes if and only if its path is then more congested than any path was before it. So in
    /// each window no more pass than the path with most CNPs has sent.
    #[test]
    fn the_cnps_of_the_most_congested_path_pass(
        cnps in prop::collection::vec((1u8..7, 1u64..4, prop_oneof![
            8 => 0..CNP_INTERVAL.0, 1 => 0..3 * CNP_WINDOW.0, 1 => Just(40 * CNP_WINDOW.0)
        ]), 1..200),
    ) {
        let (mut s, mut twin) = (Switch::new(7, 0), Twin::default());
        let mut windows: BTreeMap<u64, (u32, BTreeMap<u8, u32>)> = BTreeMap::new();
        for (from, weight, pause) in cnps {
            s.now += Nanos(pause);
            // Paths are congested to different degrees.
            let from = if weight == 1 { from } else { 1 + from % 2 };
            let passes = cnp(&mut s, from);
            prop_assert_eq!(passes, twin.passes(s.now, from));
            let window = s.now.0 / CNP_WINDOW.0;
            let (passed, sent) = windows.entry(window).or_default();
            *passed += u32::from(passes);
            *sent.entry(from).or_default() += 1;
            for entry in s.status().paths {
                let path = entry.path.index() as u8;
                prop_assert_eq!(u32::from(entry.cnps), twin.degree(path, window));
            }
        }
        for (passed, sent) in windows.into_values() {
            prop_assert!(Some(&passed) <= sent.values().max());
        }
    }

    /// With losses and duplicates of CNPs, a path that sends most, by a clear margin, gets its CNPs through, and nobody else does.
    #[test]
    fn the_source_follows_the_path_that_is_clearly_the_most_congested(
        congested in 1u8..7, draws in prop::collection::vec(0u8..100, 100..600),
    ) {
        let mut s = Switch::new(7, 0);
        let mut passed = [0; 7];
        for (i, draw) in draws.into_iter().enumerate() {
            s.now += CNP_INTERVAL;
            // A tenth of its CNPs is lost, and a tenth arrives twice. Each other path sends one for four of its CNPs.
            let copies = match draw { 0..10 => 0, 10..20 => 2, _ => 1 };
            for _ in 0..copies {
                passed[usize::from(congested)] += u32::from(cnp(&mut s, congested));
            }
            for other in (1..7).filter(|other| *other != congested && i % 4 == 3) {
                passed[usize::from(other)] += u32::from(cnp(&mut s, other));
            }
        }
        let others: u32 = passed.iter().sum::<u32>() - passed[usize::from(congested)];
        prop_assert!(passed[usize::from(congested)] >= 60);
        // Before the first CNP of the congested path has arrived, another may pass.
        prop_assert!(others <= 1, "{:?}", passed);
    }
}

/// The bottleneck moves: after a few windows only the CNPs of the new one pass.
#[test]
fn a_path_whose_congestion_has_ended_is_overtaken() {
    let mut s = Switch::new(3, 0);
    let mut send = |from: u8| {
        s.now += CNP_INTERVAL;
        cnp(&mut s, from)
    };
    assert!((0..200).all(|_| send(1)));
    let absorbed = (0..200).take_while(|_| !send(2)).count();
    assert!(
        Nanos(absorbed as u64 * CNP_INTERVAL.0) <= Nanos(2 * CNP_WINDOW.0),
        "{absorbed}"
    );
    assert!((0..200).all(|_| send(2)));
}

#[test]
fn the_filter_is_bounded_copied_and_carried_on() {
    let mut s = Switch::new(4, 0);
    s.data(0, 1);
    // More CNPs than a count holds: it stays at its largest value, and ages from there.
    let passed = (0..70_000).filter(|_| cnp(&mut s, 1)).count();
    assert_eq!(passed, usize::from(u16::MAX));
    assert!(!cnp(&mut s, 2));
    s.machine.filter_cnps(false);
    assert!(cnp(&mut s, 2));

    let mut copy = Multicast::new(Switch::config(4));
    copy.copy_state(&s.machine);
    assert_eq!(copy, s.machine);

    // The congested path is the first of the next rule; the path that takes its index has no CNPs there.
    let mut next = Switch::new(3, 0);
    next.machine
        .carry_on(&s.machine, [(path(1), path(3)), (path(2), path(1))]);
    let counts: Vec<u16> = next.status().paths.iter().map(|path| path.cnps).collect();
    assert_eq!(counts, [0, u16::MAX]);
    next.now = Nanos(5 * CNP_WINDOW.0);
    assert!(!cnp(&mut next, 1));
    // A clock that goes back ages nothing.
    next.now = Nanos::ZERO;
    assert!(cnp(&mut next, 2));
    assert_eq!(next.status().paths[1].cnps, (u16::MAX >> 5) + 1);
}
