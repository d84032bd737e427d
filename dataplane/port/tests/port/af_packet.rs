//! AF_PACKET over veth pairs in new network namespaces. Needs root; otherwise the tests report that they are skipped.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use castnet_port::{
    AfPacketPort, AfPacketSpec, Batch, Offload, OpenError, Pool, PoolBuf, PoolConfig, Port, PortSpec, Sides,
    Sleeper, has_offload, set_offloads,
};
use castnet_wire::{DropReason, Nanos};
use castnet_wrap_up::skip;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::gettid;

/// The time after which a test without a frame fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs `test` in a thread with its own network namespace without IPv6 traffic. Returns false if that is not permitted.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) -> bool {
    let thread = thread::spawn(move || {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            return false;
        }
        // These files apply to the thread's namespace. They do not exist if there is no IPv6.
        for which in ["all", "default"] {
            let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
        }
        test();
        true
    });
    match thread.join() {
        Ok(ran) => {
            if !ran {
                skip("AF_PACKET", "needs root (CAP_NET_ADMIN) for network namespaces");
            }
            ran
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("iproute2 is installed");
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

pub(crate) fn veth(a: &str, b: &str, mtu: usize) {
    ip(&format!("link add {a} type veth peer name {b}"));
    for end in [a, b] {
        ip(&format!("link set {end} mtu {mtu} up"));
    }
}

pub(crate) fn pool() -> Pool {
    Pool::new(PoolConfig {
        buffers: 1024,
        bodies: 512,
        frame_max: 9216,
    })
}

pub(crate) fn open(interface: &str, pool: &Pool) -> AfPacketPort {
    AfPacketSpec::new(interface).open(pool, Sides::Both).unwrap()
}

/// A frame with an unused EtherType. `n` makes it unique.
pub(crate) fn frame(n: u32, length: usize, vlan: Option<u16>) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length)
        .map(|i| (i as u32).wrapping_mul(n + 7) as u8)
        .collect();
    bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0xBB]);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xAA]);
    let mut at = 12;
    if let Some(tag) = vlan {
        bytes[12..14].copy_from_slice(&[0x81, 0]);
        bytes[14..16].copy_from_slice(&tag.to_be_bytes());
        at = 16;
    }
    bytes[at..at + 2].copy_from_slice(&[0x88, 0xB5]);
    bytes[at + 2..at + 6].copy_from_slice(&n.to_be_bytes());
    bytes
}

pub(crate) fn send(port: &mut impl Port<Buf = PoolBuf>, pool: &Pool, frames: &[Vec<u8>]) {
    for frames in frames.chunks(32) {
        let mut batch = Batch::new();
        batch.extend(frames.iter().map(|f| pool.copy_from(f).unwrap()));
        port.send(&mut batch);
    }
}

/// Receives `count` frames and sleeps in between.
pub(crate) fn receive(
    port: &mut impl Port<Buf = PoolBuf>,
    sleeper: &mut Sleeper,
    count: usize,
) -> Vec<Vec<u8>> {
    let (start, mut frames, mut batch) = (Instant::now(), Vec::new(), Batch::new());
    while frames.len() < count {
        assert!(
            start.elapsed() < TIMEOUT,
            "{} of {count} frames after {TIMEOUT:?}: {:?}",
            frames.len(),
            port.stats()
        );
        sleeper.sleep(Duration::from_millis(100), || port.ready());
        port.receive(&mut batch);
        frames.extend(batch.drain(..).map(|f| f.to_vec()));
    }
    frames
}

pub(crate) fn sleeper_for(port: &mut AfPacketPort) -> Sleeper {
    let mut sleeper = Sleeper::new().unwrap();
    port.attach(&mut sleeper).unwrap();
    sleeper
}

