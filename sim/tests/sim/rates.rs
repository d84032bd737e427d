//! Groups with a rate limit over two tiers: hosts that keep to it get it and lose nothing, all others get at most the limit, and a group
//! beside them is not disturbed. Time is that of the simulation.

use castnet_endpoint::{Access, LocalSlice, QpConfig, RecvWr, SendOp, SendWr, Status};
use castnet_engine::MulticastCounters;
use castnet_planner::{LinkLoad, Member, Request, RoomTable, plan};
use castnet_rules::{BitRate, MulticastRule, RateLimit};
use castnet_sim::{SimConfig, Simulation};
use castnet_topology::Topology;
use castnet_wire::{DropReason, McstId, Nanos, Pmtu, Psn, Qpn};

const MESSAGE: usize = 64 * 1024;
const FIRST: u32 = 0xFF_FF80;

struct Transfer {
    number: u8,
    members: [&'static str; 3],
    messages: u64,
    limit: Option<RateLimit>,
    paced: bool,
}

impl Transfer {
    fn mcst_id(&self) -> McstId {
        McstId([10, 255, 0, self.number].into())
    }

    fn qpn(&self) -> Qpn {
        Qpn::new(0x10 + u32::from(self.number))
    }

    fn bytes(&self) -> Vec<u8> {
        let number = usize::from(self.number);
        (0..MESSAGE * self.messages as usize)
            .map(|i| (i * 31 + number + i / 251) as u8)
            .collect()
    }

    fn start(&self, sim: &mut Simulation, topology: &Topology) {
        let members = self.members.map(|h| Member::new(h, self.qpn())).to_vec();
        let rule = MulticastRule {
            start_psn: Some(Psn::new(FIRST)),
            ..MulticastRule::default()
        };
        let mut request = Request::multicast("g", self.mcst_id(), Pmtu::B1024, members, rule);
        request.name = format!("g{}", self.number);
        request.rate_limit = self.limit;
        let plan = plan(topology, &LinkLoad::new(), &RoomTable::new(), &request).expect("a plan");
        sim.install_plan(&plan).expect("installed");
        let paced = self.limit.filter(|_| self.paced).map(RateLimit::for_sender);
        for (i, host) in self.members.into_iter().enumerate() {
            let mac = sim.first_hop_mac(host).expect("a first hop");
            let config = QpConfig {
                sq_psn: Psn::new(FIRST),
                rq_psn: Psn::new(FIRST),
                rate_limit: paced,
                // ECN-capable.
                tos: 2,
                ..QpConfig::new(self.qpn(), self.mcst_id().0, mac, Qpn::VIRTUAL)
            };
            let (bytes, qpn) = (self.bytes(), self.qpn());
            sim.with_endpoint(host, |endpoint, _| {
                endpoint.create_qp(config).expect("a QP");
                let memory = if i == 0 {
                    bytes.clone()
                } else {
                    vec![0; bytes.len()]
                };
                let key = endpoint
                    .register_memory(0, memory, Access::LOCAL)
                    .expect("memory");
                for wr_id in 0..self.messages {
                    let (offset, length) = (wr_id * MESSAGE as u64, MESSAGE as u32);
                    let local = LocalSlice { key, offset, length };
                    match i {
                        0 => endpoint.post_send(qpn, SendWr::new(wr_id, SendOp::Send, local)),
                        _ => endpoint.post_recv(qpn, RecvWr { wr_id, local }),
                    }
                    .expect("posted");
                }
            });
        }
    }

    /// The time at which the source has all acknowledgements.
    fn end(&self, sim: &Simulation) -> Option<Nanos> {
        let own = sim
            .completions(self.members[0])
            .iter()
            .filter(|(_, c)| c.qpn == self.qpn());
        let own: Vec<_> = own.collect();
        assert!(own.iter().all(|(_, c)| c.status == Status::Success));
        own.last()
            .map(|(at, _)| *at)
            .filter(|_| own.len() as u64 == self.messages)
    }

