//! Two endpoints and a pipe that drops, duplicates, reorders and damages frames, in virtual time.

use castnet_endpoint::{Endpoint, EndpointConfig};
use castnet_wire::{MacAddr, Nanos};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// A small seeded random number generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True with a probability of `rate` / 1000.
    pub fn permille(&mut self, rate: u64) -> bool {
        self.below(1000) < rate
    }
}

/// Faults per 1000 frames.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: u64,
    pub duplicate: u64,
    pub reorder: u64,
    pub corrupt: u64,
}

pub const LATENCY: Nanos = Nanos::from_micros(10);

pub struct World {
    pub ends: [Endpoint; 2],
    pub now: Nanos,
    pub faults: Faults,
    pub random: Random,
    /// From this time on all frames are lost.
    pub dead_at: Nanos,
    /// Frames by arrival time and serial number, with their destination end.
    pipe: BTreeMap<(Nanos, u64), (usize, Vec<u8>)>,
    serial: u64,
    pub steps: u64,
}

pub fn mac(end: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, end as u8 + 1])
}

pub fn ip(end: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, end as u8 + 1)
}

impl World {
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self {
            ends: [0, 1].map(|end| {
                Endpoint::new(EndpointConfig {
                    // Half of the runs coalesce ACKs as hardware RNICs do, half have ACKs before NAKs, chosen per end.
                    coalesce_acks: (seed >> end) & 1 == 1,
                    ack_before_nak: (seed >> (end + 2)) & 1 == 1,
                    ..EndpointConfig::new(mac(end), ip(end))
                })
            }),
            now: Nanos::ZERO,
            faults,
            random: Random(seed),
            dead_at: Nanos::MAX,
            pipe: BTreeMap::new(),
            serial: 0,
            steps: 0,
        }
    }

    fn put(&mut self, to: usize, frame: &[u8]) {
        let Faults {
            loss,
            duplicate,
            reorder,
            corrupt,
        } = self.faults;
        if self.now >= self.dead_at || self.random.permille(loss) {
            return;
        }
        let copies = 1 + self.random.permille(duplicate) as u64;
        for copy in 0..copies {
            let mut bytes = frame.to_vec();
            if self.random.permille(corrupt) {
                let at = self.random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.random.below(8);
            }
            let mut at = self.now + LATENCY + Nanos(copy * 1500);
            if self.random.permille(reorder) {
                at += Nanos(self.random.below(40_000));
            }
            self.serial += 1;
            self.pipe.insert((at, self.serial), (to, bytes));
        }
    }

    /// Sends all frames of both ends.
    pub fn transmit(&mut self) {
        self.transmit_with(|_, _, _| {});
    }

    /// As [`World::transmit`]; `on_way` sees each frame with its time and its sender, and may change it.
    pub fn transmit_with(&mut self, mut on_way: impl FnMut(Nanos, usize, &mut [u8])) {
        let mut out = [0; Endpoint::FRAME_MAX];
        for end in 0..2 {
            while let Some(length) = self.ends[end].poll_transmit(self.now, &mut out) {
                on_way(self.now, end, &mut out[..length]);
                self.put(1 - end, &out[..length]);
            }
        }
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<Nanos> {
        let timers = self
            .ends
            .iter()
            .filter_map(|e| e.poll_timeout().map(|(at, _)| at));
        self.pipe
            .keys()
            .next()
            .map(|&(at, _)| at)
            .into_iter()
            .chain(timers)
            .min()
    }

    /// Advances to `at`, which is not after the next event, and processes an event that is due.
    pub fn advance(&mut self, at: Nanos) {
        self.steps += 1;
        self.now = self.now.max(at);
        if let Some(entry) = self.pipe.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, frame) = entry.remove();
            self.ends[to].handle_frame(self.now, &frame);
        }
        for end in &mut self.ends {
            if end.poll_timeout().is_some_and(|(at, _)| at <= self.now) {
                end.handle_timeout(self.now);
            }
        }
    }
}