#[test]
fn frames_go_both_ways_byte_for_byte() {
    in_namespace(|| {
        veth("v0", "v1", 4200);
        let pool = pool();
        let (mut near, mut far) = (open("v0", &pool), open("v1", &pool));
        let (mut at_near, mut at_far) = (sleeper_for(&mut near), sleeper_for(&mut far));
        until_link(&near, true);
        let info = near.info();
        assert_eq!((info.name.as_str(), info.mtu), ("v0", 4200));
        assert_ne!(info.mac, far.info().mac);

        let lengths = [
            60, 64, 127, 128, 129, 131, 132, 133, 200, 1514, 4154, 4170, 4213, 4214,
        ];
        let plain = lengths.iter().zip(0..).map(|(&length, n)| frame(n, length, None));
        let tagged = [64, 1000, 4218]
            .iter()
            .zip(100..)
            .map(|(&length, n)| frame(n, length, Some(0x6007)));
        let frames: Vec<_> = plain.chain(tagged).collect();
        send(&mut near, &pool, &frames);
        assert_eq!(receive(&mut far, &mut at_far, frames.len()), frames);
        send(&mut far, &pool, &frames);
        assert_eq!(receive(&mut near, &mut at_near, frames.len()), frames);

        // Above the MTU, the kernel allows an 802.1Q tag and no other tag.
        let mut service = frame(4, 4218, Some(7));
        service[12..14].copy_from_slice(&[0x88, 0xA8]);
        send(
            &mut near,
            &pool,
            &[
                frame(1, 4215, None),
                frame(2, 4219, Some(7)),
                service,
                vec![0; 13],
                frame(3, 60, None),
            ],
        );
        assert_eq!(
            receive(&mut far, &mut at_far, 1),
            [frame(3, 60, None)],
            "what does not fit is left out"
        );
        assert_eq!(near.stats().drops[DropReason::TooLong], 3);
        assert_eq!(near.stats().drops[DropReason::Malformed], 1);
        assert_eq!(near.stats().tx_frames, frames.len() as u64 + 1);
        assert!(!near.ready(), "a port does not see what it sends");
    });
}

#[test]
fn a_windowed_burst_loses_no_frame() {
    const COUNT: usize = 10_000;
    const WINDOW: usize = 128;
    in_namespace(|| {
        veth("v0", "v1", 4200);
        let pool = pool();
        let mut ports = [open("v0", &pool), open("v1", &pool)];
        let (mut sent, mut received) = ([0; 2], [0; 2]);
        let (start, mut batch) = (Instant::now(), Batch::new());
        while received != [COUNT; 2] {
            assert!(
                start.elapsed() < TIMEOUT,
                "{received:?} of {sent:?}: {:?}",
                ports.each_ref().map(Port::stats)
            );
            for from in 0..2 {
                let more = (WINDOW - (sent[from] - received[1 - from]))
                    .min(COUNT - sent[from])
                    .min(32);
                let frames: Vec<_> = (0..more)
                    .map(|i| sent[from] + i)
                    .map(|n| frame(n as u32, 60 + n % 4100, None))
                    .collect();
                send(&mut ports[from], &pool, &frames);
                sent[from] += more;
                ports[from].receive(&mut batch);
                for got in batch.drain(..) {
                    let n = received[from];
                    assert_eq!(got.to_vec(), frame(n as u32, 60 + n % 4100, None));
                    received[from] += 1;
                }
            }
        }
        for port in ports {
            let stats = port.stats();
            assert_eq!((stats.tx_frames, stats.rx_frames), (COUNT as u64, COUNT as u64));
            assert_eq!((stats.drops.total(), stats.rx_missed), (0, 0));
        }
    });
}

#[test]
fn a_frame_wakes_the_sleeper() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        let pool = pool();
        let mut near = open("v0", &pool);
        let mut sleeper = sleeper_for(&mut near);
        let namespace = fs::File::open("/proc/thread-self/ns/net").unwrap();
        let (ready, wait) = mpsc::channel();
        let sender = thread::spawn(move || {
            nix::sched::setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            let pool = self::pool();
            let mut far = open("v1", &pool);
            wait.recv().unwrap();
            send(&mut far, &pool, &[frame(1, 60, None)]);
        });
        let start = Instant::now();
        sleeper.sleep(TIMEOUT * 2, || {
            // The frame arrives shortly before or during the sleep.
            ready.send(()).unwrap();
            false
        });
        assert!(near.ready() && start.elapsed() < TIMEOUT);
        sender.join().unwrap();
    });
}

