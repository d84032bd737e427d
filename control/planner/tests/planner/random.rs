//! Plans of random groups in random fabrics, by seed: fat trees, leaf-spines, trees and irregular fabrics, with plain switches, routers, and
//! things that are down.

use std::net::Ipv4Addr;

use castnet_planner::{LinkLoad, Member, Plan, PlanError, Request, RoomTable, plan};
use castnet_rules::{MulticastRule, TranslatedRule};
use castnet_topology::{DEFAULT_MTU, End, LinkId, SwitchKind, Topology};
use castnet_wire::{McstId, Pmtu, Qpn};

/// Groups that are planned for each seed, each with the load of those before it.
const GROUPS: usize = 6;

/// Numbers that look random (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((bits ^ (bits >> 31)) % bound as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, each: &[T]) -> T {
        each[self.below(each.len())]
    }
}

/// The plans, or why there are none, of some groups in one fabric.
pub(crate) fn plans(seed: u64) -> Vec<Result<Plan, PlanError>> {
    let mut random = Random(seed);
    let topology = fabric(&mut random);
    let mut load = LinkLoad::new();
    let each = (0..GROUPS).map(|_| {
        let request = request(&mut random, &topology);
        let planned = plan(&topology, &load, &RoomTable::new(), &request);
        planned.iter().for_each(|plan| load.add(&plan.tree));
        planned
    });
    each.collect()
}

/// Digest (FNV-1a) of what [`plans`] returns: errors, trees with their ports, and what endpoints of rules have.
pub(crate) fn digest(seed: u64) -> u64 {
    let mut text = String::new();
    for planned in plans(seed) {
        let plan = match planned {
            Ok(plan) => plan,
            Err(error) => {
                text += &error.to_string();
                continue;
            }
        };
        text += &plan.tree.to_string();
        text += &format!("{:?}", plan.tree.links());
        for (switch, rule) in &plan.rules {
            text += &format!("{switch} {}", rule.mcst_id);
            for (number, endpoint) in rule.endpoints.iter().enumerate() {
                let (hop, is_source) = (
                    &endpoint.next_hop,
                    rule.multicast().map(|m| usize::from(m.source) == number),
                );
                let is_parent = rule
                    .translated()
                    .map(|t| t.parent.map(usize::from) == Some(number));
                text += &format!(
                    "{} {} {} {:?} {:?} {} {:?} {is_source:?} {is_parent:?}",
                    endpoint.port,
                    endpoint.virtual_qpn,
                    hop.name(),
                    hop.qpn(),
                    hop.ranks(),
                    hop.mac(),
                    hop.ip()
                );
            }
        }
    }
    let step = |digest: u64, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    text.bytes().fold(0xCBF2_9CE4_8422_2325, step)
}

fn fabric(random: &mut Random) -> Topology {
    let mut t = match random.below(6) {
        0 => Topology::fat_tree(random.one_of(&[4, 6, 8, 12])),
        1 => Topology::leaf_spine(2 + random.below(10), 1 + random.below(5), 1 + random.below(4)),
        2 => Topology::three_tier(2 + random.below(5), 1 + random.below(4), 1 + random.below(3)),
        3 => Topology::tree(2 + random.below(3), 2 + random.below(2)),
        _ => Ok(irregular(random)),
    }
    .expect("a fabric of this size");
    let switches: Vec<String> = t.switches().map(|switch| switch.name.clone()).collect();
    let kinds = random.one_of(&[
        &[SwitchKind::Castnet][..],
        &[SwitchKind::Plain],
        &[SwitchKind::Router],
        &[SwitchKind::Plain, SwitchKind::Router],
    ]);
    let percent = random.one_of(&[5, 20, 40]);
    for name in &switches {
        if random.below(100) < percent {
            t.set_switch_kind(name, random.one_of(kinds));
        }
    }
    let links = t.links().count();
    let percent = random.one_of(&[0, 0, 2, 5, 10, 20]);
    for link in (0..links).map(|n| LinkId(n as u32)) {
        if random.below(100) < percent {
            t.set_link_up(link, false);
        }
        if percent > 0 && random.below(60) == 0 {
            t.set_link_mtu(link, 2000);
        }
    }
    if random.below(4) == 0 {
        t.set_switch_up(&switches[random.below(switches.len())], false);
    }
    t
}

/// Any switches and links: also several between two switches, and hosts anywhere.
fn irregular(random: &mut Random) -> Topology {
    let mut t = Topology::new();
    let switches = 1 + random.below(14);
    let mut free = vec![0u8; switches];
    for s in 0..switches {
        let ports = (0..64).map(|p| (p, [6, 0, 0, 0, s as u8, p]));
        t.add_switch(&format!("s{s}"), ports).expect("a new name");
    }
    let mut end = |s: usize| {
        free[s] += 1;
        End::port(format!("s{s}"), free[s] - 1)
    };
    for s in 1..switches {
        let (a, b) = (end(s), end(random.below(s)));
        t.connect(a, b, DEFAULT_MTU).expect("free ports");
    }
    for _ in 0..random.below(25) {
        let (a, b) = (random.below(switches), random.below(switches));
        if a != b {
            let (a, b) = (end(a), end(b));
            t.connect(a, b, DEFAULT_MTU).expect("free ports");
        }
    }
    for h in 0..2 + random.below(24) {
        let name = format!("h{h}");
        let ip = Ipv4Addr::new(10, 0, 0, h as u8 + 1);
        t.add_host(&name, Some(ip), Some([2, 0, 0, 0, 0, h as u8]))
            .expect("a new name");
        let near = end(random.below(switches));
        t.connect(near, End::host(name), DEFAULT_MTU)
            .expect("a free port");
    }
    t
}

fn request(random: &mut Random, topology: &Topology) -> Request {
    let mut hosts: Vec<&str> = topology.hosts().map(|host| host.name.as_str()).collect();
    for at in (1..hosts.len()).rev() {
        hosts.swap(at, random.below(at + 1));
    }
    hosts.truncate(2 + random.below(hosts.len().max(3) - 1));
    let collective = random.below(3) == 0;
    // Several ranks may share a host; a group with a host twice, or one that does not exist, is refused.
    if collective && random.below(3) == 0 || random.below(50) == 0 {
        hosts.push(hosts[random.below(hosts.len())]);
    }
    if random.below(50) == 0 {
        let at = random.below(hosts.len());
        hosts[at] = "nobody";
    }
    let mut members: Vec<Member> = hosts
        .iter()
        .map(|host| Member::new(host, Qpn::new(0x11)))
        .collect();
    for (number, member) in members.iter_mut().enumerate().filter(|_| collective) {
        member.qpn = Qpn::new(0x11 + number as u32);
    }
    let mcst_id = McstId(Ipv4Addr::new(10, 255, 0, 1));
    let mut request = match collective {
        true => Request::collective("g", mcst_id, Pmtu::B1024, members, (64, TranslatedRule::root(0))),
        false => {
            let source = random.below(members.len()) as u16;
            let rule = MulticastRule {
                source,
                ..MulticastRule::default()
            };
            Request::multicast("g", mcst_id, Pmtu::B1024, members, rule)
        }
    };
    let number = |n: u32| McstId(Ipv4Addr::from(0x0AFE_0000 + n));
    let names = topology.switches().map(|switch| switch.name.clone());
    request.mcst_ids = names.zip((0..).map(number)).collect();
    request.own_addresses = random.below(4) == 0;
    if random.below(4) == 0 {
        request.pmtu = Pmtu::B2048;
    }
    request
}
