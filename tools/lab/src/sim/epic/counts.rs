//! What the links, the hosts and the switch of a run have counted: what was lost, who has sent what again, and what waited. Reasons beside
//! figures under loss come from these counts.

use castnet_sim::{LinkStats, Simulation};
use castnet_topology::LinkId;
use castnet_wire::{CounterSet, counters};

use super::ideal;
use super::measure::{GROUP, Net, Setting, link};

counters! {
    /// Counters of a run; of all hosts unless stated otherwise.
    pub(crate) struct Counts {
        /// Frames that links have lost.
        lost,
        /// Packets that hosts have sent again.
        by_hosts,
        /// Results that the switch has sent; after [`Counts::of_allreduce`], those that it has sent again.
        by_switch,
        /// Sequence NAKs for which a host has sent again.
        naks,
        /// Requests of the switch for one packet.
        requests,
        /// Packets that hosts have sent again because an answer was overdue.
        probes,
        /// Waits after RNR NAKs.
        rnr_waits,
        /// QP time-outs that have expired.
        timeouts,
        /// Nanoseconds for which these have run.
        timeouts_ns,
        /// CNPs that lowered the rate of a rank.
        rate_cuts,
        /// Nanoseconds of the run.
        elapsed_ns,
        /// For which the link of rank 0 was busy towards the switch.
        up_ns,
        /// For which it was busy towards the rank.
        down_ns,
        /// Packets that rank 0 has sent again.
        link_by_host,
        /// As `by_switch`, to rank 0.
        link_by_switch,
    }
}

/// What losses have cost the link of rank 0, the first lossy one, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    /// Packets that the rank has sent again.
    pub(crate) by_host: u64,
    /// Packets that the switch has sent again.
    pub(crate) by_switch: u64,
    /// The link was idle, while time-outs of any rank ran.
    pub(crate) timeouts: u64,
    /// The link was idle for another reason.
    pub(crate) waits: u64,
}

impl Counts {
    /// All that was counted so far.
    pub(crate) fn so_far(sim: &Simulation, hosts: &[String], setting: Setting, net: Net) -> Self {
        let mut counts = Self {
            lost: sim.totals().lost,
            elapsed_ns: sim.now().0,
            ..Self::default()
        };
        // With preamble, FCS and gap.
        let busy = |link: LinkStats| (link.sent_bytes + 24 * link.sent) * 8 / net.first_gbps;
        if let Some([up, down]) = sim.stats(LinkId(0)) {
            (counts.up_ns, counts.down_ns) = (busy(up), busy(down));
        }
        for (rank, host) in hosts.iter().enumerate() {
            let Some(endpoint) = sim.endpoint(host) else {
                continue;
            };
            let stats = endpoint.stats();
            counts.add(&Self {
                by_hosts: stats.retransmits,
                naks: stats.sequence_naks_in,
                requests: stats.repair_requests_in,
                probes: stats.probes,
                rnr_waits: stats.rnr_naks_in,
                timeouts: stats.timeouts,
                timeouts_ns: stats.timeouts * (4096_u64 << setting.timeout),
                rate_cuts: stats.rate_cuts,
                link_by_host: if rank == 0 { stats.retransmits } else { 0 },
                ..Self::default()
            });
        }
        if let Some(group) = sim.engine("switch").and_then(|e| e.collective_status(GROUP)) {
            counts.by_switch = group.counters.results;
            counts.link_by_switch = group.endpoints.first().map_or(0, |e| e.counters.results);
        }
        counts
    }

    /// What an AllReduce of so many packets has counted since `before`: each rank gets each result once, and the others are repetitions.
    pub(crate) fn of_allreduce(&self, before: &Self, packets: u64, ranks: u64) -> Self {
        let counts = self.since(before);
        Self {
            by_switch: counts.by_switch.saturating_sub(packets * ranks),
            link_by_switch: counts.link_by_switch.saturating_sub(packets),
            ..counts
        }
    }

    /// For which the link of rank 0 was idle in both directions, at least.
    fn idle_ns(&self) -> u64 {
        self.elapsed_ns.saturating_sub(self.up_ns.max(self.down_ns))
    }

    /// Of ranks with 100 Gb/s.
    pub(crate) fn costs(&self) -> Costs {
        let packet = link(0.0).serialization(ideal::DATA).0;
        let idle = self.idle_ns();
        let timeouts = self.timeouts_ns.min(idle);
        Costs {
            by_host: self.link_by_host * packet,
            by_switch: self.link_by_switch * packet,
            timeouts,
            waits: idle - timeouts,
        }
    }
}

/// A row of counts in a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counter {
    pub(crate) name: &'static str,
    pub(crate) of: fn(&Counts) -> f64,
}

/// The rows of tables under loss.
pub(crate) const OF_LOSS: &[Counter] = &[
    Counter {
        name: "lost",
        of: |counts| counts.lost as f64,
    },
    Counter {
        name: "sent again by hosts",
        of: |counts| counts.by_hosts as f64,
    },
    Counter {
        name: "sent again by switch",
        of: |counts| counts.by_switch as f64,
    },
    Counter {
        name: "NAKs",
        of: |counts| counts.naks as f64,
    },
    Counter {
        name: "requests",
        of: |counts| counts.requests as f64,
    },
    Counter {
        name: "probes",
        of: |counts| counts.probes as f64,
    },
    RNR_WAITS,
    Counter {
        name: "time-outs",
        of: |counts| counts.timeouts as f64,
    },
    Counter {
        name: "in time-outs, us",
        of: |counts| counts.timeouts_ns as f64 / 1e3,
    },
    Counter {
        name: "first link idle, us",
        of: |counts| counts.idle_ns() as f64 / 1e3,
    },
];

/// The rows of the table with a slow link.
pub(crate) const OF_SLOW_LINK: &[Counter] = &[
    RNR_WAITS,
    Counter {
        name: "rate cuts",
        of: |counts| counts.rate_cuts as f64,
    },
];

const RNR_WAITS: Counter = Counter {
    name: "RNR waits",
    of: |counts| counts.rnr_waits as f64,
};