/// At any read position, the reported occupancy is the number of frames sent and not received.
#[test]
fn a_port_reports_ring_occupancy_and_driver() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        let pool = pool();
        let mut near = open("v0", &pool);
        let mut spec = AfPacketSpec::new("v1");
        spec.rx_frames = Some(64);
        let mut far = spec.open(&pool, Sides::Both).unwrap();
        let size = far.receive_ring().unwrap().size;
        assert!(size >= 64);
        let mut waiting = 0;
        for (round, count) in [1, 0, 31, 32, 7, 0, 0, 64, 3, 0, 40, 17]
            .into_iter()
            .cycle()
            .take(60)
            .enumerate()
        {
            let frames: Vec<_> = (0..count.min(size - waiting))
                .map(|n| frame(n as u32, 60, None))
                .collect();
            send(&mut near, &pool, &frames);
            waiting += frames.len();
            let start = Instant::now();
            while far.receive_ring().unwrap().used != waiting {
                assert!(
                    start.elapsed() < TIMEOUT,
                    "round {round}: expected {waiting}, reported {:?}",
                    far.receive_ring()
                );
                thread::yield_now();
            }
            let mut batch = Batch::new();
            far.receive(&mut batch);
            waiting -= batch.len();
            batch.clear();
        }
        let device = far.info().device;
        // The kernel reports 10 Gb/s for any veth pair.
        assert_eq!(
            (device.driver.as_str(), device.speed_mbps),
            ("veth", Some(10_000))
        );
        assert_eq!(
            (device.rx_queues, device.tx_queues, device.numa_node),
            (1, None, None)
        );
        ip("link delete v0");
        assert_eq!(far.speed_mbps(), None);
    });
}

/// Waits until the link of the port has this state. The kernel updates carriers asynchronously.
fn until_link(port: &AfPacketPort, up: bool) {
    let start = Instant::now();
    while port.info().up != up {
        assert!(
            start.elapsed() < TIMEOUT,
            "the link of {} does not go {up}",
            port.info().name
        );
        thread::yield_now();
    }
}

#[test]
fn a_link_that_goes_down_and_up_is_detected() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        let pool = pool();
        let (mut near, mut far) = (open("v0", &pool), open("v1", &pool));
        let mut at_far = sleeper_for(&mut far);
        ip("link set v1 down");
        until_link(&near, false);
        assert!(!far.info().up);
        ip("link set v0 down");
        send(&mut near, &pool, &[frame(1, 60, None)]);
        send(&mut near, &pool, &[frame(2, 60, None)]);
        assert_eq!(near.stats().drops[DropReason::PortDown], 2);
        ip("link set v1 up");
        ip("link set v0 up");
        until_link(&near, true);
        send(&mut near, &pool, &[frame(3, 60, None)]);
        assert_eq!(receive(&mut far, &mut at_far, 1), [frame(3, 60, None)]);
        until_link(&near, true);
    });
}

