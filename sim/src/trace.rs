//! A trace of sent frames for debugging, as decoded lines or as a capture file.

use core::fmt;
use std::collections::VecDeque;

use castnet_wire::{Nanos, describe};

use crate::link::Fate;

/// The newest frames that were sent on any link.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    records: VecDeque<TraceRecord>,
    frames_max: usize,
}

/// A sent frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Time at which it was sent.
    pub at: Nanos,
    /// Nodes and ports of the link, for example `leaf0:3 > spine0:1`.
    pub hop: String,
    /// Its fate.
    pub fate: Fate,
    /// Its bytes, as sent.
    pub frame: Vec<u8>,
}

impl Trace {
    pub(crate) fn new(frames_max: usize) -> Self {
        Self {
            records: VecDeque::new(),
            frames_max,
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.frames_max > 0
    }

    pub(crate) fn push(&mut self, record: TraceRecord) {
        if self.records.len() == self.frames_max {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// The frames, oldest first.
    pub fn records(&self) -> impl Iterator<Item = &TraceRecord> {
        self.records.iter()
    }

    /// The trace as a capture file: pcap with nanoseconds, Ethernet.
    pub fn to_pcap(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for word in [0xA1B2_3C4D_u32, 0x0004_0002, 0, 0, 0x0004_0000, 1] {
            out.extend(word.to_le_bytes());
        }
        for record in &self.records {
            let length = record.frame.len() as u32;
            let (seconds, nanos) = (record.at.0 / 1_000_000_000, record.at.0 % 1_000_000_000);
            for word in [seconds as u32, nanos as u32, length, length] {
                out.extend(word.to_le_bytes());
            }
            out.extend(&record.frame);
        }
        out
    }
}

impl fmt::Display for TraceRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.at.0 as f64 / 1e3;
        write!(
            f,
            "{micros:14.3} us  {:24} {}",
            self.hop,
            describe(&self.frame, self.frame.len())
        )?;
        match self.fate {
            Fate::Delivered => Ok(()),
            fate => write!(f, "  [{fate:?}]"),
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.records.iter().try_for_each(|record| writeln!(f, "{record}"))
    }
}
