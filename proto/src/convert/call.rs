//! Calls of collectives, and conflicts between them.

use castnet_rules::FaultKind;
use castnet_wire::{Call, CallFlags, Control, DataType, Operation, ParseError, Primitive, Verdict};

use super::{Invalid, Reader, missing, out_of_range};
use crate::v1;

/// A call as a message.
pub fn call_to_proto(call: &Call) -> v1::CollectiveCall {
    v1::CollectiveCall {
        primitive: call.primitive as i32,
        root: call.root.into(),
        further_roots: call.roots.saturating_sub(1).into(),
        operation: call.operation as i32,
        data_type: call.data_type as i32,
        saturate: call.flags.contains(CallFlags::SATURATE),
        reproducible: call.flags.contains(CallFlags::REPRODUCIBLE),
        elements: call.elements,
        packets: call.packets,
    }
}

/// A call, checked like that of a control message. Faults are below `field`.
pub fn call_from_proto(field: &str, message: &v1::CollectiveCall) -> Result<Call, Invalid> {
    let mut r = Reader::default();
    let primitive = named(message.primitive, Primitive::from_byte, "is no primitive");
    let operation = named(message.operation, Operation::from_byte, "is no operation");
    let data_type = named(message.data_type, DataType::from_byte, "is no data type");
    let mut flags = CallFlags::NONE;
    if message.saturate {
        flags = flags.with(CallFlags::SATURATE);
    }
    if message.reproducible {
        flags = flags.with(CallFlags::REPRODUCIBLE);
    }
    let call = Call {
        primitive: r.read("primitive", primitive, Primitive::AllReduce),
        root: r.read("root", rank(message.root), 0),
        roots: r.read("further_roots", further_roots(message.further_roots), 1),
        operation: r.read("operation", operation, Operation::Sum),
        data_type: r.read("data_type", data_type, DataType::F32),
        flags,
        elements: message.elements,
        packets: message.packets,
    };
    if r.0.is_empty()
        && let Err(error) = call.check()
    {
        let why = match error {
            ParseError::Rule { rule, .. } => rule,
            _ => "makes no sense",
        };
        r.fault("", out_of_range(call, why));
    }
    r.within(field).finish(Some(call))
}

fn named<T>(value: i32, from: impl Fn(u8) -> Option<T>, why: &'static str) -> Result<T, FaultKind> {
    let known = u8::try_from(value).ok().and_then(from);
    known.ok_or_else(|| out_of_range(value, why))
}

fn further_roots(value: u32) -> Result<u16, FaultKind> {
    let roots = u16::try_from(value).ok().and_then(|n| n.checked_add(1));
    roots
        .filter(|n| *n <= Call::ROOTS_MAX)
        .ok_or_else(|| out_of_range(value, "is not 0 to 7"))
}

fn rank(value: u32) -> Result<u16, FaultKind> {
    u16::try_from(value).map_err(|_| out_of_range(value, "is no rank: 0 to 1023"))
}

/// `None` if the ranks agree.
pub fn disagreement_to_proto(control: &Control) -> Option<v1::Disagreement> {
    let Verdict::Conflict { rank, call } = control.verdict else {
        return None;
    };
    Some(v1::Disagreement {
        sequence: control.sequence,
        rank: control.rank.into(),
        call: Some(call_to_proto(&control.call)),
        other_rank: rank.into(),
        other_call: Some(call_to_proto(&call)),
    })
}

