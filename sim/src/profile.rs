//! Configuration of links and of the simulation.

use castnet_pfc::PfcConfig;
use castnet_wire::Nanos;
use castnet_wire::red::RedConfig;

/// Behaviour of one direction of a link. Probabilities are per frame, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkProfile {
    /// Bits per second on the wire; at least 1.
    pub rate_bps: u64,
    /// Propagation delay: from sending the last bit to its arrival.
    pub delay: Nanos,
    /// Bytes that may be queued behind the frame that is being sent. Further frames are dropped (drop-tail).
    pub queue_bytes: u64,
    /// When frames are marked as congested (ECN: CE). `None`: never.
    pub ecn: Option<RedConfig>,
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that a frame is duplicated.
    pub duplication: f64,
    /// Probability that a frame is delayed by up to [`LinkProfile::reordering_delay_max`]; later ones overtake it.
    pub reordering: f64,
    /// Longest delay of a reordered frame.
    pub reordering_delay_max: Nanos,
    /// Probability that a bit of a frame is flipped.
    pub corruption: f64,
}

impl Default for LinkProfile {
    /// A link without faults: 100 Gb/s, 500 ns, a queue of 1 MiB.
    fn default() -> Self {
        Self {
            rate_bps: 100_000_000_000,
            delay: Nanos(500),
            queue_bytes: 1 << 20,
            ecn: None,
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            reordering_delay_max: Nanos::from_micros(20),
            corruption: 0.0,
        }
    }
}

impl LinkProfile {
    /// Time of a frame of `bytes` on the wire, at least 60, with preamble, FCS and gap (24 bytes).
    pub fn serialization(&self, bytes: usize) -> Nanos {
        let bits = (bytes.max(60) as u64 + 24) * 8;
        match bits.checked_mul(1_000_000_000) {
            Some(scaled) => Nanos(scaled / self.rate_bps.max(1)),
            None => Nanos((u128::from(bits) * 1_000_000_000 / u128::from(self.rate_bps.max(1))) as u64),
        }
    }

    /// Rate in Mb/s, rounded down.
    pub(crate) fn speed_mbps(&self) -> Option<u32> {
        u32::try_from(self.rate_bps / 1_000_000).ok()
    }

    /// Whether chance decides what happens to frames. Marks of congestion have a generator per link.
    pub(crate) fn has_chance(&self) -> bool {
        [self.loss, self.duplication, self.reordering, self.corruption]
            .iter()
            .any(|probability| *probability > 0.0)
    }

    /// Time until `bytes` have left.
    pub(crate) fn time_of(&self, bytes: u64) -> Nanos {
        Nanos((u128::from(bytes) * 8_000_000_000 / u128::from(self.rate_bps.max(1))) as u64)
    }

    pub(crate) fn bytes_in(&self, span: Nanos) -> u64 {
        match span.0.checked_mul(self.rate_bps) {
            Some(scaled) => scaled / 8_000_000_000,
            None => (u128::from(span.0) * u128::from(self.rate_bps) / 8_000_000_000) as u64,
        }
    }
}

/// Time that the processor of a host takes for the messages of its rank, one after the other. RNICs work beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCost {
    /// Before a message is posted.
    pub send: Nanos,
    /// From the completion of a received message until the rank has it.
    pub receive: Nanos,
    /// For each KiB of a message, both times: it is copied.
    pub copy_per_kib: Nanos,
}

impl HostCost {
    pub(crate) fn copies(self, bytes: u32) -> Nanos {
        Nanos(self.copy_per_kib.0 * u64::from(bytes) / 1024)
    }

    pub(crate) fn is_zero(self) -> bool {
        self == Self::default()
    }
}

/// Configuration of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimConfig {
    /// Seed of all randomness.
    pub seed: u64,
    /// Initial profile of all directions of all links.
    pub links: LinkProfile,
    /// Time from a frame's arrival at a switch until its worker polls. Frames that arrive meanwhile join the batch.
    pub poll_delay: Nanos,
    /// Time of hosts.
    pub host_cost: HostCost,
    /// Flow control (PFC) of all ports of switches and hosts. `None`: none. Frames of lossless classes then wait at switches, beyond
    /// [`LinkProfile::queue_bytes`], the send queue of the device.
    pub pfc: Option<PfcConfig>,
    /// Whether switches forward only CNPs of the most congested path of a multicast group (M4). False: all of them.
    pub filter_cnps: bool,
    /// Most frames that the trace keeps; it keeps the newest. 0 disables the trace.
    pub trace_frames_max: usize,
    /// Threads of [`Simulation::run`](crate::Simulation::run), at most. The results do not depend on it.
    pub threads: usize,
}

impl SimConfig {
    /// Links without faults, switches that poll after one microsecond, hosts that take no time, no trace, one thread.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            links: LinkProfile::default(),
            poll_delay: Nanos(1_000),
            host_cost: HostCost::default(),
            pfc: None,
            filter_cnps: true,
            trace_frames_max: 0,
            threads: 1,
        }
    }
}
