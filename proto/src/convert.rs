//! Messages to typed values and back: the only place where messages are validated.
//!
//! Each `..._from_proto` reports all faults of a message at once as [`Invalid`], fields by their path in the request
//! (`group.paths[1].host.qpn`). [`Invalid`] turns into a [`tonic::Status`] INVALID_ARGUMENT whose message starts with
//! the first field and whose details carry a `google.rpc.BadRequest` with all of them; [`violations`] reads it back.

mod call;
mod job;
mod request;
mod route;
mod rule;

use std::fmt::Display;
use std::net::Ipv4Addr;

use castnet_rules::{Fault, FaultKind, GroupRule, IP_TEXT, Ipv4Net, Limit, MAC_TEXT, PREFIX_TEXT};
use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};
use prost::Message;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use crate::v1;
use crate::v1::install_result::Result as InstallResult;

pub use call::{call_from_proto, call_to_proto, disagreement_from_proto, disagreement_to_proto};
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
pub use route::{of_one_route, prefix_from_proto, route_from_proto, route_to_proto, routes_from_proto};
pub use rule::{
    host_to_proto, loss_to_proto, memory_to_proto, rule_faults, rule_from_proto, rule_to_proto,
    straggler_to_proto,
};

/// Faults that a refusal tells: it travels in headers, of which clients take 16 KiB.
const FAULTS_TOLD_MAX: usize = 32;

/// Rules that one request to install many may have.
pub const RULES_TOGETHER_MAX: usize = 1024;
/// Rules in one request as [`install_requests`] makes them, and their bytes: a switch answers such a request within a few
/// tens of milliseconds, and its gRPC takes messages of 4 MiB.
const RULES_SENT_MAX: usize = 256;
const RULE_BYTES_SENT_MAX: usize = 1 << 20;

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

    /// The refusal, with another code than that of a message that is wrong in itself.
    pub fn refuse(&self, code: Code) -> Status {
        let told = self.0.iter().take(FAULTS_TOLD_MAX);
        let violations = told.map(|f| (f.field.clone(), f.kind.to_string()));
        let more = self.0.len().saturating_sub(FAULTS_TOLD_MAX);
        let rest = (more > 0).then(|| (String::new(), format!("and {more} more")));
        refuse_fields(code, violations.chain(rest))
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
        invalid.refuse(Code::InvalidArgument)
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

/// The result of one installation of many.
pub fn install_result_to_proto(result: Result<v1::InstallOutcome, Status>) -> v1::InstallResult {
    let result = match result {
        Ok(outcome) => InstallResult::Outcome(outcome as i32),
        Err(status) => InstallResult::Refused(v1::RefusedRule {
            code: status.code() as i32,
            message: status.message().into(),
            details: status.details().into(),
        }),
    };
    v1::InstallResult { result: Some(result) }
}

/// The result of one installation of many.
///
/// # Errors
/// The status that an installation of the rule alone would have ended with.
pub fn install_result_from_proto(result: v1::InstallResult) -> Result<v1::InstallOutcome, Status> {
    match result.result {
        Some(InstallResult::Outcome(outcome)) => Ok(outcome.try_into().unwrap_or_default()),
        Some(InstallResult::Refused(v1::RefusedRule {
            code,
            message,
            details,
        })) => Err(Status::with_details(code.into(), message, details.into())),
        None => Err(Status::internal("the answer lacks a result")),
    }
}

/// Requests to install `rules` in their order, so many in a request as a message may have.
pub fn install_requests<'r>(
    owner: &str,
    rules: impl IntoIterator<Item = &'r GroupRule>,
) -> impl Iterator<Item = v1::InstallGroupsRequest> {
    let mut left = rules.into_iter().map(rule_to_proto).peekable();
    std::iter::from_fn(move || {
        let (mut rules, mut bytes) = (Vec::new(), 0);
        while let Some(rule) = left.next_if(|rule| {
            bytes += rule.encoded_len();
            rules.is_empty() || (rules.len() < RULES_SENT_MAX && bytes <= RULE_BYTES_SENT_MAX)
        }) {
            rules.push(rule);
        }
        let owner = owner.into();
        (!rules.is_empty()).then_some(v1::InstallGroupsRequest { rules, owner })
    })
}

/// Notes a fault under `field` and goes on.
fn take<T>(faults: &mut Vec<Fault>, field: impl Display, read: Result<T, FaultKind>) -> Option<T> {
    read.map_err(|kind| faults.push(Fault::new(field.to_string(), kind)))
        .ok()
}

fn port_to_proto(port: PortId) -> u32 {
    port.index() as u32
}

fn port(value: u32) -> Result<PortId, FaultKind> {
    let number = Limit::PORT.admit(value.into(), value)?;
    PortId::new(number as u8).ok_or_else(|| Limit::PORT.fault(value))
}

fn ip(text: &str) -> Result<Ipv4Addr, FaultKind> {
    parse(text, IP_TEXT)
}

fn mcst_id(text: &str) -> Result<McstId, FaultKind> {
    ip(text).map(McstId)
}

fn mac(text: &str) -> Result<MacAddr, FaultKind> {
    parse(text, MAC_TEXT)
}

fn prefix(text: &str) -> Result<Ipv4Net, FaultKind> {
    parse(text, PREFIX_TEXT)
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
    let number = Limit::QPN.admit(value.into(), format_args!("{value:#x}"))?;
    Ok(Qpn::new(number as u32))
}

fn psn(value: u32) -> Result<Psn, FaultKind> {
    let number = Limit::PSN.admit(value.into(), value)?;
    Ok(Psn::new(number as u32))
}

fn pmtu(value: u32) -> Result<Pmtu, FaultKind> {
    Pmtu::from_bytes(value).ok_or_else(|| Limit::PMTU.fault(value))
}

#[cfg(test)]
mod collective_tests;
#[cfg(test)]
mod tests;
