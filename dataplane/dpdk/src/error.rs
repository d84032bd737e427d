//! What DPDK refuses, with its own reason.

use std::fmt;

use castnet_port::OpenError;

/// Why DPDK refused: its error number, and what it logged meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// An `errno` value; DPDK adds a few of its own from 1000 on.
    pub code: i32,
    /// The error number in words.
    pub text: String,
    /// The last lines of DPDK's log, one after the other; empty where it said nothing.
    pub log: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text, self.code)?;
        if !self.log.is_empty() {
            write!(f, "; DPDK says: {}", self.log)?;
        }
        Ok(())
    }
}

/// What can go wrong between Castnet and DPDK.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// The environment (EAL) does not start. It can be tried again with other settings.
    #[error("DPDK does not start with `{arguments}`: {reason}")]
    Start {
        /// What it was started with.
        arguments: String,
        /// Why.
        reason: Reason,
    },
    /// Hugepages were asked for, and there are not enough that are free.
    #[error(
        "{needed} MiB of hugepages are needed and {free} MiB are free: `sysctl vm.nr_hugepages={pages}` reserves enough of 2 MiB, or do without them (hugepages=no)"
    )]
    Hugepages {
        /// MiB that the buffers take.
        needed: usize,
        /// MiB that are free.
        free: usize,
        /// How many pages of 2 MiB would do.
        pages: usize,
    },
    /// A thread cannot become one of DPDK's.
    #[error("a thread cannot be registered with DPDK: {0}")]
    Thread(Reason),
    /// There is no memory for the buffers.
    #[error("no memory for {count} buffers of {room} bytes: {reason}")]
    Buffers {
        /// How many.
        count: usize,
        /// Bytes of each.
        room: usize,
        /// Why.
        reason: Reason,
    },
    /// There is no such device, or its driver refuses it.
    #[error("no DPDK device `{device}`: {reason}")]
    NoDevice {
        /// The device with its options.
        device: String,
        /// Why.
        reason: Reason,
    },
    /// A step of a device's set-up was refused.
    #[error("cannot set up `{device}` ({step}): {reason}")]
    SetUp {
        /// The device.
        device: String,
        /// What was tried.
        step: String,
        /// Why.
        reason: Reason,
    },
    /// Somebody else in this process has the device, or its queue.
    #[error("`{device}` is in use already")]
    InUse {
        /// The device.
        device: String,
    },
    /// The device has fewer queues than are needed.
    #[error("`{device}` has {max} {direction} queues, {asked} are needed: one for each {what}")]
    Queues {
        /// The device.
        device: String,
        /// `receive` or `send`.
        direction: &'static str,
        /// How many it has.
        max: usize,
        /// How many are needed.
        asked: usize,
        /// What each is for.
        what: &'static str,
    },
    /// The device, or the buffers, do not take packets as long as that.
    #[error("`{device}` takes an MTU from {min} to {max}, not {asked}")]
    Mtu {
        /// The device.
        device: String,
        /// The least.
        min: usize,
        /// The most.
        max: usize,
        /// What was asked for.
        asked: usize,
    },
}

impl From<DpdkError> for OpenError {
    fn from(error: DpdkError) -> Self {
        let name = match &error {
            DpdkError::NoDevice { device, .. }
            | DpdkError::SetUp { device, .. }
            | DpdkError::InUse { device }
            | DpdkError::Queues { device, .. }
            | DpdkError::Mtu { device, .. } => device.split(',').next().unwrap_or_default().to_owned(),
            _ => return Self::Buffers(error.to_string()),
        };
        Self::Other {
            name,
            reason: error.to_string(),
        }
    }
}
