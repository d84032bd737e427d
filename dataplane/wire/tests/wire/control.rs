//! The control message: its bytes, the errors of parsing, and merging, which depends only on the set of messages.

use crate::support::roce;
use castnet_wire::control::UnknownName;
use castnet_wire::{
    Bth, Call, CallFlags, Control, DataType, Ethernet, ExtHeaders, FrameBuf, Header, MacAddr, Network,
    Opcode, Operation, ParseError, Pmtu, Primitive, Psn, Qpn, Verdict, describe, emit_roce,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const CALL: Call = Call {
    primitive: Primitive::AllReduce,
    root: 0,
    roots: 1,
    operation: Operation::Sum,
    data_type: DataType::F32,
    flags: CallFlags::REPRODUCIBLE,
    elements: 0x1_0000,
    packets: 0x100,
};

const CONTROL: Control = Control {
    sequence: 0x0102_0304,
    rank: 0x0506,
    call: CALL,
    verdict: Verdict::Agreed,
};

const OTHER: Call = Call {
    primitive: Primitive::Reduce,
    root: 0x0708,
    roots: 4,
    operation: Operation::BitXor,
    data_type: DataType::U64,
    flags: CallFlags::NONE,
    elements: 3,
    packets: 1,
};

const CONFLICT: Control = Control {
    verdict: Verdict::Conflict {
        rank: 0x090A,
        call: OTHER,
    },
    ..CONTROL
};

fn bytes(control: &Control) -> [u8; 64] {
    let mut out = [0xEE; Control::LEN];
    control.emit(&mut out);
    out
}

/// The tables of docs/control-message.md.
#[test]
#[rustfmt::skip]
fn golden_bytes() {
    let mut wanted = [0; 64];
    wanted[..32].copy_from_slice(&[
        b'C', b'N', b'C', 1,  0x01, 0x02, 0x03, 0x04,
        0x05, 0x06,  0,  0,  1, 1, 1, 2,
        0, 0,  0, 0,  0, 0, 1, 0,
        0, 0, 0, 0, 0, 1, 0, 0,
    ]);
    assert_eq!(bytes(&CONTROL), wanted);
    wanted[10] = 1;
    wanted[32..56].copy_from_slice(&[
        0x09, 0x0A,  0, 0,  2, 7, 12, 0,
        0x07, 0x08,  0, 3,  0, 0, 0, 1,
        0, 0, 0, 0, 0, 0, 0, 3,
    ]);
    assert_eq!(bytes(&CONFLICT), wanted);
    assert_eq!(Control::IMMEDIATE, 0x434E_4301);
}

#[test]
fn each_enum_goes_by_byte_and_by_name() {
    assert_eq!(
        (Primitive::ALL.len(), Operation::ALL.len(), DataType::ALL.len()),
        (3, 10, 12)
    );
    for (i, ty) in DataType::ALL.iter().enumerate() {
        assert_eq!((*ty as usize, DataType::from_byte(*ty as u8)), (i + 1, Some(*ty)));
        assert_eq!(ty.to_string().to_uppercase().parse(), Ok(*ty));
    }
    for op in Operation::ALL {
        assert_eq!(
            (Operation::from_byte(*op as u8), op.name().parse()),
            (Some(*op), Ok(*op))
        );
    }
    for primitive in Primitive::ALL {
        assert_eq!(primitive.name().parse(), Ok(*primitive));
    }
    assert_eq!((DataType::from_byte(0), Operation::from_byte(11)), (None, None));
    let error: Result<Primitive, UnknownName> = "gather".parse();
    assert_eq!(
        error.map_err(|e| e.to_string()),
        Err("not a primitive: one of allreduce reduce broadcast".into())
    );
}

/// A message with one wrong field. The error names the field.
#[test]
fn each_wrong_byte_is_named() {
    let field = |field, value| ParseError::Field {
        header: Header::Control,
        field,
        value,
    };
    for (at, byte, wanted) in [
        (0, b'D', field("magic", 0x444E_4301)),
        (3, 2, field("version", 2)),
        (10, 2, field("verdict", 2)),
        (11, 9, field("reserved byte", 9)),
        (12, 0, field("primitive", 0)),
        (12, 4, field("primitive", 4)),
        (13, 11, field("operation", 11)),
        (14, 13, field("data type", 13)),
        (15, 4, field("flags", 4)),
        (34, 1, field("reserved byte", 1)),
        (39, 0x80, field("flags", 0x80)),
        (56, 1, field("reserved byte", 1)),
        (63, 1, field("reserved byte", 1)),
    ] {
        let mut bytes = bytes(&CONFLICT);
        bytes[at] = byte;
        assert_eq!(Control::parse(&bytes), Err(wanted), "byte {at}");
    }
    for at in 32..64 {
        let mut bytes = bytes(&CONTROL);
        bytes[at] = 1;
        assert_eq!(
            Control::parse(&bytes),
            Err(field("reserved byte", 1)),
            "no conflict, byte {at}"
        );
    }
    let short = ParseError::Short {
        header: Header::Control,
        need: 64,
        have: 63,
    };
    assert_eq!(Control::parse(&bytes(&CONTROL)[..63]), Err(short));
}

#[test]
fn inconsistent_calls_are_refused() {
    type Change = fn(&mut Call);
    let rules: [(Change, &str); 15] = [
        (
            |c| c.operation = Operation::BitOr,
            "bitwise and logical operations are for integers only",
        ),
        (
            |c| c.operation = Operation::And,
            "bitwise and logical operations are for integers only",
        ),
        (|c| c.root = 1, "an allreduce has no root"),
        (|c| c.roots = 2, "an allreduce has one block"),
        (
            |c| (c.primitive, c.roots) = (Primitive::Reduce, 9),
            "a call has 1 to 8 roots",
        ),
        (
            |c| (c.primitive, c.roots) = (Primitive::Reduce, u16::MAX),
            "a call has 1 to 8 roots",
        ),
        (
            |c| (c.primitive, c.roots, c.elements, c.packets) = (Primitive::Reduce, 2, 0, 0),
            "a call with several roots has data",
        ),
        (
            |c| (c.primitive, c.root, c.roots) = (Primitive::Broadcast, u16::MAX - 2, 4),
            "the last root is no rank",
        ),
        (
            |c| {
                (c.primitive, c.roots) = (Primitive::Reduce, 8);
                (c.elements, c.packets) = (1 << 30, 1 << 20);
            },
            "more packets than sequence numbers can tell apart",
        ),
        (
            |c| (c.primitive, c.operation) = (Primitive::Broadcast, Operation::Max),
            "a broadcast reduces nothing: its operation is sum",
        ),
        (
            |c| c.elements = u64::MAX / 2,
            "more elements than 64 bits can count the bytes of",
        ),
        (
            |c| c.packets = 0,
            "elements and packets do not fit each other, whatever the path MTU",
        ),
        (
            |c| c.elements = 0,
            "elements and packets do not fit each other, whatever the path MTU",
        ),
        (
            |c| c.packets = 63,
            "elements and packets do not fit each other, whatever the path MTU",
        ),
        (
            |c| (c.elements, c.packets) = (1 << 30, 1 << 23),
            "more packets than sequence numbers can tell apart",
        ),
    ];
    for (change, rule) in rules {
        let mut control = CONTROL;
        change(&mut control.call);
        let wanted = ParseError::Rule {
            header: Header::Control,
            rule,
        };
        assert_eq!(control.call.check(), Err(wanted));
        assert_eq!(Control::parse(&bytes(&control)), Err(wanted), "{}", control.call);
    }
    let rule = "a conflict names two different calls, the lower rank's first";
    for (rank, call) in [(7, OTHER), (0x090A, CALL)] {
        let verdict = Verdict::Conflict { rank, call };
        let control = Control { verdict, ..CONTROL };
        let wanted = ParseError::Rule {
            header: Header::Control,
            rule,
        };
        assert_eq!(Control::parse(&bytes(&control)), Err(wanted));
    }
    let barrier = Call {
        elements: 0,
        packets: 0,
        ..CALL
    };
    assert_eq!(barrier.check(), Ok(()));
}

#[test]
fn people_can_read_it() {
    assert_eq!(
        CONFLICT.to_string(),
        "collective 16909060, rank 1286: allreduce of 65536 f32 by sum in 256 packets, reproducible \
         CONFLICT rank 2314: reduce to ranks 1800 to 1803, each of 3 u64 by bitxor in 1 packet"
    );
    let barrier = Call {
        elements: 0,
        packets: 0,
        flags: CallFlags::NONE,
        ..CALL
    };
    assert_eq!(barrier.to_string(), "barrier");
    let broadcast = Call {
        primitive: Primitive::Broadcast,
        root: 3,
        flags: CallFlags::SATURATE,
        ..OTHER
    };
    assert_eq!(
        broadcast.to_string(),
        "broadcast from ranks 3 to 6, each of 3 u64 in 1 packet, saturating"
    );
    let one = Call {
        roots: 1,
        ..broadcast
    };
    assert_eq!(
        one.to_string(),
        "broadcast from rank 3 of 3 u64 in 1 packet, saturating"
    );
}

fn frame(imm: u32, payload: &[u8]) -> Vec<u8> {
    let ethernet = Ethernet {
        dst: MacAddr([2, 0, 0, 0, 0, 2]),
        src: MacAddr([2, 0, 0, 0, 0, 1]),
        vlan: None,
        ethertype: 0,
    };
    let network = Network::v4([10, 0, 0, 1].into(), [10, 9, 0, 1].into());
    let bth = Bth::new(Opcode::SendOnlyImm, Qpn::VIRTUAL, Psn::new(5));
    let ext = ExtHeaders {
        imm: Some(imm),
        ..ExtHeaders::NONE
    };
    let mut out = [0; 256];
    let n = emit_roce(&mut out, &ethernet, &network, 0xC001, &bth, &ext, payload).expect("room enough");
    out[..n].to_vec()
}

#[test]
fn the_packet_decoder_shows_a_control_message() {
    let right = frame(Control::IMMEDIATE, &bytes(&CONFLICT));
    // The message lies in the head that every frame has.
    assert!(right.len() <= <Vec<u8> as FrameBuf>::HEAD);
    let text = format!("{:#}", describe(&right, right.len()));
    let line = format!("\n  payload 64\n  {CONFLICT}\n");
    assert!(text.contains(&line), "{text}");
    let mut wrong = bytes(&CONTROL);
    wrong[12] = 9;
    let text = describe(&frame(Control::IMMEDIATE, &wrong), 126).to_string();
    assert!(
        text.contains("| malformed control message: primitive 0x9 is not allowed or not known"),
        "{text}"
    );
    let long = frame(
        Control::IMMEDIATE,
        &[bytes(&CONTROL).as_slice(), &[0; 4]].concat(),
    );
    let text = describe(&long, long.len()).to_string();
    assert!(text.contains("control message of 68 bytes, not 64"), "{text}");
    // Other immediate data does not mark a control message.
    let other = frame(7, &bytes(&CONTROL));
    let text = describe(&other, other.len()).to_string();
    assert!(
        !text.contains("collective") && text.contains("imm 0x00000007"),
        "{text}"
    );
    assert_eq!(roce(&right).imm, Some(Control::IMMEDIATE));
}

#[test]
fn a_reproducible_call_with_contributions_is_in_rank_order() {
    let reproducible = Call {
        flags: CallFlags::REPRODUCIBLE,
        ..CALL
    };
    for (primitive, is_in_rank_order) in [
        (Primitive::AllReduce, true),
        (Primitive::Reduce, true),
        (Primitive::Broadcast, false),
    ] {
        let call = Call {
            primitive,
            ..reproducible
        };
        assert_eq!(call.is_in_rank_order(), is_in_rank_order, "{primitive}");
        let empty = Call { packets: 0, ..call };
        let not_so = Call {
            flags: CallFlags::SATURATE,
            ..call
        };
        assert!(
            !empty.is_in_rank_order() && !not_so.is_in_rank_order(),
            "{primitive}"
        );
    }
}

/// A few consistent calls, so that ranks often agree.
fn call() -> impl Strategy<Value = Call> {
    (
        (
            select(Primitive::ALL),
            0u16..3,
            select(Operation::ALL),
            select(DataType::ALL),
        ),
        (
            0u8..4,
            prop_oneof![0u64..4, 0u64..1 << 30],
            select(Pmtu::ALL.to_vec()),
        ),
    )
        .prop_filter_map(
            "a call that makes no sense",
            |((primitive, root, operation, data_type), rest)| {
                let (flags, elements, pmtu) = rest;
                let bytes = elements * data_type.size() as u64;
                let call = Call {
                    primitive,
                    root: if primitive == Primitive::AllReduce {
                        0
                    } else {
                        root
                    },
                    roots: match primitive {
                        Primitive::AllReduce => 1,
                        _ if elements == 0 => 1,
                        _ => 1 + root % Call::ROOTS_MAX,
                    },
                    operation: if primitive == Primitive::Broadcast {
                        Operation::Sum
                    } else {
                        operation
                    },
                    data_type,
                    flags: CallFlags(flags),
                    elements,
                    packets: bytes.div_ceil(pmtu.bytes() as u64) as u32,
                };
                call.check().is_ok().then_some(call)
            },
        )
}

/// Messages of ranks for one collective. Most have the same call; a few are merged already.
fn said() -> impl Strategy<Value = Vec<Control>> {
    (vec(call(), 1..4), any::<u32>()).prop_flat_map(|(calls, sequence)| {
        let one = (0u16..6, select(calls)).prop_map(move |(rank, call)| Control {
            sequence,
            rank,
            call,
            verdict: Verdict::Agreed,
        });
        vec(one, 1..8)
    })
}

fn merged<'a>(messages: impl IntoIterator<Item = &'a Control>) -> Control {
    let mut messages = messages.into_iter();
    let mut all = *messages.next().expect("one at least");
    messages.for_each(|m| all.merge(m));
    all
}

