//! A client and a server with their RNICs on one link, in threads of their own.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use castnet_member::{Group, MemberConfig};
use castnet_port::{BoxPort, MemLink, MemLinkConfig, PortSpec};
use castnet_replicate::{
    Address, CLIENT_SILENCE, Client, Pace, Pattern, ReplicateError, ServerConfig, ServerEvent, Way, Workload,
    serve,
};
use castnet_rnic::{SoftRnic, SoftRnicConfig};
use castnet_wire::{Nanos, Pmtu};

fn open(port: &PortSpec, last: u8) -> SoftRnic<BoxPort> {
    SoftRnic::open(port, SoftRnicConfig::new([10, 0, 0, last].into())).expect("an RNIC")
}

fn member() -> MemberConfig {
    let group = Group::Named {
        name: String::new(),
        controller: "unix:/nonexistent/castnet".parse().expect("an address"),
        security: Default::default(),
        wait: Duration::ZERO,
    };
    MemberConfig::new("h2", group)
}

struct Place {
    folder: tempfile::TempDir,
    /// Stops the server.
    stop: Arc<AtomicBool>,
    /// How long a client may ask for nothing.
    silence: Duration,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self {
            folder,
            stop: Arc::default(),
            silence: CLIENT_SILENCE,
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("h2.sock")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("h2.bin")
    }

    /// Runs a server beside `client`, and returns what it reported.
    fn with_server(
        &self,
        bytes: Option<u64>,
        file: Option<&Path>,
        client: impl FnOnce(&mut SoftRnic<BoxPort>, &Arc<AtomicBool>),
    ) -> Vec<ServerEvent> {
        let config = ServerConfig {
            name: "h2".to_owned(),
            bytes,
            file: file.map(Path::to_owned),
            listen: Address::Unix(self.socket()),
            client_silence: self.silence,
            member: member(),
        };
        let (left, right) = MemLink::pair(&MemLinkConfig::default());
        let (events, seen) = channel();
        let stop = &self.stop;
        stop.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let mut rnic = open(&right.into(), 2);
                serve(&mut rnic, &config, stop, &mut |event| {
                    events.send(event).expect("heard")
                })
            });
            let ready = seen.recv().expect("the server is ready");
            assert!(matches!(ready, ServerEvent::Ready { .. }), "{ready:?}");
            client(&mut open(&left.into(), 1), &Arc::default());
            stop.store(true, Ordering::Relaxed);
            server.join().expect("no panic").expect("served");
        });
        drop(events);
        seen.iter().collect()
    }

    fn connect(&self, stop: &Arc<AtomicBool>) -> Result<Client, ReplicateError> {
        Client::connect("h1", &[Address::Unix(self.socket())], stop)
    }
}

const WORKLOAD: Workload = Workload {
    block: 512,
    span: 100_000,
    pattern: Pattern::Random,
    seed: 9,
};

const PACE: Pace = Pace {
    depth: 16,
    quorum: None,
    count: Some(1000),
    duration: None,
    rate: None,
    give_up: Nanos::from_secs(60),
};

fn unicasts() -> Way {
    Way::Unicasts {
        pmtu: Pmtu::B1024,
        timeout: 14,
        retry_cnt: 7,
        connect_timeout: Duration::from_secs(60),
    }
}

#[test]
fn a_file_is_written_saved_and_served_again() {
    let place = Place::new();
    let file = place.file();
    let events = place.with_server(Some(100_000), Some(&file), |rnic, stop| {
        let mut client = place.connect(stop).expect("connected");
        let info = client.servers().next().cloned().expect("a server");
        assert_eq!((info.name.as_str(), info.bytes), ("h2", 100_000));
        let work = client
            .write(rnic, &unicasts(), WORKLOAD, PACE, &mut |_| {})
            .expect("written");
        assert_eq!(work.written.writes, 1000);
        assert!(work.servers[0].saved.is_some_and(|saved| saved > 0));
        let checked = client.verify(rnic, WORKLOAD, 1000, 0).expect("verified");
        assert!(
            checked[0].blocks > 150 && checked[0].differing == 0,
            "{checked:?}"
        );
        // As if the last write was lost, and as if none of these had come.
        let checked = client.verify(rnic, WORKLOAD, 1001, 0).expect("verified");
        assert_eq!((checked[0].differing, checked[0].first[0].write), (1, 1000));
        assert_eq!(checked[0].first[0].block, WORKLOAD.block_of(1000));
        let other = Workload { seed: 8, ..WORKLOAD };
        let checked = client.verify(rnic, other, 1000, 0).expect("verified");
        assert_eq!(checked[0].differing, checked[0].blocks);
    });
    assert_eq!(
        events,
        [
            ServerEvent::Client { name: "h1".into() },
            ServerEvent::Left {
                name: "h1".into(),
                error: None
            }
        ]
    );
    // Another server, and a client that writes more: the file has what the first one left.
    place.with_server(None, Some(&file), |rnic, stop| {
        let mut client = place.connect(stop).expect("connected");
        let checked = client.verify(rnic, WORKLOAD, 1000, 0).expect("verified");
        assert_eq!(checked[0].differing, 0);
        for seed in 10..12 {
            let workload = Workload { seed, ..WORKLOAD };
            client
                .write(rnic, &unicasts(), workload, PACE, &mut |_| {})
                .expect("written");
            let checked = client.verify(rnic, workload, 1000, 0).expect("verified");
            assert_eq!(checked[0].differing, 0);
        }
    });
}

