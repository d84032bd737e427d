//! Who calls collectives: this thread, or a runner for it.

use castnet_comm::machine::Collective;
use castnet_comm::{
    Buffers, Collectives, CommConfig, CommError, CommPath, Communicator, Element, Fallback, Operation,
    SharedRnic,
};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, remark};
use castnet_local::{Hierarchical, Options, PathCounters, RankPath};
use castnet_rnic::{Rnic as _, Traffic};
use castnet_runner::{Comm, Runner, StartError};

use super::failure::failure;
use super::{NetworkArgs, RankArgs};
use crate::device::Device;
use crate::waiting::{Joiner, Waiting};

/// The RNIC of this rank, and how it works with the other ranks of its host.
pub struct Callers {
    rnic: CallerRnic,
    options: Options,
}

enum CallerRnic {
    Thread(SharedRnic),
    Runner(Runner),
}

/// A communicator over it.
pub enum Caller {
    /// This thread.
    Thread(Box<Hierarchical<Communicator>>),
    /// A runner's.
    Runner(Box<Hierarchical<Comm>>),
}

impl Callers {
    /// Opens the RNIC.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(device: &Device, network: &NetworkArgs) -> Outcome<Self> {
        let rnic = match network.runner {
            true => {
                let device = device.clone();
                let runner = Runner::start(move || device.open()).map_err(|error| match error {
                    StartError::Open(failure) => failure,
                    error @ StartError::Thread(_) => Failure::failed(error.to_string()),
                })?;
                CallerRnic::Runner(runner)
            }
            false => CallerRnic::Thread(SharedRnic::new(device.open()?)),
        };
        let options = Options {
            numa_node: device.numa_node(),
            ..Options::new(network.path)
        };
        Ok(Self { rnic, options })
    }

    /// What the RNIC has counted. `None`: a runner has it.
    pub fn traffic(&self) -> Option<Traffic> {
        match &self.rnic {
            CallerRnic::Thread(rnic) => Some(rnic.traffic()),
            CallerRnic::Runner(_) => None,
        }
    }

    /// Joins the job of `config`, and reports on standard error what it waits for.
    ///
    /// # Errors
    /// It did not join.
    pub fn connect(&self, rank: &RankArgs, config: CommConfig, output: Output) -> Outcome<Caller> {
        let job = config.job.clone();
        let joiner = Joiner {
            host: &rank.name,
            group: (config.fallback != Fallback::Only).then_some(&*rank.job),
            controllers: &config.controller,
            security: &config.security,
        };
        let waiting = Waiting::begin(&joiner, output.bar(None, "{spinner} {elapsed} {wide_msg}"));
        let (own, options) = (config.clone(), self.options);
        let connected = match &self.rnic {
            CallerRnic::Thread(rnic) => Communicator::connect(config, Box::new(rnic.clone()))
                .and_then(|comm| Hierarchical::new(comm, &own, options))
                .map(|ranks| Caller::Thread(Box::new(ranks))),
            CallerRnic::Runner(runner) => runner
                .connect(config)
                .and_then(|comm| Hierarchical::new(comm, &own, options))
                .map(|ranks| Caller::Runner(Box::new(ranks))),
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
    /// Its rank in the job.
    pub fn rank(&self) -> u16 {
        either!(self, comm => comm.rank())
    }

    /// Ranks of the job.
    pub fn size(&self) -> u16 {
        either!(self, comm => comm.size())
    }

    /// How its data travels.
    ///
    /// # Errors
    /// The runner has ended.
    pub fn path(&self) -> Result<CommPath, CommError> {
        match self {
            Self::Thread(ranks) => Ok(ranks.world().map_or(CommPath::Unused, Communicator::path)),
            Self::Runner(ranks) => ranks.world().map_or(Ok(CommPath::Unused), Comm::path),
        }
    }

    /// The path of the last call among the ranks of a host.
    pub fn last_path(&self) -> RankPath {
        either!(self, comm => comm.last_path())
    }

    /// Calls by path.
    pub fn counters(&self) -> PathCounters {
        either!(self, comm => comm.counters())
    }

    /// Leaves the job.
    ///
    /// # Errors
    /// The other ranks did not leave in time.
    pub fn close(self) -> Result<(), CommError> {
        either!(self, comm => comm.close())
    }

    /// Calls a collective.
    ///
    /// # Errors
    /// It failed, at this rank or at another one.
    pub fn call<T: Element>(
        &mut self,
        collective: Collective,
        operation: Operation,
        buffers: Buffers<'_, T>,
    ) -> Result<(), CommError> {
        either!(self, comm => comm.call(collective, operation, buffers))
    }

    /// An AllReduce in place.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn allreduce<T: Element>(&mut self, data: &mut [T], operation: Operation) -> Result<(), CommError> {
        self.call(Collective::AllReduce, operation, data.into())
    }

    /// A barrier.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn barrier(&mut self) -> Result<(), CommError> {
        self.call::<u8>(Collective::Barrier, Operation::Sum, Buffers::InPlace(&mut []))
    }
}
