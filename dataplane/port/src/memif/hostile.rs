//! Peers that break the protocol on purpose, in the hand-shake and in the rings: seeded, and against both roles.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use castnet_wire::{Batch, Nanos};
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::doorbell::Event;
use super::proto::{
    AddRing, COOKIE, ETHERNET, Hello, Init, LOG2_RING_MAX, MESSAGE, Message, Secret, VERSION,
};
use super::ring::{Descriptor, Ring};
use super::socket::{Address, Connection, Incoming, Listening};
use crate::pool::{Pool, PoolConfig};
use crate::port::{BoxPort, Sides};
use crate::retired::{Late, Retired, tests::keep_busy};
use crate::shared::Region;
use crate::spec::PortSpec;

const PATIENCE: Duration = Duration::from_secs(60);
const LOG2: u8 = 4;

/// Its time is real: it gives a peer some seconds to answer, and answers wait for other threads.
struct Victim {
    port: BoxPort,
    pool: Pool,
    begin: Instant,
    skipped: Nanos,
}

impl Victim {
    fn open(folder: &Path, options: &str) -> Self {
        let pool = Pool::new(PoolConfig::default());
        let spec: PortSpec = format!("memif:{}{options}", folder.join("s").display())
            .parse()
            .unwrap();
        Self {
            port: spec.open(&pool, Sides::Both).unwrap(),
            pool,
            begin: Instant::now(),
            skipped: Nanos::ZERO,
        }
    }

    fn poll(&mut self) {
        let elapsed = Nanos(self.begin.elapsed().as_nanos() as u64);
        self.port.poll(elapsed + self.skipped);
    }

    /// Receives and sends frames of all lengths. What it receives is of a permitted length.
    fn work(&mut self, rng: &mut ChaCha8Rng) {
        let mut batch = Batch::new();
        self.port.receive(&mut batch);
        assert!(
            batch
                .iter()
                .all(|f| (14..=9216).contains(&castnet_wire::FrameBuf::length(f)))
        );
        batch.clear();
        let mut scratch = [0; 4218];
        self.port
            .receive_with(&mut scratch, &mut |frame| assert!(frame.len() <= 4218));
        for _ in 0..rng.random_range(0..8) {
            let length = rng.random_range(14..4214);
            batch.extend(self.pool.copy_from(&[0xA5; 4214][..length]));
        }
        self.port.send(&mut batch);
        let mut left = rng.random_range(0..4);
        self.port.send_in_place(4214, &mut |out| {
            left -= 1;
            out.fill(0x5A);
            (left >= 0).then_some(1000)
        });
        self.port.ready();
        self.poll();
    }
}

/// A client that knows the protocol, with its memory.
struct Client {
    connection: Connection,
    file: OwnedFd,
    rings: [Ring; 2],
    _events: [Event; 2],
}

fn add_ring(to_server: bool, log2_size: u8) -> AddRing {
    AddRing {
        to_server,
        index: 0,
        region: 0,
        offset: if to_server { 0 } else { 4096 },
        log2_size,
        private_header: 0,
    }
}

fn init() -> Message {
    Message::Init(Init {
        version: VERSION,
        id: 0,
        mode: ETHERNET,
        secret: Secret::default(),
        name: "castnet evil".to_owned(),
    })
}

fn open(folder: &Path) -> io::Result<Connection> {
    Connection::open(&Address::Path(folder.join("s")), &Retired::new())
}

/// Waits while the socket accepts nobody.
fn connect(folder: &Path, victim: &mut Victim) -> Connection {
    let start = Instant::now();
    loop {
        match open(folder) {
            Ok(connection) => return connection,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        victim.poll();
    }
}

/// Waits for a message while the victim works. `None`: the connection has ended.
fn expect(connection: &Connection, mut poll: impl FnMut()) -> Option<(Message, Option<Late<OwnedFd>>)> {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "no answer");
        poll();
        match connection.receive() {
            Ok(Incoming::Message(message, fd)) => return Some((message, fd)),
            Ok(Incoming::Nothing) => {}
            _ => return None,
        }
    }
}

impl Client {
    const SIZE: usize = 1 << 16;

