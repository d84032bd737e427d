//! Completion of work requests and failure of QPs.

use castnet_wire::Qpn;

use crate::endpoint::Endpoint;
use crate::state::QpEvent;
use crate::work::{Completion, CompletionOp, RecvWr, SendOp, SendWr, Status};

impl Endpoint {
    pub(crate) fn complete_acknowledged(&mut self, qpn: Qpn) {
        while let Some(wr) = self.qps.get_mut(&qpn).and_then(|qp| qp.requester.pop_completed()) {
            self.complete_send(qpn, &wr, Status::Success);
        }
    }

    /// `send` is a failed send's index and status, `receive` the status of the oldest receive. The rest is flushed.
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
        while let Some(wr) = self
            .qps
            .get_mut(&qpn)
            .and_then(|qp| qp.responder.queue.pop_front())
        {
            self.complete_failed_recv(qpn, &wr, status);
            status = Status::Flushed;
        }
        self.refresh(qpn);
    }

    pub(crate) fn complete_send(&mut self, qpn: Qpn, wr: &SendWr, status: Status) {
        let is_good = status == Status::Success;
        if is_good && !wr.signaled {
            self.outstanding -= 1;
            return;
        }
        let op = match wr.op {
            SendOp::Send | SendOp::SendImm(_) => CompletionOp::Send,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => CompletionOp::Write,
        };
        self.complete(Completion {
            byte_len: if is_good { wr.local.length } else { 0 },
            ..Completion::new(qpn, wr.wr_id, op, status)
        });
    }

    pub(crate) fn complete_failed_recv(&mut self, qpn: Qpn, wr: &RecvWr, status: Status) {
        self.complete(Completion::new(qpn, wr.wr_id, CompletionOp::Recv, status));
    }

    pub(crate) fn complete(&mut self, completion: Completion) {
        self.outstanding -= 1;
        self.completions.push_back(completion);
    }
}