#[test]
fn what_a_server_cannot_do_is_an_error_that_names_it() {
    let place = Place::new();
    let unreachable = place.connect(&Arc::default()).err().expect("no server");
    assert!(
        matches!(unreachable, ReplicateError::Connect { .. }),
        "{unreachable}"
    );
    place.with_server(Some(1000), None, |rnic, stop| {
        let mut client = place.connect(stop).expect("connected");
        let small = client
            .write(rnic, &unicasts(), WORKLOAD, PACE, &mut |_| {})
            .expect_err("too small");
        assert_eq!(
            small.to_string(),
            "h2 serves 1000 bytes, and 99840 bytes are to be written"
        );
        let Err(busy) = place.connect(stop) else {
            panic!("a second client");
        };
        assert_eq!(
            busy.to_string(),
            format!("unix:{}: h2 serves another client, h1", place.socket().display())
        );
        // A group that no controller has: the server says so, and serves the next client.
        let workload = Workload {
            span: 1000,
            ..WORKLOAD
        };
        let way = Way::Multicast(Box::new(member()));
        let error = client
            .write(rnic, &way, workload, PACE, &mut |_| {})
            .expect_err("no controller");
        assert!(error.to_string().contains("nonexistent"), "{error}");
        drop(client);
        let mut client = place.connect(stop).expect("connected");
        client
            .write(rnic, &unicasts(), workload, PACE, &mut |_| {})
            .expect("written");
        let beyond = client
            .verify(rnic, WORKLOAD, 1000, 0)
            .expect_err("beyond the memory");
        assert!(beyond.to_string().contains("not in the memory"), "{beyond}");
    });
}

#[test]
fn a_server_that_is_stopped_says_so_to_its_client() {
    let place = Place::new();
    let events = place.with_server(Some(100_000), None, |rnic, stop| {
        let mut client = place.connect(stop).expect("connected");
        let pace = Pace {
            count: None,
            duration: Some(PACE.give_up),
            ..PACE
        };
        let mut stop_server = |_| place.stop.store(true, Ordering::Relaxed);
        let error = client
            .write(rnic, &unicasts(), WORKLOAD, pace, &mut stop_server)
            .expect_err("the server has gone");
        assert!(
            error.to_string().starts_with("h2: the server was stopped; "),
            "{error}"
        );
    });
    let error = Some("the server was stopped".to_owned());
    let name = "h1".to_owned();
    assert_eq!(events.last(), Some(&ServerEvent::Left { name, error }));
}

/// The file had what it held before the transfer, and a check reads the file.
#[test]
fn what_was_acknowledged_before_a_transfer_failed_is_in_the_file() {
    let place = Place::new();
    let file = place.file();
    let events = place.with_server(Some(100_000), Some(&file), |rnic, after| {
        let stop: Arc<AtomicBool> = Arc::default();
        let mut client = place.connect(&stop).expect("connected");
        let pace = Pace {
            count: None,
            duration: Some(PACE.give_up),
            ..PACE
        };
        let mut stop_client = |_| stop.store(true, Ordering::Relaxed);
        let error = client
            .write(rnic, &unicasts(), WORKLOAD, pace, &mut stop_client)
            .expect_err("the client is stopped");
        let ReplicateError::Broken {
            acknowledged,
            under_way,
            ..
        } = error
        else {
            panic!("{error}");
        };
        drop(client);
        let mut client = place.connect(after).expect("connected");
        let checked = client
            .verify(rnic, WORKLOAD, acknowledged, under_way)
            .expect("verified");
        assert!(
            checked[0].blocks > 100 && checked[0].differing == 0,
            "{checked:?}"
        );
    });
    let left = &events[1];
    assert!(
        matches!(left, ServerEvent::Left { error: Some(_), .. }),
        "{left:?}"
    );
}

