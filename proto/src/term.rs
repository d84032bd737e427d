//! Which of several controllers is meant, in metadata: the term of a controller (`castnet-term-bin`), in its calls to agents and in its
//! answers to who joins a group; the term of the controller at which a member has joined (`castnet-joined-bin`), in the calls of that
//! member; the address of the controller that leads (`castnet-leader`), in refusals.

use std::sync::Arc;

use parking_lot::Mutex;
use prost::Message;
use tonic::codegen::http::{HeaderMap, HeaderName};
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::service::Interceptor;
use tonic::{Code, Request, Status};

use crate::convert::{Invalid, check_term, refuse, violations};
use crate::transport::Address;
use crate::v1::ControllerTerm;

const TERM: &str = "castnet-term-bin";
const JOINED: &str = "castnet-joined-bin";
const LEADER: &str = "castnet-leader";
/// The field in the details of a refusal.
const FIELD: &str = "controller";

/// Adds a term to each call, or to an answer.
#[derive(Clone, Debug)]
pub struct WithTerm(BinaryMetadataValue);

impl WithTerm {
    /// Adds this term.
    pub fn new(term: &ControllerTerm) -> Self {
        Self(BinaryMetadataValue::from_bytes(&term.encode_to_vec()))
    }

    /// Adds it to the metadata of a call or an answer.
    pub fn add_to(&self, metadata: &mut MetadataMap) {
        metadata.insert_bin(TERM, self.0.clone());
    }
}

impl Interceptor for WithTerm {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        self.add_to(request.metadata_mut());
        Ok(request)
    }
}

/// The term of the controller that makes a call; `None`: the caller is no controller.
///
/// # Errors
/// The metadata cannot be decoded, or is none that a controller sends.
pub fn term_of(metadata: &MetadataMap) -> Result<Option<ControllerTerm>, Invalid> {
    find(metadata, TERM)
}

fn find(metadata: &MetadataMap, name: &'static str) -> Result<Option<ControllerTerm>, Invalid> {
    let Some(value) = metadata.get_bin(name) else {
        return Ok(None);
    };
    let bytes = value.to_bytes().ok();
    let term = bytes.and_then(|bytes| ControllerTerm::decode(bytes).ok());
    let term = term.ok_or_else(|| Invalid::out_of_range(name, "its value", "is no ControllerTerm"))?;
    check_term(&term)?;
    Ok(Some(term))
}

/// Adds the term of the controller at which a member has joined its group to each call of that member. A controller on another store, or on
/// an older copy of that one, does not know what became of the group. Clones share the term.
#[derive(Clone, Debug, Default)]
pub struct JoinedAt(Arc<Mutex<Option<BinaryMetadataValue>>>);

impl JoinedAt {
    /// From now on the term in the metadata of this answer is added. There is none in the answers of earlier controllers.
    pub fn set(&self, answer: &MetadataMap) {
        *self.0.lock() = answer.get_bin(TERM).cloned();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.lock().is_some()
    }

    /// From now on no term is added.
    pub fn clear(&self) {
        *self.0.lock() = None;
    }
}

impl Interceptor for JoinedAt {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(term) = &*self.0.lock() {
            request.metadata_mut().insert_bin(JOINED, term.clone());
        }
        Ok(request)
    }
}

/// The term of the controller at which the caller has joined a group; `None`: it has not, or does not say so.
///
/// # Errors
/// The metadata cannot be decoded, or is none that a controller sends.
pub fn joined_at(headers: &HeaderMap) -> Result<Option<ControllerTerm>, Invalid> {
    let Some(value) = headers.get(JOINED) else {
        return Ok(None);
    };
    let metadata = HeaderMap::from_iter([(HeaderName::from_static(JOINED), value.clone())]);
    find(&MetadataMap::from_headers(metadata), JOINED)
}

/// Whether the caller says that it has joined a group.
pub fn has_joined(metadata: &MetadataMap) -> bool {
    metadata.contains_key(JOINED)
}

/// The status for a controller whose term is over.
pub fn term_is_over(reason: impl Into<String>) -> Status {
    refuse(Code::FailedPrecondition, FIELD, reason)
}

/// Whether a status is from [`term_is_over`].
pub fn is_term_over(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && violations(status).iter().any(|v| v.field == FIELD)
}

/// The status for a member that has joined at a controller with another store, or with a later copy of this one.
pub fn joined_elsewhere(reason: impl Into<String>) -> Status {
    refuse(Code::Unavailable, FIELD, reason)
}

/// Whether a status is from [`joined_elsewhere`].
pub fn is_joined_elsewhere(status: &Status) -> bool {
    status.code() == Code::Unavailable && violations(status).iter().any(|v| v.field == FIELD)
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
