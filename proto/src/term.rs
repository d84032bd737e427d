//! Which of several controllers is meant: the term of a controller, as metadata of its calls to agents, and the address of
//! the one that leads, as metadata of refusals.

use prost::Message;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::service::Interceptor;
use tonic::{Code, Request, Status};

use crate::convert::{Invalid, check_term, refuse, violations};
use crate::transport::Address;
use crate::v1::ControllerTerm;

const METADATA: &str = "castnet-term-bin";
const LEADER: &str = "castnet-leader";
/// The field in the details of a refusal.
const FIELD: &str = "controller";

/// Adds a term to each call.
#[derive(Clone, Debug)]
pub struct WithTerm(BinaryMetadataValue);

impl WithTerm {
    /// Adds this term.
    pub fn new(term: &ControllerTerm) -> Self {
        Self(BinaryMetadataValue::from_bytes(&term.encode_to_vec()))
    }
}

impl Interceptor for WithTerm {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert_bin(METADATA, self.0.clone());
        Ok(request)
    }
}

/// The term of the controller that makes a call; `None`: the caller is no controller.
///
/// # Errors
/// The metadata cannot be decoded, or is none that a controller sends.
pub fn term_of(metadata: &MetadataMap) -> Result<Option<ControllerTerm>, Invalid> {
    let Some(value) = metadata.get_bin(METADATA) else {
        return Ok(None);
    };
    let bytes = value.to_bytes().ok();
    let term = bytes.and_then(|bytes| ControllerTerm::decode(bytes).ok());
    let term = term.ok_or_else(|| Invalid::out_of_range(METADATA, "its value", "is no ControllerTerm"))?;
    check_term(&term)?;
    Ok(Some(term))
}

/// The status for a controller whose term is over.
pub fn term_is_over(reason: impl Into<String>) -> Status {
    refuse(Code::FailedPrecondition, FIELD, reason)
}

/// Whether a status is from [`term_is_over`].
pub fn is_term_over(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && violations(status).iter().any(|v| v.field == FIELD)
}

/// The status of a controller that does not lead. `leader`: the address of the one that does.
pub fn not_leading(reason: impl Into<String>, leader: Option<&str>) -> Status {
    let mut status = Status::unavailable(reason);
    if let Some(leader) = leader.and_then(|leader| leader.parse().ok()) {
        status.metadata_mut().insert(LEADER, leader);
    }
    status
}

/// The address of the controller that leads, if a status names it.
pub fn leader_of(status: &Status) -> Option<Address> {
    status.metadata().get(LEADER)?.to_str().ok()?.parse().ok()
}
