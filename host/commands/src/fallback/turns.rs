//! Turns from host to host: what is left of those of a group. Each is a stream of its own, whose source is the member that has its turn.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use castnet_comm::{Collectives, Communicator};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, remark};
use castnet_member::fallback::{
    Course, Outgoing, Ranks, Receiving, Retry, Sending, cannot_send, ends, joining_within,
};
use castnet_member::{Hosts, MemberConfig, MemberError, Transferred};
use castnet_rnic::Rnic;

use super::receiving::keep;
use super::{FallbackArg, GuardArgs, Incoming, Refused, Ways, close, failed, not_all, show};
use crate::report::TransferReport;
use crate::{MemberArgs, Stop, Stopped};

/// What to do after an error in the group: all go on from host to host, or it is an error.
pub(crate) type Instead<'a> = &'a dyn Fn(MemberError) -> Result<Refused, MemberError>;

/// Takes turns in the group, from the first one on that is not over, until all are or the group is left.
pub(crate) type InGroup<'a, 't> = &'a dyn Fn(
    &MemberConfig,
    &mut dyn Rnic,
    (&mut Held<'t>, &mut Vec<TransferReport>),
    Instead<'_>,
) -> Result<(), Stopped>;

/// What a member has of the turns when their group is left.
pub(crate) struct Held<'t> {
    /// Turns that are over for it.
    pub(crate) turn: usize,
    /// It has begun to send its turn.
    pub(crate) outgoing: Option<Outgoing<'static>>,
    /// The last turn that it has begun to receive, and its number.
    pub(crate) incoming: Option<(usize, RefCell<Incoming<'t>>)>,
}

/// The turns of all members, as one of them sees them.
pub(crate) struct Turns<'a, 't> {
    /// The names of those that send.
    pub(crate) order: &'a [String],
    /// Opens what this member sends.
    pub(crate) open: &'a dyn Fn() -> Outcome<Outgoing<'static>>,
    /// What it receives in a turn, by its number from 0.
    pub(crate) incoming: &'a dyn Fn(usize) -> RefCell<Incoming<'t>>,
    pub(crate) in_group: InGroup<'a, 't>,
}

/// The turn that the members go on with, by the turns that are over for each of them and the ranks in the order of their turns. The switches let
/// the next one send when all have everything (M1), so a sender that does not know that yet is done if all others are.
fn next_turn(over: &[u64], order: &[u16]) -> Option<usize> {
    let least = *over.iter().min()?;
    let sender = order.get(least as usize).copied();
    let others = (0..).zip(over).filter(|(rank, _)| Some(*rank) != sender);
    let behind = others.map(|(_, turns)| *turns).min()?;
    let next = match sender {
        Some(_) => least.max(behind.min(least + 1)),
        None => least,
    };
    over.iter()
        .all(|turns| *turns <= next + 1)
        .then_some(next as usize)
}

impl Refused {
    /// The group was tried again, from host to host. Nobody is led there: all come back.
    fn again(ranks: &Ranks, error: MemberError) -> Result<Self, MemberError> {
        match FallbackArg::Auto.instead(error) {
            Err(error) if !ends(&error) => {
                let (names, roll) = (ranks.members.clone(), None);
                let hosts = Hosts { names, roll };
                Ok(Self::diverted(ranks.group.clone(), error.to_string(), hosts))
            }
            refused => refused,
        }
    }

