//! What the program `collective-rank` tells when all its results were right.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A rank whose collectives all gave what they must.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Told {
    /// The rank.
    pub rank: u16,
    /// Collectives that it called.
    pub calls: usize,
    /// From its start until all were connected and had met.
    pub connected_s: f64,
    /// All collectives together.
    pub seconds: f64,
    /// The slowest of them.
    pub slowest_s: f64,
    /// How often a QP was created.
    pub qps_created: u32,
    /// How often one was modified to be connected.
    pub qps_connected: u32,
    /// First PSN sent.
    pub sq_psn: u32,
    /// First PSN expected.
    pub rq_psn: u32,
    /// By how much the kernel's counters of the RDMA device have grown, those that have.
    pub counters: BTreeMap<String, u64>,
}

impl Told {
    /// A counter of the RDMA device, by the kernel's name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}