/// A connection that had said Hello and no more, as of a machine without power, held the server for ever.
#[test]
fn a_client_that_asks_for_nothing_gives_way_to_the_next_one() {
    let place = Place {
        silence: Duration::from_millis(100),
        ..Place::new()
    };
    let events = place.with_server(Some(1000), None, |_, stop| {
        let mut silent = UnixStream::connect(place.socket()).expect("connected");
        writeln!(silent, r#"{{"hello":{{"version":1,"client":"x"}}}}"#).expect("sent");
        let mut answers = BufReader::new(silent.try_clone().expect("a twin")).lines();
        let mut next = || answers.next().expect("an answer").expect("read");
        assert!(next().contains("hello"));
        // The first connection is open all the time.
        place.connect(stop).expect("connected");
        let last = next();
        assert!(last.contains("x has asked for nothing for 100ms"), "{last}");
    });
    let error = Some("x has asked for nothing for 100ms".to_owned());
    let name = "x".to_owned();
    assert_eq!(events[1], ServerEvent::Left { name, error });
}

#[test]
fn a_server_is_given_once() {
    let address: Address = "10.0.0.2:4794".parse().expect("an address");
    let twice = Client::connect("h1", &[address.clone(), address], &Arc::default());
    let error = twice.err().expect("refused");
    assert_eq!(error.to_string(), "server 10.0.0.2:4794 is given twice");
}

#[test]
fn peers_that_break_the_protocol_are_answered_and_do_not_end_the_server() {
    let place = Place::new();
    let hello = r#"{"hello":{"version":1,"client":"x"}}"#;
    let events = place.with_server(Some(1000), None, |rnic, stop| {
        for (lines, expected) in [
            (vec!["{}"], "no message"),
            (vec![r#""ping""#], "before Hello"),
            (vec![r#"{"hello":{"version":2,"client":"x"}}"#], "version 2"),
            (
                vec![r#"{"hello":{"version":1,"client":"a\u001b[2J"}}"#],
                "printable",
            ),
            (vec![hello, r#""finish""#], "not begun"),
            (
                vec![hello, r#"{"digests":{"block":0,"first":0,"count":1}}"#],
                "not in the memory",
            ),
            (
                vec![hello, r#"{"digests":{"block":1,"first":0,"count":1025}}"#],
                "too many",
            ),
            (
                vec![
                    hello,
                    r#"{"digests":{"block":4000000000,"first":18446744073709551615,"count":2}}"#,
                ],
                "not in",
            ),
            (
                vec![
                    hello,
                    r#"{"connect":{"ip":"10.0.0.1","qpn":1,"psn":0,"pmtu":1024}}"#,
                ],
                "out of range",
            ),
            (
                vec![
                    hello,
                    r#"{"connect":{"ip":"10.0.0.1","qpn":17,"psn":16777216,"pmtu":1024}}"#,
                ],
                "out of range",
            ),
            (
                vec![
                    hello,
                    r#"{"connect":{"ip":"10.0.0.1","qpn":17,"psn":0,"pmtu":1000}}"#,
                ],
                "out of range",
            ),
        ] {
            let mut peer = UnixStream::connect(place.socket()).expect("connected");
            for line in lines {
                writeln!(peer, "{line}").expect("sent");
            }
            let answers = BufReader::new(peer).lines().map_while(Result::ok);
            let last = answers.last().unwrap_or_default();
            assert!(
                last.contains("failed") && last.contains(expected),
                "{expected}: {last}"
            );
        }
        let mut client = place.connect(stop).expect("connected");
        let workload = Workload {
            span: 1000,
            ..WORKLOAD
        };
        client
            .write(rnic, &unicasts(), workload, PACE, &mut |_| {})
            .expect("written");
    });
    let ended = ServerEvent::Left {
        name: "h1".into(),
        error: None,
    };
    assert_eq!(events.last(), Some(&ended));
}
