//! Ranks that called different collectives: who said what.

use castnet_console::api;
use castnet_console::output::{Page, Row};
use castnet_proto::convert::call_from_proto;
use serde::Serialize;

/// A collective that a group's ranks disagree about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Conflict {
    /// Number of the collective in its group.
    sequence: u32,
    /// Two ranks, and what each called; the lower rank first.
    callers: [Caller; 2],
}

/// A rank, and what it called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Caller {
    rank: u32,
    /// Where that is known.
    host: Option<String>,
    call: String,
}

impl Row for Caller {
    const COLUMNS: &'static [&'static str] = &["rank", "host", "called"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.rank.to_string(),
            super::super::or_dash(self.host.as_deref().unwrap_or_default()),
            self.call.clone(),
        ]
    }
}

impl Conflict {
    /// Of what a controller or a switch says; `host` knows where ranks are.
    pub(crate) fn new(said: &api::Disagreement, host: impl Fn(u32) -> Option<String>) -> Self {
        let caller = |rank, call: Option<api::CollectiveCall>| {
            let read = call_from_proto("call", &call.unwrap_or_default());
            Caller {
                rank,
                host: host(rank).filter(|name| !name.is_empty()),
                call: read.map_or_else(|invalid| invalid.to_string(), |call| call.to_string()),
            }
        };
        Self {
            sequence: said.sequence,
            callers: [
                caller(said.rank, said.call),
                caller(said.other_rank, said.other_call),
            ],
        }
    }

    /// For people.
    pub(crate) fn page(&self, page: &mut Page) {
        page.title(format!("The ranks disagree about collective {}", self.sequence));
        page.rows(&self.callers, "");
    }
}
