//! The control side of moving a group between workers (docs/decisions/0007-moving-groups.md).

use castnet_engine::Expected;
use castnet_wire::McstId;

use crate::command::Command;
use crate::control::{SharedControl, State, WorkerHandle};
use crate::error::{MoveError, Stopped};
use crate::events::{MoveCause, SwitchEventKind};

/// Result of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The worker that had the group.
    pub from: usize,
    /// The worker that has the group now.
    pub to: usize,
}

impl SharedControl {
    /// Waits until the new worker has the group and no frame is blocked or held.
    pub(crate) fn move_group(
        &self,
        mcst_id: McstId,
        to: usize,
        cause: MoveCause,
    ) -> Result<Moved, MoveError> {
        // Readers of counters must find the group at exactly one worker.
        let moves = self.moves.write();
        let mut state = self.state.lock();
        let group = state.groups.get(&mcst_id).ok_or(MoveError::NoGroup { mcst_id })?;
        let (from, name) = (group.worker, group.rule.name.clone());
        let workers = self.workers.len();
        let target = self
            .workers
            .get(to)
            .ok_or(MoveError::NoWorker { worker: to, workers })?;
        if from == to {
            return Err(MoveError::Already { name, worker: to });
        }
        let source = self.workers.get(from).ok_or(Stopped)?;
        let expected = Box::new(Expected::new(&group.rule, group.memory));
        // The target reserves memory first, so that it cannot refuse the group later.
        let (answer, expected) = target.request(|reply| Command::Expect(expected, reply))?;
        answer.map_err(MoveError::Refused)?;
        state.patient = true;
        let moved = self.carry(&mut state, (source, target), expected, (from, to));
        // Reset also after a failure, so that no frame waits forever.
        state.patient = false;
        self.publish(&mut state);
        let settled: Result<(), Stopped> = self
            .workers
            .iter()
            .try_for_each(|worker| worker.request(|reply| Command::Barrier(false, reply)));
        let moved = moved.and_then(|moved| Ok(settled.map(|()| moved)?))?;
        drop(state);
        drop(moves);
        match cause {
            MoveCause::Asked => tracing::info!(group = name, %mcst_id, from, to, "group moved on request"),
            MoveCause::Overload { busy_percent } => {
                tracing::info!(group = name, %mcst_id, from, to, busy_percent, "group moved because its worker was overloaded");
            }
        }
        self.send_event(SwitchEventKind::GroupMoved {
            mcst_id,
            name,
            from,
            to,
            cause,
        });
        Ok(moved)
    }

    fn carry(
        &self,
        state: &mut State,
        (source, target): (&WorkerHandle, &WorkerHandle),
        expected: Box<Expected>,
        (from, to): (usize, usize),
    ) -> Result<Moved, MoveError> {
        let mcst_id = expected.mcst_id();
        let own = |state: &mut State, worker| state.reassign(mcst_id, worker);
        // From here on new frames go to the target, which holds them.
        own(state, to);
        self.publish_and_wait(state)?;
        // The source processes the frames handed to it before, then releases the group.
        let Some(group) = source.request(|reply| Command::Detach(mcst_id, reply))? else {
            own(state, from);
            self.publish_and_wait(state)?;
            target.request(|reply| Command::Unexpect(Some(expected), reply))?;
            return Err(MoveError::NoGroup { mcst_id });
        };
        let (answer, expected) = target.request(|reply| Command::Attach(group, expected, reply))?;
        let Err((error, group)) = answer else {
            target.request(|reply| Command::Barrier(true, reply))?;
            return Ok(Moved { from, to });
        };
        // Memory was reserved, so this cannot fail. If it does, the source gets the group back and held frames are
        // dropped.
        own(state, from);
        let (_, expected) = source.request(|reply| Command::Expect(expected, reply))?;
        self.publish_and_wait(state)?;
        let _ = source.request(|reply| Command::Attach(group, expected, reply))?;
        target.request(|reply| Command::Unexpect(None, reply))?;
        Err(MoveError::Refused(error))
    }
}
