//! Errors of DPDK with their reasons.

use std::fmt;

use castnet_port::OpenError;

/// The reason of a failure: DPDK's error number and its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// An `errno` value. DPDK's own values start at 1000.
    pub code: i32,
    /// The text of the error number.
    pub text: String,
    /// The last lines of DPDK's log. Empty if nothing was logged.
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

/// Errors of DPDK and of its use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// The environment (EAL) cannot be started. A retry with other settings is possible.
    #[error("DPDK does not start with `{arguments}`: {reason}")]
    Start {
        /// The arguments of the start.
        arguments: String,
        /// The reason.
        reason: Reason,
    },
    /// Hugepages are required, but not enough are free.
    #[error(
        "{needed} MiB of hugepages are needed and {free} MiB are free: `sysctl vm.nr_hugepages={pages}` reserves enough of 2 MiB, or do without them (hugepages=no)"
    )]
    Hugepages {
        /// MiB needed for the buffers.
        needed: usize,
        /// MiB free.
        free: usize,
        /// The sufficient number of pages of 2 MiB.
        pages: usize,
    },
    /// A thread cannot be registered with DPDK.
    #[error("a thread cannot be registered with DPDK: {0}")]
    Thread(Reason),
    /// The buffers cannot be allocated.
    #[error("no memory for {count} buffers of {capacity} bytes: {reason}")]
    Buffers {
        /// The number of buffers.
        count: usize,
        /// Bytes of each.
        capacity: usize,
        /// The reason.
        reason: Reason,
    },
    /// The device does not exist, or its driver rejected it.
    #[error("no DPDK device `{device}`: {reason}")]
    NoDevice {
        /// The device with its options.
        device: String,
        /// The reason.
        reason: Reason,
    },
    /// A step of a device's setup failed.
    #[error("cannot set up `{device}` ({step}): {reason}")]
    SetUp {
        /// The device.
        device: String,
        /// The step.
        step: String,
        /// The reason.
        reason: Reason,
    },
    /// The device or queue is already in use in this process.
    #[error("`{device}` is in use already")]
    InUse {
        /// The device.
        device: String,
    },
    /// The device has too few queues.
    #[error("`{device}` has {max} {direction} queues, {asked} are needed: one for each {what}")]
    Queues {
        /// The device.
        device: String,
        /// `receive` or `send`.
        direction: &'static str,
        /// The number of queues of the device.
        max: usize,
        /// The number of queues needed.
        asked: usize,
        /// The purpose of each queue.
        what: &'static str,
    },
    /// The device or the buffers do not support this MTU.
    #[error("`{device}` takes an MTU from {min} to {max}, not {asked}")]
    Mtu {
        /// The device.
        device: String,
        /// The minimum.
        min: usize,
        /// The maximum.
        max: usize,
        /// The configured MTU.
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
