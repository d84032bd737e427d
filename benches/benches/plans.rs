//! Time to plan a group in fat trees of up to 65,536 hosts, without the controller. The baseline is one breadth-first
//! search over the switches of the same fabric.
//!
//! Goals for 65,536 hosts: one group of all hosts in 100 ms; 1,000 groups of 64 hosts in a second.
//!
//! `cargo bench -p castnet-benches --bench plans [-- K_MAX]`

use std::time::{Duration, Instant};

use castnet_planner::{LinkLoad, Member, Request, RoomTable, plan};
use castnet_rules::{MulticastRule, TranslatedRule};
use castnet_topology::{LinkId, NodeId, Topology, Usable};
use castnet_wire::{McstId, Pmtu, Qpn};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::index::sample;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Ports of a switch.
const PORTS: [usize; 3] = [16, 32, 64];
/// Members of the groups that are spread over the fabric.
const MEMBERS: usize = 64;
/// Groups that a median is of.
const GROUPS: usize = 101;
/// Groups of random hosts that are planned one after the other.
const MANY: usize = 1000;
/// Plans of the group of all hosts.
const ALL: usize = 7;

fn main() {
    let most = std::env::args().find_map(|arg| arg.parse().ok());
    println!(
        "Milliseconds, and how many times that of one search. Groups of {MEMBERS} spread hosts: the first one in a"
    );
    println!(
        "new fabric, and the median of {GROUPS}, each with the load of those before it. All hosts: one group,"
    );
    println!(
        "the median of {ALL}. {MANY} groups: multicast, of {MEMBERS} random hosts each, altogether, with their load,"
    );
    println!("from a new fabric on.\n");
    println!(
        "{:>7} {:>10} {:>8} {:>18} {:>18} {:>18} {:>18} {:>18} {:>18}",
        "hosts",
        "numbering",
        "search",
        "multicast, first",
        "median",
        "collective, first",
        "median",
        "all hosts",
        format!("{MANY} groups")
    );
    for k in PORTS.into_iter().filter(|k| *k <= most.unwrap_or(64)) {
        let mut fabric = Topology::fat_tree(k).expect("an even number of ports");
        let hosts = fabric.hosts().count();
        let (numbering, ()) = time(|| renew(&mut fabric));
        let search = median((0..GROUPS).map(|n| search(&fabric, n)).collect());
        let mut times = Vec::new();
        for request in [multicast as fn(Vec<usize>) -> Request, collective] {
            renew(&mut fabric);
            let each = groups(&fabric, hosts, request);
            times.extend([each[0], median(each)]);
        }
        let all = || {
            plan(
                &fabric,
                &LinkLoad::new(),
                &RoomTable::new(),
                &multicast((0..hosts).collect()),
            )
        };
        times.push(median((0..ALL).map(|_| time(all).0).collect()));
        renew(&mut fabric);
        times.push(many(&fabric, hosts));
        print!("{hosts:>7} {:>10.1} {:>8.3}", ms(numbering), ms(search));
        for time in times {
            let ratio = time.as_secs_f64() / search.as_secs_f64();
            print!(" {:>18}", format!("{:.2} ({ratio:.1} x)", ms(time)));
        }
        println!();
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let done = work();
    (start.elapsed(), done)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Discards what earlier plans have left in the fabric, and numbers it anew.
fn renew(fabric: &mut Topology) {
    fabric.set_link_up(LinkId(0), true);
    _ = fabric.id("h0");
}

fn search(fabric: &Topology, n: usize) -> Duration {
    let mut usable = Usable::new(fabric, 0);
    // Distances in a part of the fabric are not shared.
    usable.without.insert(NodeId(0));
    time(|| usable.distances(&[NodeId(1 + n as u32)])).0
}

fn groups(fabric: &Topology, hosts: usize, request: fn(Vec<usize>) -> Request) -> Vec<Duration> {
    let mut load = LinkLoad::new();
    let group = |n: usize| {
        let member = |i: usize| (i * hosts / MEMBERS + n * 7) % hosts;
        let request = request((0..MEMBERS).map(member).collect());
        let (time, plan) = time(|| plan(fabric, &load, &RoomTable::new(), &request));
        load.add(&plan.expect("a plan").tree);
        time
    };
    (0..GROUPS).map(group).collect()
}

/// Time of [`MANY`] multicast groups of random hosts.
fn many(fabric: &Topology, hosts: usize) -> Duration {
    let mut random = StdRng::seed_from_u64(1);
    let each = (0..MANY).map(|_| multicast(sample(&mut random, hosts, MEMBERS).into_vec()));
    let requests: Vec<Request> = each.collect();
    let plans = || {
        let mut load = LinkLoad::new();
        for request in &requests {
            let plan = plan(fabric, &load, &RoomTable::new(), request);
            load.add(&plan.expect("a plan").tree);
        }
    };
    time(plans).0
}

fn members(hosts: Vec<usize>) -> Vec<Member> {
    let member = |host: usize| Member::new(&format!("h{host}"), Qpn::new(0x11));
    hosts.into_iter().map(member).collect()
}

fn multicast(hosts: Vec<usize>) -> Request {
    let rule = MulticastRule::default();
    Request::multicast("g", MCST_ID, Pmtu::B1024, members(hosts), rule)
}

fn collective(hosts: Vec<usize>) -> Request {
    let rule = TranslatedRule::root(0);
    Request::collective("g", MCST_ID, Pmtu::B1024, members(hosts), (64, rule))
}

const MCST_ID: McstId = McstId(std::net::Ipv4Addr::new(10, 255, 0, 1));
