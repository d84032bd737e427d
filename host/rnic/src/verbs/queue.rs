//! A QP's work requests on their way through the device, and its completions.

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

/// The two halves of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Send,
    Receive,
}

/// A work request that the device has.
#[derive(Clone, Copy, Debug)]
struct Posted {
    wr_id: u64,
    op: CompletionOp,
    length: u32,
    signaled: bool,
}

/// The work requests and completions of one direction. The device gets numbers of our own as wr_id: it completes in order,
/// so that the number of a completion says which requests without a completion of their own are done as well.
#[derive(Debug)]
pub(super) struct Works {
    posted: VecDeque<Posted>,
    /// The number of the first in `posted`.
    first: u64,
    done: VecDeque<Completion>,
    max: usize,
}

impl Works {
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

    /// The number of the next request, where there is room for it.
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

    /// Takes in what the device has finished.
    fn complete(&mut self, qpn: Qpn, direction: Direction, wc: &sys::Wc, status: Status) {
        // What comes before it and had no completion of its own succeeded.
        while self.first < wc.wr_id && self.posted.front().is_some_and(|p| !p.signaled) {
            self.posted.pop_front();
            self.first += 1;
        }
        if wc.wr_id != self.first {
            warn!(%qpn, ?direction, expected = self.first, found = wc.wr_id, "a completion out of order");
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

/// A QP with what is under way on it.
pub(super) struct VerbsQp {
    pub(super) pair: QueuePair,
    pub(super) sends: Works,
    pub(super) receives: Works,
    pub(super) is_connected: bool,
    /// By what its completion queues are known in events, and whether each will report the next completion.
    tokens: [usize; 2],
    armed: [bool; 2],
}

impl VerbsQp {
    pub(super) fn new(pair: QueuePair, limits: QueueLimits, tokens: [usize; 2]) -> Self {
        Self {
            pair,
            sends: Works::new(limits.send),
            receives: Works::new(limits.receive),
            is_connected: false,
            tokens,
            armed: [false; 2],
        }
    }

    /// Takes what the device has finished in one direction; returns how many work requests.
    pub(super) fn drain(
        &mut self,
        qpn: Qpn,
        direction: Direction,
        room: &mut [sys::Wc],
        device: &str,
    ) -> Result<u64, RnicError> {
        let (queue, works): (&mut CompletionQueue, _) = match direction {
            Direction::Send => (&mut self.pair.send_queue, &mut self.sends),
            Direction::Receive => (&mut self.pair.recv_queue, &mut self.receives),
        };
        let mut all = 0;
        // Ends: no more can be there than were posted, and nobody posts meanwhile.
        loop {
            let count = queue.poll(room)?;
            for wc in room.iter().take(count) {
                if wc.status != sys::WC_SUCCESS && wc.status != sys::WC_WR_FLUSH_ERR {
                    let (name, vendor) = (status::wc_name(wc.status), wc.vendor_err);
                    warn!(device, %qpn, ?direction, status = name, vendor, "a work request failed");
                }
                let status = status::status(wc.status, |code| queue.status_text(code));
                works.complete(qpn, direction, wc, status);
            }
            all += count as u64;
            if count < room.len() {
                return Ok(all);
            }
        }
    }

    /// Asks for events where none is asked for yet; returns whether it did.
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

    /// The queue of that token has reported, and will not again before it is asked.
    pub(super) fn has_reported(&mut self, token: usize) {
        for (known, armed) in self.tokens.iter().zip(&mut self.armed) {
            if *known == token {
                *armed = false;
            }
        }
    }
}

/// The error of a work request that the device does not take.
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
        let mut works = Works::new(4);
        works.posted_recv(&RecvWr {
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
        works.complete(QPN, Direction::Receive, &wc, Status::Success);
        let done = works.pop().expect("a completion");
        assert_eq!(done.imm, Some(0x0102_0304));
        assert_eq!(
            (done.wr_id, done.byte_len, done.op),
            (5, 9, CompletionOp::RecvWriteImm)
        );
    }

    #[test]
    fn a_flushed_receive_is_a_receive_without_bytes_or_immediate() {
        let mut works = Works::new(4);
        works.posted_recv(&RecvWr {
            wr_id: 5,
            local: LocalSlice::EMPTY,
        });
        // Where a request failed, only wr_id, status, qp_num and vendor_err are to be believed (ibv_poll_cq(3)).
        let wc = sys::Wc {
            status: sys::WC_WR_FLUSH_ERR,
            opcode: 0x55,
            byte_len: 77,
            wc_flags: u32::MAX,
            ..sys::Wc::default()
        };
        works.complete(QPN, Direction::Receive, &wc, Status::Flushed);
        let done = works.pop().expect("a completion");
        assert_eq!((done.status, done.op), (Status::Flushed, CompletionOp::Recv));
        assert_eq!((done.byte_len, done.imm, done.invalidated), (0, None, None));
    }

    proptest! {
        /// Whatever is signaled: each request that asks for it gets one completion, in order, with its own id; the queue
        /// takes exactly as many requests as it is deep.
        #[test]
        fn completions_come_to_their_own_requests(
            signaled in proptest::collection::vec(any::<bool>(), 1..40),
            depth in 1_usize..8,
        ) {
            let mut works = Works::new(depth);
            let (mut device, mut seen) = (VecDeque::new(), Vec::new());
            for (i, &signaled) in signaled.iter().enumerate() {
                let mut number = works.reserve(QPN);
                while number.is_err() {
                    // A device whose queue is full of unsignaled requests never has room again: verbs users know.
                    let Some(next) = device.pop_front() else { return Ok(()) };
                    works.complete(QPN, Direction::Send, &sys::Wc { wr_id: next, ..sys::Wc::default() }, Status::Success);
                    seen.extend(works.pop().map(|c| (c.wr_id, c.byte_len)));
                    number = works.reserve(QPN);
                }
                if signaled {
                    device.push_back(number.unwrap());
                }
                works.posted_send(&send(1000 + i as u64, signaled));
            }
            for next in device {
                works.complete(QPN, Direction::Send, &sys::Wc { wr_id: next, ..sys::Wc::default() }, Status::Success);
                seen.extend(works.pop().map(|c| (c.wr_id, c.byte_len)));
            }
            let asked = signaled.iter().enumerate().filter(|(_, s)| **s);
            prop_assert_eq!(seen, asked.map(|(i, _)| (1000 + i as u64, 7)).collect::<Vec<_>>());
        }
    }
}