    /// A connection whose INIT was answered. Tries again while the one before it counts, which another thread closes.
    fn admitted(folder: &Path, victim: &mut Victim) -> Connection {
        let start = Instant::now();
        loop {
            let connection = connect(folder, victim);
            connection.send(&init(), None).unwrap();
            let mut answer = || expect(&connection, || victim.poll()).map(|(message, _)| message);
            assert!(matches!(answer(), Some(Message::Hello(_))));
            match answer() {
                Some(Message::Ack) => return connection,
                Some(Message::Disconnect { reason, .. }) if reason.contains("already connected") => {}
                other => panic!("{other:?}"),
            }
            assert!(start.elapsed() < PATIENCE, "not admitted");
        }
    }

    fn connect(folder: &Path, victim: &mut Victim) -> Self {
        let (region, file) = Region::create("castnet-memif", Self::SIZE).unwrap();
        let region = Rc::new(region);
        let rings = [0, 4096].map(|offset| Ring::new(&region, offset, LOG2).unwrap());
        rings.iter().for_each(|ring| ring.set_cookie(COOKIE));
        let events = [(); 2].map(|()| Event::new().unwrap());
        let connection = Self::admitted(folder, victim);
        let mut say = |message: &Message, fd: Option<_>, answer: &str| {
            connection.send(message, fd).unwrap();
            let (got, _) = expect(&connection, || victim.poll()).unwrap();
            assert_eq!(got.kind(), answer, "{got:?}");
        };
        let size = Self::SIZE as u64;
        say(&Message::AddRegion { index: 0, size }, Some(file.as_fd()), "ACK");
        say(
            &Message::AddRing(add_ring(true, LOG2)),
            Some(events[0].as_fd()),
            "ACK",
        );
        say(
            &Message::AddRing(add_ring(false, LOG2)),
            Some(events[1].as_fd()),
            "ACK",
        );
        say(
            &Message::Connect {
                name: "evil".to_owned(),
            },
            None,
            "CONNECTED",
        );
        assert!(victim.port.is_up());
        Self {
            connection,
            file,
            rings,
            _events: events,
        }
    }
}

/// Values at the edges of what is checked.
fn odd(rng: &mut ChaCha8Rng) -> u32 {
    match rng.random_range(0..8) {
        0 => 0,
        1 => u32::MAX,
        2 => Client::SIZE as u32,
        3 => Client::SIZE as u32 - rng.random_range(0..100),
        4 => 1 << 31,
        5 => rng.random_range(0..10_000),
        6 => 64,
        _ => rng.random(),
    }
}

/// Changes the rings as no peer may. Some changes are harmless, so that the link lives for a while.
fn scribble(rng: &mut ChaCha8Rng, rings: &[Ring; 2]) {
    for _ in 0..rng.random_range(1..20) {
        let ring = &rings[rng.random_range(0..2)];
        match rng.random_range(0..24) {
            0 => ring.set_head(rng.random()),
            1 => ring.set_tail(rng.random()),
            2 => ring.set_head(ring.head().wrapping_add(1 << 15)),
            3 => ring.set_cookie(rng.random()),
            4 => ring.ask_for_events(),
            5 | 6 => ring.set_head(ring.head().wrapping_add(rng.random_range(0..17))),
            7 | 8 => ring.set_tail(ring.tail().wrapping_add(rng.random_range(0..17))),
            9 => {
                // A chain without end.
                for slot in 0..ring.size() {
                    ring.set_descriptor(
                        slot,
                        Descriptor {
                            flags: 1,
                            region: 0,
                            length: 8,
                            offset: 0,
                        },
                    );
                }
            }
            10 => ring.set_descriptor(
                rng.random(),
                Descriptor {
                    flags: rng.random(),
                    region: [0, 1, u16::MAX][rng.random_range(0..3)],
                    length: odd(rng),
                    offset: odd(rng),
                },
            ),
            _ => ring.set_descriptor(
                rng.random(),
                Descriptor {
                    flags: u16::from(rng.random_ratio(1, 8)),
                    region: 0,
                    length: rng.random_range(0..3000),
                    offset: rng.random_range(8192..60_000),
                },
            ),
        }
    }
}

