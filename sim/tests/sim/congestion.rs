//! Congestion control of a multicast group: without, with all CNPs of all receivers, with filtered CNPs (Cepheus III.D, contract M4), and
//! with PEEL's guard timer; and with flow control (PFC), which Cepheus expects, alone and beside DCQCN. Time is that of the simulation. docs/congestion.md has the tables that these tests print.

use castnet_endpoint::{
    Access, Endpoint, LocalSlice, QpConfig, QueueLimits, ReactionConfig, RecvWr, SendOp, SendWr, Status,
};
use castnet_pfc::PfcConfig;
use castnet_planner::{LinkLoad, Member, Request, RoomTable, plan};
use castnet_rules::{BitRate, MulticastRule};
use castnet_sim::{LinkProfile, SimConfig, Simulation};
use castnet_topology::{LinkId, Topology};
use castnet_wire::red::RedConfig;
use castnet_wire::{ClassSet, MacAddr, McstId, Nanos, Pmtu, Psn, Qpn, TrafficClass};

const MESSAGE: usize = 64 * 1024;
const GROUP: [u8; 4] = [10, 255, 0, 1];
/// Rate of the links of senders, in bits per second.
const LINE: u64 = 10_000_000_000;
/// Rate of a slow link to a receiver.
const SLOW: u64 = 2_500_000_000;
/// Messages that are posted at most.
const POSTED: u64 = 1000;

/// Who limits notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Control {
    None,
    /// DCQCN; `filtered` by the switches or not.
    Dcqcn {
        filtered: bool,
    },
    GuardTimer,
    /// Flow control, alone or beside filtered DCQCN.
    Pfc {
        dcqcn: bool,
    },
}

impl Control {
    const ALL: [Self; 6] = [
        Self::None,
        Self::Dcqcn { filtered: false },
        Self::Dcqcn { filtered: true },
        Self::GuardTimer,
        Self::Pfc { dcqcn: false },
        Self::Pfc { dcqcn: true },
    ];

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Dcqcn { filtered: false } => "DCQCN, all CNPs",
            Self::Dcqcn { filtered: true } => "DCQCN, filtered CNPs",
            Self::GuardTimer => "DCQCN, guard timer",
            Self::Pfc { dcqcn: false } => "PFC",
            Self::Pfc { dcqcn: true } => "PFC; DCQCN, filtered CNPs",
        }
    }
}

/// What came of a control.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Of the source of the group, in bits per second.
    goodput: f64,
    /// Mean of the unicast senders; zero without.
    unicast: f64,
    /// Mean bytes that a frame has found before the link of the first receiver.
    queue: u64,
    drops: u64,
    /// CNPs that all receivers of the group have sent, and that the source has received.
    cnps: [u64; 2],
}

struct Lab {
    sim: Simulation,
    topology: Topology,
    control: Control,
}

impl Lab {
    /// `rates` of the links of h0, h1 and so on.
    fn new(control: Control, rates: &[u64]) -> Self {
        let topology = Topology::leaf_spine(2, 1, rates.len().div_ceil(2)).expect("a fabric");
        let filters = [Control::Dcqcn { filtered: true }, Control::Pfc { dcqcn: true }];
        // Data has DSCP 0.
        let class = TrafficClass::new(0).expect("a class");
        let pfc = PfcConfig {
            headroom_bytes: 1 << 20,
            ..PfcConfig::new(ClassSet::from_iter([class]))
        };
        let config = SimConfig {
            filter_cnps: filters.contains(&control),
            pfc: matches!(control, Control::Pfc { .. }).then_some(pfc),
            ..SimConfig::new(7)
        };
        let sim = Simulation::new(&topology, config, ()).expect("a network");
        let mut lab = Self {
            sim,
            topology,
            control,
        };
        for (host, rate_bps) in rates.iter().enumerate() {
            let profile = LinkProfile {
                rate_bps: *rate_bps,
                queue_bytes: 512 << 10,
                ecn: Some(RedConfig::default()),
                ..LinkProfile::default()
            };
            let link = lab.link(host);
            lab.sim.set_profile(link, [profile; 2]);
        }
        // Hosts announce themselves, so that no data is flooded.
        for host in 0..rates.len() {
            let name = format!("h{host}");
            let mac = lab.sim.endpoint(&name).expect("a host").config().mac;
            let mut frame = vec![0; 60];
            frame[..6].copy_from_slice(&MacAddr::BROADCAST.0);
            frame[6..12].copy_from_slice(&mac.0);
            // For local experiments (IEEE 802).
            frame[12..14].copy_from_slice(&[0x88, 0xB5]);
            assert!(lab.sim.inject(&name, frame));
        }
        lab.sim.run(Nanos::from_millis(1));
        lab
    }

