//! Two endpoints and a pipe between them that loses, repeats, reorders and damages frames, in virtual time.

use castnet_endpoint::{Endpoint, EndpointConfig};
use castnet_wire::{MacAddr, Nanos};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Small, seeded, and the same everywhere (splitmix64).
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

    /// True that many times in 1000.
    pub fn permille(&mut self, rate: u64) -> bool {
        self.below(1000) < rate
    }
}

/// What happens to frames, each in so many of 1000.
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
    /// From then on nothing gets through.
    pub dead_at: Nanos,
    /// By time of arrival and serial number: which end, and the frame.
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
                    // Half of the runs as RNICs in hardware do it, in either direction.
                    coalesce_acks: (seed >> end) & 1 == 1,
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

    /// Lets both ends send what they have.
    pub fn transmit(&mut self) {
        let mut out = [0; Endpoint::FRAME_MAX];
        for end in 0..2 {
            while let Some(length) = self.ends[end].poll_transmit(self.now, &mut out) {
                self.put(1 - end, &out[..length]);
            }
        }
    }

    /// When something happens next without anybody's doing.
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

    /// Jumps to `at`, no later than the next event, and lets one happen there.
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
