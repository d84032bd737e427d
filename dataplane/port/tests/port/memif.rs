//! memif: both roles, rings, restarts, threads and sleeping.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use castnet_port::{Batch, BoxPort, Pool, PoolBuf, PoolConfig, Port, PortSpec, Sides, Sleeper};
use castnet_wire::{DropReason, Nanos};
use proptest::prelude::*;

/// No test waits longer for something that must happen.
const PATIENCE: Duration = Duration::from_secs(120);

fn pool() -> Pool {
    Pool::new(PoolConfig::default())
}

fn spec(folder: &Path, options: &str) -> PortSpec {
    format!("memif:{}{options}", folder.join("s").display())
        .parse()
        .unwrap()
}

fn open(folder: &Path, options: &str, pool: &Pool) -> BoxPort {
    spec(folder, options).open(pool, Sides::Both).unwrap()
}

/// Virtual time: each call is 20 ms later, so that checks of the socket are due.
struct Clock(Nanos);

impl Clock {
    fn tick(&mut self, ports: &mut [&mut BoxPort]) {
        self.0 += Nanos::from_millis(20);
        for port in ports {
            port.poll(self.0);
        }
    }
}

fn until(ports: &mut [&mut BoxPort], clock: &mut Clock, what: &str, done: impl Fn(&[&mut BoxPort]) -> bool) {
    let start = Instant::now();
    while !done(ports) {
        assert!(start.elapsed() < PATIENCE, "{what}");
        clock.tick(ports);
    }
}

fn connect(a: &mut BoxPort, b: &mut BoxPort) {
    until(
        &mut [a, b],
        &mut Clock(Nanos::ZERO),
        "the link comes up",
        |ports| ports.iter().all(|p| p.is_up()),
    );
}

fn pair(folder: &Path, server: &str, client: &str, pool: &Pool) -> (BoxPort, BoxPort) {
    let mut server = open(folder, server, pool);
    let mut client = open(folder, &format!(",role=client{client}"), pool);
    connect(&mut server, &mut client);
    (server, client)
}

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + seed * 7) as u8).collect()
}

fn send(port: &mut BoxPort, pool: &Pool, frames: &[Vec<u8>]) {
    let mut batch = Batch::new();
    for frame in frames {
        batch.push(pool.copy_from(frame).unwrap());
        if batch.is_full() {
            port.send(&mut batch);
        }
    }
    port.send(&mut batch);
}

