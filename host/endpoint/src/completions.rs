//! Completion of work requests and failure of QPs.

use castnet_wire::Qpn;

use crate::endpoint::Endpoint;
use crate::responder::Received;
use crate::state::QpEvent;
use crate::work::{Completion, CompletionOp, RecvWr, SendOp, SendWr, Status};

impl Endpoint {
    /// Completes the acknowledged sends.
    pub(crate) fn complete_acknowledged(&mut self, qpn: Qpn) {
        while let Some(wr) = self.qps.get_mut(&qpn).and_then(|qp| qp.requester.pop_completed()) {
            self.complete_send(qpn, &wr, Status::Success);
        }
    }

    /// Moves a QP to the error state. `send` is the index and status of a failed send, `receive` the status of the
    /// oldest receive. All other work requests are flushed.
    pub(crate) fn fail(&mut self, qpn: Qpn, send: Option<(usize, Status)>, receive: Option<Status>) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let Some(state) = qp.state.step(QpEvent::Fail) else {
            return;
        };
        qp.state = state;
        qp.requester.halt();
        let mut index = 0;
        while let Some(wr) = self.qps.get_mut(&qpn).and_then(|qp| qp.requester.pop_any()) {
            let status = send
                .filter(|&(at, _)| at == index)
                .map_or(Status::Flushed, |(_, status)| status);
            self.complete_send(qpn, &wr, status);
            index += 1;
        }
        let mut status = receive.unwrap_or(Status::Flushed);
        while let Some(wr) = self.qps.get_mut(&qpn).and_then(|qp| qp.responder.pop_any()) {
            self.complete_failed_recv(qpn, &wr, status);
            status = Status::Flushed;
        }
        self.refresh(qpn);
    }

    pub(crate) fn complete_send(&mut self, qpn: Qpn, wr: &SendWr, status: Status) {
        self.outstanding -= 1;
        if status == Status::Success && !wr.signaled {
            return;
        }
        let op = match wr.op {
            SendOp::Send | SendOp::SendImm(_) => CompletionOp::Send,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => CompletionOp::Write,
        };
        let byte_len = if status == Status::Success {
            wr.local.length
        } else {
            0
        };
        self.completions.push_back(Completion {
            qpn,
            wr_id: wr.wr_id,
            status,
            op,
            byte_len,
            imm: None,
            invalidated: None,
            solicited: false,
        });
    }

    pub(crate) fn complete_recv(&mut self, qpn: Qpn, received: &Received) {
        self.outstanding -= 1;
        self.completions.push_back(Completion {
            qpn,
            wr_id: received.wr.wr_id,
            status: Status::Success,
            op: received.op,
            byte_len: received.byte_len,
            imm: received.imm,
            invalidated: received.invalidated,
            solicited: received.solicited,
        });
    }

    pub(crate) fn complete_failed_recv(&mut self, qpn: Qpn, wr: &RecvWr, status: Status) {
        self.outstanding -= 1;
        self.completions.push_back(Completion {
            qpn,
            wr_id: wr.wr_id,
            status,
            op: CompletionOp::Recv,
            byte_len: 0,
            imm: None,
            invalidated: None,
            solicited: false,
        });
    }
}