    fn link(&self, host: usize) -> LinkId {
        let name = format!("h{host}");
        let mut links = self.topology.links();
        let found = links.find(|(_, link)| [link.a.node(), link.b.node()].contains(&name.as_str()));
        found.expect("a link of the host").0
    }

    fn config(&self, qpn: Qpn, remote: (std::net::Ipv4Addr, MacAddr, Qpn)) -> QpConfig {
        let is_on = !matches!(self.control, Control::None | Control::Pfc { dcqcn: false });
        let (interval, guard) = match self.control {
            Control::GuardTimer => (Nanos::ZERO, ReactionConfig::GUARD),
            _ => (QpConfig::CNP_INTERVAL, Nanos::ZERO),
        };
        let reaction = ReactionConfig {
            guard,
            ..ReactionConfig::new(BitRate::new(LINE).expect("a rate"))
        };
        QpConfig {
            limits: QueueLimits {
                send: POSTED as usize,
                receive: POSTED as usize,
            },
            cnp_interval: is_on.then_some(interval),
            reaction: is_on.then_some(reaction),
            // ECN-capable.
            tos: if is_on { 2 } else { 0 },
            window: 4096,
            ..QpConfig::new(qpn, remote.0, remote.1, remote.2)
        }
    }

    fn post(endpoint: &mut Endpoint, config: QpConfig, sends: bool) {
        let qpn = config.qpn;
        endpoint.create_qp(config).expect("a QP");
        let key = endpoint
            .register_memory(0, vec![1; MESSAGE], Access::LOCAL)
            .expect("memory");
        for wr_id in 0..POSTED {
            let local = LocalSlice {
                key,
                offset: 0,
                length: MESSAGE as u32,
            };
            match sends {
                true => endpoint.post_send(qpn, SendWr::new(wr_id, SendOp::Send, local)),
                false => endpoint.post_recv(qpn, RecvWr { wr_id, local }),
            }
            .expect("posted");
        }
    }

    /// h0 sends to h1 up to h`receivers`.
    fn start_group(&mut self, receivers: usize) {
        let (mcst_id, qpn) = (McstId(GROUP.into()), Qpn::new(0x11));
        let names: Vec<String> = (0..=receivers).map(|host| format!("h{host}")).collect();
        let members = names.iter().map(|host| Member::new(host.as_str(), qpn)).collect();
        let rule = MulticastRule {
            start_psn: Some(Psn::new(0)),
            ..MulticastRule::default()
        };
        let request = Request::multicast("g", mcst_id, Pmtu::B1024, members, rule);
        let plan = plan(&self.topology, &LinkLoad::new(), &RoomTable::new(), &request).expect("a plan");
        self.sim.install_plan(&plan).expect("installed");
        for (i, host) in names.iter().enumerate() {
            let mac = self.sim.first_hop_mac(host).expect("a first hop");
            let config = self.config(qpn, (mcst_id.0, mac, Qpn::VIRTUAL));
            self.sim
                .with_endpoint(host, |endpoint, _| Self::post(endpoint, config, i == 0));
        }
    }

    fn start_unicast(&mut self, from: usize, to: usize) {
        let address = |lab: &Self, host: usize| {
            let config = lab
                .sim
                .endpoint(&format!("h{host}"))
                .expect("a host")
                .config()
                .clone();
            (config.ip, config.mac)
        };
        let qpns = [from, to].map(|host| Qpn::new(0x100 + host as u32));
        for (host, other, i) in [(to, from, 1), (from, to, 0)] {
            let (ip, mac) = address(self, other);
            let config = self.config(qpns[i], (ip, mac, qpns[1 - i]));
            let name = format!("h{host}");
            self.sim
                .with_endpoint(&name, |endpoint, _| Self::post(endpoint, config, i == 0));
        }
    }