/// Frames that the interface drops are never counted as sent, from the first frame on.
#[test]
fn a_changed_mtu_is_applied_and_every_loss_is_counted() {
    in_namespace(|| {
        veth("v0", "v1", 4200);
        let pool = pool();
        let (mut near, mut far) = (open("v0", &pool), open("v1", &pool));
        let mut at_far = sleeper_for(&mut far);
        let sent = |near: &AfPacketPort| {
            let stats = near.stats();
            (stats.tx_frames, stats.tx_bytes, stats.drops[DropReason::TooLong])
        };
        send(&mut near, &pool, &[frame(0, 4214, None)]);
        assert_eq!(receive(&mut far, &mut at_far, 1).len(), 1);

        ip("link set v0 mtu 1500");
        let long = frame(1, 1515, None);
        let short = [(2, 60, None), (3, 1514, None), (4, 1518, Some(7))];
        let short = short.map(|(n, length, vlan)| frame(n, length, vlan));
        // The kernel detects an oversized frame in the first batch, and the port in the second.
        for batch in 1..=2 {
            send(
                &mut near,
                &pool,
                &[std::slice::from_ref(&long), &short[..]].concat(),
            );
            assert_eq!(receive(&mut far, &mut at_far, 3), short);
            let bytes = 4214 + batch * (60 + 1514 + 1518);
            assert_eq!(sent(&near), (1 + 3 * batch, bytes, batch));
            assert_eq!((near.mtu(), near.info().mtu), (1500, 1500));
        }

        // The MTU is raised beyond the MTU at opening.
        ip("link set v0 mtu 9000");
        near.poll(Nanos::from_secs(1));
        assert_eq!(near.mtu(), 4200);
        let frames = [frame(5, 4214, None), frame(6, 4215, None), frame(7, 60, None)];
        send(&mut near, &pool, &frames);
        assert_eq!(
            receive(&mut far, &mut at_far, 2),
            [frames[0].clone(), frames[2].clone()]
        );
        assert_eq!((sent(&near).0, sent(&near).2), (9, 3));

        // The same with frames that are built in place.
        ip("link set v0 mtu 1000");
        let mut left = vec![frame(8, 60, None), frame(9, 1015, None)];
        let given = near.send_in_place(2000, &mut |slot| {
            let bytes = left.pop()?;
            slot[..bytes.len()].copy_from_slice(&bytes);
            Some(bytes.len())
        });
        assert_eq!(given, Some((2, false)));
        assert_eq!(receive(&mut far, &mut at_far, 1), [frame(8, 60, None)]);
        assert_eq!((sent(&near).0, sent(&near).2), (10, 4));
    });
}

#[test]
fn open_errors_name_the_reason() {
    in_namespace(|| {
        let pool = pool();
        let open = |text: &str| {
            text.parse::<PortSpec>()
                .unwrap()
                .open(&pool, Sides::Both)
                .err()
                .unwrap()
        };
        assert!(matches!(open("af_packet:nothere"), OpenError::NoSuchInterface(name) if name == "nothere"));
        ip("tuntap add tun0 mode tun");
        let error = open("af_packet:tun0").to_string();
        assert!(error.contains("not an Ethernet interface"), "{error}");
    });
}

/// Two switches that were started on one interface forwarded each frame twice, without a word.
#[test]
fn an_interface_has_one_switch_and_any_number_of_hosts() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        let pool = pool();
        let switch = open("v0", &pool);
        let error = AfPacketSpec::new("v0").open(&pool, Sides::Both).unwrap_err();
        assert!(matches!(error, OpenError::HasSwitch { .. }), "{error}");
        // Also under another name.
        ip("link property add dev v0 altname uplink");
        assert!(AfPacketSpec::new("uplink").open(&pool, Sides::Both).is_err());
        let sender = AfPacketSpec::new("v0").open(&pool, Sides::Send).unwrap();
        let host = || {
            AfPacketSpec::new("v0")
                .for_rnic()
                .open(&pool, Sides::Both)
                .unwrap()
        };
        let others = [open("v1", &pool), host(), host(), sender];
        drop(switch);
        open("v0", &pool);
        drop(others);
    });
}