    fn counters(&self, sim: &Simulation, switch: &str) -> MulticastCounters {
        let engine = sim.engine(switch).expect("a switch");
        engine.group(self.mcst_id()).expect("the group").counters()
    }
}

fn limit(mbps: u64) -> RateLimit {
    RateLimit::of(BitRate::new(mbps * 1_000_000).expect("a rate"))
}

/// Runs a limited group from h0 and one without a limit from h1 to the same receivers. Returns the time of both.
fn run(limited: &Transfer) -> (Simulation, [Nanos; 2]) {
    let topology = Topology::leaf_spine(2, 1, 2).expect("a fabric");
    let mut sim = Simulation::new(&topology, SimConfig::new(7), ()).expect("a network");
    let free = Transfer {
        number: 2,
        members: ["h1", "h2", "h3"],
        messages: 100,
        limit: None,
        paced: false,
    };
    limited.start(&mut sim, &topology);
    free.start(&mut sim, &topology);
    let done = |sim: &Simulation| limited.end(sim).is_some() && free.end(sim).is_some();
    sim.run_until(Nanos::from_secs(100), done);
    let ends = [limited, &free].map(|transfer| transfer.end(&sim).expect("the transfer has ended"));
    // The group beside it has lost nothing and waited for nobody.
    let stats = sim.endpoint("h1").expect("a host").stats();
    assert_eq!((stats.retransmits, stats.timeouts), (0, 0));
    assert!(ends[1] < Nanos::from_millis(10), "{}", ends[1]);
    // Data is metered once.
    for switch in ["spine0", "leaf1"] {
        assert_eq!(limited.counters(&sim, switch).rate_drops, 0);
    }
    let counters = limited.counters(&sim, "leaf0");
    let allowed = limited.limit.map_or(u64::MAX, |limit| {
        limit.burst_bytes
            + (u128::from(limit.rate.bits_per_second()) * u128::from(ends[0].0) / 8_000_000_000) as u64
    });
    assert!(
        counters.data_bytes_in <= allowed,
        "{} of {allowed}",
        counters.data_bytes_in
    );
    (sim, ends)
}

/// From a rate at which the retransmission timer would expire between ACKs up to one that a software host reaches.
#[test]
fn a_host_that_keeps_to_the_limit_gets_it_and_loses_nothing() {
    for (mbps, messages) in [(1, 5), (50, 50), (2_000, 240)] {
        let limited = Transfer {
            number: 1,
            members: ["h0", "h2", "h3"],
            messages,
            limit: Some(limit(mbps)),
            paced: true,
        };
        let (sim, [end, _]) = run(&limited);
        let stats = sim.endpoint("h0").expect("a host").stats();
        assert_eq!((stats.retransmits, stats.timeouts), (0, 0), "{mbps} Mb/s");
        let counters = limited.counters(&sim, "leaf0");
        assert_eq!((counters.rate_drops, counters.rate_marks), (0, 0), "{mbps} Mb/s");
        // Its rate is that of the limit, but for 1/256 and the quarter of the burst with which it begins.
        let sent = counters.data_bytes_in - limited.limit.map_or(0, |l| l.for_sender().burst_bytes);
        let share = sent as f64 * 8e3 / end.0 as f64 / mbps as f64;
        assert!((0.98..1.0).contains(&share), "{share} of {mbps} Mb/s");
    }
}

/// RC repairs the drops. ECN-capable frames are marked before.
#[test]
fn a_host_that_ignores_the_limit_gets_no_more() {
    let limited = Transfer {
        number: 1,
        members: ["h0", "h2", "h3"],
        messages: 50,
        limit: Some(limit(50)),
        paced: false,
    };
    let (sim, _) = run(&limited);
    let counters = limited.counters(&sim, "leaf0");
    assert!(counters.rate_drops > 0 && counters.rate_marks > 0, "{counters:?}");
    let mut snapshot = castnet_engine::CountersSnapshot::with_capacity(4, 16);
    sim.engine("leaf0").expect("a switch").snapshot(&mut snapshot);
    assert_eq!(snapshot.drops[DropReason::OverRate], counters.rate_drops);
}
