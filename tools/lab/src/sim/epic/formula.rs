//! The throughput under loss that EPIC's appendix F.4 expects.

/// How the losses of sibling links add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Siblings {
    /// Each link mends its own losses, and the slowest link counts: Mode-I and Mode-III.
    Slowest,
    /// Each loss delays all: Mode-II.
    All,
}

/// The part of the lossless throughput that appendix F.4 of EPIC expects, with F(r) = r. `hops` are those of an AllReduce's data: for each,
/// the probabilities that its sibling links deliver a packet. With D - 1 equal siblings at all 2 (H - 1) hops, that is
/// r^(2 (H - 1)) for Mode-I and Mode-III, and r^(2 (H - 1) (D - 1)) for Mode-II.
pub(crate) fn expected(siblings: Siblings, hops: &[&[f64]]) -> f64 {
    let hop = |links: &&[f64]| match siblings {
        Siblings::Slowest => links.iter().copied().fold(1.0, f64::min),
        Siblings::All => links.iter().product::<f64>(),
    };
    hops.iter().map(hop).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_gives_what_is_computed_by_hand() {
        let is = |siblings, hops: &[&[f64]], value: f64| {
            let found = expected(siblings, hops);
            assert!((found - value).abs() < 1e-9, "{siblings:?}: {found}, not {value}");
        };
        // A star of eight: up and down. 0.95 to the 16th, and squared.
        let all: &[f64] = &[0.95; 8];
        is(Siblings::All, &[all; 2], 0.440_126_668_7);
        is(Siblings::Slowest, &[all; 2], 0.9025);
        // One lossy link of eight.
        let one: &[f64] = &[1.0, 1.0, 1.0, 0.9, 1.0, 1.0, 1.0, 1.0];
        is(Siblings::All, &[one; 2], 0.81);
        is(Siblings::Slowest, &[one; 2], 0.81);
        // A binary tree of depth 3: four hops with two siblings each. 0.9 to the 8th, and to the 4th.
        let two: &[f64] = &[0.9; 2];
        is(Siblings::All, &[two; 4], 0.430_467_21);
        is(Siblings::Slowest, &[two; 4], 0.6561);
    }
}