/// A port that fails to open, and one side that only sends, leave it as it is, too.
#[test]
fn the_receive_offload_is_off_while_a_port_receives_and_then_as_it_was() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        let (pool, set) = (pool(), |on| set_offloads("v0", &[Offload::Receive], on));
        let is_on = || has_offload("v0", Offload::Receive).unwrap();
        for before in [true, false] {
            set(before).unwrap();
            let sender = AfPacketSpec::new("v0").open(&pool, Sides::Send).unwrap();
            assert_eq!(is_on(), before);
            let port = open("v0", &pool);
            assert!(!is_on());
            drop(port);
            assert_eq!(is_on(), before);
            drop(sender);
            let keeps = AfPacketSpec {
                keep_offloads: true,
                ..AfPacketSpec::new("v0")
            };
            let port = keeps.open(&pool, Sides::Both).unwrap();
            assert_eq!(is_on(), before);
            drop(port);
            // The kernel counts no ring of so many.
            let large = AfPacketSpec {
                rx_frames: Some(1 << 32),
                ..AfPacketSpec::new("v0")
            };
            assert!(large.open(&pool, Sides::Both).is_err());
            assert_eq!(is_on(), before);
        }
    });
}

/// Runs a host in its own namespace at the other end of `interface`'s link.
fn host<T: Send + 'static>(
    interface: &'static str,
    address: &'static str,
    offload: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let (tell, told) = mpsc::channel();
    let (moved, wait) = mpsc::channel();
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        tell.send(gettid()).unwrap();
        wait.recv().unwrap();
        ip(&format!("addr add {address} dev {interface}"));
        ip(&format!("link set {interface} up"));
        // With offload, frames exceed any wire. Checksums are left to the device, which does not exist here.
        let segmentation = [Offload::TcpSegmentation, Offload::Segmentation];
        set_offloads(interface, &segmentation, offload).unwrap();
        work()
    });
    ip(&format!("link set {interface} netns {}", told.recv().unwrap()));
    moved.send(()).unwrap();
    thread
}

/// Tells when it has opened two interfaces, and forwards all frames between them until `stop` is set.
fn forward(interfaces: [&str; 2], opened: &mpsc::Sender<()>, stop: &AtomicBool) {
    let pool = pool();
    let mut ports = interfaces.map(|i| open(i, &pool));
    opened.send(()).unwrap();
    let mut sleeper = Sleeper::new().unwrap();
    for port in &mut ports {
        port.attach(&mut sleeper).unwrap();
    }
    let mut batch = Batch::new();
    while !stop.load(Ordering::Relaxed) {
        for from in 0..2 {
            ports[from].receive(&mut batch);
            ports[1 - from].send(&mut batch);
        }
        sleeper.sleep(Duration::from_millis(1), || ports.iter().any(Port::ready));
    }
    // The hosts come up and go at their own times, and the kernel may not get to send what TCP repeats then.
    for port in ports {
        let drops = port.stats().drops;
        let of_time = drops[DropReason::PortDown] + drops[DropReason::TxFull];
        assert_eq!(drops.total(), of_time, "{drops:?}");
    }
}

#[test]
fn udp_and_tcp_of_the_kernel_pass_with_good_checksums() {
    for offload in [false, true] {
        in_namespace(move || udp_and_tcp_pass(offload));
    }
}

