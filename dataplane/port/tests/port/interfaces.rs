//! Interfaces that are deleted, renamed and made again under a port, in new network namespaces. Needs root; otherwise the tests
//! report that they are skipped.

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use castnet_port::{
    AfPacketPort, AfPacketSpec, FaultControl, InterfaceWatch, Offload, Pool, Port, Sides, Sleeper, Waker,
    has_offload, set_offloads,
};
use castnet_wire::{DropReason, Nanos};
use castnet_wrap_up::skip;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::gettid;

use crate::af_packet::{TIMEOUT, frame, in_namespace, ip, open, pool, receive, send, sleeper_for, veth};
use crate::tap::tap;

const GONE: Option<&str> = Some("the interface is gone");

/// A port on `v0`, a further sending side of it, and a thread that watches the interface.
struct Scene {
    pool: Pool,
    port: AfPacketPort,
    sender: AfPacketPort,
    at_port: Sleeper,
    /// Why the port is detached; `None`: it is attached again.
    reports: mpsc::Receiver<Option<String>>,
    is_ended: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Scene {
    fn new() -> Self {
        Self::of(AfPacketSpec::new("v0"))
    }

    fn of(spec: AfPacketSpec) -> Self {
        let pool = pool();
        let mut port = spec.open(&pool, Sides::Both).unwrap();
        let sender = spec.open(&pool, Sides::Send).unwrap();
        let at_port = sleeper_for(&mut port);
        let sides = vec![port.reattach().unwrap(), sender.reattach().unwrap()];
        // A port without an interface is never reported.
        let mut watch = InterfaceWatch::new(vec![Vec::new(), sides]).unwrap();
        let (waker, is_ended) = (watch.waker(), Arc::new(AtomicBool::new(false)));
        let (report, reports) = mpsc::channel();
        let thread = thread::spawn({
            let is_ended = is_ended.clone();
            move || {
                let start = Instant::now();
                while !is_ended.load(Ordering::Acquire) {
                    let now = Nanos(start.elapsed().as_nanos() as u64);
                    watch.poll(now, &mut |position, detached| {
                        assert_eq!(position, 1);
                        let _ = report.send(detached.map(ToString::to_string));
                    });
                    watch.sleep(now, || is_ended.load(Ordering::Acquire));
                }
            }
        });
        Self {
            pool,
            port,
            sender,
            at_port,
            reports,
            is_ended,
            waker,
            thread: Some(thread),
        }
    }

    fn poll(&mut self) {
        self.port.poll(Nanos::ZERO);
        self.sender.poll(Nanos::ZERO);
    }

    /// Waits for the next report.
    fn report(&mut self) -> Option<String> {
        self.reports.recv_timeout(TIMEOUT).expect("a report")
    }

    /// Waits until both sides are up, or down.
    fn until_up(&mut self, up: bool) {
        let start = Instant::now();
        while self.port.is_up() != up || self.sender.is_up() != up {
            assert!(start.elapsed() < TIMEOUT, "the port does not go {up}");
            self.poll();
            thread::yield_now();
        }
    }

    /// Waits until both sides have closed their sockets.
    fn until_closed(&mut self) {
        let start = Instant::now();
        while self.port.receive_ring().is_some() || self.sender.backlog().is_some() {
            assert!(start.elapsed() < TIMEOUT, "the port keeps its sockets");
            self.poll();
            thread::yield_now();
        }
    }

    /// Frames pass between the port, with both its sides, and the interface at the other end of its link.
    fn passes_frames(&mut self, far: &str) {
        self.until_up(true);
        let mut far = open(far, &self.pool);
        let mut at_far = sleeper_for(&mut far);
        send(&mut far, &self.pool, &[frame(1, 1514, None)]);
        assert_eq!(
            receive(&mut self.port, &mut self.at_port, 1),
            [frame(1, 1514, None)]
        );
        send(&mut self.port, &self.pool, &[frame(2, 60, None)]);
        assert_eq!(receive(&mut far, &mut at_far, 1), [frame(2, 60, None)]);
        send(&mut self.sender, &self.pool, &[frame(3, 60, None)]);
        assert_eq!(receive(&mut far, &mut at_far, 1), [frame(3, 60, None)]);
    }

    /// Frames are dropped with the reason that the port is down.
    fn drops_frames(&mut self) {
        self.until_up(false);
        for port in [&mut self.port, &mut self.sender] {
            let before = port.stats();
            send(port, &self.pool, &[frame(9, 60, None)]);
            let after = port.stats();
            let drops = |stats: &castnet_port::PortStats| stats.drops[DropReason::PortDown];
            assert_eq!(
                (after.tx_frames, drops(&after)),
                (before.tx_frames, drops(&before) + 1)
            );
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

#[test]
fn a_port_whose_interface_is_deleted_is_down_with_the_reason() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        let mut scene = Scene::new();
        scene.passes_frames("v1");
        ip("link delete v0");
        assert_eq!(scene.report().as_deref(), GONE);
        scene.until_closed();
        scene.drops_frames();
        assert_eq!((scene.port.ready(), scene.port.speed_mbps()), (false, None));
    });
}

/// With another index, with the same index, and with another MTU. The port keeps its address and its counters.
#[test]
fn a_port_works_again_on_an_interface_that_is_made_again() {
    in_namespace(|| {
        veth("v0", "v1", 4200);
        let mut scene = Scene::new();
        scene.passes_frames("v1");
        let (mac, index) = (scene.port.info().mac, if_nametoindex("v0").unwrap());
        let mut now = Nanos::ZERO;
        for (index, mtu, expected) in [
            (index + 1000, 9000, 4200),
            (index, 4200, 4200),
            (index, 1500, 1500),
        ] {
            ip("link delete v0");
            assert_eq!(scene.report().as_deref(), GONE);
            ip(&format!("link add v0 index {index} type veth peer name v1"));
            for end in ["v0", "v1"] {
                ip(&format!("link set {end} mtu {mtu} up"));
            }
            assert_eq!(scene.report(), None);
            scene.passes_frames("v1");
            // The MTU is read once per interval.
            now += Nanos::from_secs(1);
            scene.port.poll(now);
            assert_eq!((scene.port.info().mac, scene.port.mtu()), (mac, expected));
        }
        let stats = scene.port.stats();
        assert_eq!((stats.rx_frames, stats.tx_frames), (4, 4));
    });
}

/// A NIC is found late, or was replaced by one of another name.
#[test]
fn a_port_that_is_opened_without_its_interface_works_once_there_is_one() {
    in_namespace(|| {
        let mut scene = Scene::of(AfPacketSpec {
            is_absent: true,
            ..AfPacketSpec::new("v0")
        });
        assert_eq!(
            scene.report().as_deref(),
            Some("there is no interface of this name yet")
        );
        scene.drops_frames();
        let before = scene.port.info();
        assert_eq!(
            (scene.sender.info().mac, before.mac.0[0], before.mtu),
            (before.mac, 2, 9000)
        );
        veth("v0", "v1", 4200);
        assert_eq!(scene.report(), None);
        scene.passes_frames("v1");
        scene.port.poll(Nanos::from_secs(1));
        assert_eq!((scene.port.info().mac, scene.port.mtu()), (before.mac, 4200));
        ip("link delete v0");
        assert_eq!(scene.report().as_deref(), GONE);
    });
}

#[test]
fn old_sockets_send_nothing_to_a_new_interface_with_the_old_index() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        let pool = pool();
        // Nobody watches.
        let mut old = open("v0", &pool);
        let index = if_nametoindex("v0").unwrap();
        ip("link delete v0");
        ip(&format!("link add v0 index {index} type veth peer name v1"));
        for end in ["v0", "v1"] {
            ip(&format!("link set {end} up"));
        }
        // The old port has the claim of a switch to this index.
        let mut new = AfPacketSpec::new("v0")
            .for_rnic()
            .open(&pool, Sides::Both)
            .unwrap();
        let mut far = open("v1", &pool);
        let mut at_far = sleeper_for(&mut far);
        let start = Instant::now();
        while !new.is_up() {
            assert!(start.elapsed() < TIMEOUT);
            thread::yield_now();
        }
        assert!(!old.is_up());
        send(&mut old, &pool, &[frame(1, 60, None)]);
        send(&mut new, &pool, &[frame(2, 60, None)]);
        assert_eq!(receive(&mut far, &mut at_far, 1), [frame(2, 60, None)]);
        assert_eq!(old.stats().drops[DropReason::PortDown], 1);
    });
}

