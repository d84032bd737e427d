//! Marking of congestion at a queue: random early detection with ECN (RED, RFC 3168), as DCQCN's congestion point does it.

use crate::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet};
use crate::{ipv4, ipv6};

/// When a queue is congested. The depth of the queue is the current one, not an average (DCQCN, Zhu et al., SIGCOMM 2015, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedConfig {
    /// Kmin: up to so many bytes in the queue, no frame is marked.
    pub least_bytes: u64,
    /// Kmax: beyond so many bytes, each frame is marked. At least `least_bytes`.
    pub most_bytes: u64,
    /// Pmax: the probability at Kmax, which grows from zero at Kmin, in millionths: at most 1,000,000.
    pub most_ppm: u32,
}

impl RedConfig {
    /// Millionths of a probability of one.
    pub const PPM: u32 = 1_000_000;
}

/// The values of DCQCN's paper, section 5: from 5 kB to 200 kB, 1 %.
impl Default for RedConfig {
    fn default() -> Self {
        Self {
            least_bytes: 5_000,
            most_bytes: 200_000,
            most_ppm: 10_000,
        }
    }
}

/// The marker of one queue.
#[derive(Clone, Debug)]
pub struct Red {
    config: RedConfig,
    random: u64,
}

impl Red {
    /// The seed gives the random numbers.
    pub const fn new(config: RedConfig, seed: u64) -> Self {
        Self { config, random: seed }
    }

    /// Whether to mark a frame that finds so many bytes in the queue.
    pub fn marks(&mut self, queue_bytes: u64) -> bool {
        let RedConfig {
            least_bytes,
            most_bytes,
            most_ppm,
        } = self.config;
        if queue_bytes <= least_bytes {
            return false;
        }
        if queue_bytes > most_bytes {
            return true;
        }
        // Here Kmin < Kmax. Both sides are multiplied by the distance: no rounding.
        let chance = u128::from(queue_bytes - least_bytes) * u128::from(most_ppm);
        let drawn = u128::from(self.draw() % u64::from(RedConfig::PPM));
        drawn * u128::from(most_bytes - least_bytes) < chance
    }

    /// Where the random numbers are, for [`Red::back_to`].
    pub const fn position(&self) -> u64 {
        self.random
    }

    /// Draws again what has been drawn since `position`: for frames that were not sent after all.
    pub const fn back_to(&mut self, position: u64) {
        self.random = position;
    }

    /// splitmix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Marks the Ethernet frame that starts with `head` as congested (CE), if it is an IP packet whose sender understands that (ECT). Returns
/// true if it has changed.
pub fn mark_frame(head: &mut [u8]) -> bool {
    let Ok((ethernet, l3)) = Ethernet::parse(head) else {
        return false;
    };
    let Some(packet) = head.get_mut(l3..) else {
        return false;
    };
    match ethernet.ethertype {
        ETHERTYPE_IPV4 => ipv4::mark_congestion(packet),
        ETHERTYPE_IPV6 => ipv6::mark_congestion(packet),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_third_of_the_way_a_third_of_the_probability() {
        let config = RedConfig {
            least_bytes: 1_000,
            most_bytes: 4_000,
            most_ppm: 300_000,
        };
        let mut red = Red::new(config, 7);
        let mut share = |bytes| (0..100_000).filter(|_| red.marks(bytes)).count();
        for (bytes, expected) in [
            (0, 0),
            (1_000, 0),
            (2_000, 10_000),
            (3_000, 20_000),
            (4_000, 30_000),
        ] {
            let share = share(bytes);
            assert!(share.abs_diff(expected) < 500, "{share} at {bytes}");
        }
        assert_eq!(share(4_001), 100_000);
    }

    proptest! {
        #[test]
        fn any_thresholds_are_sound(least: u64, span: u64, most_ppm in 0..=RedConfig::PPM, queue: u64, seed: u64) {
            let most_bytes = least.saturating_add(span);
            let mut red = Red::new(RedConfig { least_bytes: least, most_bytes, most_ppm }, seed);
            let marks = red.marks(queue);
            prop_assert!(!marks || queue > least);
            prop_assert!(marks || queue <= most_bytes);
        }

        /// Any bytes: no panic, and nothing but the ECN bits and the IPv4 checksum changes.
        #[test]
        fn only_ecn_and_checksum_change(mut head in prop::collection::vec(any::<u8>(), 0..80), shape in 0..4_usize) {
            let types: [&[u8]; 4] = [&[], &[0x08, 0], &[0x86, 0xDD], &[0x81, 0, 0, 7, 0x08, 0]];
            let at = 12..(12 + types[shape].len());
            if let Some(given) = head.get_mut(at.clone()) {
                given.copy_from_slice(types[shape]);
            }
            let before = head.clone();
            let marked = mark_frame(&mut head);
            prop_assert_eq!(marked, before != head);
            let changed: std::vec::Vec<_> = (0..head.len()).filter(|i| before[*i] != head[*i]).collect();
            let l3 = Ethernet::parse(&before).map_or(0, |(_, l3)| l3);
            prop_assert!(changed.iter().all(|i| [0, 1, 10, 11].contains(&(i - l3))), "{:?}", changed);
            let is_v4 = head.len() >= l3 + 20 && ipv4::checksum_is_right(&before[l3..]);
            prop_assert!(!marked || !is_v4 || ipv4::checksum_is_right(&head[l3..]));
            prop_assert!(!mark_frame(&mut head), "once");
        }
    }
}
