//! Results of the packet-level simulation in EPIC, appendix K, and what its numbers imply about its method.
//!
//! The paper prints Gbps. Read as 2^30 bits per second, its cells are whole numbers of microseconds: Reduce at 4 KiB
//! to 1 MiB is 10.17, 30.52, 61.04, 81.38, 88.78, which is 3, 4, 8, 24 and 88 us, to the last digit. Read like this,
//! the other tables imply:
//!
//! - Times are rounded up to whole microseconds.
//! - AllReduce and Barrier of Mode-II end when everything sent is acknowledged (a Barrier over two links takes 5 us
//!   and not 3). Reduce, ReduceScatter and Broadcast end when results have arrived (3 us at 4 KiB; ACKs would return
//!   at 5).
//! - All collectives of Mode-III end when results have arrived.
//! - Its AllGather takes 35, 43, 75, 204, 716 and 2765 us from 4 KiB to 4 MiB, in Mode-III 1 us less: eight times 4 us and the time of the
//!   packets. So the Broadcasts are sequential, each with its ACK.
//! - Headers and ACKs take the time of 224 bytes per packet in an AllReduce. 73 of them are the header that other
//!   collectives have too: each packet is acknowledged, in both directions.
//! - AllReduce of the ring takes 30, 32, 40, 70, 190 and 670 us: 29 us and 15 blocks. So it has 15 steps, of which 14
//!   wait for an ACK. Its ReduceScatter and AllGather take 13 us and 7 blocks: 7 steps, of which 6 wait.
//! - Reduce of the chain takes 14 us and 7 pieces until the first piece has arrived, 2 us per hop. Its Broadcast
//!   takes 8 us, one per hop and one for the last ACK.
//! - ReduceScatter divides the whole contribution of a rank, AllGather the contribution. The throughput of AllGather
//!   counts all 8 blocks for Mode-II; for the ring, both count the 7 blocks that are sent.

use castnet_comm::machine::Collective;

/// Message lengths in tables 25 to 29, in bytes.
pub(crate) const SIZES: [u64; 9] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    64 << 20,
    256 << 20,
    1 << 30,
];

/// A table of throughput by message size, in Gibit/s.
pub(crate) struct BySize {
    pub(crate) number: u32,
    pub(crate) name: &'static str,
    pub(crate) collective: Collective,
    pub(crate) translated: [f64; 9],
    pub(crate) augmented: [f64; 9],
    pub(crate) ring: [f64; 9],
}

const LINE: [f64; 9] = [10.17, 30.52, 61.04, 81.38, 88.78, 90.84, 91.46, 91.49, 91.50];

pub(crate) const BY_SIZE: [BySize; 5] = [
    BySize {
        number: 25,
        name: "AllReduce",
        collective: Collective::AllReduce,
        translated: [6.10, 20.35, 48.83, 75.12, 84.92, 87.54, 88.25, 88.28, 88.30],
        augmented: [10.17, 30.52, 61.04, 81.38, 88.78, 89.03, 89.90, 89.92, 89.92],
        ring: [1.02, 3.81, 12.21, 27.90, 41.12, 46.64, 48.66, 48.76, 48.79],
    },
    BySize {
        number: 26,
        name: "Reduce",
        collective: Collective::Reduce { root: 0 },
        translated: LINE,
        augmented: LINE,
        ring: [1.80, 5.09, 9.39, 19.53, 47.64, 74.40, 90.19, 91.16, 91.41],
    },
    BySize {
        number: 27,
        name: "ReduceScatter",
        collective: Collective::ReduceScatter,
        translated: LINE,
        augmented: LINE,
        ring: [1.91, 7.12, 23.74, 53.41, 77.68, 87.64, 91.24, 91.43, 91.48],
    },
    BySize {
        number: 28,
        name: "Broadcast",
        collective: Collective::Broadcast { root: 0 },
        translated: LINE,
        augmented: LINE,
        ring: [2.77, 6.78, 10.61, 20.78, 49.45, 75.48, 90.29, 91.19, 91.41],
    },
    BySize {
        number: 29,
        name: "AllGather",
        collective: Collective::AllGather,
        translated: [6.98, 22.71, 52.08, 76.59, 87.29, 90.42, 91.43, 91.48, 91.49],
        augmented: [7.18, 23.25, 52.79, 76.97, 87.41, 90.45, 91.43, 91.48, 91.49],
        ring: [13.35, 37.15, 67.02, 83.88, 89.50, 90.99, 91.47, 91.49, 91.50],
    },
];