    /// Bits per second that are acknowledged to a sender.
    fn goodput(&self, host: usize) -> f64 {
        let done = self.sim.completions(&format!("h{host}"));
        assert!(done.iter().all(|(_, c)| c.status == Status::Success));
        assert!((done.len() as u64) < POSTED, "it sends until the end");
        (done.len() * MESSAGE * 8) as f64 * 1e9 / self.sim.now().0 as f64
    }

    fn end(mut self, receivers: usize, unicast: std::ops::Range<usize>) -> Run {
        self.sim.run(Nanos::from_millis(121));
        let stats = |host: usize| self.sim.endpoint(&format!("h{host}")).expect("a host").stats();
        // Data goes in the direction with more bytes.
        let links = self.sim.stats(self.link(1)).expect("a link");
        let data = links.into_iter().max_by_key(|s| s.sent_bytes).expect("two");
        let count = unicast.len().max(1) as f64;
        Run {
            goodput: self.goodput(0),
            unicast: unicast
                .map(|host| self.goodput(host))
                .fold(0.0, |sum, rate| sum + rate)
                / count,
            queue: data.queued_bytes / data.sent.max(1),
            drops: self.sim.totals().queue_full
                + self.sim.flow_totals().overflows
                + self.sim.flow_totals().storm_drops,
            cnps: [
                (1..=receivers).map(|host| stats(host).cnps_out).sum(),
                stats(0).cnps_in,
            ],
        }
    }
}

/// Runs all controls and prints their table. [`Control::ALL`] has the order.
fn compare(title: &str, run: impl Fn(Control) -> Run) -> [Run; 6] {
    println!("{title}\n");
    println!("| control | group | unicast | mean queue | drops | CNPs sent | CNPs at the source |");
    println!("|---|---|---|---|---|---|---|");
    Control::ALL.map(|control| {
        let run = run(control);
        println!(
            "| {} | {:.2} Gb/s | {:.2} Gb/s | {:.0} kB | {} | {} | {} |",
            control.name(),
            run.goodput / 1e9,
            run.unicast / 1e9,
            run.queue as f64 / 1e3,
            run.drops,
            run.cnps[0],
            run.cnps[1],
        );
        run
    })
}

/// Seven receivers, the first of them at a quarter of the rate of the others.
#[test]
fn one_slow_path() {
    let rates: Vec<u64> = (0..8).map(|host| if host == 1 { SLOW } else { LINE }).collect();
    let [none, all, filtered, guard, pfc, both] = compare("One slow path", |control| {
        let mut lab = Lab::new(control, &rates);
        lab.start_group(7);
        lab.end(7, 0..0)
    });
    // Without congestion control, go-back-N sends windows again and again.
    for run in [all, filtered, guard] {
        assert!(run.goodput > 0.6 * SLOW as f64 && run.goodput > 5.0 * none.goodput);
        assert!(run.queue < none.queue && run.drops < none.drops / 10);
    }
    // PFC alone keeps the queue full, with DCQCN it is as short as with DCQCN alone; nothing is dropped.
    for run in [pfc, both] {
        assert!(run.goodput > 0.6 * SLOW as f64 && run.drops == 0);
    }
    assert!(both.queue < pfc.queue);
    // The source follows the slow path: nothing is filtered.
    assert_eq!(filtered.cnps[0], filtered.cnps[1]);
    assert_eq!(filtered.cnps, all.cnps);
}

/// Each of eight receivers shares its slow link with a unicast sender.
#[test]
fn every_path_is_shared() {
    let rates: Vec<u64> = (0..18)
        .map(|host| if (1..9).contains(&host) { SLOW } else { LINE })
        .collect();
    let [_, all, filtered, guard, pfc, both] =
        compare("Every path is shared with a unicast sender", |control| {
            let mut lab = Lab::new(control, &rates);
            lab.start_group(8);
            (1..9).for_each(|to| lab.start_unicast(to + 8, to));
            lab.end(8, 9..17)
        });
    // The group reacts to eight times as many CNPs as a unicast sender, to one per 50 us of all of them, or to those of one path.
    assert!(all.goodput < guard.goodput && guard.goodput < filtered.goodput);
    assert!(all.goodput < all.unicast / 3.0);
    assert!(filtered.goodput > filtered.unicast * 2.0 / 3.0);
    assert!(filtered.cnps[1] < filtered.cnps[0] / 4);
    assert_eq!((pfc.drops, both.drops), (0, 0));
    assert!(both.goodput > both.unicast / 3.0);
}
