//! Flow control (PFC) between simulated switches and hosts: a network whose frames are all of a lossless class loses none, a slow receiver
//! stops its sources and nobody else, and the watchdog ends deadlocks and storms.

use std::net::Ipv4Addr;
use std::sync::Arc;

use castnet_endpoint::{Access, Endpoint, LocalSlice, QpConfig, QueueLimits, RecvWr, SendOp, SendWr, Status};
use castnet_engine::Tables;
use castnet_pfc::PfcConfig;
use castnet_planner::{LinkLoad, Member, Request, RoomTable, plan};
use castnet_rules::{Ipv4Net, MulticastRule, Route, RouteHop};
use castnet_sim::{LinkProfile, Routes, SimConfig, Simulation};
use castnet_topology::{End, LinkId, Topology};
use castnet_wire::{ClassSet, MacAddr, McstId, Nanos, Pause, Pmtu, PortId, Psn, Qpn, TrafficClass};
use proptest::prelude::*;

const MESSAGE: u32 = 32 << 10;
/// The longest frame of these tests, with preamble, FCS and gap.
const FRAME: u64 = 4178 + 24;
/// DSCP 26 is class 3, as is usual for RoCE.
const TOS: u8 = 26 << 2;

fn class() -> TrafficClass {
    TrafficClass::new(3).expect("a class")
}

/// Flow control with the headroom that docs/flow-control.md gives, for a link of this profile.
fn pfc(links: &LinkProfile, poll_delay: Nanos) -> PfcConfig {
    let in_time = |time: Nanos| (u128::from(time.0) * u128::from(links.rate_bps) / 8_000_000_000) as u64;
    // Both send queues, both directions of the cable, a frame at each end, and the time until both ends react.
    let headroom = 2 * links.queue_bytes + 2 * in_time(links.delay) + 2 * FRAME + 2 * in_time(poll_delay);
    PfcConfig {
        headroom_bytes: headroom,
        ..PfcConfig::new(ClassSet::from_iter([class()]))
    }
}

struct Flow {
    from: usize,
    /// Of the source.
    qpn: Qpn,
    messages: u64,
}

struct Net {
    sim: Simulation,
    topology: Topology,
    flows: Vec<Flow>,
}

fn name(host: usize) -> String {
    format!("h{host}")
}

impl Net {
    fn new(topology: Topology, config: SimConfig) -> Self {
        let mut sim = Simulation::new(&topology, config, ()).expect("a network");
        sim.install_routes(&Routes::new(&topology)).expect("switches run");
        Self {
            sim,
            topology,
            flows: Vec::new(),
        }
    }

    fn link(&self, host: usize) -> LinkId {
        self.topology.attachment(&name(host)).expect("a link").0
    }

    /// A flow to one host is unicast, one to several a group.
    fn start(&mut self, from: usize, to: &[usize], messages: u64) {
        let number = self.flows.len() as u32;
        let mcst_id = McstId(Ipv4Addr::new(10, 255, 0, number as u8));
        let qpn = |host: usize| Qpn::new(0x100 + (number << 8) + host as u32);
        let hosts: Vec<usize> = [&[from], to].concat();
        if to.len() > 1 {
            let members = hosts
                .iter()
                .map(|host| Member::new(&name(*host), qpn(*host)))
                .collect();
            let rule = MulticastRule {
                start_psn: Some(Psn::new(0)),
                ..MulticastRule::default()
            };
            let request = Request::multicast(&format!("g{number}"), mcst_id, Pmtu::B4096, members, rule);
            let plan = plan(&self.topology, &LinkLoad::new(), &RoomTable::new(), &request).expect("a plan");
            self.sim.install_plan(&plan).expect("installed");
        }
        for (i, host) in hosts.iter().enumerate() {
            let mac = self.sim.first_hop_mac(&name(*host)).expect("a first hop");
            let (ip, remote) = match to.len() {
                1 => {
                    let peer = hosts[1 - i];
                    let endpoint = self.sim.endpoint(&name(peer)).expect("a host");
                    (endpoint.config().ip, qpn(peer))
                }
                _ => (mcst_id.0, Qpn::VIRTUAL),
            };
            let config = QpConfig {
                pmtu: Pmtu::B4096,
                limits: QueueLimits {
                    send: messages as usize,
                    receive: messages as usize,
                },
                tos: TOS,
                window: 256,
                ..QpConfig::new(qpn(*host), ip, mac, remote)
            };
            self.sim.with_endpoint(&name(*host), |endpoint, _| {
                post(endpoint, config, messages, i == 0)
            });
        }
        let qpn = qpn(from);
        self.flows.push(Flow { from, qpn, messages });
    }

