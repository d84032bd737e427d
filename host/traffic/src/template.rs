//! Templates of frames that differ in a few words: built once, then rewritten with an incremental ICRC.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use castnet_wire::build::roce_len;
use castnet_wire::icrc::{self, Shift};
use castnet_wire::{
    Aeth, Bth, Control, EmitError, Ethernet, ExtHeaders, FrameBuf, MacAddr, Network, Opcode, Psn, Qpn,
    Syndrome, emit_roce,
};

use crate::seen::{AFTER_BTH, L3, PSN_AT};

/// Bytes at the start of a replica that `Template::write` may change: private to the frame, like the trailer.
pub const HEADER: usize = AFTER_BTH + 12;
/// Acknowledgement request in the last word of the BTH.
const ACK_REQUEST: u32 = 1 << 31;
const ICRC: usize = 4;

/// Addresses of frames between two endpoints, both in the same VLAN or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// MAC address of the sender.
    pub from: MacAddr,
    /// MAC address of the next hop.
    pub to: MacAddr,
    /// IP address of the sender.
    pub src: Ipv4Addr,
    /// IP address of the receiver: the McstID of a group.
    pub dst: Ipv4Addr,
    /// QPN of the receiver: [`Qpn::VIRTUAL`] for a group.
    pub qpn: Qpn,
    /// UDP source port, different for each QP.
    pub sport: u16,
}

impl Ends {
    fn emit(&self, bth: Bth, ext: &ExtHeaders, payload: &[u8]) -> Result<Vec<u8>, EmitError> {
        let ethernet = Ethernet {
            dst: self.to,
            src: self.from,
            vlan: None,
            ethertype: 0x0800,
        };
        let network = Network::v4(self.src, self.dst);
        let mut out = vec![0; roce_len(&ethernet, &network, bth.opcode, payload.len())];
        emit_roce(&mut out, &ethernet, &network, self.sport, &bth, ext, payload)?;
        Ok(out)
    }
}

/// ICRC operators by the number of bytes that follow a word. Templates with equal lengths share them.
#[derive(Debug, Default)]
pub(crate) struct Shifts(BTreeMap<usize, Arc<Shift>>);

impl Shifts {
    fn get(&mut self, bytes: usize) -> Arc<Shift> {
        self.0
            .entry(bytes)
            .or_insert_with(|| Arc::new(Shift::by_bytes(bytes)))
            .clone()
    }
}

/// A word of four bytes that differs between frames.
#[derive(Clone, Debug)]
struct Word {
    at: usize,
    shift: Arc<Shift>,
}

impl Word {
    fn new(at: usize, bytes: &[u8], shifts: &mut Shifts) -> Self {
        Self {
            at,
            shift: shifts.get(bytes.len() - ICRC - at),
        }
    }

    /// Replaces zeros by `value`. Returns the change of the ICRC.
    #[inline]
    fn write(&self, head: &mut [u8], value: u32) -> u32 {
        let bytes = value.to_be_bytes();
        if let Some(place) = head.get_mut(self.at..self.at + 4) {
            place.copy_from_slice(&bytes);
        }
        self.shift.apply(u32::from_le_bytes(bytes))
    }
}

/// A frame whose PSN, acknowledgement request and up to two more words are zero, with its ICRC.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    icrc: u32,
    psn: Word,
    words: [Option<Word>; 2],
}

impl Template {
    fn new(mut bytes: Vec<u8>, words: &[usize], shifts: &mut Shifts) -> Self {
        let mut make = |at: usize| {
            bytes[at..at + 4].fill(0);
            Word::new(at, &bytes, shifts)
        };
        let psn = make(PSN_AT);
        let mut given = words.iter();
        let words = [(); 2].map(|()| given.next().map(|at| make(*at)));
        let end = bytes.len() - ICRC;
        let icrc = icrc::full(&[&bytes[L3..end]]);
        bytes[end..].copy_from_slice(&icrc.to_le_bytes());
        Self {
            bytes,
            icrc,
            psn,
            words,
        }
    }