#[test]
fn a_port_whose_interface_is_renamed_is_down_and_leaves_it_alone() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        set_offloads("v0", &[Offload::Receive], true).unwrap();
        let merges = |interface: &str| has_offload(interface, Offload::Receive).unwrap();
        let mut scene = Scene::new();
        scene.passes_frames("v1");
        assert!(!merges("v0"));
        let rename = |from: &str, to: &str| {
            ip(&format!("link set {from} down"));
            ip(&format!("link set {from} name {to}"));
            ip(&format!("link set {to} up"));
        };
        rename("v0", "q0");
        let renamed = Some("the interface was renamed to q0");
        assert_eq!(scene.report().as_deref(), renamed);
        scene.until_closed();
        until_promiscuity("q0", 0);
        scene.drops_frames();
        assert!(merges("q0"));

        // Another interface gets the name, and loses it.
        veth("v0", "w1", 1500);
        assert_eq!(scene.report(), None);
        scene.passes_frames("w1");
        ip("link delete v0");
        assert_eq!(scene.report().as_deref(), GONE);
        // The first one has its name again.
        rename("q0", "v0");
        assert_eq!(scene.report(), None);
        scene.passes_frames("v1");
        assert!(!merges("v0"));
        drop(scene);
        assert!(merges("v0"));
    });
}