/// Table 30: barriers per second, of Mode-II, Mode-III and by way of rank 0.
pub(crate) const BARRIER: [f64; 3] = [2e5, 3.33e5, 1.42e5];

/// Table 31: loss in percent on one link, and throughput of the AllReduce of 4 MiB, of Mode-II and Mode-III, in Gibit/s.
pub(crate) const BY_LOSS: [(f64, [f64; 2]); 10] = [
    (0.0, [87.54, 89.03]),
    (0.1, [86.33, 88.53]),
    (0.5, [86.81, 88.53]),
    (1.0, [86.09, 88.28]),
    (2.0, [84.46, 87.54]),
    (5.0, [79.52, 84.92]),
    (8.0, [75.48, 82.67]),
    (10.0, [73.01, 81.17]),
    (12.0, [47.17, 79.72]),
    (15.0, [39.01, 77.74]),
];

/// Table 32: throughput of the same AllReduce with 5 % of loss on 0 to 8 links.
pub(crate) const BY_LINKS: [[f64; 2]; 9] = [
    [87.54, 89.03],
    [79.52, 84.92],
    [74.05, 82.02],
    [70.07, 79.31],
    [64.97, 77.54],
    [63.78, 76.78],
    [59.07, 75.67],
    [55.31, 74.94],
    [52.52, 72.34],
];
/// Bytes of the AllReduce of tables 31 and 32: their first cells are table 25's at 4 MiB.
pub(crate) const LOSS_BYTES: u64 = 4 << 20;

/// A model of tables 33 and 34.
pub(crate) struct Model {
    pub(crate) name: &'static str,
    parameters: f64,
    /// Tensor and pipeline parallel ranks: each has such a part of the parameters.
    parts: u32,
    pub(crate) data_parallel: u16,
    /// Seconds of an iteration, with Mode-II and Mode-III.
    pub(crate) modes: [f64; 2],
    pub(crate) ring: f64,
}

impl Model {
    /// Two bytes for each parameter of a part. That is what the paper's times imply: those with rings and with Mode-II differ by 0.84, 0.249,
    /// 1.249 and 0.129 s, as one AllReduce of so many bytes does. (Table 33 has 16, in bits, for the first model.)
    pub(crate) fn gradient_bytes(&self) -> u64 {
        (self.parameters * 2.0 / f64::from(self.parts)) as u64 & !3
    }
}

const fn model(
    name: &'static str,
    parameters: f64,
    (parts, data_parallel): (u32, u16),
    modes: [f64; 2],
    ring: f64,
) -> Model {
    Model {
        name,
        parameters,
        parts,
        data_parallel,
        modes,
        ring,
    }
}

/// Tables 33 and 34.
pub(crate) const MODELS: [Model; 4] = [
    model("GPT-3 175B", 175e9, (32, 32), [32.35, 32.37], 33.19),
    model("GPT-3 13B", 13e9, (8, 16), [1.154, 1.159], 1.403),
    model("Llama 65B", 65e9, (8, 16), [8.831, 8.856], 10.08),
    model("Llama 7B", 6.7e9, (8, 16), [1.132, 1.134], 1.261),
];

/// Message lengths of table 35. The paper prints 1K, 16K, 16K for the first three; 13.96 Gb/s are 4 KiB in 2.3 us, and a way takes 2 us.
pub(crate) const SLOW_SIZES: [u64; 8] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];

/// Table 35, in 10^9 bits per second (96 of 100 Gb/s are more than the link has of 2^30): without and with CNPs to fast ranks, as the table has
/// it. The paper's text (7.4) has the rows the other way round.
pub(crate) const SLOW: [[f64; 8]; 2] = [
    [13.96, 38.66, 70.37, 88.09, 94.38, 95.99, 95.87, 90.45],
    [13.96, 38.66, 70.37, 88.09, 94.38, 44.60, 43.32, 20.25],
];