    /// Data with this payload. If it has eight bytes or more, the first eight are the two words: a timestamp.
    pub(crate) fn data(
        ends: &Ends,
        opcode: Opcode,
        payload: &[u8],
        shifts: &mut Shifts,
    ) -> Result<Self, EmitError> {
        let words: &[usize] = if payload.len() >= 8 {
            &[AFTER_BTH, AFTER_BTH + 4]
        } else {
            &[]
        };
        let bth = Bth::new(opcode, ends.qpn, Psn::new(0));
        Ok(Self::new(
            ends.emit(bth, &ExtHeaders::NONE, payload)?,
            words,
            shifts,
        ))
    }

    /// A packet of a collective, whose payload is constant.
    pub(crate) fn contribution(
        ends: &Ends,
        opcode: Opcode,
        payload: &[u8],
        shifts: &mut Shifts,
    ) -> Result<Self, EmitError> {
        let bth = Bth::new(opcode, ends.qpn, Psn::new(0));
        Ok(Self::new(
            ends.emit(bth, &ExtHeaders::NONE, payload)?,
            &[],
            shifts,
        ))
    }

    /// An acknowledge packet. Its word is the AETH ([`aeth`]).
    pub(crate) fn feedback(ends: &Ends, shifts: &mut Shifts) -> Result<Self, EmitError> {
        let ext = ExtHeaders {
            aeth: Some(Aeth {
                syndrome: Syndrome::Ack,
                msn: 0,
            }),
            ..ExtHeaders::NONE
        };
        let bytes = ends.emit(Bth::new(Opcode::Ack, ends.qpn, Psn::new(0)), &ext, &[])?;
        Ok(Self::new(bytes, &[AFTER_BTH], shifts))
    }

    /// A CNP. None of its words changes.
    pub(crate) fn cnp(ends: &Ends, shifts: &mut Shifts) -> Result<Self, EmitError> {
        let bth = Bth {
            becn: true,
            ..Bth::new(Opcode::Cnp, ends.qpn, Psn::new(0))
        };
        Ok(Self::new(ends.emit(bth, &ExtHeaders::NONE, &[])?, &[], shifts))
    }

    /// The control message of a collective. Its word is the collective's number.
    pub(crate) fn control(ends: &Ends, control: &Control, shifts: &mut Shifts) -> Result<Self, EmitError> {
        let mut payload = [0; Control::LEN];
        control.emit(&mut payload);
        let ext = ExtHeaders {
            imm: Some(Control::IMMEDIATE),
            ..ExtHeaders::NONE
        };
        let bth = Bth::new(Opcode::SendOnlyImm, ends.qpn, Psn::new(0));
        // The number follows immediate data, magic and version.
        Ok(Self::new(
            ends.emit(bth, &ext, &payload)?,
            &[AFTER_BTH + 8],
            shifts,
        ))
    }

    /// Writes into a replica of the frame. Words that the template lacks are ignored.
    #[inline]
    pub(crate) fn write(&self, frame: &mut impl FrameBuf, psn: Psn, ack_request: bool, words: [u32; 2]) {
        let head = frame.head_mut();
        let asks = if ack_request { ACK_REQUEST } else { 0 };
        let mut icrc = self.icrc ^ self.psn.write(head, psn.value() | asks);
        for (word, value) in self.words.iter().zip(words) {
            if let Some(word) = word
                && value != 0
            {
                icrc ^= word.write(head, value);
            }
        }
        frame.set_trailer(icrc.to_le_bytes());
    }
}

#[inline]
pub(crate) fn aeth(syndrome: Syndrome, msn: u32) -> u32 {
    u32::from_be_bytes(Aeth { syndrome, msn }.to_bytes())
}

/// A template with its frame in the memory of the sender.
#[derive(Clone, Debug)]
pub(crate) struct Ready<B> {
    pub(crate) template: Template,
    original: B,
}

impl<B: FrameBuf> Ready<B> {
    pub(crate) fn new(template: Template, gather: &mut dyn FnMut(&[u8]) -> Option<B>) -> Option<Self> {
        let original = gather(&template.bytes)?;
        Some(Self { template, original })
    }

