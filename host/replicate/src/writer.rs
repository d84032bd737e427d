//! The machine that posts writes and takes their completions.

use castnet_rnic::{Access, LocalSlice, MemoryRegion, Rnic, RnicError, SendOp, SendWr, Status};
use castnet_wire::{Nanos, Qpn};
use hdrhistogram::Histogram;

use crate::error::ReplicateError;
use crate::parts::{Parts, Spread};
use crate::workload::Workload;

/// Most writes under way. QPs have queues of this length.
pub const DEPTH_MAX: u32 = 256;
/// Most bytes of all writes under way.
const STAGING_MAX: u64 = 1 << 30;
/// Latencies are recorded with three significant digits.
const DIGITS: u8 = 3;
/// The longest latency that is told apart: an hour. A histogram that grows by itself saturates at its present end.
const LATENCY_MAX: Nanos = Nanos::from_secs(3600);

/// Memory that is written: that of one server, or of all members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The server; `None` for a group.
    pub server: Option<String>,
    /// QPs, which nobody else sends with. A group has one per lane. All writes to a block use the same QP, so they are
    /// carried out in order.
    pub qpns: Vec<Qpn>,
    /// Virtual address of the first byte. For a group its base address, which switches translate for each member.
    pub va: u64,
    /// Remote key. For a group any value; switches insert each member's key.
    pub rkey: u32,
}

/// How to write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Most writes that are not acknowledged, 1 to [`DEPTH_MAX`].
    pub depth: u32,
    /// A write is acknowledged when so many targets have acknowledged it; `None`: when all have. The others may be up to [`DEPTH_MAX`] writes
    /// behind.
    pub quorum: Option<usize>,
    /// Ends after so many writes.
    pub count: Option<u64>,
    /// Ends after this time: no write is posted any more. At least one of the two limits is needed.
    pub duration: Option<Nanos>,
    /// Most writes per second. `None`: as fast as possible.
    pub rate: Option<u64>,
    /// Fails if no write is acknowledged for so long.
    pub give_up: Nanos,
}

impl Pace {
    fn check(&self, block: u32) -> Result<(), ReplicateError> {
        let range = |what: String| Err(ReplicateError::OutOfRange { what });
        let depth = self.depth;
        if depth == 0 || depth > DEPTH_MAX {
            return range(format!("depth {depth}: 1 to {DEPTH_MAX} are possible"));
        }
        let slots = self.slots();
        let staging = u64::from(slots) * u64::from(block);
        if staging > STAGING_MAX {
            return range(format!(
                "{slots} writes of {block} bytes under way are {staging} bytes: at most {STAGING_MAX} are possible"
            ));
        }
        if self.count.is_none() && self.duration.is_none() {
            return range("writing needs an end: a count or a duration".to_owned());
        }
        if self.rate == Some(0) {
            return range("0 writes per second never end".to_owned());
        }
        Ok(())
    }

    /// Most writes that any target has not acknowledged.
    fn slots(&self) -> u32 {
        self.quorum.map_or(self.depth, |_| DEPTH_MAX)
    }
}

/// What was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// Writes that are acknowledged.
    pub writes: u64,
    /// From the first post to the last acknowledgement.
    pub elapsed: Nanos,
    /// Nanoseconds per write from its post until it is acknowledged.
    pub latencies: Histogram<u64>,
    /// How even the rate was. `None`: the run was too short.
    pub spread: Option<Spread>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    write: u64,
    posted: Nanos,
    /// Targets that have not acknowledged it.
    missing: usize,
}

/// Posts the writes of a workload to all targets. Call [`Writer::poll`] and [`Rnic::poll`] until it is done. A
/// write is acknowledged when the completions of all targets are there, or of a quorum.
pub struct Writer {
    workload: Workload,
    pace: Pace,
    targets: Vec<Target>,
    /// A block for each slot.
    staging: MemoryRegion,
    /// Writes that are under way: some target has not acknowledged them.
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    buffer: Vec<u8>,
    /// Number of the next write.
    next: u64,
    acknowledged: u64,
    begun: Option<Nanos>,
    /// When a write was last acknowledged, or posted while none was under way.
    progress: Nanos,
    latencies: Histogram<u64>,
    /// Of what is acknowledged, since `begun`.
    parts: Parts,
}

impl Writer {
    /// Fails if a value is out of range or memory is short.
    pub fn new(
        rnic: &mut dyn Rnic,
        workload: Workload,
        pace: Pace,
        targets: Vec<Target>,
    ) -> Result<Self, ReplicateError> {
        workload.check()?;
        pace.check(workload.block)?;
        if let Some(quorum) = pace.quorum.filter(|quorum| !(1..=targets.len()).contains(quorum)) {
            let what = format!("a quorum of {quorum} among {} targets", targets.len());
            return Err(ReplicateError::OutOfRange { what });
        }
        let slots = pace.slots();
        let staging = rnic.register_memory(slots as usize * workload.block as usize, Access::READ)?;
        let latencies =
            Histogram::new_with_max(LATENCY_MAX.0, DIGITS).map_err(|error| ReplicateError::OutOfRange {
                what: error.to_string(),
            })?;
        Ok(Self {
            workload,
            pace,
            targets,
            staging,
            slots: vec![None; slots as usize],
            free: (0..slots).rev().collect(),
            buffer: vec![0; workload.block as usize],
            next: 0,
            acknowledged: 0,
            begun: None,
            progress: Nanos::ZERO,
            latencies,
            parts: Parts::new(),
        })
    }

