//! castnet/v1: the gRPC API between switches, controller, hosts and the command line.
//!
//! [`v1`] is generated from `castnet/v1/*.proto`, [`convert`] validates messages, [`transport`] serves and connects.
#![forbid(unsafe_code)]

pub mod convert;
mod parts;
pub mod transport;

/// The generated messages, clients and servers of package `castnet.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("castnet.v1");
}
