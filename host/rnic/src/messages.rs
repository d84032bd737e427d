//! Messages of one size without framing, for checks of RNICs and of the network: exactly `count` messages of
//! exactly `size` bytes, sent by SEND or WRITE with immediate. The immediate is the message's number and the
//! bytes are a pattern derived from it, so the receiver can verify every byte.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use castnet_endpoint::{Access, LocalSlice, OutOfRange, SendWr};
use castnet_wire::Qpn;
use sha2::{Digest as _, Sha256};

use crate::rnic::{MemoryRegion, Rnic};
use crate::stream::{Digest, Flow, LANES_MAX, ReceiveLane, StreamError, Transfer, WAIT, check_work};

const SIZE_MAX: u64 = 1 << 30;
/// The maximum number of messages. The time of each is recorded.
const COUNT_MAX: u64 = 1 << 20;

/// Step of the state of SplitMix64.
pub const MIX_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The output of SplitMix64 for a state.
pub const fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Fills `bytes` with the pattern of message `number`: the little-endian words of SplitMix64 seeded with the number.
pub fn fill(number: u64, bytes: &mut [u8]) {
    let mut state = number.wrapping_mul(MIX_STEP) ^ 0x5EED;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_add(MIX_STEP);
        chunk.copy_from_slice(&mix(state).to_le_bytes()[..chunk.len()]);
    }
}

/// The messages of a check. All members use the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    /// Bytes of each message: 0 to 1 GiB.
    pub size: u32,
    /// The number of messages: 1 to 1,048,576.
    pub count: u32,
}

impl Messages {
    fn check(&self) -> Result<(), StreamError> {
        OutOfRange::check("size", self.size, 0, SIZE_MAX)?;
        Ok(OutOfRange::check("count", self.count, 1, COUNT_MAX)?)
    }
}

/// Result of a check at one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessagesSummary {
    /// Bytes of all messages.
    pub bytes: u64,
    /// SHA-256 of all messages in order.
    pub digest: Digest,
    /// Time per message: at the sender from posting to completion, at a receiver from the first completion to its own.
    pub times: Vec<Duration>,
}

/// Sends `messages` over the QPs in turn, which are the lanes of a group, with at most `in_flight` unacknowledged.
/// Returns when all are acknowledged. `progress` receives the number of acknowledged messages and may stop the loop.
///
/// # Errors
/// [`StreamError::Work`] with the status of the first failed message, and any other error of a sender.
pub fn send(
    rnic: &mut dyn Rnic,
    qpns: &[Qpn],
    transfer: Transfer,
    messages: Messages,
    in_flight: u32,
    progress: &mut dyn FnMut(&dyn Rnic, u64) -> Flow,
) -> Result<MessagesSummary, StreamError> {
    messages.check()?;
    OutOfRange::check("in_flight", in_flight, 1, 4096)?;
    OutOfRange::check("lanes", qpns.len() as u64, 1, LANES_MAX)?;
    let lanes = qpns.len() as u32;
    let (size, in_flight) = (messages.size as usize, in_flight.min(messages.count));
    let staging = rnic.register_memory(size * in_flight as usize, Access::READ)?;
    let (mut bytes, mut hasher) = (vec![0; size], Sha256::new());
    let (mut posted, mut times) = (VecDeque::new(), Vec::with_capacity(messages.count as usize));
    let mut number = 0;
    while times.len() < messages.count as usize {
        while number < messages.count && posted.len() < in_flight as usize {
            fill(number.into(), &mut bytes);
            hasher.update(&bytes);
            let local = LocalSlice {
                key: staging.key,
                offset: u64::from(number % in_flight) * u64::from(messages.size),
                length: messages.size,
            };
            rnic.write_memory(local.key, local.offset, &bytes)?;
            let op = transfer.op((number / lanes).into(), messages.size, number);
            rnic.post_send(
                qpns[(number % lanes) as usize],
                SendWr::new(number.into(), op, local),
            )?;
            posted.push_back(Instant::now());
            number += 1;
        }
        rnic.poll_or_wait(WAIT)?;
        // In the order of sending: the memory of a later message is reused only after all earlier ones.
        loop {
            let lane = times.len() % qpns.len();
            let Some(done) = rnic.poll_send_completion(qpns[lane]) else {
                break;
            };
            check_work(&done, lane, qpns.len())?;
            times.extend(posted.pop_front().map(|at: Instant| at.elapsed()));
        }
        progress(rnic, times.len() as u64).check()?;
    }
    rnic.deregister_memory(staging.key)?;
    Ok(MessagesSummary {
        bytes: size as u64 * u64::from(messages.count),
        digest: Digest(hasher.finalize().into()),
        times,
    })
}

