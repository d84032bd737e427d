//! What every [`Rnic`] must do, tried out: two QPs that are connected to each other, on one device or on two.
//!
//! The software RNIC passes this in its tests, a device of the machine when an operator runs `castnet host selftest`: so both
//! mean the same by the same calls.

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

/// How one check came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// Its name.
    pub name: &'static str,
    /// What it looks at.
    pub about: &'static str,
    /// What was seen, or what was wrong.
    pub outcome: Result<String, String>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Rnic(#[from] RnicError),
    #[error("{0}")]
    Wrong(String),
}

type Checked<T = ()> = Result<T, Fault>;

fn wrong<T>(what: impl Into<String>) -> Checked<T> {
    Err(Fault::Wrong(what.into()))
}

/// Fails a check where what was seen is not what must be.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, seen: T, expected: T) -> Checked {
    if seen == expected {
        return Ok(());
    }
    wrong(format!("{what} is {seen:?}, must be {expected:?}"))
}

/// How long anything may take that must happen.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the checks sleep where nothing happens, before they look again at what no event tells.
const NAP: Duration = Duration::from_millis(1);

/// Runs all checks; `each` is told of each as it ends.
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

/// One check's QPs and memory; they are given back at its end, whatever that is.
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

    /// A region at an end that holds `bytes`.
    fn region(&mut self, end: usize, access: Access, bytes: &[u8]) -> Checked<MemoryRegion> {
        let region = self.rnic(end).register_memory(bytes.len(), access)?;
        self.regions.push((end, region.key));
        self.rnic(end).write_memory(region.key, 0, bytes)?;
        Ok(region)
    }

    fn bytes(&mut self, end: usize, region: &MemoryRegion) -> Checked<Vec<u8>> {
        let mut bytes = vec![0; region.length];
        self.rnic(end).read_memory(region.key, 0, &mut bytes)?;
        Ok(bytes)
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

    /// Where a QP of one end goes that is connected to the QP `qpn` of the other.
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
            // Both ends begin where the other expects, also where a check chose one number for both.
            self.rnic(end).connect_qp(pair[end], &remote, PATIENCE)?;
        }
        Ok(pair)
    }

    /// Turns until `look` sees something.
    fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Checked<Option<T>>) -> Checked<T> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(seen) = look(self)? {
                return Ok(seen);
            }
            self.bench.turn(NAP)?;
        }
        wrong(format!("{what} did not come within {PATIENCE:?}"))
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

/// All bytes of a region.
fn whole(region: &MemoryRegion) -> LocalSlice {
    LocalSlice {
        key: region.key,
        offset: 0,
        length: region.length as u32,
    }
}

/// That a completion is good, and of what.
fn good(done: &Completion, op: CompletionOp, wr_id: u64) -> Checked {
    if done.status != Status::Success {
        return wrong(format!("{op:?} {wr_id} ended with: {}", status_text(done.status)));
    }
    same("the completion's kind", done.op, op)?;
    same("the completion's wr_id", done.wr_id, wr_id)
}

/// Bytes that are not alike anywhere.
fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    crate::messages::fill(seed, &mut bytes);
    bytes
}