fn udp_and_tcp_pass(offload: bool) {
    const BYTES: usize = 2 << 20;
    for (near, far) in [("sa", "ha"), ("sb", "hb")] {
        ip(&format!("link add {near} type veth peer name {far}"));
        ip(&format!("link set {near} up"));
    }
    // First: a datagram that comes before is lost.
    let stop = Arc::new(AtomicBool::new(false));
    let namespace = fs::File::open("/proc/thread-self/ns/net").unwrap();
    let (opened, is_open) = mpsc::channel();
    let switch = thread::spawn({
        let stop = stop.clone();
        move || {
            nix::sched::setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            forward(["sa", "sb"], &opened, &stop);
        }
    });
    is_open.recv().unwrap();
    let (bound, server_is_up) = mpsc::channel();
    let server = host("hb", "10.9.0.2/24", offload, move || {
        let udp = UdpSocket::bind("10.9.0.2:0").unwrap();
        let tcp = TcpListener::bind("10.9.0.2:0").unwrap();
        bound
            .send((udp.local_addr().unwrap(), tcp.local_addr().unwrap()))
            .unwrap();
        udp.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut buffer = [0; 2000];
        for _ in 0..20 + 7 {
            let (length, from) = udp.recv_from(&mut buffer).unwrap();
            udp.send_to(&buffer[..length], from).unwrap();
        }
        let (mut stream, _) = tcp.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let client = host("ha", "10.9.0.1/24", offload, move || {
        let (udp_to, tcp_to) = server_is_up.recv().unwrap();
        let udp = UdpSocket::bind("10.9.0.1:0").unwrap();
        udp.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut buffer = [0; 2000];
        for i in 0..20 {
            let message = vec![i; 1 + 70 * usize::from(i)];
            udp.send_to(&message, udp_to).unwrap();
            let (length, _) = udp.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..length], message);
        }
        // One call, which the kernel passes on as one super-frame with offload.
        setsockopt(&udp, sockopt::UdpGsoSegment, &300).unwrap();
        let messages: Vec<u8> = (0..2000_u32).map(|i| ((i * i) >> 5) as u8).collect();
        udp.send_to(&messages, udp_to).unwrap();
        for message in messages.chunks(300) {
            let (length, _) = udp.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..length], *message);
        }
        let mut stream = TcpStream::connect_timeout(&tcp_to, TIMEOUT).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(&pattern()).unwrap();
    });
    client.join().unwrap();
    assert!(server.join().unwrap() == pattern(), "the stream arrived changed");
    stop.store(true, Ordering::Relaxed);
    switch.join().unwrap();

    fn pattern() -> Vec<u8> {
        (0..BYTES).map(|i| ((i * i) >> 7) as u8).collect()
    }
}

#[test]
fn the_kernels_stack_sees_no_roce_while_a_port_is_open() {
    in_namespace(|| {
        veth("v0", "v1", 1500);
        ip("addr add 10.9.0.2/24 dev v1");
        let pool = pool();
        let mut near = open("v0", &pool);
        let dst = AfPacketSpec::new("v1")
            .open(&pool, Sides::Send)
            .unwrap()
            .info()
            .mac;
        let sockets = [4790, 4791].map(|port| UdpSocket::bind(("10.9.0.2", port)).unwrap());
        let mut arrives = |spec: &AfPacketSpec| {
            let mut far = spec.open(&pool, Sides::Both).unwrap();
            let mut at_far = sleeper_for(&mut far);
            send(&mut near, &pool, &[4791, 4790].map(|port| datagram(dst.0, port)));
            assert_eq!(receive(&mut far, &mut at_far, 2).len(), 2, "the port has both");
            let mut bytes = [0; 64];
            sockets[0].set_read_timeout(Some(TIMEOUT)).unwrap();
            sockets[0].recv(&mut bytes).expect("what is not RoCE goes on");
            // This frame arrived first, so the kernel has already processed it.
            sockets[1].set_nonblocking(true).unwrap();
            (far.hides_roce(), sockets[1].recv(&mut bytes).is_ok())
        };
        let plain = AfPacketSpec::new("v1");
        let shared: PortSpec = "af_packet:v1,roce=share".parse().unwrap();
        let PortSpec::AfPacket(shared) = shared else {
            panic!("{shared:?}")
        };
        let (hides, seen) = arrives(&plain);
        if !hides {
            skip("RoCE hidden from the stack", "needs Linux 6.6 (TCX)");
        }
        assert_eq!(seen, !hides);
        assert_eq!(arrives(&shared), (false, true));
    });
}

/// A UDP datagram from 10.9.0.1 to 10.9.0.2.
fn datagram(dst: [u8; 6], port: u16) -> Vec<u8> {
    let mut frame = vec![0; 14 + 28 + 16];
    frame[..6].copy_from_slice(&dst);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xAA]);
    frame[12..14].copy_from_slice(&[0x08, 0]);
    let ip = [
        0x45, 0, 0, 44, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2,
    ];
    let sum: u32 = ip.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
    frame[14..34].copy_from_slice(&ip);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..36].copy_from_slice(&50_000_u16.to_be_bytes());
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame[38..40].copy_from_slice(&24_u16.to_be_bytes());
    frame
}