    /// A frame; `None` if `make` has no buffer.
    #[inline]
    pub(crate) fn frame(
        &self,
        psn: Psn,
        ack_request: bool,
        words: [u32; 2],
        make: &mut impl FnMut(&B) -> Option<B>,
    ) -> Option<B> {
        let mut frame = make(&self.original)?;
        self.template.write(&mut frame, psn, ack_request, words);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_wire::{Call, CallFlags, DataType, NakCode, Operation, Primitive, Verdict, parse_frame};
    use proptest::prelude::*;

    fn ends() -> impl Strategy<Value = Ends> {
        (
            any::<[u8; 6]>(),
            any::<[u8; 6]>(),
            any::<[u8; 4]>(),
            any::<[u8; 4]>(),
            any::<u32>(),
            any::<u16>(),
        )
            .prop_map(|(from, to, src, dst, qpn, sport)| Ends {
                from: MacAddr(from),
                to: MacAddr(to),
                src: src.into(),
                dst: dst.into(),
                qpn: Qpn::new(qpn),
                sport,
            })
    }

    /// Compares with the slow twin: the whole frame built again.
    fn check(
        template: &Template,
        twin: &[u8],
        psn: u32,
        asks: bool,
        words: [u32; 2],
    ) -> Result<(), TestCaseError> {
        let mut frame = template.bytes.clone();
        template.write(&mut frame, Psn::new(psn), asks, words);
        prop_assert_eq!(&frame, twin);
        prop_assert!(parse_frame(&frame, frame.len()).is_ok());
        prop_assert!(icrc::verify_bytes(&frame, L3, frame.len()));
        Ok(())
    }

    proptest! {
        #[test]
        fn a_rewritten_frame_equals_a_newly_built_one(
            ends in ends(), psn in 0_u32..1 << 24, asks: bool, at: u64, msn in 0_u32..1 << 24, nak: bool,
            payload in proptest::collection::vec(any::<u8>(), 0..600), number: u32
        ) {
            let mut shifts = Shifts::default();
            let bth = |opcode| Bth { ack_request: asks, ..Bth::new(opcode, ends.qpn, Psn::new(psn)) };
            let stamp = [(at >> 32) as u32, at as u32];

            let mut stamped = payload.clone();
            if let Some(first) = stamped.first_chunk_mut() {
                *first = at.to_be_bytes();
            }
            let template = Template::data(&ends, Opcode::SendMiddle, &payload, &mut shifts).expect("fits");
            let twin = ends.emit(bth(Opcode::SendMiddle), &ExtHeaders::NONE, &stamped).expect("fits");
            check(&template, &twin, psn, asks, stamp)?;

            let template = Template::contribution(&ends, Opcode::SendLast, &payload, &mut shifts).expect("fits");
            let twin = ends.emit(bth(Opcode::SendLast), &ExtHeaders::NONE, &payload).expect("fits");
            check(&template, &twin, psn, asks, [0; 2])?;

            let syndrome = if nak { Syndrome::Nak(NakCode::PsnSequenceError) } else { Syndrome::Ack };
            let template = Template::feedback(&ends, &mut shifts).expect("fits");
            let ext = ExtHeaders { aeth: Some(Aeth { syndrome, msn }), ..ExtHeaders::NONE };
            let twin = ends.emit(bth(Opcode::Ack), &ext, &[]).expect("fits");
            check(&template, &twin, psn, asks, [aeth(syndrome, msn), 0])?;

            let template = Template::cnp(&ends, &mut shifts).expect("fits");
            let twin = ends.emit(Bth { becn: true, ..Bth::new(Opcode::Cnp, ends.qpn, Psn::new(0)) }, &ExtHeaders::NONE, &[]);
            check(&template, &twin.expect("fits"), 0, false, [0; 2])?;

            let call = Call {
                primitive: Primitive::AllReduce, root: 0, roots: 1, operation: Operation::Sum, data_type: DataType::F32,
                flags: CallFlags::NONE, elements: 1024, packets: 4,
            };
            let control = Control { sequence: 77, rank: 3, call, verdict: Verdict::Agreed };
            let template = Template::control(&ends, &control, &mut shifts).expect("fits");
            let mut message = [0; Control::LEN];
            Control { sequence: number, ..control }.emit(&mut message);
            let ext = ExtHeaders { imm: Some(Control::IMMEDIATE), ..ExtHeaders::NONE };
            let twin = ends.emit(bth(Opcode::SendOnlyImm), &ext, &message).expect("fits");
            check(&template, &twin, psn, asks, [number, 0])?;
        }
    }
}