/// The receiving side: a ring of buffers with posted receives, with the flow control of [`crate::stream`].
pub struct MessageReceiver {
    lanes: Vec<ReceiveLane>,
    messages: Messages,
    by_write: bool,
    from_any: bool,
}

impl MessageReceiver {
    /// Creates a receiver on QPs that have received nothing yet, the lanes of a group. Each has `slots`
    /// buffers: 2 to 65,536, and with WRITE the same number as at the sender.
    ///
    /// # Errors
    /// [`StreamError::OutOfRange`], or the RNIC has no capacity for the memory or receives.
    pub fn new(
        rnic: &mut dyn Rnic,
        qpns: &[Qpn],
        by_write: bool,
        messages: Messages,
        slots: u32,
    ) -> Result<Self, StreamError> {
        messages.check()?;
        Ok(Self {
            lanes: ReceiveLane::all(rnic, qpns, by_write, messages.size, slots)?,
            messages,
            by_write,
            from_any: false,
        })
    }

    /// Begins with whatever message comes first, in a group with one lane: it joins a running stream.
    #[must_use]
    pub fn from_any(mut self) -> Self {
        self.from_any = true;
        self
    }

    /// Bytes of each message.
    pub fn message_size(&self) -> u32 {
        self.messages.size
    }

    /// The rings, one per lane. With WRITE, a member of a group publishes them as its memory.
    pub fn rings(&self) -> impl Iterator<Item = MemoryRegion> {
        self.lanes.iter().map(|lane| lane.ring)
    }

    /// Receives all messages and verifies every byte. `progress` receives the number of messages. The last
    /// acknowledgement may not be sent yet: continue to poll the RNIC until the sender is known to be done.
    ///
    /// # Errors
    /// [`StreamError::Work`]; [`StreamError::Malformed`] or [`StreamError::OutOfSequence`] if bytes or numbers differ.
    pub fn receive(
        &mut self,
        rnic: &mut dyn Rnic,
        progress: &mut dyn FnMut(u64) -> Flow,
    ) -> Result<MessagesSummary, StreamError> {
        let size = self.messages.size as usize;
        let (mut received, mut expected) = (vec![0; size], vec![0; size]);
        let (mut hasher, mut times) = (Sha256::new(), Vec::with_capacity(self.messages.count as usize));
        let mut first = None;
        // Messages before the first one that has come.
        let (count, mut skipped) = (u64::from(self.messages.count), 0);
        while skipped + (times.len() as u64) < count {
            rnic.poll_or_wait(WAIT)?;
            while skipped + (times.len() as u64) < count {
                let lanes = self.lanes.len();
                let lane = &self.lanes[times.len() % lanes];
                let Some(done) = rnic.poll_recv_completion(lane.qpn) else {
                    break;
                };
                check_work(&done, times.len() % lanes, lanes)?;
                if let (true, true, Some(imm)) = (self.from_any, times.is_empty(), done.imm) {
                    skipped = u64::from(imm).min(count - 1);
                }
                let number = skipped + times.len() as u64;
                // SENDs take receives in order; a WRITE goes where its number belongs.
                let number_in_lane = match self.by_write {
                    true => number / lanes as u64,
                    false => (number - skipped) / lanes as u64,
                };
                let malformed = |what| StreamError::Malformed { number, what };
                match done.imm {
                    Some(imm) if u64::from(imm) == number => {}
                    Some(found) => {
                        return Err(StreamError::OutOfSequence {
                            expected: number,
                            found,
                        });
                    }
                    None => return Err(malformed("it has no immediate")),
                }
                if done.byte_len != self.messages.size {
                    return Err(malformed("it has a wrong size"));
                }
                lane.read(rnic, number_in_lane, &mut received)?;
                fill(number, &mut expected);
                if received != expected {
                    return Err(malformed("its bytes differ from those sent"));
                }
                hasher.update(&received);
                times.push(first.get_or_insert_with(Instant::now).elapsed());
                lane.post(rnic, number_in_lane)?;
                // Verification must not delay ACKs.
                let now = rnic.now();
                rnic.poll(now)?;
            }
            progress(times.len() as u64).check()?;
        }
        Ok(MessagesSummary {
            bytes: size as u64 * times.len() as u64,
            digest: Digest(hasher.finalize().into()),
            times,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_depend_on_the_number_and_not_on_the_size() {
        let pattern = |number, length| {
            let mut bytes = vec![0; length];
            fill(number, &mut bytes);
            bytes
        };
        let long = pattern(3, 100);
        for length in 0..100 {
            assert_eq!(pattern(3, length), long[..length]);
        }
        assert_ne!(pattern(3, 16), pattern(4, 16));
        assert_ne!(pattern(0, 16), [0; 16]);
    }
}
