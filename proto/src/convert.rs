//! Messages to typed values and back: the only place where messages are validated.
//!
//! Each `..._from_proto` reports all faults of a message as [`Invalid`], with field paths
//! (`rule.endpoints[1].host.qpn`). As a [`Status`] it is INVALID_ARGUMENT: the message starts with the first field, and
//! the details are a `google.rpc.BadRequest` with all fields, which [`violations`] reads.

mod call;
mod job;
mod request;
mod route;
mod rule;

use std::fmt::Display;
use std::net::Ipv4Addr;

use castnet_rules::{Fault, FaultKind, GroupRule, IP_TEXT, Ipv4Net, Limit, MAC_TEXT, PREFIX_TEXT, Unread};
use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};
use prost::Message;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::v1;
use crate::v1::install_result::Result as InstallResult;

pub use call::*;
pub use job::*;
pub use request::*;
pub use route::*;
pub use rule::*;

/// Most faults in a status. A status is sent in headers, of which clients accept 16 KiB.
const FAULTS_SENT_MAX: usize = 32;
/// Most bytes of fields and reasons in a status: headers have them twice, and encoded. A client that gets more than it accepts has no answer, and
/// may lose its connection.
const REASONS_SENT_MAX: usize = 2700;
/// Of each of many reasons, at least so many bytes are sent.
const REASON_SENT_MIN: usize = 16;
/// Most rules in one `InstallGroupsRequest`.
pub const RULES_TOGETHER_MAX: usize = 1024;
/// Most rules and bytes per request: a switch answers within tens of milliseconds, and accepts messages of 4 MiB.
const RULES_SENT_MAX: usize = 256;
const RULE_BYTES_SENT_MAX: usize = 1 << 20;

/// The faults of a refused message; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(Fault::to_string).collect::<Vec<_>>().join("; "))]
pub struct Invalid(Vec<Fault>);

impl Invalid {
    /// All faults.
    pub fn faults(&self) -> &[Fault] {
        &self.0
    }

    /// `None` if there are no faults.
    pub fn all(faults: Vec<Fault>) -> Option<Self> {
        (!faults.is_empty()).then_some(Self(faults))
    }

    /// A single fault.
    pub fn one(field: impl Into<String>, kind: FaultKind) -> Self {
        Self(vec![Fault::new(field, kind)])
    }

    /// A required field is missing.
    pub fn missing(field: impl Into<String>, expected: &'static str) -> Self {
        Self::one(field, FaultKind::Missing { expected })
    }

    /// A value is outside its range. `why` follows the value.
    pub fn out_of_range(field: impl Into<String>, value: impl Display, why: &'static str) -> Self {
        Self::one(field, out_of_range(value, why))
    }

    /// The status with this code; [`Status::from`] has INVALID_ARGUMENT.
    pub fn refuse(&self, code: Code) -> Status {
        let sent = self.0.iter().take(FAULTS_SENT_MAX);
        let violations = sent.map(|f| (f.field.clone(), f.kind.to_string()));
        let more = self.0.len().saturating_sub(FAULTS_SENT_MAX);
        let rest = (more > 0).then(|| (String::new(), format!("and {more} more")));
        refuse_fields(code, violations.chain(rest))
    }
}

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Self {
        invalid.refuse(Code::InvalidArgument)
    }
}

/// A status with the message `field: reason`, and the field in the details.
pub fn refuse(code: Code, field: impl Into<String>, reason: impl Into<String>) -> Status {
    refuse_fields(code, [(field.into(), reason.into())])
}

fn refuse_fields(code: Code, fields: impl IntoIterator<Item = (String, String)>) -> Status {
    let mut fields: Vec<(String, String)> = fields.into_iter().collect();
    let of_fields: usize = fields.iter().map(|(field, _)| field.len()).sum();
    let of_reasons: usize = fields.iter().map(|(_, reason)| reason.len()).sum();
    if of_fields + of_reasons > REASONS_SENT_MAX {
        let most = REASONS_SENT_MAX.saturating_sub(of_fields) / fields.len();
        let long = fields.iter_mut().map(|(_, reason)| reason);
        long.for_each(|reason| shorten(reason, most.max(REASON_SENT_MIN)));
    }
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

fn shorten(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push_str("...");
    }
}

