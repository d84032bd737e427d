//! Errors of the control side.

use std::io;

use castnet_engine::ConfigError;
use castnet_port::OpenError;
use castnet_rules::Fault;
use castnet_wire::{McstId, PortId};

/// Error of starting a dataplane. No thread is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum StartError {
    /// No worker is configured.
    #[error("no worker is configured: at least one is needed")]
    NoWorkers,
    /// Too many workers are configured.
    #[error("{given} workers are configured: at most {max}")]
    TooManyWorkers { given: usize, max: usize },
    /// The memory of a worker cannot be created.
    #[error("the memory of worker {worker}: {source}")]
    Memory { worker: usize, source: OpenError },
    /// A port cannot be opened.
    #[error("port {id} (`{name}`): {source}")]
    Port {
        id: PortId,
        name: String,
        source: OpenError,
    },
    /// The engine rejected its configuration.
    #[error("the switch's configuration: {0}")]
    Config(ConfigError),
    /// A worker cannot be pinned to its core.
    #[error(
        "cannot pin worker {worker} to core {core}: {reason}; this machine has {cores} core(s), counted from 0"
    )]
    Pin {
        worker: usize,
        core: usize,
        reason: String,
        cores: usize,
    },
    /// A thread, or a file descriptor that its sleep needs, cannot be created.
    #[error("cannot start a worker: {0}")]
    Thread(io::Error),
}

/// The dataplane has stopped, or a worker has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the dataplane has stopped")]
pub struct Stopped;

/// Error of installing a group. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum InstallError {
    /// The rule is faulty, or a limit is reached.
    #[error(transparent)]
    Refused(#[from] castnet_engine::InstallError),
    /// Another group uses the same name, McstID, member address or member QP.
    #[error("{}", first_of(.0))]
    Clash(Vec<Fault>),
    /// A newer version of the group runs.
    #[error("group `{name}` runs generation {running}, this is generation {given}")]
    Older { name: String, running: u64, given: u64 },
    /// See [`Stopped`].
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

fn first_of(faults: &[Fault]) -> String {
    let first = faults.first().map(ToString::to_string).unwrap_or_default();
    format!("{} fault(s); the first: {first}", faults.len())
}

/// Error of moving a group. The group is where it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum MoveError {
    /// The group does not exist.
    #[error("there is no group {mcst_id}")]
    NoGroup { mcst_id: McstId },
    /// The worker does not exist.
    #[error("there is no worker {worker}: this switch has {workers}, counted from 0")]
    NoWorker { worker: usize, workers: usize },
    /// The worker already has the group.
    #[error("group `{name}` is at worker {worker} already")]
    Already { name: String, worker: usize },
    /// The worker has no capacity for the group.
    #[error("the worker has no capacity for it: {0}")]
    Refused(castnet_engine::InstallError),
    /// See [`Stopped`].
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Error of changing routes. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum RouteError {
    /// The routes are faulty.
    #[error("{}", first_of(.0))]
    Faults(Vec<Fault>),
    /// A next hop uses a port that the switch does not have.
    #[error("route {prefix} leaves by port {port}, which this switch does not have")]
    NoPort { prefix: String, port: PortId },
    /// See [`Stopped`].
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Error of starting a trace or capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// The maximum number of live traces and captures is running.
    #[error(
        "{max} live traces and captures are running, as many as this switch takes at once: end one first"
    )]
    Full {
        /// The maximum.
        max: usize,
    },
    /// The port does not exist.
    #[error("this switch has no port {0}")]
    NoPort(PortId),
    /// See [`Stopped`].
    #[error(transparent)]
    Stopped(#[from] Stopped),
}
