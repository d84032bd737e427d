//! The life cycle of a QP.

use castnet_wire::Qpn;

use crate::error::QpError;

/// State of a QP: InfiniBand Architecture Specification, volume 1, 10.3.1. Ready combines its ready-to-receive and
/// ready-to-send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Not connected. Receives may be posted. Received frames are discarded.
    Init,
    /// Connected. The QP sends and receives.
    Ready,
    /// Failed. All work requests are flushed, later ones immediately. No frames are sent or received.
    Error,
}

/// An event that changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpEvent {
    /// The owner connects the QP.
    Connect,
    /// A fatal NAK was sent or received, retries are used up, or the owner fails the QP.
    Fail,
    /// The owner resets the QP. Work requests are removed without a completion.
    Reset,
}

impl QpState {
    /// `None` if the event is not allowed.
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

    pub(crate) fn try_step(self, qpn: Qpn, event: QpEvent) -> Result<Self, QpError> {
        self.step(event).ok_or(QpError::WrongState {
            qpn,
            state: self,
            event,
        })
    }
}
