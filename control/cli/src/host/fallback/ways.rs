//! How many bytes went which way, and why the way changed.

use std::time::Instant;

use castnet_console::output::remark;
use castnet_console::units::bytes;
use serde::Serialize;

/// The ways of a transfer that was not only in its group.
#[derive(Clone, Debug, Serialize)]
pub(in crate::host) struct Ways {
    bytes_in_group: u64,
    bytes_between_hosts: u64,
    changes: Vec<Change>,
    #[serde(skip)]
    begun: Instant,
}

/// A change of the way.
#[derive(Clone, Debug, Serialize)]
struct Change {
    to: &'static str,
    /// The first byte that goes this way.
    at_byte: u64,
    after_seconds: f64,
    why: String,
}

impl Ways {
    /// Begins between hosts, after so many bytes in the group.
    pub(super) fn new(begun: Instant, at_byte: u64, why: &str) -> Self {
        let mut ways = Self {
            bytes_in_group: at_byte,
            bytes_between_hosts: 0,
            changes: Vec::new(),
            begun,
        };
        ways.change("hosts", at_byte, why);
        ways
    }

    fn change(&mut self, to: &'static str, at_byte: u64, why: &str) {
        self.changes.push(Change {
            to,
            at_byte,
            after_seconds: self.begun.elapsed().as_secs_f64(),
            why: why.to_owned(),
        });
    }

    /// Bytes that all have got in the group, as is found later.
    pub(super) fn add_in_group(&mut self, bytes: u64) {
        self.bytes_in_group += bytes;
    }

    pub(super) fn add_between_hosts(&mut self, bytes: u64) {
        self.bytes_between_hosts += bytes;
    }

    /// The group is tried.
    pub(super) fn tries_group(&mut self, host: &str, at_byte: u64) {
        remark(&format!("{host}: tries its group again, from byte {at_byte} on"));
        self.change("group", at_byte, "tried again");
    }

    /// The group was left, after so many bytes. `why`: not because the stream ended.
    pub(super) fn leaves_group(&mut self, host: &str, (at_byte, bytes): (u64, u64), why: Option<&str>) {
        self.bytes_in_group += bytes;
        if let Some(why) = why {
            remark(&format!(
                "{host}: {why}; goes on from host to host, from byte {at_byte} on"
            ));
            self.change("hosts", at_byte, why);
        }
    }

    /// Why it went from host to host first.
    pub(in crate::host) fn why(&self) -> &str {
        self.changes.first().map_or("", |change| &change.why)
    }

    /// For people.
    pub(in crate::host) fn text(&self) -> String {
        let (group, hosts) = (bytes(self.bytes_in_group), bytes(self.bytes_between_hosts));
        let times = self.changes.iter().filter(|change| change.to == "group").count();
        format!("{hosts} from host to host, {group} in the group, which was tried again {times} times")
    }
}
