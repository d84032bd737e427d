//! The turn of a member of a group whose source changes: who sends next, if several want to.

use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::time::Duration;

use super::error::StreamError;
use super::receiver::{Rivals, StreamReceiver};
use super::sender::StreamSender;
use super::transfer::{Flow, WAIT};
use crate::rnic::Rnic;

/// Makes this member the source of a group whose source changes: returns when all members have its turn. It has received all earlier
/// streams. `is_bridged`: the switches bridge PSNs, so the turns of several members arrive. `progress` is called several times per second
/// and may stop the loop.
///
/// # Errors
/// [`StreamError::OutOfTurn`] if another member was faster. Then the turn of this one may still be on the way: keep the sender until it is
/// acknowledged, or reset the QP.
pub fn take_turn(
    rnic: &mut dyn Rnic,
    sender: &mut StreamSender,
    receiver: &mut StreamReceiver,
    is_bridged: bool,
    progress: &mut dyn FnMut(&dyn Rnic) -> Flow,
) -> Result<(), StreamError> {
    let mut contest = Contest::new(RandomState::new().hash_one(()));
    sender.post_turn(rnic)?;
    loop {
        rnic.poll_or_wait(contest.wait(Duration::from_nanos(rnic.now().0)))?;
        sender.poll(rnic)?;
        // After the acknowledgements: what was ordered before a message of this member has arrived by then.
        let is_acknowledged = !sender.has_unacknowledged();
        if !is_bridged {
            match (is_acknowledged, receiver.next_turn(rnic)?) {
                (true, _) => return Ok(()),
                (false, true) => return Err(StreamError::OutOfTurn),
                (false, false) => {}
            }
        } else if receiver.next_after_turns(rnic, &mut contest.rivals)? {
            return Err(StreamError::OutOfTurn);
        } else {
            match contest.step(Duration::from_nanos(rnic.now().0), is_acknowledged) {
                Next::Wait => {}
                Next::Withdraw => sender.post_withdrawal(rnic)?,
                Next::Retry => sender.post_turn_again(rnic)?,
                Next::Send => return Ok(()),
            }
        }
        progress(rnic).check()?;
    }
}

/// A member whose turn is acknowledged sends, unless it has the turn of another one by then: nobody can tell which of the two was first if
/// both have both. Then it withdraws, and takes its turn again after a random time. Of two turns, the member of the second one has always
/// received the first one before its own is acknowledged. So at most one member sends: the others have its turn, and no withdrawal of it.
#[derive(Debug)]
struct Contest {
    /// Of its random times.
    seed: u64,
    rivals: Rivals,
    /// How often this member has withdrawn.
    withdrawals: u32,
    /// Its last turn is withdrawn.
    is_withdrawn: bool,
    /// When it takes its turn again.
    retry_at: Option<Duration>,
}

/// What a member of a contest does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Wait,
    Withdraw,
    Retry,
    Send,
}

impl Contest {
    /// Upper limit of the first random time. It doubles with each withdrawal, seven times at most.
    const RETRY: Duration = Duration::from_millis(1);

    fn new(seed: u64) -> Self {
        Self {
            seed,
            rivals: Rivals::default(),
            withdrawals: 0,
            is_withdrawn: false,
            retry_at: None,
        }
    }

    /// `is_acknowledged`: all that this member has sent is.
    fn step(&mut self, now: Duration, is_acknowledged: bool) -> Next {
        if !is_acknowledged {
            return Next::Wait;
        }
        if !self.is_withdrawn {
            if !self.rivals.any() {
                return Next::Send;
            }
            self.is_withdrawn = true;
            self.withdrawals += 1;
            return Next::Withdraw;
        }
        if self.rivals.any() {
            self.retry_at = None;
            return Next::Wait;
        }
        let delay = self.delay();
        let at = *self.retry_at.get_or_insert(now + delay);
        if now < at {
            return Next::Wait;
        }
        (self.is_withdrawn, self.retry_at) = (false, None);
        Next::Retry
    }

    /// A random time before the next turn.
    fn delay(&self) -> Duration {
        let mut random = DefaultHasher::new();
        (self.seed, self.withdrawals).hash(&mut random);
        let most = Self::RETRY * (1 << self.withdrawals.min(7));
        most.mul_f64(random.finish() as f64 / u64::MAX as f64)
    }

    /// How long to sleep at most.
    fn wait(&self, now: Duration) -> Duration {
        self.retry_at.map_or(WAIT, |at| at.saturating_sub(now).min(WAIT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy)]
    enum Message {
        Turn,
        Withdrawal,
        Begin,
    }

    /// A member: its contest, the message that no switch has taken yet, the position of the one that is not acknowledged, what it has seen.
    struct Member {
        contest: Contest,
        post: Option<Message>,
        unacknowledged: Option<usize>,
        seen: usize,
        outcome: Option<bool>,
    }

    proptest! {
        /// Switches put messages in one order. A member gets those of others in that order at any time, and an acknowledgement of its own
        /// not before all that is earlier, but as late as it likes. Exactly one member sends.
        #[test]
        fn one_member_sends(
            members in 2usize..6, seeds in any::<[u64; 5]>(), choices in prop::collection::vec((any::<prop::sample::Index>(), 0u8..4), 60_000),
        ) {
            let mut all: Vec<Member> = seeds[..members].iter().map(|seed| Member {
                contest: Contest::new(*seed),
                post: Some(Message::Turn),
                unacknowledged: None,
                seen: 0,
                outcome: None,
            }).collect();
            let mut order: Vec<(usize, Message)> = Vec::new();
            for (now, (at, what)) in (0u64..).map(|n| Duration::from_micros(20 * n)).zip(&choices) {
                let at = at.index(members);
                let all_have_it = all.iter().all(|m| m.seen == order.len() || m.outcome == Some(true));
                let member = &mut all[at];
                match what {
                    // The switches take the next message when all members have the one before.
                    0 if all_have_it => if let Some(post) = member.post.take() {
                        order.push((at, post));
                        member.unacknowledged = Some(order.len() - 1);
                        member.seen = order.len();
                    },
                    0 => {}
                    1 => while let Some((from, message)) = order.get(member.seen) {
                        member.seen += 1;
                        match message {
                            _ if *from == at || member.outcome.is_some() => {}
                            Message::Turn => member.contest.rivals.add(1, 0),
                            Message::Withdrawal => member.contest.rivals.add(0, 1),
                            Message::Begin => member.outcome = Some(false),
                        }
                    },
                    2 => {
                        let own = member.unacknowledged;
                        if own.is_some_and(|own| all.iter().all(|m| m.seen > own)) {
                            all[at].unacknowledged = None;
                        }
                    }
                    _ if member.outcome.is_some() => {}
                    _ => {
                        let is_acknowledged = member.post.is_none() && member.unacknowledged.is_none();
                        member.post = match member.contest.step(now, is_acknowledged) {
                            Next::Wait => continue,
                            Next::Withdraw => Some(Message::Withdrawal),
                            Next::Retry => Some(Message::Turn),
                            Next::Send => {
                                member.outcome = Some(true);
                                Some(Message::Begin)
                            }
                        };
                    }
                }
            }
            prop_assert_eq!(all.iter().filter(|m| m.outcome == Some(true)).count(), 1);
            prop_assert!(all.iter().all(|m| m.outcome.is_some()));
        }
    }
}