/// Two ranks and their different calls, as in a control message. Faults are below `field`.
pub fn disagreement_from_proto(field: &str, message: &v1::Disagreement) -> Result<Control, Invalid> {
    let mut r = Reader::default();
    let mut call = |name: &str, message: Option<v1::CollectiveCall>| match message {
        Some(message) => r.part(call_from_proto(name, &message)),
        None => r.take(name, Err(missing("what the rank called"))),
    };
    let first = call("call", message.call);
    let second = call("other_call", message.other_call);
    let first_rank = r.take("rank", rank(message.rank));
    let second_rank = r.take("other_rank", rank(message.other_rank));
    if let Some(first) = first.filter(|_| first == second) {
        let why = "is what the other rank called as well";
        r.fault("other_call", out_of_range(first, why));
    }
    let control = (|| {
        Some(Control {
            sequence: message.sequence,
            rank: first_rank?,
            call: first?,
            verdict: Verdict::Conflict {
                rank: second_rank?,
                call: second?,
            },
        })
    })();
    r.within(field).finish(control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call {
        Call {
            primitive: Primitive::Reduce,
            root: 3,
            roots: 5,
            operation: Operation::BitXor,
            data_type: DataType::U16,
            flags: CallFlags::SATURATE.with(CallFlags::REPRODUCIBLE),
            elements: 1000,
            packets: 2,
        }
    }

    /// Names here and there, but for the words that stand before each.
    #[test]
    fn numbers_are_those_of_the_control_message() {
        let plain = |name: &str, prefix: &str| {
            let rest = name.strip_prefix(prefix).expect("the prefix of its enum");
            rest.replace('_', "").to_lowercase()
        };
        for p in Primitive::ALL {
            let there = v1::CollectivePrimitive::try_from(*p as i32).unwrap();
            assert_eq!(plain(there.as_str_name(), "COLLECTIVE_PRIMITIVE_"), p.name());
        }
        for o in Operation::ALL {
            let there = v1::CollectiveOperation::try_from(*o as i32).unwrap();
            assert_eq!(plain(there.as_str_name(), "COLLECTIVE_OPERATION_"), o.name());
        }
        for t in DataType::ALL {
            let there = v1::CollectiveDataType::try_from(*t as i32).unwrap();
            assert_eq!(plain(there.as_str_name(), "COLLECTIVE_DATA_TYPE_"), t.name());
        }
    }

    #[test]
    fn disagreements_go_there_and_back() {
        let mut control = Control {
            sequence: 7,
            rank: 1,
            call: call(),
            verdict: Verdict::Agreed,
        };
        assert_eq!(disagreement_to_proto(&control), None);
        let other = Call {
            primitive: Primitive::AllReduce,
            root: 0,
            roots: 1,
            operation: Operation::Sum,
            data_type: DataType::F32,
            flags: CallFlags::NONE,
            elements: 0,
            packets: 0,
        };
        control.verdict = Verdict::Conflict { rank: 4, call: other };
        let message = disagreement_to_proto(&control).unwrap();
        assert_eq!(disagreement_from_proto("conflict", &message), Ok(control));
    }

    #[test]
    fn bad_disagreements_are_refused_with_all_faults_named() {
        let good = v1::Disagreement {
            sequence: 0,
            rank: 0,
            call: Some(call_to_proto(&call())),
            other_rank: 1,
            other_call: Some(call_to_proto(&Call { root: 2, ..call() })),
        };
        assert!(disagreement_from_proto("c", &good).is_ok());
        type Spoil = fn(&mut v1::Disagreement);
        let cases: [(&[&str], Spoil); 6] = [
            (&["c.call"], |d| d.call = None),
            (&["c.other_call"], |d| d.other_call = d.call),
            (&["c.rank", "c.other_rank"], |d| {
                (d.rank, d.other_rank) = (1 << 16, 1 << 16);
            }),
            (&["c.call.primitive", "c.call.operation"], |d| {
                let call = d.call.as_mut().unwrap();
                (call.primitive, call.operation) = (0, 99);
            }),
            (
                &["c.call.further_roots", "c.call.data_type", "c.other_call.root"],
                |d| {
                    d.call.as_mut().unwrap().data_type = -1;
                    d.call.as_mut().unwrap().further_roots = 8;
                    d.other_call.as_mut().unwrap().root = 1 << 16;
                },
            ),
            (&["c.call"], |d| d.call.as_mut().unwrap().elements = 0),
        ];
        for (fields, spoil) in cases {
            let mut bad = good;
            spoil(&mut bad);
            let invalid = disagreement_from_proto("c", &bad).unwrap_err();
            let named: Vec<&str> = invalid.faults().iter().map(|f| f.field.as_str()).collect();
            assert_eq!(named, fields, "{invalid}");
        }
        let mut bad = call_to_proto(&call());
        bad.packets = 0;
        assert!(call_from_proto("call", &bad).is_err());
    }
}
