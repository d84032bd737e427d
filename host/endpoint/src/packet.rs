//! Decoded packets, independent of the frame format.

use castnet_wire::{Kind, Opcode, Psn, Reth, RoceHeader, Syndrome};

use crate::work::SendOp;

/// The responder's rules depend on the kind, not on the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Send,
    Write,
    /// READ and atomics, which are refused.
    Unsupported,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) kind: RequestKind,
    /// FIRST and ONLY.
    pub(crate) is_first: bool,
    /// LAST and ONLY.
    pub(crate) is_last: bool,
    pub(crate) psn: Psn,
    pub(crate) ack_request: bool,
    pub(crate) solicited: bool,
    /// Bytes after the payload, 0 to 3.
    pub(crate) pad: u8,
    pub(crate) target: Option<Reth>,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidate: Option<u32>,
    pub(crate) payload: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum DecodedPacket<'a> {
    Request(Request<'a>),
    /// ACK, NAK or RNR NAK.
    Acknowledge {
        psn: Psn,
        syndrome: Syndrome,
    },
    /// A switch lacks one packet.
    RepairRequest {
        psn: Psn,
    },
    /// To a READ or atomic.
    DataResponse,
    Cnp,
}

impl<'a> DecodedPacket<'a> {
    /// `None` if the opcode is none of RC, or fields of its headers are missing.
    pub(crate) fn decode(header: &RoceHeader, payload: &'a [u8]) -> Option<Self> {
        let info = header.bth.opcode.info();
        let kind = match info.kind {
            Kind::Send => RequestKind::Send,
            Kind::Write => RequestKind::Write,
            Kind::ReadRequest | Kind::Atomic => RequestKind::Unsupported,
            Kind::ReadResponse | Kind::AtomicAck => return Some(Self::DataResponse),
            Kind::Ack => {
                return Some(Self::Acknowledge {
                    psn: header.bth.psn,
                    syndrome: header.aeth?.syndrome,
                });
            }
            Kind::Cnp => return Some(Self::Cnp),
            Kind::RepairRequest => return Some(Self::RepairRequest { psn: header.bth.psn }),
            Kind::SourceRequest | Kind::SourceGrant => return None,
        };
        Some(Self::Request(Request {
            kind,
            is_first: info.starts_message(),
            is_last: info.ends_message(),
            psn: header.bth.psn,
            ack_request: header.bth.ack_request,
            solicited: header.bth.solicited,
            pad: header.bth.pad,
            target: header.reth,
            imm: header.imm,
            invalidate: header.ieth,
            payload,
        }))
    }
}

pub(crate) const fn request_opcode(op: SendOp, is_first: bool, is_last: bool) -> Opcode {
    match (op, is_first, is_last) {
        (SendOp::Send | SendOp::SendImm(_), true, false) => Opcode::SendFirst,
        (SendOp::Send | SendOp::SendImm(_), false, false) => Opcode::SendMiddle,
        (SendOp::Send, false, true) => Opcode::SendLast,
        (SendOp::Send, true, true) => Opcode::SendOnly,
        (SendOp::SendImm(_), false, true) => Opcode::SendLastImm,
        (SendOp::SendImm(_), true, true) => Opcode::SendOnlyImm,
        (SendOp::Write { .. } | SendOp::WriteImm { .. }, true, false) => Opcode::WriteFirst,
        (SendOp::Write { .. } | SendOp::WriteImm { .. }, false, false) => Opcode::WriteMiddle,
        (SendOp::Write { .. }, false, true) => Opcode::WriteLast,
        (SendOp::Write { .. }, true, true) => Opcode::WriteOnly,
        (SendOp::WriteImm { .. }, false, true) => Opcode::WriteLastImm,
        (SendOp::WriteImm { .. }, true, true) => Opcode::WriteOnlyImm,
    }
}