    /// Writes that are acknowledged, in any order.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Writes from the first one on that all targets have acknowledged, and the number of those posted after them. The latter may have
    /// arrived at any target, wholly or in part.
    pub fn certain(&self) -> (u64, u64) {
        let oldest = self.slots.iter().flatten().map(|slot| slot.write).min();
        let certain = oldest.unwrap_or(self.next);
        (certain, self.next - certain)
    }

    fn has_all_posted(&self, now: Nanos) -> bool {
        let has_count = self.pace.count.is_some_and(|count| self.next >= count);
        let is_late = |begun: Nanos| self.pace.duration.is_some_and(|most| now.since(begun) >= most);
        has_count || self.begun.is_some_and(is_late)
    }

    /// Whether another write would exceed the depth, or no slot is free.
    fn is_full(&self) -> bool {
        self.free.is_empty() || self.next - self.acknowledged >= u64::from(self.pace.depth)
    }

    /// Whether all writes were posted, and all targets have acknowledged them.
    pub fn is_done(&self, now: Nanos) -> bool {
        self.has_all_posted(now) && self.free.len() == self.slots.len()
    }

    /// Until when the next write may not be posted, by the rate. `None`: it may be posted, or waits for an acknowledgement.
    pub fn next_post(&self, now: Nanos) -> Option<Nanos> {
        if self.is_full() || self.has_all_posted(now) {
            return None;
        }
        let (rate, begun) = (self.pace.rate?, self.begun?);
        let after = u128::from(self.next) * 1_000_000_000 / u128::from(rate);
        let due = begun + Nanos(u64::try_from(after).unwrap_or(u64::MAX));
        (due > now).then_some(due)
    }

    /// Takes completions and posts what may be posted. Returns the number of writes that were newly acknowledged.
    ///
    /// # Errors
    /// A write failed, nothing was acknowledged for too long, or the RNIC failed.
    pub fn poll(&mut self, rnic: &mut dyn Rnic, now: Nanos) -> Result<u64, ReplicateError> {
        let before = self.acknowledged;
        for at in 0..self.targets.len() {
            for lane in 0..self.targets[at].qpns.len() {
                let qpn = self.targets[at].qpns[lane];
                while let Some(done) = rnic.poll_send_completion(qpn) {
                    self.complete(at, done.wr_id, done.status, now)?;
                }
            }
        }
        while !self.is_full() && !self.has_all_posted(now) && self.next_post(now).is_none() {
            self.post(rnic, now)?;
        }
        let is_waiting = self.free.len() < self.slots.len();
        let silent = now.since(self.progress);
        if is_waiting && silent >= self.pace.give_up {
            let after = std::time::Duration::from_nanos(silent.0);
            return Err(ReplicateError::Silent { after });
        }
        Ok(self.acknowledged - before)
    }

    fn post(&mut self, rnic: &mut dyn Rnic, now: Nanos) -> Result<(), RnicError> {
        let Some(&slot) = self.free.last() else {
            return Ok(());
        };
        let (write, block) = (self.next, u64::from(self.workload.block));
        let local = LocalSlice {
            key: self.staging.key,
            offset: u64::from(slot) * block,
            length: self.workload.block,
        };
        self.workload.fill(write, &mut self.buffer);
        rnic.write_memory(local.key, local.offset, &self.buffer)?;
        // Noted first: if a later target refuses the post, earlier ones have it.
        if self.free.len() == self.slots.len() {
            self.progress = now;
        }
        self.begun.get_or_insert(now);
        self.free.pop();
        self.next += 1;
        self.slots[slot as usize] = Some(Slot {
            write,
            posted: now,
            missing: self.targets.len(),
        });
        let number = self.workload.block_of(write);
        for target in &self.targets {
            let op = SendOp::Write {
                va: target.va.wrapping_add(number * block),
                rkey: target.rkey,
            };
            let lane = (number % target.qpns.len() as u64) as usize;
            rnic.post_send(target.qpns[lane], SendWr::new(slot.into(), op, local))?;
        }
        Ok(())
    }

    fn complete(
        &mut self,
        target: usize,
        wr_id: u64,
        status: Status,
        now: Nanos,
    ) -> Result<(), ReplicateError> {
        let place = self.slots.get_mut(wr_id as usize);
        let Some((place, slot)) = place.and_then(|place| place.map(|slot| (place, slot))) else {
            return Ok(());
        };
        if status != Status::Success {
            return Err(ReplicateError::Write {
                write: slot.write,
                server: self.targets[target].server.clone(),
                status,
            });
        }
        let missing = slot.missing - 1;
        *place = (missing > 0).then_some(Slot { missing, ..slot });
        if missing == 0 {
            self.free.push(wr_id as u32);
        }
        let targets = self.targets.len();
        if targets - missing == self.pace.quorum.unwrap_or(targets) {
            self.acknowledged += 1;
            self.progress = now;
            self.latencies.saturating_record(now.since(slot.posted).0);
            self.parts
                .add(self.begun.map_or(Nanos::ZERO, |begun| now.since(begun)));
        }
        Ok(())
    }

    /// Releases the memory and returns what was written. Fails QPs that have writes under way first.
    pub fn finish(self, rnic: &mut dyn Rnic) -> Result<Written, ReplicateError> {
        if self.free.len() < self.slots.len() {
            for qpn in self.targets.iter().flat_map(|target| &target.qpns) {
                rnic.fail_qp(*qpn)?;
            }
        }
        rnic.deregister_memory(self.staging.key)?;
        let elapsed = self.begun.map_or(Nanos::ZERO, |begun| self.progress.since(begun));
        Ok(Written {
            writes: self.acknowledged,
            elapsed,
            latencies: self.latencies,
            spread: self.parts.spread(elapsed),
        })
    }
}
