//! The messages and clients of castnet/v1, under short names.

pub(crate) use castnet_proto::v1::*;

/// A client of a switch's agent.
pub(crate) type AgentClient = agent_client::AgentClient<tonic::transport::Channel>;

/// A client of the controller.
pub(crate) type ControllerClient = controller_client::ControllerClient<tonic::transport::Channel>;
