//! Members over a link without a switch: the "group" of each is the other one's address and QP.

use std::io::{self, BufReader, Read};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use castnet_member::{
    Group, GroupAddress, MemberConfig, MemberError, Messages, Role, Safeguard, StreamHeader,
};
use castnet_port::{BoxPort, MemLink, MemLinkConfig, PortSpec};
use castnet_rnic::stream::StreamError;
use castnet_rnic::{MemoryKey, Repeat, Rnic, SoftRnic, SoftRnicConfig};
use castnet_wire::{Pmtu, Psn, Qpn};

/// Address of a member; 0 is the source, 1 the receiver.
fn ip(member: u8) -> Ipv4Addr {
    [10, 0, 0, 1 + member].into()
}

fn qpn(member: u8) -> Qpn {
    Qpn::new(0x20 + u32::from(member))
}

fn config(member: u8) -> MemberConfig {
    let address = GroupAddress {
        mcst_ids: vec![ip(1 - member)],
        virtual_qpn: qpn(1 - member),
        start_psn: Psn::new(0xFF_FFF0),
        pmtu: Pmtu::B1024,
        va_base: 0,
        rate_limit: None,
        repeat: Repeat::All,
        synchronizes: false,
    };
    let qpn = Some(qpn(member));
    MemberConfig::new(format!("h{member}"), Group::Fixed { qpn, address })
}

fn open(port: &PortSpec, member: u8) -> SoftRnic<BoxPort> {
    SoftRnic::open(port, SoftRnicConfig::new(ip(member))).expect("an RNIC")
}

/// Runs the source and the receiver in threads of their own. The receiver's second argument becomes true when the source
/// has returned.
fn run<S: Send, R: Send>(
    source: impl FnOnce(&mut SoftRnic<BoxPort>) -> S + Send,
    receiver: impl FnOnce(&mut SoftRnic<BoxPort>, &AtomicBool) -> R + Send,
) -> (S, R) {
    let (left, right) = MemLink::pair(&MemLinkConfig::default());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let source = scope.spawn(|| {
            let result = source(&mut open(&left.into(), 0));
            is_over.store(true, Ordering::Relaxed);
            result
        });
        let receiver = scope.spawn(|| receiver(&mut open(&right.into(), 1), &is_over));
        let receiver = receiver.join().expect("the receiver");
        (source.join().expect("the source"), receiver)
    })
}

#[test]
fn a_stream_arrives_whole() {
    let bytes: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
    let (sent, (received, copy)) = run(
        |rnic| {
            let mut source = castnet_member::source(config(0), rnic)?.join()?;
            let header = StreamHeader {
                name: "a".into(),
                length: Some(bytes.len() as u64),
            };
            let mut progress = 0;
            let sent = source.send(&header, &mut bytes.as_slice(), &mut |bytes, _| progress = bytes)?;
            assert_eq!((progress, source.qpns()), (bytes.len() as u64, &[qpn(0)][..]));
            source.leave()?;
            Ok::<_, MemberError>(sent)
        },
        |rnic, is_over| {
            let prepared = castnet_member::receiver(config(1), rnic).expect("prepared");
            let connection = prepared.connection();
            assert_eq!((connection.qpn, connection.memory), (qpn(1).value(), None));
            let mut receiver = prepared.join().expect("joined");
            let received = receiver.receive(&mut |_| Ok(Vec::new()), &mut |_, _| {});
            receiver
                .wait_until(&mut || is_over.load(Ordering::Relaxed))
                .expect("the source ends");
            received.expect("received")
        },
    );
    let sent = sent.expect("sent");
    assert_eq!(copy, bytes);
    assert_eq!(
        (sent.summary.name.as_str(), &sent.summary.digest),
        ("a", &received.summary.digest)
    );
}

/// A member may join many times with one RNIC.
#[test]
fn a_receiver_that_leaves_gives_its_memory_back() {
    let has_left = AtomicBool::new(false);
    let (joined, left) = run(
        |rnic| {
            let mut source = castnet_member::source(config(0), rnic)?.join()?;
            source.wait_until(&mut || has_left.load(Ordering::Relaxed))
        },
        |rnic, _| {
            let config = MemberConfig {
                by_write: true,
                ..config(1)
            };
            let prepared = castnet_member::receiver(config, rnic).expect("prepared");
            let rkey = prepared.connection().memory.expect("of WRITEs").rkey;
            let left = prepared.join().and_then(|member| member.leave());
            has_left.store(true, Ordering::Relaxed);
            let read = rnic.read_memory(MemoryKey::new(rkey), 0, &mut [0]);
            assert!(read.is_err(), "its memory is there");
            left
        },
    );
    joined.and(left).expect("a member");
}

