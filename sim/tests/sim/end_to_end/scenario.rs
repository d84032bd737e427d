//! A random fabric, group, load and faults, all from one seed.

use std::net::Ipv4Addr;

use castnet_endpoint::Repeat;
use castnet_planner::{Member, Request, RequestKind};
use castnet_rules::{HostPart, MulticastRule, RemoteMemory, RepairRule};
use castnet_sim::LinkProfile;
use castnet_topology::{End, Topology};
use castnet_wire::{McstId, Nanos, Pmtu, Psn, Qpn};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Send,
    SendImm(u32),
    Write,
    WriteImm(u32),
}

impl Op {
    pub(crate) fn takes_receive(self) -> bool {
        self != Self::Write
    }

    pub(crate) fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm(_))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) op: Op,
    pub(crate) length: u32,
    /// Offset in the bytes of all messages, at the source and at each receiver.
    pub(crate) offset: u64,
}

/// A switch that stops during the run and starts again without state.
#[derive(Clone, Debug)]
pub(crate) struct Restart {
    pub(crate) switch_index: usize,
    pub(crate) at: Nanos,
    pub(crate) outage: Nanos,
}

/// Special events of a run, in addition to link faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    Plain,
    SlowReceiver,
    Restart,
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) flavour: Flavour,
    pub(crate) shape: String,
    pub(crate) topology: Topology,
    pub(crate) request: Request,
    /// First PSN of the source. The switches may have to learn it.
    pub(crate) psn: Psn,
    pub(crate) messages: Vec<Message>,
    pub(crate) bytes: Vec<u8>,
    /// Profiles of both directions of each link.
    pub(crate) links: Vec<[LinkProfile; 2]>,
    pub(crate) poll_delay: Nanos,
    /// What the source sends again after a NAK.
    pub(crate) repeat: Repeat,
    /// Whether it sends its oldest packet again where an answer is overdue.
    pub(crate) probes: bool,
    pub(crate) window: u32,
    pub(crate) timeout: u8,
    pub(crate) min_rnr_timer: u8,
    /// Times at which each receiver posts each receive.
    pub(crate) posts: Vec<Vec<Nanos>>,
    pub(crate) restart: Option<Restart>,
}

pub(crate) const VA_BASE: u64 = 0x0010_0000_0000;

impl Scenario {
    pub(crate) fn random(seed: u64) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let flavour = *[
            Flavour::Plain,
            Flavour::Plain,
            Flavour::Plain,
            Flavour::SlowReceiver,
            Flavour::Restart,
        ]
        .choose(rng)
        .expect("not empty");
        let receivers = *[1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 10, 12]
            .choose(rng)
            .expect("not empty");
        let (shape, topology, hosts) = fabric(rng, receivers + 1);
        let pmtu = *Pmtu::ALL.choose(rng).expect("not empty");
        let lossy = rng.random_bool(0.7);
        let messages = messages(rng, pmtu, if lossy { 60 } else { 150 });
        let total: u64 = messages.iter().map(|m| u64::from(m.length)).sum();
        let mut bytes = vec![0; total as usize];
        rng.fill(&mut bytes[..]);
        let psn = Psn::new(match rng.random_range(0..4) {
            0 => 0,
            1 => Psn::MODULUS - rng.random_range(1..80),
            _ => rng.random_range(0..Psn::MODULUS),
        });
        let mut request = request(rng, &hosts, pmtu, total);
        request.kind = RequestKind::Multicast(MulticastRule {
            start_psn: rng.random_bool(0.7).then_some(psn),
            va_base: VA_BASE,
            carries_on: None,
            any_source: None,
            repair: repair(seed),
            hold_fatal_naks: false,
            source: 0,
        });
        let links = topology
            .links()
            .map(|_| [profile(rng, lossy), profile(rng, lossy)])
            .collect();
        let slow = flavour == Flavour::SlowReceiver;
        let posts = (0..receivers).map(|_| posts(rng, &messages, slow)).collect();
        let restart = (flavour == Flavour::Restart).then(|| Restart {
            switch_index: rng.random_range(0..1000),
            at: Nanos(rng.random_range(0..400_000)),
            outage: Nanos(rng.random_range(0..3_000_000)),
        });
        Self {
            seed,
            flavour,
            shape,
            topology,
            request,
            psn,
            messages,
            bytes,
            links,
            poll_delay: Nanos(*[0, 300, 2_000, 10_000].choose(rng).expect("not empty")),
            repeat: match repair(seed).is_some() && seed.is_multiple_of(2) {
                true => Repeat::One,
                false => Repeat::All,
            },
            probes: (seed / 2).is_multiple_of(2),
            window: *[4, 16, 64, 128, 128].choose(rng).expect("not empty"),
            timeout: rng.random_range(7..10),
            min_rnr_timer: rng.random_range(1..8),
            posts,
            restart,
        }
    }

    pub(crate) fn describe(&self) -> String {
        let Self {
            seed,
            flavour,
            shape,
            request,
            psn,
            messages,
            window,
            repeat,
            probes,
            timeout,
            poll_delay,
            restart,
            ..
        } = self;
        let ops: Vec<String> = messages
            .iter()
            .map(|m| format!("{:?} of {} B", m.op, m.length))
            .collect();
        format!(
            "seed {seed}: {flavour:?}, {shape}, repair {:?}, {} receivers, PMTU {}, PSN from {psn} ({}), window {window}, repeats {repeat:?}, probes {probes}, \
             time-out {timeout}, switches look after {poll_delay}, restart {restart:?}; messages: {}",
            repair(*seed).map(|rule| rule.slots),
            request.members.len() - 1,
            request.pmtu.bytes(),
            match &request.kind {
                RequestKind::Multicast(rule) if rule.start_psn.is_some() => "known",
                _ => "learned",
            },
            ops.join(", "),
        )
    }
}

