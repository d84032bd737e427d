//! How many bytes went which way, and why the way changed.

use std::time::{Duration, Instant};

use castnet_console::output::remark;
use castnet_console::units::bytes;
use castnet_member::Outside;
use castnet_member::fallback::PathReport;
use serde::Serialize;

use super::co_working::remark_waiting;

/// The ways of a transfer that was not only in its group.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ways {
    bytes_in_group: u64,
    bytes_between_hosts: u64,
    changes: Vec<Change>,
    /// Receivers that the tree of the group did not reach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outside: Vec<OutsideLine>,
    /// Bytes that this host has passed on to such receivers, to all together.
    #[serde(skip_serializing_if = "is_zero")]
    bytes_passed_on: u64,
    /// At the source: how long it waited for them after all others had everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_seconds: Option<f64>,
    #[serde(skip)]
    begun: Instant,
}

/// A receiver that the tree of the group did not reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct OutsideLine {
    host: String,
    via: String,
    why: String,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
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
        let mut ways = Self::all_in_group(begun, at_byte);
        ways.change("hosts", at_byte, why);
        ways
    }

    /// All bytes in the group.
    pub(super) fn all_in_group(begun: Instant, bytes: u64) -> Self {
        Self {
            bytes_in_group: bytes,
            bytes_between_hosts: 0,
            changes: Vec::new(),
            outside: Vec::new(),
            bytes_passed_on: 0,
            waited_seconds: None,
            begun,
        }
    }

    /// From a byte on, this receiver got the stream of `all` bytes from another member.
    pub(super) fn came_from(&mut self, at_byte: u64, all: u64, (at, why): (Instant, &str)) {
        self.bytes_in_group = self.bytes_in_group.min(at_byte);
        self.bytes_between_hosts = all - self.bytes_in_group;
        self.changes.push(Change {
            to: "hosts",
            at_byte,
            after_seconds: at.duration_since(self.begun).as_secs_f64(),
            why: why.to_owned(),
        });
    }

    pub(super) fn note_waited(&mut self, waited: Duration) {
        self.waited_seconds = Some(waited.as_secs_f64());
    }

    /// Whether all was in the group, for all members.
    pub(super) fn is_plain(&self) -> bool {
        self.changes.is_empty() && self.outside.is_empty()
    }

    fn change(&mut self, to: &'static str, at_byte: u64, why: &str) {
        self.changes.push(Change {
            to,
            at_byte,
            after_seconds: self.begun.elapsed().as_secs_f64(),
            why: why.to_owned(),
        });
    }

    /// Why it went from host to host first.
    pub(crate) fn why(&self) -> Option<&str> {
        self.changes.first().map(|change| change.why.as_str())
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let (group, hosts) = (bytes(self.bytes_in_group), bytes(self.bytes_between_hosts));
        let times = self.changes.iter().filter(|change| change.to == "group").count();
        let mut text = format!("{hosts} from host to host, {group} in the group");
        if times > 0 {
            text += &format!(", which was tried again {times} times");
        }
        if self.bytes_passed_on > 0 {
            text += &format!(", {} passed on", bytes(self.bytes_passed_on));
        }
        for OutsideLine { host, via, why } in &self.outside {
            text += &format!("; {host} got it from {via}: {why}");
        }
        text
    }
}

impl PathReport for Ways {
    fn note_outside(&mut self, outside: &[Outside]) {
        for out in outside {
            let line = OutsideLine {
                host: out.host.clone(),
                via: out.via.clone(),
                why: out.reason.clone(),
            };
            match self.outside.iter_mut().find(|known| known.host == line.host) {
                Some(known) => *known = line,
                None => self.outside.push(line),
            }
        }
    }

    fn note_passed_on(&mut self, bytes: u64) {
        self.bytes_passed_on += bytes;
    }

    fn add_in_group(&mut self, bytes: u64) {
        self.bytes_in_group += bytes;
    }

    fn add_between_hosts(&mut self, bytes: u64) {
        self.bytes_between_hosts += bytes;
    }

    fn tries_group(&mut self, host: &str, at_byte: u64) {
        remark(&format!("{host}: tries its group again, from byte {at_byte} on"));
        self.change("group", at_byte, "tried again");
    }

    fn leaves_group(&mut self, host: &str, (at_byte, bytes): (u64, u64), why: Option<&str>) {
        self.bytes_in_group += bytes;
        if let Some(why) = why {
            remark(&format!(
                "{host}: {why}; goes on from host to host, from byte {at_byte} on"
            ));
            self.change("hosts", at_byte, why);
        }
    }

    fn waits_for(&mut self, outside: &[Outside]) {
        remark_waiting(outside);
    }
}