    /// Messages of the first, second... flow that are acknowledged.
    fn sent(&self, flow: usize) -> u64 {
        let Flow { from, qpn, .. } = self.flows[flow];
        let done = self.sim.completions(&name(from)).iter();
        done.filter(|(_, c)| c.qpn == qpn && c.status == Status::Success)
            .count() as u64
    }

    fn is_done(&self) -> bool {
        (0..self.flows.len()).all(|flow| self.sent(flow) == self.flows[flow].messages)
    }

    fn run(&mut self, until: Nanos) {
        while !self.is_done() && self.sim.now() < until {
            self.sim.run(self.sim.now() + Nanos::from_micros(50));
        }
    }

    /// Gb/s that are acknowledged to the source of a flow.
    fn rate(&self, flow: usize) -> f64 {
        (self.sent(flow) * u64::from(MESSAGE) * 8) as f64 / self.sim.now().0 as f64
    }

    fn retransmits(&self) -> u64 {
        let hosts = self.topology.hosts();
        let endpoints = hosts.filter_map(|host| self.sim.endpoint(&host.name));
        endpoints
            .map(|e| e.stats().retransmits + e.stats().timeouts)
            .sum()
    }
}

fn post(endpoint: &mut Endpoint, config: QpConfig, messages: u64, sends: bool) {
    let qpn = config.qpn;
    endpoint.create_qp(config).expect("a QP");
    let local = LocalSlice {
        key: endpoint
            .register_void(MESSAGE.into(), Access::LOCAL)
            .expect("a region"),
        offset: 0,
        length: MESSAGE,
    };
    for wr_id in 0..messages {
        match sends {
            true => endpoint.post_send(qpn, SendWr::new(wr_id, SendOp::Send, local)),
            false => endpoint.post_recv(qpn, RecvWr { wr_id, local }),
        }
        .expect("posted");
    }
}

#[derive(Clone, Debug)]
struct Plan {
    tiers: (usize, usize, usize),
    rate: u64,
    delay: u64,
    queue: u64,
    poll: u64,
    /// Rate of the link of each host, as a fraction of that of the others.
    slow: Vec<u64>,
    /// By source: the receivers, and the number of messages.
    flows: Vec<(usize, Vec<usize>, u64)>,
}

