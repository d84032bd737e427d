//! The life cycle of a QP.

use castnet_wire::Qpn;

use crate::error::QpError;

/// Where a QP is in its life (InfiniBand Architecture Specification, volume 1, 10.3.1; there Ready has two halves,
/// ready to receive and ready to send, which here are entered together).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Not connected: receives may be posted, no frame is taken.
    Init,
    /// Connected: sends and receives.
    Ready,
    /// Failed: all work requests are flushed, later ones at once; no frame is taken or sent.
    Error,
}

/// What moves a QP from state to state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpEvent {
    /// The owner names the remote.
    Connect,
    /// A fatal NAK, either way, retries used up, or the owner's wish.
    Fail,
    /// The owner takes it back to the start; work requests are forgotten without a completion.
    Reset,
}

impl QpState {
    /// The whole life cycle.
    pub const fn step(self, event: QpEvent) -> Option<Self> {
        use QpEvent::{Connect, Fail, Reset};
        use QpState::{Error, Init, Ready};
        match (self, event) {
            (Init, Connect) => Some(Ready),
            (Ready | Error, Connect) => None,
            (Init | Ready | Error, Fail) => Some(Error),
            (Init | Ready | Error, Reset) => Some(Init),
        }
    }

    /// [`QpState::step`] with the error that names the QP.
    pub(crate) fn try_step(self, qpn: Qpn, event: QpEvent) -> Result<Self, QpError> {
        self.step(event).ok_or(QpError::WrongState {
            qpn,
            state: self,
            event,
        })
    }
}