#[test]
fn a_client_cannot_break_a_server_by_its_rings() {
    let folder = tempfile::tempdir().unwrap();
    let mut victim = Victim::open(folder.path(), "");
    let mut ended = 0;
    for seed in 0..150 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let client = Client::connect(folder.path(), &mut victim);
        for _ in 0..200 {
            scribble(&mut rng, &client.rings);
            victim.work(&mut rng);
            if !victim.port.is_up() {
                ended += 1;
                break;
            }
        }
        if !victim.port.is_up() {
            let (message, _) = expect(&client.connection, || victim.poll()).expect("a reason");
            assert!(
                matches!(&message, Message::Disconnect { reason, .. } if reason.contains("slot")),
                "{message:?}"
            );
        }
        drop(client);
        while victim.port.is_up() {
            victim.poll();
        }
    }
    assert!(ended > 50, "{ended}");
}

/// The checks are of copies: what changes between check and use changes no address.
#[test]
fn a_client_that_changes_memory_all_the_time_breaks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut victim = Victim::open(folder.path(), "");
    for seed in 0..8 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let client = Client::connect(folder.path(), &mut victim);
        let done = AtomicBool::new(false);
        // The other thread has a mapping of its own, as another process has.
        let file = client.file.try_clone().unwrap();
        std::thread::scope(|scope| {
            let done = &done;
            scope.spawn(move || {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                let region = Rc::new(Region::map(file, Client::SIZE as u64, true).unwrap());
                let rings = [0, 4096].map(|offset| Ring::new(&region, offset, LOG2).unwrap());
                while !done.load(Ordering::Relaxed) {
                    let ring = &rings[rng.random_range(0..2)];
                    let (slot, length, offset) = (rng.random(), odd(&mut rng), odd(&mut rng));
                    // Now valid, now not.
                    let valid = Descriptor {
                        flags: 0,
                        region: 0,
                        length: 100,
                        offset: 8192,
                    };
                    ring.set_descriptor(slot, valid);
                    ring.set_descriptor(
                        slot,
                        Descriptor {
                            length,
                            offset,
                            ..valid
                        },
                    );
                    ring.set_descriptor(slot, valid);
                    region.write(8192, &[rng.random(); 256]);
                }
            });
            for _ in 0..300 {
                client.rings[0].set_head(client.rings[0].tail().wrapping_add(8));
                client.rings[1].set_head(client.rings[1].tail().wrapping_add(16));
                victim.work(&mut rng);
                if !victim.port.is_up() {
                    break;
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        drop(client);
        while victim.port.is_up() {
            victim.poll();
        }
    }
}

/// A server that knows the protocol, and has the client's memory.
struct Server {
    connection: Connection,
    file: Late<OwnedFd>,
    rings: [Ring; 2],
}

impl Server {
    fn accept(listening: &Listening, victim: &mut Victim) -> Self {
        let start = Instant::now();
        let connection = loop {
            victim.poll();
            // It may have given up an earlier one, which another thread closes.
            if let Some(connection) = listening.accept()
                && connection.send(&hello(), None).is_ok()
                && matches!(expect(&connection, || victim.poll()), Some((Message::Init(_), _)))
            {
                break connection;
            }
            assert!(start.elapsed() < PATIENCE, "no connection");
        };
        connection.send(&Message::Ack, None).unwrap();
        let (mut file, mut rings) = (None, Vec::new());
        loop {
            let (message, fd) = expect(&connection, || victim.poll()).unwrap();
            match message {
                Message::AddRegion { size, .. } => file = fd.map(|fd| (fd, size)),
                Message::AddRing(ring) => rings.push(ring),
                Message::Connect { .. } => break,
                _ => {}
            }
            connection.send(&Message::Ack, None).unwrap();
        }
        let (file, size) = file.unwrap();
        let region = Rc::new(Region::map(file.try_clone().unwrap(), size, true).unwrap());
        let rings = [0, 1].map(|n| Ring::new(&region, rings[n].offset as usize, rings[n].log2_size).unwrap());
        connection
            .send(
                &Message::Connected {
                    name: "evil".to_owned(),
                },
                None,
            )
            .unwrap();
        let start = Instant::now();
        while !victim.port.is_up() {
            assert!(start.elapsed() < PATIENCE, "not up");
            victim.poll();
        }
        Self {
            connection,
            file,
            rings,
        }
    }
}

fn hello() -> Message {
    Message::Hello(Hello {
        name: "castnet evil".to_owned(),
        versions: (0, u16::MAX),
        region_max: 0,
        to_client_ring_max: 0,
        to_server_ring_max: 0,
        log2_ring_max: LOG2,
    })
}

#[test]
fn a_server_cannot_break_a_client_by_its_rings_or_its_memory() {
    let folder = tempfile::tempdir().unwrap();
    let listening = Listening::new(&Address::Path(folder.path().join("s")), 0o600, None).unwrap();
    let mut victim = Victim::open(folder.path(), ",role=client");
    let mut ended = 0;
    for seed in 0..150 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let server = Server::accept(&listening, &mut victim);
        assert!(
            std::fs::File::from(server.file.try_clone().unwrap())
                .set_len(0)
                .is_err(),
            "it is sealed"
        );
        for _ in 0..200 {
            scribble(&mut rng, &server.rings);
            victim.work(&mut rng);
            if !victim.port.is_up() {
                ended += 1;
                break;
            }
        }
        drop(server.connection);
        while victim.port.is_up() {
            victim.poll();
        }
    }
    assert!(ended > 50, "{ended}");
}

/// Any message, well-formed or not, at any time, with any descriptor or none.
fn any_message(rng: &mut ChaCha8Rng) -> [u8; MESSAGE] {
    let size = [0, 1, 4096, Client::SIZE as u64, 1 << 29, u64::MAX][rng.random_range(0..6)];
    let mut ring = add_ring(
        rng.random(),
        [LOG2, 0, LOG2_RING_MAX, LOG2_RING_MAX + 1, 255][rng.random_range(0..5)],
    );
    ring.offset = [0, 1, 4096, odd(rng)][rng.random_range(0..4)];
    ring.region = [0, 0, 1, u16::MAX][rng.random_range(0..4)];
    let mut bytes = match rng.random_range(0..9) {
        0 => hello(),
        1 => init(),
        2 | 3 => Message::AddRegion {
            index: rng.random_range(0..2),
            size,
        },
        4 | 5 => Message::AddRing(ring),
        6 => Message::Connect { name: String::new() },
        7 => Message::Connected { name: String::new() },
        _ => Message::Ack,
    }
    .encode();
    if rng.random_ratio(1, 5) {
        let at = rng.random_range(0..MESSAGE);
        bytes[at] = rng.random();
    }
    bytes
}

fn any_descriptor(rng: &mut ChaCha8Rng) -> Option<OwnedFd> {
    match rng.random_range(0..6) {
        0 => None,
        1 => Some(std::fs::File::open("/dev/null").unwrap().into()),
        2 | 3 => Some(Event::new().unwrap().as_fd().try_clone_to_owned().unwrap()),
        _ => Some(Region::create("castnet-memif", Client::SIZE).unwrap().1),
    }
}

#[test]
fn no_sequence_of_messages_breaks_either_role() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Victim::open(folder.path(), "");
    let listen = tempfile::tempdir().unwrap();
    let listening = Listening::new(&Address::Path(listen.path().join("s")), 0o600, None).unwrap();
    let mut client = Victim::open(listen.path(), ",role=client");
    for seed in 0..400 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let to_server = connect(folder.path(), &mut server);
        for _ in 0..20 {
            client.poll();
        }
        let to_client = listening.accept();
        // Most start as they should, to get further.
        if rng.random_ratio(3, 4) {
            let _ = to_server.send(&init(), None);
            let _ = to_client.as_ref().map(|c| c.send(&hello(), None));
        }
        for _ in 0..rng.random_range(0..12) {
            for to in [Some(&to_server), to_client.as_ref()].into_iter().flatten() {
                let (bytes, fd) = (any_message(&mut rng), any_descriptor(&mut rng));
                let length = if rng.random_ratio(1, 20) {
                    rng.random_range(0..MESSAGE)
                } else {
                    MESSAGE
                };
                let _ = to.send_bytes(&bytes[..length], fd.as_ref().map(AsFd::as_fd));
            }
            server.work(&mut rng);
            client.work(&mut rng);
        }
        drop((to_server, to_client));
        // Another thread closes the connections.
        let start = Instant::now();
        for _ in 0..3 {
            server.work(&mut rng);
            client.work(&mut rng);
        }
        while server.port.is_up() || client.port.is_up() {
            assert!(start.elapsed() < PATIENCE, "still up");
            server.work(&mut rng);
            client.work(&mut rng);
        }
    }
    // Each still serves a peer that keeps to the protocol, and no descriptor is left open.
    drop(Client::connect(folder.path(), &mut server));
    drop(Server::accept(&listening, &mut client));
    let (start, open) = (Instant::now(), || {
        std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
    });
    while open() >= 150 {
        assert!(start.elapsed() < PATIENCE, "{} descriptors", open());
        std::thread::yield_now();
    }
}

