//! An RC endpoint as a pure machine: requester, responder, retransmission
