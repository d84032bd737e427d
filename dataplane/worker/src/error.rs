//! What can go wrong on the control side.

use std::io;

use castnet_engine::ConfigError;
use castnet_port::OpenError;
use castnet_rules::Fault;
use castnet_wire::{McstId, PortId};

/// Why a dataplane does not start. Nothing is left running then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There must be a worker.
    #[error("no worker is configured: at least one is needed")]
    NoWorkers,
    /// More workers than this can be.
    #[error("{given} workers are configured: at most {max}")]
    TooManyWorkers {
        /// How many were asked for.
        given: usize,
        /// How many there may be.
        max: usize,
    },
    /// A worker's memory cannot be had.
    #[error("the memory of worker {worker}: {source}")]
    Memory {
        /// The worker.
        worker: usize,
        /// Why.
        source: OpenError,
    },
    /// A port cannot be opened.
    #[error("port {id} (`{name}`): {source}")]
    Port {
        /// Its number.
        id: PortId,
        /// Its name.
        name: String,
        /// Why.
        source: OpenError,
    },
    /// The engine refuses its configuration.
    #[error("the switch's configuration: {0}")]
    Config(ConfigError),
    /// A worker cannot be pinned to its core.
    #[error(
        "cannot pin worker {worker} to core {core}: {reason}; this machine has {cores} core(s), counted from 0"
    )]
    Pin {
        /// The worker.
        worker: usize,
        /// The core that it was to have.
        core: usize,
        /// What the kernel said.
        reason: String,
        /// How many cores this process may use.
        cores: usize,
    },
    /// A thread, or what it sleeps with, cannot be had.
    #[error("cannot start a worker: {0}")]
    Thread(io::Error),
}

/// The dataplane has stopped, or a worker has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the dataplane has stopped")]
pub struct Stopped;

/// Why a group is not installed. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The rule is wrong, or a limit is reached.
    #[error(transparent)]
    Refused(#[from] castnet_engine::InstallError),
    /// Another group has what is this one's alone: its name, its McstID, an address or a QP of its members.
    #[error("{}", first_of(.0))]
    Clash(Vec<Fault>),
    /// A newer version of the group runs.
    #[error("group `{name}` runs generation {running}, this is generation {given}")]
    Older {
        /// The group.
        name: String,
        /// What runs.
        running: u64,
        /// What was to be installed.
        given: u64,
    },
    /// See [`Stopped`].
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

fn first_of(faults: &[Fault]) -> String {
    let first = faults.first().map(ToString::to_string).unwrap_or_default();
    format!("{} fault(s); the first: {first}", faults.len())
}

/// Why a group is not moved. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// There is no such group.
    #[error("there is no group {mcst_id}")]
    NoGroup {
        /// The address that was given.
        mcst_id: McstId,
    },
    /// There is no such worker.
    #[error("there is no worker {worker}: this switch has {workers}, counted from 0")]
    NoWorker {
        /// The worker that was asked for.
        worker: usize,
        /// How many there are.
        workers: usize,
    },
    /// The worker has the group.
    #[error("group `{name}` is at worker {worker} already")]
    Already {
        /// The group.
        name: String,
        /// Its worker.
        worker: usize,
    },
    /// The worker has no place for the group.
    #[error("the worker has no place for it: {0}")]
    Refused(castnet_engine::InstallError),
    /// See [`Stopped`].
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why routes are not changed. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The routes break rules of their own.
    #[error("{}", first_of(.0))]
    Faults(Vec<Fault>),
    /// A next hop is behind a port that the switch does not have, though it has one of a higher number.
    #[error("route {prefix} leaves by port {port}, which this switch does not have")]
    NoPort {
        /// The route's prefix.
        prefix: String,
        /// The port.
        port: PortId,
    },
    /// See [`Stopped`].
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why frames cannot be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// As many run as may, live traces and captures together.
    #[error(
        "{max} live traces and captures are running, as many as this switch takes at once: end one first"
    )]
    Full {
        /// How many there may be.
        max: usize,
    },
    /// The switch has no such port.
    #[error("this switch has no port {0}")]
    NoPort(PortId),
    /// See [`Stopped`].
    #[error(transparent)]
    Stopped(#[from] Stopped),
}
