//! Checks that every [`Rnic`] must pass, with two connected QPs on one or two devices. The software RNIC passes them in
//! its tests. `castnet host selftest` runs them on a device of the machine.

mod bench;
mod checks;

use std::time::{Duration, Instant};

use castnet_endpoint::{
    Access, Completion, CompletionOp, LocalSlice, MemoryKey, QpState, QueueLimits, RecvWr, SendOp, SendWr,
    Status,
};
use castnet_wire::{Psn, Qpn};

use crate::error::{RnicError, status_text};
use crate::rnic::{MemoryRegion, QpOptions, QpRemote, Rnic};

pub use bench::{Bench, OneDevice, TwoDevices, software};

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// Name of the check.
    pub name: &'static str,
    /// Description of the check.
    pub about: &'static str,
    /// The observation, or the error.
    pub outcome: Result<String, String>,
    /// Duration of the check.
    pub elapsed: Duration,
}

#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Rnic(#[from] RnicError),
    #[error("{0}")]
    Wrong(String),
}

type Checked<T = ()> = Result<T, Fault>;

fn fail<T>(what: impl Into<String>) -> Checked<T> {
    Err(Fault::Wrong(what.into()))
}

fn expect_equal<T: PartialEq + std::fmt::Debug>(what: &str, seen: T, expected: T) -> Checked {
    if seen == expected {
        return Ok(());
    }
    fail(format!("{what} is {seen:?}, expected {expected:?}"))
}

/// Timeout for every expected event.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Sleep between polls for conditions that no event reports.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Runs all checks and calls `each` with the result of each.
pub fn run(bench: &mut dyn Bench, each: &mut dyn FnMut(&CheckReport)) -> Vec<CheckReport> {
    let mut reports = Vec::new();
    for (name, about, check) in checks::ALL {
        let (start, mut session) = (Instant::now(), Session::new(&mut *bench));
        let outcome = check(&mut session);
        let closed = session.close();
        let report = CheckReport {
            name,
            about,
            outcome: outcome
                .and_then(|seen| closed.map(|()| seen))
                .map_err(|fault| fault.to_string()),
            elapsed: start.elapsed(),
        };
        each(&report);
        reports.push(report);
    }
    reports
}

/// The QPs and memory of one check. They are released at its end in any case.
struct Session<'a> {
    bench: &'a mut dyn Bench,
    qps: Vec<(usize, Qpn)>,
    regions: Vec<(usize, MemoryKey)>,
}

/// A QP at each end, connected to each other.
type Pair = [Qpn; 2];

impl<'a> Session<'a> {
    fn new(bench: &'a mut dyn Bench) -> Self {
        Self {
            bench,
            qps: Vec::new(),
            regions: Vec::new(),
        }
    }

    fn close(self) -> Checked {
        for (end, qpn) in self.qps {
            self.bench.rnic(end).destroy_qp(qpn)?;
        }
        for (end, key) in self.regions {
            self.bench.rnic(end).deregister_memory(key)?;
        }
        Ok(())
    }

    fn rnic(&mut self, end: usize) -> &mut dyn Rnic {
        self.bench.rnic(end)
    }

    fn region(&mut self, end: usize, access: Access, bytes: &[u8]) -> Checked<MemoryRegion> {
        let region = self.rnic(end).register_memory(bytes.len(), access)?;
        self.regions.push((end, region.key));
        self.rnic(end).write_memory(region.key, 0, bytes)?;
        Ok(region)
    }

    fn create(&mut self, end: usize) -> Checked<Qpn> {
        let limits = QueueLimits {
            send: 64,
            receive: 64,
        };
        let qpn = self.rnic(end).create_qp(&QpOptions { qpn: None, limits })?;
        self.qps.push((end, qpn));
        Ok(qpn)
    }

    /// The connection parameters for a QP at one end to the QP `qpn` at the other.
    fn towards(&mut self, end: usize, qpn: Qpn) -> QpRemote {
        let attributes = self.rnic(1 - end).attributes().clone();
        let pmtu = attributes.active_pmtu;
        QpRemote {
            mac: Some(attributes.mac),
            timeout: 14,
            pmtu: pmtu.min(self.rnic(end).attributes().active_pmtu),
            ..QpRemote::new(attributes.ip, qpn)
        }
    }

    fn pair(&mut self, change: impl Fn(&mut QpRemote)) -> Checked<Pair> {
        let pair = [self.create(0)?, self.create(1)?];
        for end in 0..2 {
            let mut remote = self.towards(end, pair[1 - end]);
            let psns = [Psn::new(0x1234), Psn::new(0x9876)];
            (remote.sq_psn, remote.rq_psn) = (psns[end], psns[1 - end]);
            change(&mut remote);
            // Each end starts at the PSN that the other expects, also if a check sets one value for both.
            self.rnic(end).connect_qp(pair[end], &remote, TIMEOUT)?;
        }
        Ok(pair)
    }

    fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Checked<Option<T>>) -> Checked<T> {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            if let Some(seen) = look(self)? {
                return Ok(seen);
            }
            self.bench.poll_or_wait(POLL_INTERVAL)?;
        }
        fail(format!("{what} did not occur within {TIMEOUT:?}"))
    }

    fn sent(&mut self, end: usize, qpn: Qpn) -> Checked<Completion> {
        self.until("the completion of a send", |s| {
            Ok(s.rnic(end).poll_send_completion(qpn))
        })
    }

    fn received(&mut self, end: usize, qpn: Qpn) -> Checked<Completion> {
        self.until("the completion of a receive", |s| {
            Ok(s.rnic(end).poll_recv_completion(qpn))
        })
    }

    fn state(&mut self, end: usize, qpn: Qpn, state: QpState) -> Checked {
        let what = format!("state {state:?}");
        self.until(&what, |s| Ok((s.rnic(end).qp_state(qpn)? == state).then_some(())))
    }

    fn post_recv(&mut self, end: usize, qpn: Qpn, wr_id: u64, local: LocalSlice) -> Checked {
        Ok(self.rnic(end).post_recv(qpn, RecvWr { wr_id, local })?)
    }

    fn post_send(&mut self, end: usize, qpn: Qpn, wr_id: u64, op: SendOp, local: LocalSlice) -> Checked {
        Ok(self.rnic(end).post_send(qpn, SendWr::new(wr_id, op, local))?)
    }
}

fn whole(region: &MemoryRegion) -> LocalSlice {
    LocalSlice {
        key: region.key,
        offset: 0,
        length: region.length as u32,
    }
}

/// Checks that a completion succeeded and has this kind and id.
fn good(done: &Completion, op: CompletionOp, wr_id: u64) -> Checked {
    if done.status != Status::Success {
        return fail(format!("{op:?} {wr_id} ended with: {}", status_text(done.status)));
    }
    expect_equal("the completion's kind", done.op, op)?;
    expect_equal("the completion's wr_id", done.wr_id, wr_id)
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    crate::messages::fill(seed, &mut bytes);
    bytes
}