    /// Takes all turns that are left: from host to host, and in the group when that is well again.
    pub(crate) fn take_turns<'t>(
        self,
        ((args, guard), config, rnic): ((&MemberArgs, &GuardArgs), &MemberConfig, Box<dyn Rnic>),
        (mut held, reports): (Held<'t>, &mut Vec<TransferReport>),
        turns: Turns<'_, 't>,
        (output, stop): (Output, &Stop),
    ) -> Outcome {
        let mut reason = self.reason.clone();
        let patience = guard.slow.patience;
        let (mut hosts, mut ranks) = self.connect((args, config), patience, rnic, stop)?;
        let ranks_of = turns.order.iter().map(|name| {
            let rank = ranks.members.iter().position(|host| host == name);
            let rank = rank.map(|rank| rank as u16);
            rank.ok_or_else(|| {
                Failure::failed(format!("{name} is to send, and is not in the group any more"))
            })
        });
        let order: Vec<u16> = ranks_of.collect::<Outcome<_>>()?;
        let start = Instant::now();
        let mut retry = Retry::new(Duration::ZERO, guard.retry());
        // One turn at least goes from host to host between two tries, so that they end.
        let mut may_try = false;
        loop {
            may_try &= retry.is_due(start.elapsed());
            let (turn, all_try) = agree(&mut hosts, &ranks, (held.turn, may_try), &order)?;
            if turn > held.turn
                && let Some(mut outgoing) = held.outgoing.take()
            {
                let (summary, elapsed) = (outgoing.taken().summary(), outgoing.begun.elapsed());
                let sent = Transferred { summary, elapsed };
                let report = TransferReport::of_stream(args, "source", sent, None, hosts.rnic());
                reports.push(report.of_turn(held.turn));
            }
            let Some(&source) = order.get(turn) else {
                break;
            };
            if all_try {
                let (name, number) = (&args.name, turn + 1);
                remark(&format!("{name}: tries its group again, from turn {number} on"));
                retry.handle_group(start.elapsed());
                let config = joining_within(config.clone(), patience.join_again());
                let taken = (&mut held, &mut *reports);
                let again = |error| Self::again(&ranks, error);
                let left = (turns.in_group)(&config, hosts.rnic_mut(), taken, &again);
                retry.handle_left(start.elapsed());
                may_try = false;
                match left {
                    Err(Stopped::Refused(refused)) => {
                        reason = refused.reason;
                        remark(&format!("{name}: {reason}; goes on from host to host"));
                    }
                    left => left.map_err(Stopped::failure)?,
                }
                continue;
            }
            ranks.source = source;
            let report = if source == hosts.rank() {
                let opened = held.outgoing.take().map_or_else(turns.open, Ok);
                let mut outgoing = opened.inspect_err(|failure| {
                    // The others do not wait for it.
                    if let Err(error) = cannot_send(&mut hosts, &ranks, &failure.what) {
                        tracing::warn!(%error, "not reported");
                    }
                })?;
                let bar = output.byte_bar(outgoing.header.length);
                let mut ways = Ways::new(outgoing.begun, outgoing.position(), &reason);
                let sending = Sending {
                    path: &mut ways,
                    guard: None,
                    config: config.clone(),
                    patience: Duration::ZERO,
                    ranks: &mut ranks,
                    hosts: &mut hosts,
                    outgoing: &mut outgoing,
                    // The group is tried between two turns.
                    course: Course::new(Duration::ZERO, None),
                    start: Instant::now(),
                    progress: &mut |bytes| bar.set_position(bytes),
                };
                let sent = sending.run();
                bar.finish_and_clear();
                let summary = sent.map_err(|error| failed(&ranks, error))?;
                let elapsed = outgoing.begun.elapsed();
                let sent = Transferred { summary, elapsed };
                TransferReport::of_stream(args, "source", sent, None, hosts.rnic()).by(Some(ways))
            } else {
                let begun = held.incoming.take().filter(|(number, _)| *number == turn);
                let incoming = begun.map_or_else(|| (turns.incoming)(turn), |(_, incoming)| incoming);
                let start = Instant::now();
                let (in_group, _) = incoming.borrow().came();
                let (mut ways, bar) = (Ways::new(start, in_group, &reason), output.byte_bar(None));
                let receiving = Receiving {
                    path: &mut ways,
                    config: config.clone(),
                    patience: Duration::ZERO,
                    ranks: &mut ranks,
                    hosts: &mut hosts,
                    incoming: &incoming,
                    progress: &mut |length, bytes| show(&bar, length, bytes),
                };
                let received = receiving.run();
                bar.finish_and_clear();
                keep(args, (&ranks, &hosts), &incoming, received, (start, ways))?
            };
            // One that had the whole turn in the group has reported it already.
            if turn >= held.turn {
                reports.push(report.of_turn(turn));
                held.turn = turn + 1;
            }
            may_try = true;
        }
        close(hosts);
        Ok(())
    }
}

/// The turn that all go on with, and whether all would try the group.
fn agree(
    hosts: &mut Communicator,
    ranks: &Ranks,
    (turn, may_try): (usize, bool),
    order: &[u16],
) -> Outcome<(usize, bool)> {
    let mut all = vec![0; 2 * usize::from(hosts.size())];
    hosts
        .allgather((&[turn as u64, may_try.into()][..], &mut all[..]))
        .map_err(|error| not_all(ranks, error))?;
    let (over, tries): (Vec<u64>, Vec<u64>) = all.as_chunks().0.iter().map(|[over, may]| (over, may)).unzip();
    let next = next_turn(&over, order).ok_or_else(|| {
        Failure::failed(format!(
            "the members have come to different turns: {over:?} of them are over"
        ))
    })?;
    Ok((next, tries.iter().all(|may| *may == 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_go_on_with_the_first_turn_that_one_of_them_lacks() {
        let order = [0, 2, 1];
        for (over, next) in [
            ([0, 0, 0], Some(0)),
            // The sender of turn 0 does not know that all have it.
            ([0, 1, 1], Some(1)),
            // Rank 1 has not all of it.
            ([0, 0, 1], Some(0)),
            ([1, 1, 1], Some(1)),
            ([2, 2, 1], Some(2)),
            ([2, 1, 1], Some(1)),
            ([3, 2, 3], Some(3)),
            ([3, 3, 3], Some(3)),
            ([3, 1, 1], None),
        ] {
            assert_eq!(next_turn(&over, &order), next, "{over:?}");
        }
    }
}