/// The C library needs a descriptor to read a name. Clients that took all of them took the ports of a switch down.
#[test]
fn a_port_stays_up_without_descriptors() {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if limit > 1 << 20 {
        return skip(
            "a port without free descriptors",
            "needs a limit of 2^20 open files or less (ulimit -n)",
        );
    }
    in_namespace(|| {
        // The table of this thread alone.
        unshare(CloneFlags::CLONE_FILES).unwrap();
        veth("v0", "v1", 1500);
        let mut port = open("v0", &pool());
        let mut watch = InterfaceWatch::new(vec![vec![port.reattach().unwrap()]]).unwrap();
        let start = Instant::now();
        while !port.is_up() {
            assert!(start.elapsed() < TIMEOUT);
            thread::yield_now();
        }
        let null = File::open("/dev/null").unwrap();
        let all: Vec<File> = std::iter::from_fn(|| null.try_clone().ok()).collect();
        watch.poll(Nanos::ZERO, &mut |_, detached| panic!("{detached:?}"));
        port.poll(Nanos::ZERO);
        assert!(port.is_up());
        drop(all);
    });
}

/// The namespace with the other end of the link ends, and the interface is moved to another namespace.
#[test]
fn a_port_whose_interface_ends_with_a_namespace_is_down_with_the_reason() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        let mut scene = Scene::new();
        let namespace = Namespace::new();
        ip(&format!("link set v1 netns {}", namespace.id));
        drop(namespace);
        assert_eq!(scene.report().as_deref(), GONE);
        scene.until_closed();

        veth("v0", "v1", 1500);
        assert_eq!(scene.report(), None);
        scene.passes_frames("v1");
        let namespace = Namespace::new();
        ip(&format!("link set v0 netns {}", namespace.id));
        assert_eq!(scene.report().as_deref(), GONE);
        scene.until_closed();
        scene.drops_frames();
    });
}