/// Of a third of all seeds. Rings are shorter and longer than windows.
fn repair(seed: u64) -> Option<RepairRule> {
    let slots = [4, 16, 64, 256][(seed / 3 % 4) as usize];
    let rule = RepairRule {
        slots,
        ack_timeout_us: 1_000,
    };
    seed.is_multiple_of(3).then_some(rule)
}

fn fabric(rng: &mut ChaCha8Rng, hosts: usize) -> (String, Topology, Vec<String>) {
    match rng.random_range(0..6) {
        0 => {
            let (leaves, spines) = (rng.random_range(1..4), rng.random_range(1..4));
            let t = Topology::leaf_spine(leaves, spines, hosts.div_ceil(leaves) + 1).expect("a small fabric");
            let hosts = pick(rng, &t, hosts);
            (format!("leaf-spine {leaves}x{spines}"), t, hosts)
        }
        1 => {
            let t = Topology::fat_tree(4).expect("a small fabric");
            let hosts = pick(rng, &t, hosts);
            ("fat tree 4".into(), t, hosts)
        }
        _ => random_tree(rng, hosts),
    }
}

fn pick(rng: &mut ChaCha8Rng, t: &Topology, count: usize) -> Vec<String> {
    let mut names: Vec<String> = t.hosts().map(|h| h.name.clone()).collect();
    while names.len() > count {
        names.remove(rng.random_range(0..names.len()));
    }
    let first = rng.random_range(0..names.len());
    names.swap(0, first);
    names
}

