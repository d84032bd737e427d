//! How links behave.

use castnet_wire::Nanos;

/// How one direction of a link behaves. Probabilities are per frame, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkProfile {
    /// Bits per second on the wire, at least 1.
    pub rate_bps: u64,
    /// From the last bit's sending to its arrival.
    pub delay: Nanos,
    /// Bytes that may wait behind the frame that is being sent; further ones are dropped (drop-tail).
    pub queue_bytes: u64,
    /// A frame does not arrive.
    pub loss: f64,
    /// A frame arrives twice.
    pub duplication: f64,
    /// A frame is held up by up to [`LinkProfile::reordering_delay_max`], so that later ones overtake it.
    pub reordering: f64,
    /// The longest that a frame is held up.
    pub reordering_delay_max: Nanos,
    /// A bit of a frame is turned.
    pub corruption: f64,
}

impl Default for LinkProfile {
    /// A good link: 100 Gb/s, 500 ns, a queue of 1 MiB, no faults.
    fn default() -> Self {
        Self {
            rate_bps: 100_000_000_000,
            delay: Nanos(500),
            queue_bytes: 1 << 20,
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            reordering_delay_max: Nanos::from_micros(20),
            corruption: 0.0,
        }
    }
}

impl LinkProfile {
    /// How long `bytes` of a frame take on the wire, with preamble, FCS and gap (24 bytes) and at least the 64 bytes of
    /// the shortest Ethernet frame.
    pub fn serialization(&self, bytes: usize) -> Nanos {
        let bits = (bytes.max(60) as u64 + 24) * 8;
        Nanos((u128::from(bits) * 1_000_000_000 / u128::from(self.rate_bps.max(1))) as u64)
    }

    /// Bytes that leave in a span of time.
    pub(crate) fn bytes_in(&self, span: Nanos) -> u64 {
        (u128::from(span.0) * u128::from(self.rate_bps) / 8_000_000_000) as u64
    }
}

/// What a simulation starts with.
#[derive(Clone, Debug, PartialEq)]
pub struct SimConfig {
    /// Seeds everything random.
    pub seed: u64,
    /// How all directions of all links behave until they are told otherwise.
    pub links: LinkProfile,
    /// From a frame's arrival at a switch until its worker looks; frames that arrive meanwhile join the batch.
    pub poll_delay: Nanos,
    /// Frames that the trace keeps, the newest; 0 for none.
    pub trace_frames_max: usize,
}

impl SimConfig {
    /// Good links, switches that look every microsecond, no trace.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            links: LinkProfile::default(),
            poll_delay: Nanos(1_000),
            trace_frames_max: 0,
        }
    }
}
