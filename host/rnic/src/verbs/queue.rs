//! The work requests and completions of a QP.

use std::collections::VecDeque;
use std::io;

use castnet_endpoint::{
    Completion, CompletionOp, MemoryKey, PostError, QueueLimits, RecvWr, SendOp, SendWr, Status,
};
use castnet_wire::Qpn;
use tracing::warn;

use super::handles::{CompletionQueue, QueuePair};
use super::{status, sys};
use crate::error::RnicError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Send,
    Receive,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    wr_id: u64,
    op: CompletionOp,
    length: u32,
    signaled: bool,
}

/// The work requests and completions of one direction. The device receives consecutive numbers as wr_id. It completes
/// in order, so the number of a completion implies that all earlier unsignaled requests are complete.
#[derive(Debug)]
pub(super) struct WorkQueue {
    posted: VecDeque<Posted>,
    /// The number of the first request in `posted`.
    first: u64,
    done: VecDeque<Completion>,
    max: usize,
}

impl WorkQueue {
    fn new(max: usize) -> Self {
        Self {
            posted: VecDeque::with_capacity(max),
            first: 0,
            done: VecDeque::with_capacity(max),
            max,
        }
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// The number of the next request, if the queue has capacity.
    pub(super) fn reserve(&self, qpn: Qpn) -> Result<u64, PostError> {
        if self.posted.len() >= self.max {
            return Err(PostError::QueueFull { qpn, max: self.max });
        }
        if self.done.len() >= self.max {
            return Err(PostError::CompletionQueueFull { max: self.max });
        }
        Ok(self.first + self.posted.len() as u64)
    }

    pub(super) fn posted_send(&mut self, wr: &SendWr) {
        self.posted.push_back(Posted {
            wr_id: wr.wr_id,
            op: match wr.op {
                SendOp::Send | SendOp::SendImm(_) => CompletionOp::Send,
                SendOp::Write { .. } | SendOp::WriteImm { .. } => CompletionOp::Write,
            },
            length: wr.local.length,
            signaled: wr.signaled,
        });
    }

    pub(super) fn posted_recv(&mut self, wr: &RecvWr) {
        self.posted.push_back(Posted {
            wr_id: wr.wr_id,
            op: CompletionOp::Recv,
            length: wr.local.length,
            signaled: true,
        });
    }

    fn complete(&mut self, qpn: Qpn, direction: Direction, wc: &sys::Wc, status: Status) {
        // Earlier requests without a completion have succeeded.
        while self.first < wc.wr_id && self.posted.front().is_some_and(|p| !p.signaled) {
            self.posted.pop_front();
            self.first += 1;
        }
        if wc.wr_id != self.first {
            warn!(%qpn, ?direction, expected = self.first, found = wc.wr_id, "completion out of order");
            return;
        }
        let Some(posted) = self.posted.pop_front() else {
            return;
        };
        self.first += 1;
        let is_good = status == Status::Success;
        let is_received = is_good && direction == Direction::Receive;
        let has = |flag| is_received && wc.wc_flags & flag != 0;
        self.done.push_back(Completion {
            qpn,
            wr_id: posted.wr_id,
            status,
            op: if is_received && wc.opcode == sys::WC_RECV_RDMA_WITH_IMM {
                CompletionOp::RecvWriteImm
            } else {
                posted.op
            },
            byte_len: match (is_good, direction) {
                (false, _) => 0,
                (true, Direction::Send) => posted.length,
                (true, Direction::Receive) => wc.byte_len,
            },
            imm: has(sys::WC_WITH_IMM).then(|| u32::from_be(wc.imm_data)),
            invalidated: has(sys::WC_WITH_INV).then(|| MemoryKey::new(wc.imm_data)),
            solicited: false,
        });
    }

    pub(super) fn pop(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
}

pub(super) struct VerbsQp {
    pub(super) pair: QueuePair,
    pub(super) sends: WorkQueue,
    pub(super) receives: WorkQueue,
    pub(super) is_connected: bool,
    /// Tokens of the completion queues in events, and whether each queue is armed.
    tokens: [usize; 2],
    armed: [bool; 2],
}

impl VerbsQp {
    pub(super) fn new(pair: QueuePair, limits: QueueLimits, tokens: [usize; 2]) -> Self {
        Self {
            pair,
            sends: WorkQueue::new(limits.send),
            receives: WorkQueue::new(limits.receive),
            is_connected: false,
            tokens,
            armed: [false; 2],
        }
    }

    /// The QP was reset: its work requests are gone.
    pub(super) fn forget_requests(&mut self) {
        self.is_connected = false;
        for queue in [&mut self.sends, &mut self.receives] {
            queue.first += queue.posted.len() as u64;
            queue.posted.clear();
        }
    }

    /// Returns the number of completed work requests.
    pub(super) fn drain(
        &mut self,
        qpn: Qpn,
        direction: Direction,
        buffer: &mut [sys::Wc],
        device: &str,
    ) -> Result<u64, RnicError> {
        let (queue, requests): (&mut CompletionQueue, _) = match direction {
            Direction::Send => (&mut self.pair.send_queue, &mut self.sends),
            Direction::Receive => (&mut self.pair.recv_queue, &mut self.receives),
        };
        let mut all = 0;
        // The loop ends, because there cannot be more completions than posted requests.
        loop {
            let count = queue.poll(buffer)?;
            for wc in buffer.iter().take(count) {
                if wc.status != sys::WC_SUCCESS && wc.status != sys::WC_WR_FLUSH_ERR {
                    let (name, vendor) = (status::wc_name(wc.status), wc.vendor_err);
                    warn!(device, %qpn, ?direction, status = name, vendor, "a work request failed");
                }
                let status = status::status(wc.status, |code| queue.status_text(code));
                requests.complete(qpn, direction, wc, status);
            }
            all += count as u64;
            if count < buffer.len() {
                return Ok(all);
            }
        }
    }

    /// Arms completion queues that are not armed. Returns true if it armed any.
    pub(super) fn arm(&mut self) -> Result<bool, RnicError> {
        let [send, receive] = self.armed;
        if !send {
            self.pair.send_queue.arm()?;
        }
        if !receive {
            self.pair.recv_queue.arm()?;
        }
        self.armed = [true; 2];
        Ok(!send || !receive)
    }

    /// Records that the queue with this token has sent its event and must be armed again.
    pub(super) fn has_reported(&mut self, token: usize) {
        for (known, armed) in self.tokens.iter().zip(&mut self.armed) {
            if *known == token {
                *armed = false;
            }
        }
    }
}

pub(super) fn refused(qpn: Qpn, what: &'static str, max: usize, error: io::Error) -> RnicError {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => PostError::QueueFull { qpn, max }.into(),
        _ => RnicError::Io { what, source: error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_endpoint::LocalSlice;
    use proptest::prelude::*;

    const QPN: Qpn = Qpn::new(0x12);

    fn send(wr_id: u64, signaled: bool) -> SendWr {
        let local = LocalSlice {
            length: 7,
            ..LocalSlice::EMPTY
        };
        SendWr {
            signaled,
            ..SendWr::new(wr_id, SendOp::SendImm(1), local)
        }
    }

    #[test]
    fn an_immediate_has_the_byte_order_of_the_wire() {
        let mut queue = WorkQueue::new(4);
        queue.posted_recv(&RecvWr {
            wr_id: 5,
            local: LocalSlice::EMPTY,
        });
        let wc = sys::Wc {
            opcode: sys::WC_RECV_RDMA_WITH_IMM,
            byte_len: 9,
            imm_data: u32::from_ne_bytes([1, 2, 3, 4]),
            wc_flags: sys::WC_WITH_IMM,
            ..sys::Wc::default()
        };
        queue.complete(QPN, Direction::Receive, &wc, Status::Success);
        let done = queue.pop().expect("a completion");
        assert_eq!(done.imm, Some(0x0102_0304));
        assert_eq!(
            (done.wr_id, done.byte_len, done.op),
            (5, 9, CompletionOp::RecvWriteImm)
        );
    }

    #[test]
    fn a_flushed_receive_is_a_receive_without_bytes_or_immediate() {
        let mut queue = WorkQueue::new(4);
        queue.posted_recv(&RecvWr {
            wr_id: 5,
            local: LocalSlice::EMPTY,
        });
        // For a failed request only wr_id, status, qp_num and vendor_err are valid (ibv_poll_cq(3)).
        let wc = sys::Wc {
            status: sys::WC_WR_FLUSH_ERR,
            opcode: 0x55,
            byte_len: 77,
            wc_flags: u32::MAX,
            ..sys::Wc::default()
        };
        queue.complete(QPN, Direction::Receive, &wc, Status::Flushed);
        let done = queue.pop().expect("a completion");
        assert_eq!((done.status, done.op), (Status::Flushed, CompletionOp::Recv));
        assert_eq!((done.byte_len, done.imm, done.invalidated), (0, None, None));
    }

    proptest! {
        /// Each signaled request gets one completion with its id, in order. The queue accepts exactly as many
        /// requests as its capacity.
        #[test]
        fn completions_match_their_requests(
            signaled in proptest::collection::vec(any::<bool>(), 1..40),
            depth in 1_usize..8,
        ) {
            let mut queue = WorkQueue::new(depth);
            let (mut device, mut seen) = (VecDeque::new(), Vec::new());
            for (i, &signaled) in signaled.iter().enumerate() {
                let mut number = queue.reserve(QPN);
                while number.is_err() {
                    // A queue full of unsignaled requests never has capacity again, as with any verbs device.
                    let Some(next) = device.pop_front() else { return Ok(()) };
                    queue.complete(QPN, Direction::Send, &sys::Wc { wr_id: next, ..sys::Wc::default() }, Status::Success);
                    seen.extend(queue.pop().map(|c| (c.wr_id, c.byte_len)));
                    number = queue.reserve(QPN);
                }
                if signaled {
                    device.push_back(number.unwrap());
                }
                queue.posted_send(&send(1000 + i as u64, signaled));
            }
            for next in device {
                queue.complete(QPN, Direction::Send, &sys::Wc { wr_id: next, ..sys::Wc::default() }, Status::Success);
                seen.extend(queue.pop().map(|c| (c.wr_id, c.byte_len)));
            }
            let asked = signaled.iter().enumerate().filter(|(_, s)| **s);
            prop_assert_eq!(seen, asked.map(|(i, _)| (1000 + i as u64, 7)).collect::<Vec<_>>());
        }
    }
}