fn random_plan() -> impl Strategy<Value = Plan> {
    let shape = (1..4_usize, 1..3_usize, 2..5_usize);
    let link = (
        prop_oneof![Just(10_u64), Just(25), Just(100)],
        100..2_000_u64,
        8..65_u64,
        0..1_500_u64,
    );
    (shape, link).prop_flat_map(|(tiers, (rate, delay, queue, poll))| {
        let hosts = tiers.0 * tiers.2;
        let slow = prop::collection::vec(prop_oneof![3 => Just(1_u64), 1 => 2..11_u64], hosts);
        let flow = (prop::collection::vec(0..hosts, 1..6_usize), 20..60_u64);
        // Most unicast flows have the same destination: an incast.
        (slow, prop::collection::vec(flow, hosts), 0..hosts).prop_map(move |(slow, flows, sink)| {
            let mut all = Vec::new();
            for (from, (mut to, messages)) in flows.into_iter().enumerate() {
                to.sort_unstable();
                to.dedup();
                to.retain(|host| *host != from);
                if to.len() < 2 {
                    to = vec![sink];
                }
                if to != [from] {
                    all.push((from, to, messages));
                }
            }
            Plan {
                tiers,
                rate: rate * 1_000_000_000,
                delay,
                queue: queue << 10,
                poll,
                slow,
                flows: all,
            }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Random fabrics, incasts and groups, links to hosts of any rate: no frame of a lossless class is dropped anywhere, and none sent twice.
    #[test]
    fn a_lossless_class_loses_nothing(plan in random_plan()) {
        let topology = Topology::leaf_spine(plan.tiers.0, plan.tiers.1, plan.tiers.2).expect("a fabric");
        let links = LinkProfile {
            rate_bps: plan.rate,
            delay: Nanos(plan.delay),
            queue_bytes: plan.queue,
            ..LinkProfile::default()
        };
        let config = SimConfig {
            links,
            poll_delay: Nanos(plan.poll),
            pfc: Some(pfc(&links, Nanos(plan.poll))),
            ..SimConfig::new(1)
        };
        let mut net = Net::new(topology, config);
        for (host, slow) in plan.slow.iter().enumerate() {
            let slow = LinkProfile { rate_bps: plan.rate / slow, ..links };
            let link = net.link(host);
            net.sim.set_profile(link, [slow; 2]);
        }
        for (from, to, messages) in &plan.flows {
            net.start(*from, to, *messages);
        }
        net.run(Nanos::from_millis(400));
        let (totals, flow) = (net.sim.totals(), net.sim.flow_totals());
        prop_assert_eq!((totals.queue_full, flow.overflows, flow.storms), (0, 0, 0), "{:?}", flow);
        prop_assert_eq!(net.retransmits(), 0);
        prop_assert!(net.is_done(), "at {}: {:?}", net.sim.now(), flow);
    }
}

fn short_queues() -> LinkProfile {
    LinkProfile {
        queue_bytes: 32 << 10,
        ..LinkProfile::default()
    }
}

fn with_pfc(watchdog: Option<Nanos>) -> SimConfig {
    let (links, poll_delay) = (short_queues(), Nanos(1_000));
    SimConfig {
        pfc: Some(PfcConfig {
            watchdog,
            ..pfc(&links, poll_delay)
        }),
        poll_delay,
        links,
        ..SimConfig::new(1)
    }
}

fn star(hosts: usize, watchdog: Nanos) -> Net {
    Net::new(Topology::star(hosts).expect("a switch"), with_pfc(Some(watchdog)))
}

/// Without flow control, the same run drops frames and repeats them.
#[test]
fn a_slow_receiver_stops_the_source_of_its_group_and_nobody_else() {
    for has_pfc in [true, false] {
        let mut net = star(6, Nanos::from_millis(200));
        if !has_pfc {
            net = Net::new(
                Topology::star(6).expect("a switch"),
                SimConfig {
                    links: short_queues(),
                    ..SimConfig::new(1)
                },
            );
        }
        let slow = LinkProfile {
            rate_bps: 10_000_000_000,
            ..short_queues()
        };
        let link = net.link(1);
        net.sim.set_profile(link, [slow; 2]);
        net.start(0, &[1, 2, 3], 1000);
        net.start(4, &[5], 1000);
        net.sim.run(Nanos::from_millis(2));
        let flow = net.sim.flow_totals();
        let (group, beside) = (net.rate(0), net.rate(1));
        assert!(beside > 90.0, "{beside} Gb/s beside the group");
        if has_pfc {
            assert!((8.5..10.0).contains(&group), "{group} Gb/s of the group");
            assert_eq!(
                (net.sim.totals().queue_full, flow.overflows, net.retransmits()),
                (0, 0, 0)
            );
            assert!(flow.pause_sent > 0 && net.sim.held_at_hosts() > 0, "{flow:?}");
            let stopping = net
                .sim
                .flow_control("s0")
                .into_iter()
                .filter(|(_, r)| r.counters.pause_sent > 0);
            assert_eq!(stopping.map(|(port, _)| port.index()).collect::<Vec<_>>(), [0]);
        } else {
            assert!(net.sim.totals().queue_full > 0 && net.retransmits() > 0);
        }
    }
}

/// Four switches in a ring, each with one host that sends to the host two switches on, clockwise. Each link between switches has the frames
/// of two hosts, and each switch waits for the next one.
fn ring(watchdog: Option<Nanos>) -> Net {
    const N: usize = 4;
    let mac = |switch: usize, port: usize| [2, 0, 0, 1, switch as u8, port as u8];
    let mut topology = Topology::new();
    for switch in 0..N {
        let ports = (0..3).map(|port| (port as u8, mac(switch, port)));
        topology
            .add_switch(&format!("s{switch}"), ports)
            .expect("a switch");
    }
    for switch in 0..N {
        let ip = Ipv4Addr::new(10, 0, 0, 1 + switch as u8);
        let host = name(switch);
        topology
            .add_host(&host, Some(ip), Some([2, 0, 0, 2, 0, switch as u8]))
            .expect("a host");
        let this = format!("s{switch}");
        let next = format!("s{}", (switch + 1) % N);
        topology
            .connect(End::host(&host), End::port(&this, 0), 9000)
            .expect("a link");
        topology
            .connect(End::port(&this, 1), End::port(&next, 2), 9000)
            .expect("a link");
    }
    let mut net = Net::new(topology, with_pfc(watchdog));
    for switch in 0..N {
        let route = |host: usize, port: usize, mac: [u8; 6]| Route {
            prefix: Ipv4Net::from(Ipv4Addr::new(10, 0, 0, 1 + host as u8)),
            next_hops: vec![RouteHop {
                port: PortId::new(port as u8).expect("a port"),
                mac: MacAddr(mac),
            }],
            replicate: false,
            copy_to: Vec::new(),
        };
        let routes: Vec<Route> = (0..N)
            .map(|host| match host == switch {
                true => route(host, 0, [2, 0, 0, 2, 0, host as u8]),
                false => route(host, 1, mac((switch + 1) % N, 2)),
            })
            .collect();
        let mut tables = Tables::default();
        tables.set_routes(&routes);
        let set = net.sim.with_engine(&format!("s{switch}"), |engine, now| {
            engine.set_tables(now, Arc::new(tables))
        });
        set.expect("the switch runs");
    }
    (0..N).for_each(|host| net.start(host, &[(host + 2) % N], 400));
    net
}

#[test]
fn the_watchdog_frees_switches_that_wait_for_each_other() {
    // Without it, nothing moves any more: every switch has paused the one before it.
    let mut stuck = ring(None);
    stuck.run(Nanos::from_millis(10));
    let before: Vec<u64> = (0..4).map(|host| stuck.sent(host)).collect();
    stuck.run(Nanos::from_millis(30));
    assert_eq!(before, (0..4).map(|host| stuck.sent(host)).collect::<Vec<_>>());
    assert!(!stuck.is_done());
    for switch in 0..4 {
        let ports = stuck.sim.flow_control(&format!("s{switch}"));
        let towards_next = ports.iter().find(|(port, _)| port.index() == 1).expect("a port");
        assert!(towards_next.1.is_paused, "s{switch}");
    }
    let mut net = ring(Some(Nanos::from_millis(1)));
    net.run(Nanos::from_secs(20));
    let flow = net.sim.flow_totals();
    let sent: Vec<u64> = (0..4).map(|host| net.sent(host)).collect();
    assert!(net.is_done(), "{sent:?}");
    assert!(flow.storms > 0 && flow.storm_drops > 0, "{flow:?}");
    assert_eq!(
        net.sim.storms().iter().filter(|storm| storm.has_storm).count() as u64,
        flow.storms
    );
    assert_eq!((net.sim.totals().queue_full, flow.overflows), (0, 0));
}

/// A host pauses its switch without end. Its frames stop the source, also for another receiver, until the watchdog drops them.
#[test]
fn a_storm_of_one_host_ends_at_the_watchdog() {
    let mut net = star(4, Nanos::from_millis(2));
    net.start(0, &[1], 100);
    net.start(0, &[2], 1000);
    let mut pause = Pause::default();
    pause.set(class(), u16::MAX);
    // A pause lasts 335 us at 100 Gb/s.
    for at in 0..40 {
        let frame = pause.emit(MacAddr([2, 0, 0, 9, 9, 9])).to_vec();
        net.sim.at(Nanos::from_micros(at * 200), move |sim| {
            assert!(sim.inject("h1", frame));
        });
    }
    let receives = |net: &Net, host: usize| net.sim.completions(&name(host)).len();
    net.sim.run(Nanos::from_millis(1));
    let stopped = receives(&net, 2);
    net.sim.run(Nanos::from_micros(1_900));
    assert_eq!((receives(&net, 1), receives(&net, 2)), (0, stopped));
    assert!(net.sim.held_at_hosts() > 0 && net.sim.storms().is_empty());
    net.sim.run(Nanos::from_millis(8));
    assert!(
        receives(&net, 2) > stopped + 300,
        "{} after {stopped}",
        receives(&net, 2)
    );
    net.run(Nanos::from_secs(4));
    assert_eq!((receives(&net, 1), receives(&net, 2)), (100, 1000));
    let storms: Vec<_> = net
        .sim
        .storms()
        .iter()
        .map(|s| (s.port.index(), s.has_storm))
        .collect();
    assert_eq!(storms, [(1, true), (1, false)]);
    let flow = net.sim.flow_totals();
    assert!(flow.storm_drops > 0 && flow.overflows == 0, "{flow:?}");
}