#[test]
fn memory_of_a_client_that_is_gone_is_unmapped_by_another_thread_before_the_next_client() {
    let folder = tempfile::tempdir().unwrap();
    let mut victim = Victim::open(folder.path(), "");
    let first = Client::connect(folder.path(), &mut victim);
    let busy = keep_busy();
    let reason = String::new();
    let end = Message::Disconnect { code: 0, reason };
    first.connection.send(&end, None).unwrap();
    while victim.port.is_up() {
        victim.poll();
    }
    let next = connect(folder.path(), &mut victim);
    next.send(&init(), None).unwrap();
    for _ in ["HELLO", "ACK"] {
        assert!(expect(&next, || victim.poll()).is_some());
    }
    let size = Client::SIZE as u64;
    let region = Message::AddRegion { index: 0, size };
    next.send(&region, Some(first.file.as_fd())).unwrap();
    for _ in 0..50 {
        victim.poll();
        assert!(matches!(next.receive(), Ok(Incoming::Nothing)));
    }
    drop(busy);
    assert!(matches!(expect(&next, || victim.poll()), Some((Message::Ack, _))));
}

/// The last descriptor of a large file takes long to close, in whichever message it came.
#[test]
fn a_peer_waits_until_the_descriptors_that_it_has_passed_are_closed() {
    const COUNT: usize = 100;
    let folder = tempfile::tempdir().unwrap();
    let listening = Listening::new(&Address::Path(folder.path().join("s")), 0o600, None).unwrap();
    let peer = open(folder.path()).unwrap();
    let connection = listening.accept().unwrap();
    let busy = keep_busy();
    let (_, file) = Region::create("castnet-memif", Client::SIZE).unwrap();
    for _ in 0..COUNT {
        peer.send(&Message::Ack, Some(file.as_fd())).unwrap();
    }
    let mut received = 0;
    let mut receive = || {
        while matches!(connection.receive(), Ok(Incoming::Message(_, Some(_)))) {
            received += 1;
        }
        received
    };
    assert!((1..COUNT).contains(&receive()));
    let _another = open(folder.path()).unwrap();
    assert!(listening.accept().is_none());
    drop(busy);
    let start = Instant::now();
    while receive() < COUNT {
        assert!(start.elapsed() < PATIENCE, "{} messages", receive());
        std::thread::yield_now();
    }
}

#[test]
fn silent_clients_keep_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut victim = Victim::open(folder.path(), "");
    let mut silent: Vec<_> = Vec::new();
    for _ in 0..100 {
        silent.push(connect(folder.path(), &mut victim));
        victim.poll();
    }
    drop(Client::connect(folder.path(), &mut victim));
    while victim.port.is_up() {
        victim.poll();
    }
    // A client that answers only when it is greeted, and many that come between its messages.
    let slow = connect(folder.path(), &mut victim);
    assert!(matches!(
        expect(&slow, || victim.poll()),
        Some((Message::Hello(_), _))
    ));
    slow.send(&init(), None).unwrap();
    silent.extend((0..16).map(|_| connect(folder.path(), &mut victim)));
    assert!(matches!(expect(&slow, || victim.poll()), Some((Message::Ack, _))));
    // It stops in the middle, and is put out after a time.
    victim.skipped += Nanos::from_secs(10);
    while let Some((message, _)) = expect(&slow, || victim.poll()) {
        if let Message::Disconnect { reason, .. } = message {
            assert!(reason.contains("does not answer"), "{reason}");
        }
    }
    drop(Client::connect(folder.path(), &mut victim));
}