#[test]
fn messages_arrive_and_are_checked() {
    let messages = Messages {
        size: 5000,
        count: 20,
    };
    let (sent, received) = run(
        |rnic| {
            let mut source = castnet_member::source(config(0), rnic)?.join()?;
            source.send_messages(messages, 4, None, &mut |_, _| {})
        },
        |rnic, is_over| {
            let receiver = castnet_member::message_receiver(config(1), rnic, messages);
            let mut receiver = receiver.expect("prepared").join().expect("joined");
            let received = receiver.receive_messages(&mut |_| {}).expect("received");
            receiver
                .wait_until(&mut || is_over.load(Ordering::Relaxed))
                .expect("the source ends");
            received
        },
    );
    assert_eq!(sent.expect("sent").digest, received.digest);
    assert_eq!((received.bytes, received.times.len()), (100_000, 20));
}

#[test]
fn a_source_gives_up_on_a_receiver_that_is_gone() {
    let give_up = Duration::from_millis(300);
    let is_joined = AtomicBool::new(false);
    let (sent, ()) = run(
        |rnic| {
            let config = MemberConfig {
                give_up: Some(give_up),
                ..config(0)
            };
            let mut source = castnet_member::source(config, rnic)?.join()?;
            is_joined.store(true, Ordering::Relaxed);
            let messages = Messages {
                size: 10,
                count: 1000,
            };
            source.send_messages(messages, 4, None, &mut |_, _| {})
        },
        |rnic, _| {
            let receiver = castnet_member::receiver(config(1), rnic).expect("prepared");
            let mut receiver = receiver.join().expect("joined");
            receiver
                .wait_until(&mut || is_joined.load(Ordering::Relaxed))
                .expect("the source joins");
        },
    );
    assert!(
        matches!(sent, Err(MemberError::Silent { after }) if after == give_up),
        "{sent:?}"
    );
}

/// While it is there, the source sends. Then the receiver is interrupted, and learns it.
struct Sends {
    interrupt: Arc<AtomicBool>,
    _end: Sender<()>,
}

impl Drop for Sends {
    fn drop(&mut self) {
        self.interrupt.store(true, Ordering::Relaxed);
    }
}

/// A stream to a receiver that stands still in the middle. It has all that is acknowledged, and the source the rest of what it took.
/// Returns why the source has ended.
fn to_a_silent_receiver(source_config: MemberConfig, after: Duration) -> MemberError {
    let bytes: Vec<u8> = (0..8_000_000_u32).map(|i| (i % 241) as u8).collect();
    let guard = Safeguard {
        after,
        ..Safeguard::default()
    };
    let interrupt = Arc::new(AtomicBool::new(false));
    let (end, ended) = channel();
    let sends = Sends {
        interrupt: interrupt.clone(),
        _end: end,
    };
    let source_bytes = &bytes;
    let (unsent, received) = run(
        move |rnic| {
            let _sends = sends;
            let source = castnet_member::source(source_config, rnic).expect("prepared");
            let mut source = source.join().expect("joined");
            let (header, mut bytes) = (StreamHeader::default(), source_bytes.as_slice());
            source.send_guarded(&header, &mut bytes, Some(guard), &mut |_, _| {})
        },
        move |rnic, _| {
            let config = MemberConfig {
                interrupt: Some(interrupt),
                ..config(1)
            };
            let receiver = castnet_member::receiver(config, rnic).expect("prepared");
            let mut receiver = receiver.join().expect("joined");
            let received = receiver.receive(&mut |_| Ok(std::io::sink()), &mut |_, bytes| {
                if bytes > 1_000_000 {
                    let _ = ended.recv();
                }
            });
            assert!(matches!(received, Err(MemberError::Interrupted)), "{received:?}");
            receiver.take_open_stream().expect("a stream").bytes()
        },
    );
    let unsent = unsent.expect_err("the receiver stands still");
    assert!(unsent.is_slow(), "{}", unsent.error);
    let taken = unsent.stream.bytes() as usize;
    let acknowledged = taken - unsent.unacknowledged.len();
    assert!(unsent.unacknowledged == bytes[acknowledged..taken]);
    assert!(received > 1_000_000 && acknowledged > 0 && taken < bytes.len());
    unsent.error
}

#[test]
fn a_source_with_a_safeguard_keeps_what_a_silent_receiver_has_not_acknowledged() {
    let error = to_a_silent_receiver(config(0), Duration::from_secs(10));
    assert!(matches!(error, MemberError::Slow(_)), "{error}");
}

/// Long before the safeguard: after two time-outs of 4.3 s.
#[test]
fn a_source_whose_queue_pair_gives_up_keeps_what_is_not_acknowledged() {
    let config = MemberConfig {
        retry_cnt: 1,
        timeout: 20,
        ..config(0)
    };
    let error = to_a_silent_receiver(config, Duration::from_secs(600));
    assert!(!matches!(error, MemberError::Slow(_)), "{error}");
}

/// Bytes that are sent, and whether the first of them were taken.
struct Begun<'a> {
    bytes: &'a [u8],
    begun: &'a AtomicBool,
}

impl Read for Begun<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.begun.store(true, Ordering::Relaxed);
        self.bytes.read(out)
    }
}

