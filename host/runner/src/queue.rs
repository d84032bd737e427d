//! What other threads ask of the runner.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use castnet_comm::machine::Collective;
use castnet_comm::{CommConfig, CommError, CommPath, DataType, LentBytes, Operation};
use castnet_rnic::Waker;

use crate::ticket::Completer;

/// Number of a communicator in its runner. Those of a job follow each other: job, then number.
pub(crate) type CommId = (u64, u64);

/// A new communicator.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    pub(crate) id: CommId,
    pub(crate) rank: u16,
    pub(crate) size: u16,
}

pub(crate) type Reply<T> = SyncSender<Result<T, CommError>>;

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) operation: Operation,
    pub(crate) data_type: DataType,
    pub(crate) memory: LentBytes,
}

#[derive(Debug)]
pub(crate) enum Command {
    Connect(Box<CommConfig>, Reply<Joined>),
    /// The fields are dropped in this order: the memory before the completer returns it.
    Call(CommId, Call, Completer),
    Split(CommId, Option<u32>, i32, Reply<Option<Joined>>),
    Dup(CommId, Reply<Joined>),
    Path(CommId, Reply<CommPath>),
    Close(CommId, Reply<()>),
    Drop(CommId),
    Stop,
}

/// Commands in the order of their submission. Pushing allocates nothing once the queue has had its length.
#[derive(Debug)]
pub(crate) struct Queue {
    commands: Mutex<Commands>,
    has_commands: AtomicBool,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Commands {
    list: Vec<Command>,
    is_closed: bool,
}

impl Queue {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            commands: Mutex::default(),
            has_commands: AtomicBool::new(false),
            waker,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After the end of the runner, the command is dropped, which answers it.
    pub(crate) fn push(&self, command: Command) {
        let mut commands = self.lock();
        if commands.is_closed {
            drop(commands);
            return drop(command);
        }
        commands.list.push(command);
        self.has_commands.store(true, Ordering::Release);
        drop(commands);
        self.waker.wake();
    }

    pub(crate) fn has_commands(&self) -> bool {
        self.has_commands.load(Ordering::Acquire)
    }

    /// Moves all commands to `out`, which is empty.
    pub(crate) fn take(&self, out: &mut Vec<Command>) {
        if self.has_commands() {
            let mut commands = self.lock();
            std::mem::swap(out, &mut commands.list);
            self.has_commands.store(false, Ordering::Release);
        }
    }

    /// Takes no more commands, and drops those that wait.
    pub(crate) fn close(&self) {
        let mut commands = self.lock();
        commands.is_closed = true;
        let waiting = std::mem::take(&mut commands.list);
        drop(commands);
        drop(waiting);
    }
}