/// A random tree of switches with up to four tiers, and hosts at any switch.
fn random_tree(rng: &mut ChaCha8Rng, hosts: usize) -> (String, Topology, Vec<String>) {
    let tiers = rng.random_range(1..=4);
    let switches = if tiers == 1 {
        1
    } else {
        rng.random_range(tiers..tiers + 6)
    };
    let mut t = Topology::new();
    let mut tier_of = vec![0];
    let mut ports = vec![0u8; switches];
    let mut take = |s: usize| {
        ports[s] += 1;
        End::port(format!("s{s}"), ports[s] - 1)
    };
    for s in 0..switches {
        t.add_switch(&format!("s{s}"), (0..32).map(|p| (p, [6, 0, 0, 0, s as u8, p])))
            .expect("a new name");
        if s > 0 {
            // The first switches form a chain of full depth. The others are attached anywhere above the lowest tier.
            let parents: Vec<usize> = (0..s).filter(|p| tier_of[*p] + 1 < tiers).collect();
            let parent = if s < tiers {
                s - 1
            } else {
                *parents.choose(rng).expect("the root")
            };
            tier_of.push(tier_of[parent] + 1);
            let (a, b) = (take(parent), take(s));
            t.connect(a, b, 9000).expect("free ports");
        }
    }
    let names: Vec<String> = (0..hosts).map(|h| format!("h{h}")).collect();
    for (h, name) in names.iter().enumerate() {
        let ip = Ipv4Addr::new(10, 0, 0, h as u8 + 1);
        t.add_host(name, Some(ip), Some([2, 0, 0, 0, 0, h as u8]))
            .expect("a new name");
        // One of the first two hosts is in the lowest tier, so that all tiers are used.
        let home = if h == 0 {
            0
        } else if h == 1 {
            tiers - 1
        } else {
            rng.random_range(0..switches)
        };
        t.connect(take(home), End::host(name.clone()), 9000)
            .expect("free ports");
    }
    let mut names = names;
    let first = rng.random_range(0..names.len());
    names.swap(0, first);
    (format!("tree of {switches} switches in {tiers} tiers"), t, names)
}

fn messages(rng: &mut ChaCha8Rng, pmtu: Pmtu, packets_max: u64) -> Vec<Message> {
    let count = rng.random_range(1..7);
    let (mut offset, mut packets) = (0, 0);
    let mut all = Vec::new();
    for _ in 0..count {
        let full = pmtu.bytes() as u32;
        let left = packets_max.saturating_sub(packets).max(1) as u32;
        let length = match rng.random_range(0..6) {
            0 => 0,
            1 => rng.random_range(1..=full),
            2 => full * rng.random_range(1..=left.min(8)),
            _ => rng.random_range(0..=full * left.min(80)),
        };
        let op = match rng.random_range(0..4) {
            0 => Op::Send,
            1 => Op::SendImm(rng.random()),
            2 => Op::Write,
            _ => Op::WriteImm(rng.random()),
        };
        all.push(Message { op, length, offset });
        offset += u64::from(length);
        packets += pmtu.packets(length.into());
    }
    all
}

fn request(rng: &mut ChaCha8Rng, hosts: &[String], pmtu: Pmtu, total: u64) -> Request {
    let mut members: Vec<Member> = hosts
        .iter()
        .map(|name| Member {
            part: HostPart::Memory(RemoteMemory {
                va: 0x7000_0000_0000 + (rng.random_range(0..1u64 << 40)),
                // The key is known after registration; the run fills it in.
                rkey: 0,
                length: total.max(1),
            }),
            ..Member::new(name, Qpn::new(rng.random_range(2..0xFF_FFFF)))
        })
        .collect();
    members[0].part = HostPart::Plain;
    let mcst_id = McstId(Ipv4Addr::new(10, 255, rng.random(), 1));
    Request::multicast("group", mcst_id, pmtu, members, MulticastRule::default())
}

fn profile(rng: &mut ChaCha8Rng, lossy: bool) -> LinkProfile {
    let mut some = |most: f64| {
        let bad = lossy && rng.random_bool(0.4);
        if bad { rng.random_range(0.0..most) } else { 0.0 }
    };
    let (loss, duplication, reordering, corruption) = (some(0.05), some(0.03), some(0.05), some(0.02));
    LinkProfile {
        rate_bps: *[1, 10, 10, 100].choose(rng).expect("not empty") * 1_000_000_000,
        delay: Nanos(rng.random_range(100..20_000)),
        ecn: None,
        // The small queue holds a few frames: congestion drops some.
        queue_bytes: *[20_000, 1 << 20, 1 << 20].choose(rng).expect("not empty"),
        loss,
        duplication,
        reordering,
        reordering_delay_max: Nanos(rng.random_range(1_000..60_000)),
        corruption,
    }
}

fn posts(rng: &mut ChaCha8Rng, messages: &[Message], slow: bool) -> Vec<Nanos> {
    let lazy = slow && rng.random_bool(0.6);
    let mut at = 0;
    let times = messages.iter().filter(|m| m.op.takes_receive()).map(|_| {
        if lazy {
            at += rng.random_range(0..1_500_000);
        }
        Nanos(at)
    });
    times.collect()
}
