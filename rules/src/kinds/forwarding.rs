//! Forwarding: frames of one endpoint go to the other. The smallest kind, and the example of `docs/new-kind.md`.

use castnet_toml_reader::{Table, Value};
use serde::{Deserialize, Serialize};

use super::{Fields, check_no_ranks};
use crate::check::Unread;
use crate::fault::{Fault, FaultKind};
use crate::group::{Endpoint, GroupRule};

/// Fields of a forwarding group: none. Memory of its endpoints is ignored: a WRITE keeps its address and key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardingRule {}

impl Fields for ForwardingRule {
    fn check(&self, endpoints: &[Endpoint], _: &Unread, faults: &mut Vec<Fault>) {
        // Fewer than two are refused in groups of every kind.
        if endpoints.len() > 2 {
            let endpoints = endpoints.len();
            faults.push(Fault::new("endpoints", FaultKind::NotTwoEndpoints { endpoints }));
        }
        check_no_ranks(endpoints, faults);
    }

    fn write(&self, _: &GroupRule, _: &mut String) {}
}

impl ForwardingRule {
    pub(super) fn read<'t>(_: &'t Table<'_>) -> (Self, Option<Value<'t>>) {
        (Self {}, None)
    }
}
