//! Refusals as statuses, with the fields of the request.

use std::convert::identity;

use castnet_proto::convert::{Invalid, of_one_route, refuse, rule_faults};
use castnet_proto::term::term_is_over;
use castnet_rules::Fault;
use castnet_worker::engine::InstallError as Refused;
use castnet_worker::{InstallError, MoveError, RouteError, Stopped, TapError};
use tonic::{Code, Status};

use crate::state::refusal::{Fields, Refusal};

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        let (code, field) = match refusal {
            Refusal::Invalid(invalid) => return invalid.into(),
            Refusal::TermOver(_) => return term_is_over(text),
            Refusal::Install(fields, error) => return install_refused(fields, &error),
            Refusal::Routes(error) => return route_refused(error, identity),
            Refusal::Route(error) => return route_refused(error, of_one_route),
            Refusal::Stopped(error) => return stopped(error),
            Refusal::ForOthers { .. } => (Code::InvalidArgument, "owner"),
            Refusal::OfOthers { .. } | Refusal::RouteOfOthers { .. } => (Code::FailedPrecondition, "owner"),
            Refusal::OtherGeneration { .. } => (Code::FailedPrecondition, "generation"),
            Refusal::AddressTaken { .. } => (Code::AlreadyExists, "rule.mcst_id"),
            Refusal::OtherRule { .. } => (Code::FailedPrecondition, "rule.generation"),
            Refusal::RouteTaken { .. } => (Code::AlreadyExists, "routes"),
            Refusal::GuardsFull => (Code::ResourceExhausted, "hosts"),
        };
        refuse(code, field, text)
    }
}

pub(crate) fn stopped(stopped: Stopped) -> Status {
    Status::unavailable(stopped.to_string())
}

fn install_refused(Fields { kind, has_slots, hop }: Fields, error: &InstallError) -> Status {
    // Faults of the checker, with the real ports and groups of the switch.
    let faults = |faults: &[Fault], code| match Invalid::all(rule_faults("rule", kind, faults)) {
        Some(invalid) => invalid.refuse(code),
        None => Status::new(code, "rule: refused"),
    };
    let (code, field) = match error {
        InstallError::Refused(refused) => match refused {
            Refused::Faults(found) => return faults(found, Code::InvalidArgument),
            Refused::NoPort { endpoint, .. } => {
                (Code::InvalidArgument, format!("rule.endpoints[{endpoint}].port"))
            }
            Refused::NoMac { endpoint, .. } => {
                let field = format!("rule.endpoints[{endpoint}].{hop}.mac");
                (Code::FailedPrecondition, field)
            }
            Refused::MtuTooSmall { .. } => (Code::InvalidArgument, "rule.pmtu".into()),
            Refused::OwnAddress { .. } => (Code::InvalidArgument, "rule.mcst_id".into()),
            // Fewer slots need less memory.
            Refused::NoMemory { .. } if has_slots => (Code::ResourceExhausted, format!("rule.{kind}.slots")),
            Refused::GroupsFull { .. } | Refused::NoMemory { .. } | Refused::NextHopsFull => {
                (Code::ResourceExhausted, "rule".into())
            }
        },
        InstallError::Clash(found) => return faults(found, Code::AlreadyExists),
        InstallError::Older { .. } => (Code::FailedPrecondition, "rule.generation".into()),
        _ => return Status::unavailable(error.to_string()),
    };
    refuse(code, field, error.to_string())
}

fn route_refused(error: RouteError, name: fn(Invalid) -> Invalid) -> Status {
    let text = error.to_string();
    match error {
        RouteError::Faults(faults) => {
            let invalid = Invalid::all(faults).map(name);
            invalid.map_or_else(|| Status::invalid_argument(text), Status::from)
        }
        RouteError::NoPort { .. } => refuse(Code::InvalidArgument, "routes", text),
        _ => Status::unavailable(text),
    }
}

pub(crate) fn move_refused(error: &MoveError) -> Status {
    let text = error.to_string();
    let (code, field) = match error {
        MoveError::NoGroup { .. } => (Code::NotFound, "mcst_id"),
        MoveError::NoWorker { .. } => (Code::InvalidArgument, "worker"),
        MoveError::Already { .. } => (Code::FailedPrecondition, "worker"),
        MoveError::Refused(_) => (Code::ResourceExhausted, "worker"),
        _ => return Status::unavailable(text),
    };
    refuse(code, field, text)
}

pub(crate) fn tap_refused(error: TapError, port_field: &str) -> Status {
    let text = error.to_string();
    match error {
        TapError::Full { .. } => Status::resource_exhausted(text),
        TapError::NoPort(_) => refuse(Code::InvalidArgument, port_field, text),
        _ => Status::unavailable(text),
    }
}
