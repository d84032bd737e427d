//! Measures the load of the workers, for the placement of new groups, and moves a group when [`advise`] recommends it.

use std::collections::BTreeSet;
use std::time::Instant;

use castnet_engine::{CollectiveCounters, ForwardingCounters, GroupSnapshot, MulticastCounters};
use castnet_wire::McstId;

use crate::balance::{Advice, Balance, GroupWork, WorkerLoad, WorkerWork, advise};
use crate::command::Command;
use crate::control::SharedControl;
use crate::error::Stopped;
use crate::events::{MoveCause, SwitchEventKind};
use crate::report::Report;

pub(crate) struct Balancer {
    balance: Balance,
    due: Instant,
    /// Work of each worker at the last measurement, with its groups if the worker was overloaded.
    last: Vec<WorkerWork>,
    reported_hot: BTreeSet<McstId>,
}

impl Balancer {
    /// `None` if balancing is disabled or there is only one worker.
    pub(crate) fn new(shared: &SharedControl) -> Option<Self> {
        let balance = shared.config.balance.filter(|_| shared.workers.len() > 1)?;
        Some(Self {
            balance,
            due: Instant::now() + balance.interval,
            last: Vec::new(),
            reported_hot: BTreeSet::new(),
        })
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Errors are ignored: they mean that the dataplane has stopped.
    pub(crate) fn run_if_due(&mut self, shared: &SharedControl) {
        if Instant::now() < self.due {
            return;
        }
        let _ = self.balance(shared);
        self.due = Instant::now() + self.balance.interval;
    }

    fn balance(&mut self, shared: &SharedControl) -> Result<(), Stopped> {
        let threshold = self.balance.threshold;
        let workers = 0..shared.workers.len();
        let mut now: Vec<WorkerWork> = workers
            .map(|worker| read(shared, worker, false))
            .collect::<Result<_, _>>()?;
        if self.last.is_empty() {
            self.last = now;
            return Ok(());
        }
        let busy: Vec<f64> = now.iter().zip(&self.last).map(|(n, b)| n.busy_since(b)).collect();
        for (worker, work) in now.iter_mut().enumerate().filter(|(w, _)| busy[*w] >= threshold) {
            work.groups = read(shared, worker, true)?.groups;
        }
        let loads: Vec<WorkerLoad> = now.iter().zip(&self.last).map(|(n, b)| n.load_since(b)).collect();
        self.last = now;
        shared.state.lock().set_loads(&busy);
        match advise(&loads, threshold) {
            Advice::Move { mcst_id, from, to } => {
                let cause = MoveCause::Overload {
                    busy_percent: percent(busy[from]),
                };
                // The group may have been removed or moved in the meantime.
                if let Err(error) = shared.move_group(mcst_id, to, cause) {
                    tracing::info!(%mcst_id, from, to, %error, "an overloaded worker's group is not moved");
                }
            }
            Advice::Hot {
                mcst_id,
                worker,
                share,
            } => {
                if self.reported_hot.insert(mcst_id)
                    && let Some(name) = shared.name_of(mcst_id)
                {
                    let share_percent = percent(share);
                    tracing::warn!(group = name, %mcst_id, worker, share_percent, "group is too hot for one worker");
                    shared.send_event(SwitchEventKind::GroupHot {
                        mcst_id,
                        name,
                        worker,
                        share_percent,
                    });
                }
            }
            Advice::Nothing if busy.iter().all(|busy| *busy < threshold) => self.reported_hot.clear(),
            Advice::Nothing => {}
        }
        Ok(())
    }
}

fn percent(share: f64) -> u8 {
    (share * 100.0).round().clamp(0.0, 100.0) as u8
}

fn read(shared: &SharedControl, worker: usize, groups: bool) -> Result<WorkerWork, Stopped> {
    let mut report = Report::new();
    if !groups {
        report.counters.next_group = usize::MAX;
    }
    let mut work = WorkerWork::default();
    let handle = shared.workers.get(worker).ok_or(Stopped)?;
    loop {
        report = handle.request(|reply| Command::Report(report, reply))?;
        let counters = &report.counters;
        add(&mut work, &counters.multicast.groups, multicast);
        add(&mut work, &counters.collective.groups, collective);
        add(&mut work, &counters.forwarding.groups, forwarding);
        if report.counters.next_group == 0 {
            break;
        }
    }
    let stats = &report.runtime;
    work.elapsed = stats.elapsed;
    work.idle = stats.idle;
    work.handled = stats.counters.frames + stats.counters.handed_over + stats.counters.taken_over;
    work.processed = report.counters.totals.received;
    Ok(work)
}

fn add<C>(work: &mut WorkerWork, groups: &[GroupSnapshot<C>], work_of: fn(&C) -> GroupWork) {
    let groups = groups.iter().map(|g| (g.mcst_id, work_of(&g.counters)));
    work.groups.extend(groups);
}

fn multicast(counters: &MulticastCounters) -> GroupWork {
    let feedback_in = counters.acks_in + counters.naks_in + counters.rnr_naks_in + counters.cnps_in;
    GroupWork {
        data: counters.data_in,
        copies: counters.copies_out,
        feedback: feedback_in
            + counters.acks_out
            + counters.naks_out
            + counters.rnr_naks_out
            + counters.cnps_out,
        frames_in: counters.data_in + feedback_in + counters.dropped,
        ..GroupWork::default()
    }
}

fn collective(counters: &CollectiveCounters) -> GroupWork {
    let packets_in = counters.contributions + counters.controls_in + counters.repeats;
    let feedback_in = counters.acks_in + counters.naks_in + counters.rnr_naks_in;
    let feedback_out = counters.acks_out + counters.naks_out + counters.rnr_naks_out;
    GroupWork {
        packets: packets_in + counters.results + counters.controls_out,
        bytes: counters.contribution_bytes + counters.result_bytes,
        feedback: feedback_in + feedback_out,
        frames_in: packets_in + feedback_in + counters.dropped,
        ..GroupWork::default()
    }
}

fn forwarding(counters: &ForwardingCounters) -> GroupWork {
    GroupWork {
        data: counters.forwarded,
        copies: counters.forwarded,
        frames_in: counters.forwarded + counters.dropped,
        ..GroupWork::default()
    }
}