/// The group ends with each member, and others may lack data that this one has: it stays until its rival has left or is silent.
#[test]
fn a_member_that_comes_late_for_its_turn_does_not_end_that_of_its_rival() {
    let (bytes, begun) = ([7; 5000], AtomicBool::new(false));
    let (sent, stayed) = run(
        |rnic| {
            let mut member = castnet_member::receiver(config(0), rnic)?.join()?;
            let (begun, bytes) = (&begun, &bytes[..]);
            member.send(
                &StreamHeader::default(),
                &mut Begun { bytes, begun },
                &mut |_, _| {},
            )
        },
        |rnic, _| {
            let mut member = castnet_member::receiver(config(1), rnic)?.join()?;
            // All have its rival's turn before that sends.
            member.wait_until(&mut || begun.load(Ordering::Relaxed))?;
            let late = member.send(&StreamHeader::default(), &mut io::empty(), &mut |_, _| {});
            let is_late = matches!(late, Err(MemberError::Stream(StreamError::OutOfTurn)));
            assert!(is_late, "{late:?}");
            let (_, received) = member.receive(&mut |_| Ok(Vec::new()), &mut |_, _| {})?;
            let whole = Instant::now();
            member.leave_out_of_turn("another member sends")?;
            Ok::<_, MemberError>((received, whole.elapsed()))
        },
    );
    sent.expect("sent");
    let (received, stayed) = stayed.expect("left");
    assert_eq!(received, bytes);
    assert!(stayed >= Duration::from_secs(3), "{stayed:?}");
}

#[test]
fn an_interrupt_ends_a_transfer() {
    let interrupt = Arc::new(AtomicBool::new(false));
    let (_, received) = run(
        |rnic| castnet_member::source(config(0), rnic)?.join().map(drop),
        |rnic, _| {
            let config = MemberConfig {
                interrupt: Some(interrupt.clone()),
                ..config(1)
            };
            let mut receiver = castnet_member::receiver(config, rnic)?.join()?;
            receiver
                .receive(&mut |_| Ok(Vec::new()), &mut |_, _| {
                    interrupt.store(true, Ordering::Relaxed)
                })
                .map(drop)
        },
    );
    assert!(matches!(received, Err(MemberError::Interrupted)), "{received:?}");
}

/// A source whose bytes are late, as those of a pipe.
struct Late {
    /// How often there are none yet.
    waits: u32,
    /// Nothing comes.
    nothing: Receiver<()>,
    bytes: &'static [u8],
}

impl Read for Late {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.waits > 0 {
            self.waits -= 1;
            let _ = self.nothing.recv_timeout(Duration::from_millis(50));
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.bytes.read(out)
    }
}

/// The wait is longer than that for an answer, and than that for a goodput.
#[test]
fn a_source_that_waits_for_bytes_is_neither_silent_nor_slow() {
    let failed = Arc::new(AtomicBool::new(false));
    let (_never, nothing) = channel();
    let late = Late {
        waits: 40,
        nothing,
        bytes: &[7; 5000],
    };
    let (sent, received) = run(
        |rnic| {
            let config = MemberConfig {
                give_up: Some(Duration::from_secs(1)),
                ..config(0)
            };
            let guard = Safeguard {
                after: Duration::from_millis(1600),
                ..Safeguard::default()
            };
            let mut source = castnet_member::source(config, rnic)?.join()?;
            let (header, mut late) = (StreamHeader::default(), BufReader::new(late));
            let mut waited = 0;
            let sent = source.send_guarded(&header, &mut late, Some(guard), &mut |bytes, _| {
                waited += u32::from(bytes == 0);
            });
            failed.store(sent.is_err(), Ordering::Relaxed);
            sent.map(|sent| (sent.summary.bytes, waited))
                .map_err(|unsent| unsent.error)
        },
        |rnic, is_over| {
            let config = MemberConfig {
                interrupt: Some(failed.clone()),
                ..config(1)
            };
            let receiver = castnet_member::receiver(config, rnic).expect("prepared");
            let mut receiver = receiver.join().expect("joined");
            let received = receiver.receive(&mut |_| Ok(Vec::new()), &mut |_, _| {});
            // It answers as long as the source asks.
            let _ = receiver.wait_until(&mut || is_over.load(Ordering::Relaxed));
            received.map(|(_, copy)| copy)
        },
    );
    let (bytes, waited) = sent.expect("sent");
    assert_eq!(received.expect("received"), [7_u8; 5000]);
    assert!(bytes == 5000 && waited >= 40, "{waited}");
}

#[test]
fn a_controller_that_does_not_answer_is_an_error() {
    let (left, _right) = MemLink::pair(&MemLinkConfig::default());
    let mut rnic = open(&left.into(), 0);
    let group = Group::Named {
        name: "g".into(),
        controller: "unix:/nonexistent/controller.sock".parse().expect("an address"),
        security: Default::default(),
        wait: Duration::ZERO,
    };
    let prepared = castnet_member::source(MemberConfig::new("h0", group), &mut rnic);
    assert!(matches!(prepared.map(drop), Err(MemberError::Transport(_))));
}

#[test]
fn a_wrong_role_is_named() {
    let error = MemberError::WrongRole {
        host: "h2".into(),
        group: "g".into(),
        role: Role::Receiver,
    };
    assert_eq!(error.to_string(), "h2 is the receiver of group g");
}