/// The result of merging all messages, by the definition.
fn expected(messages: &[Control]) -> Control {
    let mut said: Vec<(u16, Call)> = messages.iter().map(|m| (m.rank, m.call)).collect();
    said.sort();
    let (rank, call) = said[0];
    let other = said.iter().find(|(_, c)| *c != call);
    Control {
        sequence: messages[0].sequence,
        rank,
        call,
        verdict: other.map_or(Verdict::Agreed, |(rank, call)| Verdict::Conflict {
            rank: *rank,
            call: *call,
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn written_messages_parse_back(messages in said()) {
        let control = merged(&messages);
        let written = bytes(&control);
        prop_assert_eq!(Control::parse(&written), Ok(control));
        // A buffer may be longer.
        prop_assert_eq!(Control::parse(&[written.as_slice(), &[1; 5]].concat()), Ok(control));
    }

    /// Messages with changed bytes, and random bytes: parsing never panics, and an accepted message is written back unchanged.
    #[test]
    fn accepted_bytes_are_written_back(
        messages in said(),
        wrong in vec((0usize..64, prop_oneof![0u8..14, any::<u8>()]), 0..4),
        any in vec(any::<u8>(), 0..80),
    ) {
        let _ = Control::parse(&any);
        let mut input = bytes(&merged(&messages));
        for (at, byte) in wrong {
            input[at] = byte;
        }
        if let Ok(control) = Control::parse(&input) {
            prop_assert_eq!(bytes(&control), input);
        }
        let any: Vec<u8> = Control::IMMEDIATE.to_be_bytes().into_iter().chain(any).collect();
        if let Ok(control) = Control::parse(&any) {
            prop_assert_eq!(bytes(&control).to_vec(), any[..64].to_vec());
        }
    }

    /// Merging is commutative, associative and idempotent.
    #[test]
    fn merging_depends_only_on_the_set_of_messages(
        messages in said(),
        order in vec(any::<prop::sample::Index>(), 0..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let wanted = expected(&messages);
        prop_assert_eq!(merged(&messages), wanted);
        prop_assert_eq!(merged(messages.iter().rev()), wanted);
        let repeated = order.iter().map(|i| &messages[i.index(messages.len())]).chain(&messages);
        prop_assert_eq!(merged(repeated), wanted);
        let (left, right) = messages.split_at(cut.index(messages.len()));
        if !left.is_empty() {
            let (left, right) = (merged(left), merged(right));
            prop_assert_eq!(merged(&[left, right]), wanted);
            prop_assert_eq!(merged(&[right, left]), wanted);
            prop_assert_eq!(merged(&[left, wanted]), wanted);
        }
        prop_assert_eq!(merged(&[wanted, wanted]), wanted);
    }
}
