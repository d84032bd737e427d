//! Who calls collectives: this thread, or a runner for it.

use castnet_comm::{Buffers, CommConfig, CommError, CommPath, Communicator, Element, Operation, SharedRnic};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, remark};
use castnet_runner::{Comm, Runner, StartError};

use super::RankArgs;
use super::failure::failure;
use super::waiting::Waiting;
use crate::host::device::Device;

/// The RNIC of this rank.
pub(super) enum Callers {
    Thread(SharedRnic),
    Runner(Runner),
}

/// A communicator over it.
pub(super) enum Caller {
    Thread(Box<Communicator>),
    Runner(Comm),
}

impl Callers {
    pub(super) fn open(device: &Device, in_runner: bool) -> Outcome<Self> {
        if !in_runner {
            return Ok(Self::Thread(SharedRnic::new(device.open()?)));
        }
        let device = device.clone();
        match Runner::start(move || device.open()) {
            Ok(runner) => Ok(Self::Runner(runner)),
            Err(StartError::Open(failure)) => Err(failure),
            Err(error @ StartError::Thread(_)) => Err(Failure::failed(error.to_string())),
        }
    }

    /// Joins the job of `config`, and reports on standard error what it waits for.
    pub(super) fn connect(&self, rank: &RankArgs, config: CommConfig, output: Output) -> Outcome<Caller> {
        let (job, waiting) = (config.job.clone(), Waiting::begin(rank, &config, output));
        let connected = match self {
            Self::Thread(rnic) => {
                let comm = Communicator::connect(config, Box::new(rnic.clone()));
                comm.map(|comm| Caller::Thread(Box::new(comm)))
            }
            Self::Runner(runner) => runner.connect(config).map(Caller::Runner),
        };
        drop(waiting);
        let named = |error| failure(error, &job);
        let caller = connected.map_err(named)?;
        remark(&format!("{}: {}", rank.name, caller.path().map_err(named)?));
        Ok(caller)
    }
}

macro_rules! either {
    ($caller:expr, $comm:ident => $call:expr) => {
        match $caller {
            Caller::Thread($comm) => $call,
            Caller::Runner($comm) => $call,
        }
    };
}

impl Caller {
    pub(super) fn rank(&self) -> u16 {
        either!(self, comm => comm.rank())
    }

    pub(super) fn size(&self) -> u16 {
        either!(self, comm => comm.size())
    }

    pub(super) fn path(&self) -> Result<CommPath, CommError> {
        match self {
            Self::Thread(comm) => Ok(comm.path()),
            Self::Runner(comm) => comm.path(),
        }
    }

    pub(super) fn close(self) -> Result<(), CommError> {
        either!(self, comm => comm.close())
    }

    pub(super) fn allreduce<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: Operation,
    ) -> Result<(), CommError> {
        either!(self, comm => comm.allreduce(buffers, operation))
    }

    pub(super) fn reduce<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: Operation,
        root: u16,
    ) -> Result<(), CommError> {
        either!(self, comm => comm.reduce(buffers, operation, root))
    }

    pub(super) fn broadcast<T: Element>(&mut self, buffer: &mut [T], root: u16) -> Result<(), CommError> {
        either!(self, comm => comm.broadcast(buffer, root))
    }

    pub(super) fn barrier(&mut self) -> Result<(), CommError> {
        either!(self, comm => comm.barrier())
    }

    pub(super) fn reduce_scatter<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: Operation,
    ) -> Result<(), CommError> {
        either!(self, comm => comm.reduce_scatter(buffers, operation))
    }

    pub(super) fn allgather<'a, T: Element>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
    ) -> Result<(), CommError> {
        either!(self, comm => comm.allgather(buffers))
    }
}
