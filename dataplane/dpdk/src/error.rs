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
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum DpdkError {
    /// The environment (EAL) cannot be started. A retry with other settings is possible.
    #[error("DPDK does not start with `{arguments}`: {reason}")]
    Start { arguments: String, reason: Reason },
    /// Hugepages are required, but not enough are free.
    #[error(
        "{needed} MiB of hugepages are needed and {free} MiB are free: `sysctl vm.nr_hugepages={pages}` reserves enough of 2 MiB, or do without them (hugepages=no)"
    )]
    Hugepages {
        needed: usize,
        free: usize,
        pages: usize,
    },
    /// A thread cannot be registered with DPDK.
    #[error("a thread cannot be registered with DPDK: {0}")]
    Thread(Reason),
    /// The buffers cannot be allocated.
    #[error("no memory for {count} buffers of {capacity} bytes: {reason}")]
    Buffers {
        count: usize,
        capacity: usize,
        reason: Reason,
    },
    /// The device does not exist, or its driver rejected it.
    #[error("no DPDK device `{device}`: {reason}")]
    NoDevice { device: String, reason: Reason },
    /// A step of a device's setup failed.
    #[error("cannot set up `{device}` ({step}): {reason}")]
    SetUp {
        device: String,
        step: String,
        reason: Reason,
    },
    /// The device or queue is already in use in this process.
    #[error("`{device}` is in use already")]
    InUse { device: String },
    /// The device has too few queues.
    #[error("`{device}` has {max} {direction} queues, {asked} are needed: one for each {what}")]
    Queues {
        device: String,
        direction: &'static str,
        max: usize,
        asked: usize,
        what: &'static str,
    },
    /// The device or the buffers do not support this MTU.
    #[error("`{device}` takes an MTU from {min} to {max}, not {asked}")]
    Mtu {
        device: String,
        min: usize,
        max: usize,
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