#[test]
fn an_interface_that_cannot_be_used_is_a_reason() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        let mut scene = Scene::new();
        ip("link delete v0");
        assert_eq!(scene.report().as_deref(), GONE);
        ip("tuntap add v0 mode tun");
        let reason = scene.report().expect("a reason");
        assert!(reason.contains("not an Ethernet interface"), "{reason}");
        scene.drops_frames();
        ip("link delete v0");
        assert_eq!(scene.report().as_deref(), GONE);
        veth("v0", "v1", 1500);
        assert_eq!(scene.report(), None);
        scene.passes_frames("v1");
    });
}

/// Where a thread watches, that one reads the speed, and the port's thread does not.
#[test]
fn a_port_learns_the_speed_of_its_interface_from_the_watch() {
    in_namespace(|| {
        let _tap = tap("tap0", 1500);
        let pool = pool();
        let port = open("tap0", &pool);
        let sender = AfPacketSpec::new("tap0").open(&pool, Sides::Send).unwrap();
        let unwatched = AfPacketSpec::new("tap0").for_rnic();
        let unwatched = unwatched.open(&pool, Sides::Both).unwrap();
        let before = port.speed_mbps();
        let sides = [&port, &sender].map(|port| port.reattach().unwrap());
        let mut watch = InterfaceWatch::new(vec![sides.into()]).unwrap();
        let speed = ["-s", "tap0", "speed", "2500"];
        let set = Command::new("ethtool").args(speed).output();
        if !set.is_ok_and(|out| out.status.success()) {
            return skip("the speed of an interface", "needs ethtool");
        }
        assert_eq!((port.speed_mbps(), sender.speed_mbps()), (before, before));
        assert_eq!(unwatched.speed_mbps(), Some(2500));
        watch.poll(Nanos::ZERO, &mut |_, _| panic!("it is attached"));
        assert_eq!((port.speed_mbps(), sender.speed_mbps()), (Some(2500), Some(2500)));
    });
}

#[test]
fn a_port_opened_by_an_alternative_name_is_up() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        ip("link property add dev v0 altname uplink");
        let port = open("uplink", &pool());
        let start = Instant::now();
        while !port.is_up() {
            assert!(start.elapsed() < TIMEOUT);
            thread::yield_now();
        }
        assert_eq!(port.mtu(), 1500);
        ip("link property del dev v0 altname uplink");
        assert!(!port.is_up());
    });
}

#[test]
fn a_port_behind_another_is_moved_too() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        let pool = pool();
        let mut port = FaultControl::new(1).wrap(open("v0", &pool), 0);
        let mut watch = InterfaceWatch::new(vec![vec![port.reattach().unwrap()]]).unwrap();
        let mut until = |attached: bool| {
            let (start, mut changed) = (Instant::now(), None);
            while changed != Some(attached) {
                assert!(start.elapsed() < TIMEOUT);
                watch.poll(Nanos::ZERO, &mut |_, detached| changed = Some(detached.is_none()));
            }
        };
        ip("link delete v0");
        until(false);
        port.poll(Nanos::ZERO);
        assert!(port.receive_ring().is_none());
        veth("v0", "v1", 1500);
        until(true);
        port.poll(Nanos::ZERO);
        assert!(port.receive_ring().is_some());
    });
}

/// Waits until so many sockets receive all frames of the interface.
fn until_promiscuity(interface: &str, count: usize) {
    let (start, wanted) = (Instant::now(), format!(" promiscuity {count} "));
    loop {
        let shown = Command::new("ip")
            .args(["-d", "link", "show", interface])
            .output();
        let shown = shown.expect("iproute2 is installed").stdout;
        if String::from_utf8_lossy(&shown).contains(&wanted) {
            return;
        }
        assert!(start.elapsed() < TIMEOUT, "{}", String::from_utf8_lossy(&shown));
        thread::yield_now();
    }
}

/// A network namespace that exists as long as its thread.
struct Namespace {
    id: nix::unistd::Pid,
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    fn new() -> Self {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            tell.send(gettid()).unwrap();
            // An error: the sender is gone.
            let _ = ended.recv();
        });
        Self {
            id: told.recv().unwrap(),
            end: Some(end),
            thread: Some(thread),
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
