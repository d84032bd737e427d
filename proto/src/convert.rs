//! Messages to typed values and back: the only place where messages are validated.
//!
//! Each `..._from_proto` reports all faults of a message at once as [`Invalid`], fields by their path in the request
//! (`group.paths[1].host.qpn`). [`Invalid`] turns into a [`tonic::Status`] INVALID_ARGUMENT whose message starts with
//! the first field and whose details carry a `google.rpc.BadRequest` with all of them; [`violations`] reads it back.

mod call;
mod collective;
mod group;
mod job;
mod request;

use std::net::Ipv4Addr;

use castnet_rules::{Fault, FaultKind, Ipv4Net};
use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

pub use call::{call_from_proto, call_to_proto, disagreement_from_proto, disagreement_to_proto};
pub use collective::{
    collective_from_proto, collective_to_proto, loss_to_proto, rank_to_proto, straggler_to_proto,
};
pub use group::{
    group_from_proto, group_to_proto, host_to_proto, memory_to_proto, prefix_from_proto, route_from_proto,
    route_to_proto, routes_from_proto,
};
pub use job::{
    BLOB_BYTES_MAX, DEFAULT_EXCHANGE_MS, DEFAULT_LEASE_MS, ExchangeCall, GivenSettings, NewCollective,
    RankJoin, WAIT_MS_MAX, WINDOW_PACKETS_MAX, exchange_from_proto, new_collective_from_proto,
    rank_join_from_proto,
};
pub use request::{
    FrameFilter, GivenHost, NewGroup, NewMember, connection_from_proto, connection_to_proto,
    filter_from_proto, mcst_id_from_proto, name_from_proto, new_group_from_proto, one_end_each,
    port_from_proto, registration_from_proto,
};

/// A message that was refused: at least one fault, each with the path of its field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", join(.0))]
pub struct Invalid(Vec<Fault>);

impl Invalid {
    /// What is wrong; never empty.
    pub fn faults(&self) -> &[Fault] {
        &self.0
    }

    /// These faults; `None` where there are none.
    pub fn all(faults: Vec<Fault>) -> Option<Self> {
        (!faults.is_empty()).then_some(Self(faults))
    }

    /// A single fault.
    pub fn one(field: impl Into<String>, kind: FaultKind) -> Self {
        Self(vec![Fault::new(field, kind)])
    }
}

/// `Ok(value)` where there is a value and no fault.
///
/// A value that is lacking without a fault cannot happen, as each reader notes why; should it, the message is refused
/// all the same.
fn finish<T>(value: Option<T>, faults: Vec<Fault>) -> Result<T, Invalid> {
    match value {
        Some(value) if faults.is_empty() => Ok(value),
        _ if faults.is_empty() => Err(Invalid::one(
            "",
            FaultKind::Missing {
                expected: "a complete message",
            },
        )),
        _ => Err(Invalid(faults)),
    }
}

fn join(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("; ")
}

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Self {
        let violations = invalid.0.iter().map(|f| (f.field.clone(), f.kind.to_string()));
        refuse_fields(Code::InvalidArgument, violations)
    }
}

/// A refusal that names a field: `field: reason`, with the field in the details too.
pub fn refuse(code: Code, field: impl Into<String>, reason: impl Into<String>) -> Status {
    refuse_fields(code, [(field.into(), reason.into())])
}

fn refuse_fields(code: Code, fields: impl IntoIterator<Item = (String, String)>) -> Status {
    let mut details = ErrorDetails::new();
    let mut message = String::new();
    for (field, reason) in fields {
        if !message.is_empty() {
            message.push_str("; ");
        }
        if !field.is_empty() {
            message.push_str(&field);
            message.push_str(": ");
        }
        message.push_str(&reason);
        details.add_bad_request_violation(field, reason);
    }
    Status::with_error_details(code, message, details)
}

/// A field that a status refuses, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The field's path in the request.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

/// The fields that `status` refuses; empty where it names none.
pub fn violations(status: &Status) -> Vec<Violation> {
    let violations = status
        .get_details_bad_request()
        .map(|b| b.field_violations)
        .unwrap_or_default();
    violations
        .into_iter()
        .map(
            |FieldViolation {
                 field, description, ..
             }| Violation {
                field,
                reason: description,
            },
        )
        .collect()
}

/// Notes a fault under `field` and goes on.
fn take<T>(faults: &mut Vec<Fault>, field: &str, read: Result<T, FaultKind>) -> Option<T> {
    read.map_err(|kind| faults.push(Fault::new(field, kind))).ok()
}

fn port(value: u32) -> Result<PortId, FaultKind> {
    let port = u8::try_from(value).ok().and_then(PortId::new);
    port.ok_or_else(|| FaultKind::OutOfRange {
        value: value.to_string(),
        why: "is no port: ports are 0 to 63",
    })
}

fn ip(text: &str) -> Result<Ipv4Addr, FaultKind> {
    parse(text, "an IPv4 address, such as 10.0.0.1")
}

fn mcst_id(text: &str) -> Result<McstId, FaultKind> {
    parse(text, "a McstID, an IPv4 address such as 10.200.0.1").map(McstId)
}

fn mac(text: &str) -> Result<MacAddr, FaultKind> {
    parse(text, "an Ethernet address, such as 02:00:00:00:00:01")
}

fn prefix(text: &str) -> Result<Ipv4Net, FaultKind> {
    parse(text, "an IPv4 prefix, such as 10.1.0.0/16")
}

fn parse<T: std::str::FromStr>(text: &str, expected: &'static str) -> Result<T, FaultKind> {
    match text.parse() {
        Ok(value) => Ok(value),
        Err(_) if text.is_empty() => Err(FaultKind::Missing { expected }),
        Err(_) => Err(FaultKind::BadText {
            value: shorten(text),
            expected,
        }),
    }
}

/// What a refusal repeats of a text: not more than a line.
fn shorten(text: &str) -> String {
    const SHOWN_MAX: usize = 64;
    if text.chars().count() <= SHOWN_MAX {
        text.into()
    } else {
        text.chars().take(SHOWN_MAX).chain("...".chars()).collect()
    }
}

fn qpn(value: u32) -> Result<Qpn, FaultKind> {
    if value >> 24 != 0 {
        return Err(FaultKind::OutOfRange {
            value: format!("{value:#x}"),
            why: "is over the 24 bits of a QPN",
        });
    }
    Ok(Qpn::new(value))
}

fn psn(value: u32) -> Result<Psn, FaultKind> {
    if value >= Psn::MODULUS {
        return Err(FaultKind::OutOfRange {
            value: format!("{value:#x}"),
            why: "is over the 24 bits of a PSN",
        });
    }
    Ok(Psn::new(value))
}

fn pmtu(value: u32) -> Result<Pmtu, FaultKind> {
    let why = "is no RoCE path MTU: 256, 512, 1024, 2048 or 4096";
    Pmtu::from_bytes(value).ok_or_else(|| FaultKind::OutOfRange {
        value: value.to_string(),
        why,
    })
}

#[cfg(test)]
mod collective_tests;
#[cfg(test)]
mod tests;
