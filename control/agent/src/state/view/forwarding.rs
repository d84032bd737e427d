//! State of groups that forward as messages.

use castnet_proto::convert::port_to_proto;
use castnet_proto::v1;
use castnet_rules::GroupRule;
use castnet_worker::engine::{
    ForwardingCounters, ForwardingEndpoint, ForwardingStatus, copy_forwarding_counters,
};

use crate::state::view::next_hop;

pub(crate) fn state(status: &ForwardingStatus) -> v1::ForwardingState {
    v1::ForwardingState {
        memory_bytes: status.memory_bytes as u64,
        ..counted(&status.counters, &status.endpoints, Some(&status.rule))
    }
}

/// `rule`: absent if its generation is not installed any more.
pub(crate) fn counted(
    counters: &ForwardingCounters,
    endpoints: &[ForwardingEndpoint],
    rule: Option<&GroupRule>,
) -> v1::ForwardingState {
    let endpoint = |(i, endpoint): (usize, &ForwardingEndpoint)| v1::ForwardingEndpoint {
        port: port_to_proto(endpoint.port),
        next_hop: next_hop(rule, i).into(),
        frames_in: endpoint.frames_in,
        frames_out: endpoint.frames_out,
    };
    copy_forwarding_counters!(counters => v1::ForwardingState {
        endpoints: endpoints.iter().enumerate().map(endpoint).collect(),
        memory_bytes: 0,
    })
}
