//! The messages and clients of castnet/v1, under short names.

pub use castnet_proto::transport::ControllerClient;
pub use castnet_proto::v1::*;
use tonic::transport::Channel;

/// Client of the process of a switch or controller.
pub type ProcessClient = process_client::ProcessClient<Channel>;
/// Client of a switch's agent.
pub type AgentClient = agent_client::AgentClient<Channel>;
