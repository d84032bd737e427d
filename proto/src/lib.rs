//! castnet/v1: the gRPC API between switches, controller, hosts and the command line.
//!
//! [`v1`] is generated from `castnet/v1/*.proto`, [`convert`] validates messages, [`states`] puts states together from differences,
//! [`transport`] serves and connects, [`part_file`] makes files that are complete before they have their names.
//!
//! ```no_run
//! use castnet_proto::transport::{self, Security};
//! use castnet_proto::v1::controller_client::ControllerClient;
//! use castnet_proto::v1::ListControllerGroupsRequest;
//!
//! # async fn list() -> Result<(), Box<dyn std::error::Error>> {
//! let channel = transport::connect(&"http://127.0.0.1:7470".parse()?, &Security::default()).await?;
//! let groups = ControllerClient::new(channel).list_groups(ListControllerGroupsRequest::default()).await?;
//! println!("{} groups", groups.into_inner().groups.len());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod access;
mod answer;
pub mod audit;
mod bounded;
pub mod convert;
pub mod part_file;
mod parts;
pub mod process;
mod shares;
pub mod states;
pub mod term;
pub mod transport;

/// The generated messages, clients and servers of package `castnet.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("castnet.v1");
}