fn drain(port: &mut BoxPort) -> Vec<Vec<u8>> {
    let (mut frames, mut batch) = (Vec::new(), Batch::new());
    loop {
        port.receive(&mut batch);
        if batch.is_empty() {
            return frames;
        }
        frames.extend(batch.drain(..).map(|f: PoolBuf| f.to_vec()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Rings wrap around many times, at each size of rings and buffers, in both directions, and heads pass 2^16.
    #[test]
    fn frames_arrive_whole_and_in_order_over_any_ring(
        log2 in 1u32..7, buffer in 64usize..2000, bursts in prop::collection::vec((1usize..40, 14usize..4214), 1..20),
        laps in prop::bool::weighted(0.2),
    ) {
        let (folder, pool) = (tempfile::tempdir().unwrap(), pool());
        let (mut server, mut client) = pair(folder.path(), "", &format!(",ring={},buffer={buffer}", 1 << log2), &pool);
        let slots = |length: usize| length.div_ceil(buffer.next_multiple_of(64));
        let repeats = if laps { 70_000 / bursts.len() } else { 1 };
        let mut seed = 0;
        for _ in 0..repeats {
            for &(count, length) in &bursts {
                // Most frames are short, so that 2^16 slots take no time.
                let length = if laps { 14 + length % 50 } else { length };
                let count = if laps { 1 } else { count };
                seed += 1;
                let frames: Vec<_> = (0..count).map(|i| bytes(length, seed + i)).collect();
                let fit = count.min((1 << log2) / slots(length));
                for turn in 0..2 {
                    let (from, to) = if turn == 0 { (&mut server, &mut client) } else { (&mut client, &mut server) };
                    let before = from.stats().drops;
                    send(from, &pool, &frames);
                    prop_assert_eq!(&drain(to)[..], &frames[..fit]);
                    prop_assert_eq!(from.stats().drops.total() - before.total(), (count - fit) as u64);
                    let full = from.stats().drops[DropReason::TxFull] - before[DropReason::TxFull];
                    prop_assert!(full == (count - fit) as u64 || slots(length) > 64, "{:?}", from.stats());
                }
            }
        }
    }
}

#[test]
fn a_frame_that_cannot_be_sent_is_dropped_with_its_reason() {
    let (folder, pool) = (tempfile::tempdir().unwrap(), pool());
    let (mut server, mut client) = pair(folder.path(), ",mtu=1500", ",mtu=1500,ring=4", &pool);
    let tagged = |length| {
        let mut frame = bytes(length, 0);
        frame[12..14].copy_from_slice(&[0x81, 0]);
        frame
    };
    let frames = [
        bytes(13, 0),
        bytes(1514, 0),
        bytes(1515, 0),
        tagged(1518),
        tagged(1519),
    ];
    send(&mut client, &pool, &frames);
    assert_eq!(drain(&mut server), [&frames[1], &frames[3]].map(Clone::clone));
    let stats = client.stats();
    let drops = |reason| stats.drops[reason];
    assert_eq!(
        (
            drops(DropReason::Malformed),
            drops(DropReason::TooLong),
            stats.drops.total()
        ),
        (1, 2, 3)
    );
    assert_eq!((stats.tx_frames, stats.tx_bytes), (2, 1514 + 1518));
    assert_eq!(
        (server.stats().rx_frames, server.stats().rx_bytes),
        (2, 1514 + 1518)
    );
    drop(server);
    until(
        &mut [&mut client],
        &mut Clock(Nanos::ZERO),
        "the link goes down",
        |ports| !ports[0].is_up(),
    );
    send(&mut client, &pool, &frames[1..2]);
    assert_eq!(client.stats().drops[DropReason::PortDown], 1);
}

#[test]
fn ends_restart_in_any_order() {
    let (folder, pool) = (tempfile::tempdir().unwrap(), pool());
    let mut clock = Clock(Nanos::ZERO);
    let up = |ports: &[&mut BoxPort]| ports.iter().all(|p| p.is_up());
    // The client is there first.
    let mut client = open(folder.path(), ",role=client", &pool);
    clock.tick(&mut [&mut client]);
    assert!(!client.is_up() && client.poll_timeout().is_some_and(|at| at > clock.0));
    let mut server = open(folder.path(), "", &pool);
    for restart in 0..20 {
        until(&mut [&mut server, &mut client], &mut clock, "both are up", up);
        let frames: Vec<_> = (0..100).map(|i| bytes(200, i + restart)).collect();
        send(&mut client, &pool, &frames);
        send(&mut server, &pool, &frames[..50]);
        assert_eq!(drain(&mut server), frames);
        // Frames that were not taken are lost with the link.
        send(&mut client, &pool, &frames);
        if restart % 2 == 0 {
            drop(client);
            client = open(folder.path(), ",role=client", &pool);
        } else {
            drop(server);
            server = open(folder.path(), "", &pool);
        }
        until(
            &mut [&mut server, &mut client],
            &mut clock,
            "the other end sees it",
            |ports| !ports[restart % 2].is_up() || up(ports),
        );
        until(
            &mut [&mut server, &mut client],
            &mut clock,
            "both are up again",
            up,
        );
        assert_eq!(
            (drain(&mut server), drain(&mut client)),
            (vec![], vec![]),
            "{restart}"
        );
    }
}

#[test]
fn ports_share_a_socket_by_their_ids_and_secrets_are_checked() {
    let (folder, pool) = (tempfile::tempdir().unwrap(), pool());
    let mut clock = Clock(Nanos::ZERO);
    let mut servers: Vec<_> = (0..5)
        .map(|i| open(folder.path(), &format!(",id={i},secret=s{i}"), &pool))
        .collect();
    let twice = spec(folder.path(), ",id=3")
        .open(&pool, Sides::Both)
        .err()
        .unwrap();
    assert!(twice.to_string().contains("the id 3"), "{twice}");
    let mode = spec(folder.path(), ",id=9,mode=0666")
        .open(&pool, Sides::Both)
        .err()
        .unwrap();
    assert!(mode.to_string().contains("another mode"), "{mode}");
    let mut clients: Vec<_> = (0..5)
        .map(|i| open(folder.path(), &format!(",role=client,id={i},secret=s{i}"), &pool))
        .collect();
    let strangers = [",id=7,secret=s1", ",id=1", ",id=1,secret=s2"];
    let mut strangers =
        strangers.map(|options| open(folder.path(), &format!(",role=client{options}"), &pool));
    // A second client of an interface is refused while the first is there.
    let mut all: Vec<&mut BoxPort> = servers
        .iter_mut()
        .chain(&mut clients)
        .chain(&mut strangers)
        .collect();
    until(&mut all, &mut clock, "all are up", |ports| {
        ports[..10].iter().all(|p| p.is_up())
    });
    for _ in 0..200 {
        clock.tick(&mut all);
        assert!(all[10..].iter().all(|p| !p.is_up()));
    }
    for (i, client) in clients.iter_mut().enumerate() {
        send(client, &pool, &[bytes(60, i)]);
    }
    for (i, server) in servers.iter_mut().enumerate() {
        assert_eq!(drain(server), [bytes(60, i)]);
    }
    let mut second = open(folder.path(), ",role=client,id=2,secret=s2", &pool);
    for _ in 0..200 {
        clock.tick(&mut [&mut second, &mut servers[2]]);
    }
    assert!(!second.is_up() && servers[2].is_up());
    // It is served when the first has gone.
    clients.remove(2);
    until(
        &mut [&mut second, &mut servers[2]],
        &mut clock,
        "the second is up",
        |ports| ports.iter().all(|p| p.is_up()),
    );
}

#[test]
fn the_socket_has_its_mode_and_the_place_of_a_dead_one_but_not_of_another() {
    let (folder, pool) = (tempfile::tempdir().unwrap(), pool());
    let path = folder.path().join("s");
    // What a killed process leaves.
    let dead = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Unix,
        nix::sys::socket::SockType::SeqPacket,
        nix::sys::socket::SockFlag::empty(),
        None,
    )
    .unwrap();
    let address = nix::sys::socket::UnixAddr::new(&path).unwrap();
    nix::sys::socket::bind(std::os::fd::AsRawFd::as_raw_fd(&dead), &address).unwrap();
    drop(dead);
    let server = open(folder.path(), ",mode=0660", &pool);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o660);
    drop(server);
    assert!(!path.exists());

    std::fs::write(&path, "a file").unwrap();
    let refused = spec(folder.path(), "").open(&pool, Sides::Both).err().unwrap();
    assert!(refused.to_string().contains("is not a socket"), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
    let nowhere: PortSpec = "memif:/no/such/folder/s".parse().unwrap();
    let refused = nowhere.open(&pool, Sides::Both).err().unwrap();
    assert!(refused.to_string().contains("folder"), "{refused}");
}

#[test]
fn abstract_sockets_need_no_file() {
    let name = format!("castnet-memif-test-{}", std::process::id());
    let (pool, spec) = (pool(), |options: &str| {
        format!("memif:@{name}{options}").parse::<PortSpec>().unwrap()
    });
    let mut server = spec("").open(&pool, Sides::Both).unwrap();
    let mut client = spec(",role=client").open(&pool, Sides::Both).unwrap();
    connect(&mut server, &mut client);
}

#[test]
fn frames_can_be_made_in_place_and_read_once() {
    let (folder, pool) = (tempfile::tempdir().unwrap(), pool());
    let (mut server, mut client) = pair(folder.path(), "", ",ring=8,buffer=1024", &pool);
    for (from, to) in [(0, 1), (1, 0)] {
        let ends = [&mut server, &mut client];
        let (mut made, mut read) = (0, Vec::new());
        let frame = |i: usize| bytes(14 + i * 997 % 4200, i);
        while read.len() < 200 {
            let (count, more) = ends[from]
                .send_in_place(4214, &mut |out| {
                    let frame = (made < 200).then(|| frame(made))?;
                    out[..frame.len()].copy_from_slice(&frame);
                    made += 1;
                    Some(frame.len())
                })
                .unwrap();
            // A full ring is no loss: the rest follows.
            assert!(more == (made < 200) && count <= 32);
            let mut scratch = vec![0; 4214];
            while ends[to].receive_with(&mut scratch, &mut |f| read.push(f.to_vec())) > 0 {}
        }
        assert!(read.iter().enumerate().all(|(i, f)| *f == frame(i)));
        assert_eq!(ends[from].stats().drops.total(), 0);
    }
}

/// A thread per end, each of which sleeps when it has nothing to do.
#[test]
fn ends_that_sleep_are_woken() {
    let folder = tempfile::tempdir().unwrap();
    let (mut frames, done) = (0_u64, &AtomicBool::new(false));
    let echo = spec(folder.path(), "");
    let client = spec(folder.path(), ",role=client,ring=16");
    thread::scope(|scope| {
        scope.spawn(move || {
            run(&echo, |port, pool, batch| {
                port.send(batch);
                let _ = pool;
                !done.load(Ordering::Relaxed)
            })
        });
        let mut sent = 0_u64;
        run(&client, |port, pool, batch| {
            for frame in batch.drain(..) {
                assert_eq!(frame.to_vec()[..8], frames.to_be_bytes(), "in order, none lost");
                frames += 1;
            }
            // A burst, then silence until the whole burst is back.
            if frames == sent && port.is_up() {
                let burst = 1 + sent % 13;
                for _ in 0..burst {
                    let mut frame = bytes(60, 0);
                    frame[..8].copy_from_slice(&sent.to_be_bytes());
                    batch.push(pool.copy_from(&frame).unwrap());
                    sent += 1;
                }
                port.send(batch);
            }
            // Before the link ends, which wakes the other end.
            done.store(frames >= 20_000, Ordering::Relaxed);
            frames < 20_000
        });
    });
    assert!(frames >= 20_000);
}

fn run(spec: &PortSpec, mut work: impl FnMut(&mut BoxPort, &Pool, &mut Batch<PoolBuf>) -> bool) {
    let (pool, start) = (pool(), Instant::now());
    let mut port = spec.open(&pool, Sides::Both).unwrap();
    let mut sleeper = Sleeper::new().unwrap();
    port.attach(&mut sleeper).unwrap();
    let mut batch = Batch::new();
    let now = || Nanos(start.elapsed().as_nanos() as u64);
    loop {
        port.poll(now());
        port.receive(&mut batch);
        if !work(&mut port, &pool, &mut batch) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{:?}", port.stats());
        // A lost wake-up shows as a sleep that takes all patience. An end that stops wakes the other.
        let due = port.poll_timeout().unwrap_or(Nanos::MAX).since(now());
        sleeper.sleep(Duration::from_nanos(due.0).min(2 * PATIENCE), || port.ready());
    }
}

#[test]
fn threads_that_only_send_reach_the_peer() {
    const EACH: u64 = 5000;
    let folder = tempfile::tempdir().unwrap();
    let (server, client) = (spec(folder.path(), ""), spec(folder.path(), ",role=client"));
    let up = &AtomicBool::new(false);
    let (received, sent) = thread::scope(|scope| {
        let senders: Vec<_> = (0..3_u8)
            .map(|n| {
                let server = &server;
                scope.spawn(move || {
                    let pool = pool();
                    let mut port = server.open(&pool, Sides::Send).unwrap();
                    let (mut batch, mut accepted, start) = (Batch::new(), 0_u64, Instant::now());
                    while !up.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                        thread::yield_now();
                    }
                    while accepted < EACH && start.elapsed() < PATIENCE {
                        let mut frame = bytes(60, 0);
                        frame[0] = n;
                        frame[1..9].copy_from_slice(&accepted.to_be_bytes());
                        batch.push(pool.copy_from(&frame).unwrap());
                        let before = port.stats().drops.total();
                        port.send(&mut batch);
                        // The ring of this process was full.
                        accepted += u64::from(port.stats().drops.total() == before);
                        thread::yield_now();
                    }
                    assert_eq!(port.stats().tx_frames, 0);
                })
            })
            .collect();
        let owner = scope.spawn(|| {
            let mut sent = 0;
            run(&server, |port, _, _| {
                up.store(port.is_up(), Ordering::Relaxed);
                sent = port.stats().tx_frames + port.stats().drops.total();
                sent < 3 * EACH
            });
            sent
        });
        let mut received = [0_u64; 3];
        let mut lost = 0;
        let mut count = 0;
        run(&client, |_, _, batch| {
            for frame in batch.drain(..) {
                let frame = frame.to_vec();
                let number = u64::from_be_bytes(frame[1..9].try_into().unwrap());
                let expected = &mut received[usize::from(frame[0])];
                // What the ring to the peer had no slot for is lost, and nothing is out of order.
                assert!(number >= *expected);
                lost += number - *expected;
                *expected = number + 1;
                count += 1;
            }
            !owner.is_finished()
        });
        senders.into_iter().for_each(|s| s.join().unwrap());
        (count + lost, owner.join().unwrap())
    });
    assert!(
        sent == 3 * EACH && received <= sent && received > 0,
        "{received} of {sent}"
    );
}