/// A field that a status refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field in the request.
    pub field: String,
    /// What is wrong with the field.
    pub reason: String,
}

/// The fields that `status` refuses, if it names any.
pub fn violations(status: &Status) -> Vec<Violation> {
    let refused = status.get_details_bad_request();
    let fields = refused.into_iter().flat_map(|r| r.field_violations);
    fields
        .map(|f| Violation {
            field: f.field,
            reason: f.description,
        })
        .collect()
}

/// The result for a rule of an `InstallGroupsRequest`.
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

/// The result for a rule of an `InstallGroupsRequest`. The error is the status that `InstallGroup` returns for it.
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

/// Requests that install `rules` in order, with as many per request as a message can hold.
pub fn install_requests<'r>(
    owner: &str,
    rules: impl IntoIterator<Item = &'r GroupRule>,
) -> impl Iterator<Item = v1::InstallGroupsRequest> {
    let mut remaining = rules.into_iter().map(rule_to_proto).peekable();
    std::iter::from_fn(move || {
        let (mut rules, mut bytes) = (Vec::new(), 0);
        while let Some(rule) = remaining.next_if(|rule| {
            bytes += rule.encoded_len();
            rules.is_empty() || (rules.len() < RULES_SENT_MAX && bytes <= RULE_BYTES_SENT_MAX)
        }) {
            rules.push(rule);
        }
        let owner = owner.into();
        let stop_at_refusal = false;
        (!rules.is_empty()).then_some(v1::InstallGroupsRequest {
            rules,
            owner,
            stop_at_refusal,
        })
    })
}

/// Reads fields and collects their faults, so that one bad field does not hide the faults of the others.
#[derive(Default)]
struct Reader(Vec<Fault>);

impl Reader {
    fn fault(&mut self, field: impl Display, kind: FaultKind) {
        self.0.push(Fault::new(field.to_string(), kind));
    }

    /// `None` after a fault.
    fn take<T>(&mut self, field: impl Display, value: Result<T, FaultKind>) -> Option<T> {
        value.map_err(|kind| self.fault(field, kind)).ok()
    }

    /// `placeholder` after a fault.
    fn read<T>(&mut self, field: impl Display, value: Result<T, FaultKind>, placeholder: T) -> T {
        self.take(field, value).unwrap_or(placeholder)
    }

    /// The fields with faults.
    fn unread(&self) -> Unread {
        Unread(self.0.iter().map(|fault| fault.field.clone()).collect())
    }

    /// `None` if it is absent or after a fault.
    fn optional<V, T>(
        &mut self,
        field: &str,
        value: Option<V>,
        read: impl FnOnce(V) -> Result<T, FaultKind>,
    ) -> Option<T> {
        self.take(field, read(value?))
    }

    /// A part with its own reader; `None` after a fault.
    fn part<T>(&mut self, value: Result<T, Invalid>) -> Option<T> {
        value.map_err(|Invalid(faults)| self.0.extend(faults)).ok()
    }

    /// Moves all faults so far below `field`.
    fn within(mut self, field: &str) -> Self {
        self.0 = self.0.into_iter().map(|f| f.within(field)).collect();
        self
    }

    /// `None` is allowed only after a fault; otherwise the message is refused too.
    fn finish<T>(self, value: Option<T>) -> Result<T, Invalid> {
        match (Invalid::all(self.0), value) {
            (None, Some(value)) => Ok(value),
            (Some(invalid), _) => Err(invalid),
            (None, None) => Err(Invalid::missing("", "a complete message")),
        }
    }
}

fn missing(expected: &'static str) -> FaultKind {
    FaultKind::Missing { expected }
}

fn out_of_range(value: impl Display, why: &'static str) -> FaultKind {
    let value = value.to_string();
    FaultKind::OutOfRange { value, why }
}

/// The fault has at most 64 characters of the text.
fn bad_text(text: &str, expected: &'static str) -> FaultKind {
    const SHOWN_MAX: usize = 64;
    let value = match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    };
    FaultKind::BadText { value, expected }
}

/// The number of a port.
pub fn port_to_proto(port: PortId) -> u32 {
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
    match text {
        "" => Err(missing(expected)),
        text => text.parse().map_err(|_| bad_text(text, expected)),
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
mod limit_tests;
#[cfg(test)]
mod tests;
