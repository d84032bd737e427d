//! Passes a stream on to receivers outside of the tree of its group, while it comes and after it.
//!
//! To each goes a stream of its own, over a queue pair of its own, from the byte on that it lacks; behind it another one with length and
//! digest of the whole. What it lacks is read from where this member keeps it, so that a slow receiver does not slow down the group, and
//! takes no memory.

use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use castnet_proto::transport::Call;
use castnet_proto::v1 as api;
use castnet_rnic::stream::{
    SenderConfig, SenderLane, StreamError, StreamHeader, StreamSender, StreamSummary, Transfer,
};
use castnet_rnic::{QpOptions, QpRemote, Rnic};
use castnet_wire::{MacAddr, Pmtu, Qpn};

use crate::controller::States;
use crate::error::MemberError;
use crate::host::Caller;
use crate::silence::Silence;

/// A receiver that answers nothing for so long is not reached.
const UNREACHED_AFTER: Duration = Duration::from_secs(10);
/// Messages that are passed on at once: in between, the stream itself is received.
const MESSAGES_AT_ONCE: usize = 4;
/// Length of the whole, and its SHA-256.
const TRAILER: usize = 8 + 32;

/// Reads bytes of the stream that this member keeps, from an offset on. Returns how many; none at the end of what it keeps.
pub(crate) type ReadKept<'k> = dyn FnMut(u64, &mut [u8]) -> io::Result<usize> + 'k;

/// What this member has of the stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Have<'h> {
    pub(crate) header: Option<&'h StreamHeader>,
    pub(crate) bytes: u64,
    pub(crate) whole: Option<&'h StreamSummary>,
}

impl<'h> Have<'h> {
    /// A stream that may go on.
    pub(crate) fn begun(header: Option<&'h StreamHeader>, bytes: u64) -> Self {
        let whole = None;
        Self { header, bytes, whole }
    }
}

/// The queue pair of a host that passes a stream on, or of its receiver, and how many bytes of the stream that has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) ip: Ipv4Addr,
    pub(crate) mac: MacAddr,
    pub(crate) qpn: Qpn,
    pub(crate) position: u64,
}

impl Peer {
    pub(crate) fn of(rnic: &dyn Rnic, qpn: Qpn, position: u64) -> Self {
        let device = rnic.attributes();
        Self {
            ip: device.ip,
            mac: device.mac,
            qpn,
            position,
        }
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.ip.octets().to_vec();
        bytes.extend(self.mac.0);
        bytes.extend(self.qpn.value().to_be_bytes());
        bytes.extend(self.position.to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (ip, rest) = bytes.split_first_chunk::<4>()?;
        let (mac, rest) = rest.split_first_chunk::<6>()?;
        let (qpn, rest) = rest.split_first_chunk::<4>()?;
        let qpn = u32::from_be_bytes(*qpn);
        Some(Self {
            ip: (*ip).into(),
            mac: MacAddr(*mac),
            qpn: (qpn < 1 << 24).then(|| Qpn::new(qpn))?,
            position: u64::from_be_bytes(rest.try_into().ok()?),
        })
    }
}

/// Length and digest of the whole, as they follow the stream.
pub(crate) fn trailer(whole: &StreamSummary) -> [u8; TRAILER] {
    let mut bytes = [0; TRAILER];
    bytes[..8].copy_from_slice(&whole.bytes.to_be_bytes());
    bytes[8..].copy_from_slice(&whole.digest.0);
    bytes
}

/// How the queue pairs between hosts are connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) message_size: u32,
    pub(crate) pmtu: Pmtu,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) connect_timeout: Duration,
}

impl Settings {
    pub(crate) fn connect(&self, rnic: &mut dyn Rnic, qpn: Qpn, peer: &Peer) -> Result<(), MemberError> {
        let remote = QpRemote {
            pmtu: self.pmtu,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            ..QpRemote::new(peer.ip, peer.qpn)
        };
        let connected = rnic.connect_qp(qpn, &remote, self.connect_timeout);
        connected.map_err(|error| MemberError::Connect { lane: None, error })
    }
}

/// What is sent to a receiver next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// What is not there yet.
    Wait,
    Begin,
    Bytes {
        offset: u64,
        length: usize,
    },
    End,
    BeginTrailer,
    Trailer,
    EndTrailer,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Begin,
    Bytes,
    BeginTrailer,
    Trailer,
    EndTrailer,
    Done,
}

/// How far a stream is that is passed on. Pure: no I/O.
#[derive(Clone, Copy, Debug)]
struct Course {
    phase: Phase,
    /// The next byte.
    at: u64,
}

impl Course {
    fn new(position: u64) -> Self {
        Self {
            phase: Phase::Begin,
            at: position,
        }
    }

    fn next(&self, has_header: bool, bytes: u64, is_whole: bool, most: usize) -> Step {
        match self.phase {
            Phase::Begin if has_header => Step::Begin,
            Phase::Bytes if self.at < bytes => Step::Bytes {
                offset: self.at,
                length: usize::try_from(bytes - self.at).map_or(most, |length| length.min(most)),
            },
            Phase::Bytes if is_whole => Step::End,
            Phase::Begin | Phase::Bytes => Step::Wait,
            Phase::BeginTrailer => Step::BeginTrailer,
            Phase::Trailer => Step::Trailer,
            Phase::EndTrailer => Step::EndTrailer,
            Phase::Done => Step::Done,
        }
    }

    /// The step is done; of bytes, so many were taken.
    fn handle_done(&mut self, step: Step, taken: u64) {
        self.phase = match step {
            Step::Begin => Phase::Bytes,
            Step::Bytes { .. } => {
                self.at += taken;
                Phase::Bytes
            }
            Step::End => Phase::BeginTrailer,
            Step::BeginTrailer => Phase::Trailer,
            Step::Trailer => Phase::EndTrailer,
            Step::EndTrailer | Step::Done => Phase::Done,
            Step::Wait => self.phase,
        };
    }
}

/// A stream to one receiver.
struct Sending {
    sender: StreamSender,
    course: Course,
    silence: Silence,
    buffer: Vec<u8>,
    /// Bytes of the buffer that the sender has not taken.
    rest: std::ops::Range<usize>,
}

enum At {
    /// The receiver is asked for its queue pair.
    Calling(Call<Result<Peer, MemberError>>),
    Sending(Box<Sending>),
    /// It cannot be reached, and the controller is told so.
    Reporting(#[allow(dead_code, reason = "dropping it cancels the call")] Call<()>),
}

/// A receiver to which the stream is passed on.
struct To {
    host: String,
    number: u64,
    qpn: Qpn,
    at: At,
}

/// All receivers to which this member passes its stream on.
pub(crate) struct Passing {
    host: String,
    caller: Caller,
    states: States,
    /// Whether the states were looked at since the last change.
    is_fresh: bool,
    settings: Settings,
    all: Vec<To>,
    /// Bytes passed on, to all together.
    pub(crate) bytes: u64,
}

impl Passing {
    pub(crate) fn new(host: String, caller: Caller, states: States, settings: Settings) -> Self {
        Self {
            host,
            caller,
            states,
            is_fresh: false,
            settings,
            all: Vec::new(),
            bytes: 0,
        }
    }

    /// Passes on what is there, as far as the receivers take it. What fails to one of them ends only that.
    pub(crate) fn step(&mut self, rnic: &mut dyn Rnic, have: Have<'_>, kept: &mut ReadKept<'_>) {
        if !self.is_fresh || self.states.has_changed().unwrap_or(false) {
            self.is_fresh = true;
            let outside = self.states.borrow_and_update().outside.clone();
            self.look(rnic, outside);
        }
        for to in &mut self.all {
            if let Err(error) = to.step(rnic, have, kept, &self.settings, &mut self.bytes) {
                let (host, reason) = (&to.host, error.to_string());
                tracing::warn!(host, reason, "the stream cannot be passed on");
                let (receiver, number) = (to.host.clone(), to.number);
                let report = self
                    .caller
                    .start(|controller| controller.report_unreached(receiver, number, reason));
                to.fail(rnic, report);
            }
        }
    }

    /// Ends what is over, and begins what is new.
    fn look(&mut self, rnic: &mut dyn Rnic, outside: Vec<api::OutsideReceiver>) {
        let wanted = |to: &To| {
            outside
                .iter()
                .any(|out| out.number == to.number && out.via == self.host)
        };
        let (all, over) = std::mem::take(&mut self.all).into_iter().partition(wanted);
        self.all = all;
        over.into_iter().for_each(|to: To| to.close(rnic));
        for out in outside.into_iter().filter(|out| out.via == self.host) {
            if self.all.iter().any(|to| to.number == out.number) {
                continue;
            }
            let qpn = match rnic.create_qp(&QpOptions::default()) {
                Ok(qpn) => qpn,
                Err(error) => {
                    tracing::warn!(host = out.host, %error, "the stream cannot be passed on");
                    continue;
                }
            };
            tracing::info!(host = out.host, reason = out.reason, "passes the stream on");
            let own = Peer::of(rnic, qpn, 0);
            let (number, patience) = (out.number, UNREACHED_AFTER);
            let at = At::Calling(self.caller.start(|c| c.meet(1, number, own, patience)));
            let host = out.host;
            self.all.push(To {
                host,
                number,
                qpn,
                at,
            });
        }
    }

    pub(crate) fn close(self, rnic: &mut dyn Rnic) {
        self.all.into_iter().for_each(|to| to.close(rnic));
    }
}

impl To {
    fn step(
        &mut self,
        rnic: &mut dyn Rnic,
        have: Have<'_>,
        kept: &mut ReadKept<'_>,
        settings: &Settings,
        passed: &mut u64,
    ) -> Result<(), MemberError> {
        if let At::Calling(call) = &mut self.at {
            let Some(peer) = call.poll() else {
                return Ok(());
            };
            let peer = peer?;
            settings.connect(rnic, self.qpn, &peer)?;
            let (config, lane) = (
                SenderConfig {
                    message_size: settings.message_size,
                    ..SenderConfig::default()
                },
                SenderLane {
                    qpn: self.qpn,
                    transfer: Transfer::Send,
                },
            );
            self.at = At::Sending(Box::new(Sending {
                sender: StreamSender::new(rnic, config, &[lane])?,
                course: Course::new(peer.position),
                silence: Silence::new(Instant::now()),
                buffer: vec![0; settings.message_size as usize],
                rest: 0..0,
            }));
        }
        match &mut self.at {
            At::Sending(sending) => sending.step(rnic, have, kept, passed),
            At::Calling(_) | At::Reporting(_) => Ok(()),
        }
    }

    fn fail(&mut self, rnic: &mut dyn Rnic, report: Call<()>) {
        if let At::Sending(sending) = std::mem::replace(&mut self.at, At::Reporting(report)) {
            sending.close(rnic);
        }
    }

    fn close(self, rnic: &mut dyn Rnic) {
        if let At::Sending(sending) = self.at {
            sending.close(rnic);
        }
        if let Err(error) = rnic.destroy_qp(self.qpn) {
            tracing::debug!(%error, qpn = %self.qpn, "not destroyed");
        }
    }
}

impl Sending {
    fn close(self, rnic: &mut dyn Rnic) {
        if let Err(error) = self.sender.close(rnic) {
            tracing::debug!(%error, "not closed");
        }
    }

    fn step(
        &mut self,
        rnic: &mut dyn Rnic,
        have: Have<'_>,
        kept: &mut ReadKept<'_>,
        passed: &mut u64,
    ) -> Result<(), MemberError> {
        self.sender.poll(rnic)?;
        let now = Instant::now();
        if !self.sender.has_unacknowledged() {
            self.silence = Silence::new(now);
        }
        let progress = self.sender.messages_acknowledged();
        if self.silence.look(now, progress, || rnic.traffic().answers) >= UNREACHED_AFTER {
            return Err(MemberError::Silent {
                after: UNREACHED_AFTER,
            });
        }
        for _ in 0..MESSAGES_AT_ONCE {
            let (header, whole) = (have.header, have.whole);
            let most = self.buffer.len();
            let step = self
                .course
                .next(header.is_some(), have.bytes, whole.is_some(), most);
            let mut taken = 0;
            let is_done = match step {
                Step::Wait | Step::Done => break,
                Step::Begin => {
                    let StreamHeader { name, length } = header.cloned().unwrap_or_default();
                    let length = length.map(|length| length.saturating_sub(self.course.at));
                    self.sender.start(rnic, &StreamHeader { name, length })?
                }
                Step::Bytes { offset, length } => {
                    if self.rest.is_empty() {
                        let read = kept(offset, &mut self.buffer[..length]);
                        let read = read.map_err(|source| {
                            let what = "reading what is passed on";
                            StreamError::Io { what, source }
                        })?;
                        if read == 0 {
                            // It is written, and cannot be read yet.
                            break;
                        }
                        self.rest = 0..read;
                    }
                    let bytes = self.sender.write(rnic, &self.buffer[self.rest.clone()])?;
                    self.rest.start += bytes;
                    taken = bytes as u64;
                    *passed += taken;
                    taken > 0
                }
                Step::End | Step::EndTrailer => self.sender.finish(rnic)?.is_some(),
                Step::BeginTrailer => {
                    let header = StreamHeader {
                        name: String::new(),
                        length: Some(TRAILER as u64),
                    };
                    self.sender.start(rnic, &header)?
                }
                Step::Trailer => {
                    let bytes = whole.map(trailer).unwrap_or([0; TRAILER]);
                    // It fits into one message, so it is taken whole or not at all.
                    self.sender.write(rnic, &bytes)? > 0
                }
            };
            if !is_done {
                break;
            }
            self.course.handle_done(step, taken);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_peer_comes_back_from_its_bytes() {
        let peer = Peer {
            ip: [10, 0, 0, 7].into(),
            mac: MacAddr([2, 0, 0, 0, 0, 7]),
            qpn: Qpn::new(0xFF_FF07),
            position: 1 << 40,
        };
        let mut bytes = peer.to_bytes();
        assert_eq!(Peer::from_bytes(&bytes), Some(peer));
        assert_eq!(Peer::from_bytes(&bytes[1..]), None);
        bytes.push(0);
        assert_eq!(Peer::from_bytes(&bytes), None);
        bytes.pop();
        bytes[10] = 1;
        assert_eq!(Peer::from_bytes(&bytes), None, "no QPN");
    }

    /// What a receiver outside has, and what it has seen of the stream that it gets now.
    #[derive(Default)]
    struct Outside {
        bytes: Vec<u8>,
        is_whole: bool,
    }

    /// Takes one step, with a sender that takes what it likes. Whether anything was done.
    fn pass(
        course: &mut Course,
        have: (&[u8], bool),
        to: &mut Outside,
        take: &mut impl FnMut(usize) -> usize,
    ) -> bool {
        let step = course.next(true, have.0.len() as u64, have.1, 7);
        let mut taken = 0;
        match step {
            Step::Wait | Step::Done => return false,
            Step::Bytes { offset, length } => {
                let offset = offset as usize;
                assert_eq!(offset, to.bytes.len(), "each byte once, in order");
                assert!(length <= 7);
                taken = 1 + take(length);
                to.bytes.extend_from_slice(&have.0[offset..offset + taken]);
            }
            Step::EndTrailer => to.is_whole = true,
            Step::Begin | Step::End | Step::BeginTrailer | Step::Trailer => {}
        }
        course.handle_done(step, taken as u64);
        true
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Receivers outside, each of which has the stream from one before it, or from one in the tree; at any byte one gets it from another
        /// member, which may have less than it.
        #[test]
        fn all_outside_get_each_byte_once_from_any_members(
            length in 0usize..200, inside in 1usize..4, outside in 1usize..6, draws in proptest::collection::vec(any::<u32>(), 64),
        ) {
            let data: Vec<u8> = (0..length).map(|i| (i * 7 + i / 50) as u8).collect();
            let mut at = 0;
            let mut draw = |below: usize| {
                at += 1;
                // Without period: else a choice that comes back could take each time what was gained in between.
                let mixed = ((u64::from(draws[at % draws.len()]) << 32) | at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                ((mixed ^ (mixed >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) as usize % below
            };
            let mut have = vec![0; inside];
            let mut all: Vec<Outside> = (0..outside).map(|_| Outside::default()).collect();
            // Member k of all, and how far it passes the stream on to each.
            let mut from: Vec<(usize, Course)> = (0..outside).map(|_| (0, Course::new(0))).collect();
            for step in 0.. {
                prop_assert!(step < 100_000, "no progress");
                if all.iter().all(|to| to.is_whole) {
                    break;
                }
                let to = draw(outside);
                match draw(12) {
                    0 => {
                        let member = draw(inside);
                        have[member] = (have[member] + draw(20)).min(length);
                    }
                    // It never has it from one that comes after it.
                    1 if !all[to].is_whole => from[to] = (draw(inside + to), Course::new(all[to].bytes.len() as u64)),
                    _ => {
                        let (rest, end) = (&data, length);
                        let (via, mut course) = from[to];
                        let (bytes, is_whole) = match via.checked_sub(inside) {
                            None => (rest[..have[via]].to_vec(), have[via] == end),
                            Some(other) => (all[other].bytes.clone(), all[other].is_whole),
                        };
                        pass(&mut course, (&bytes, is_whole), &mut all[to], &mut draw);
                        from[to].1 = course;
                        prop_assert!(data.starts_with(&all[to].bytes));
                    }
                }
            }
            for to in &all {
                prop_assert_eq!(&to.bytes, &data);
            }
        }
    }
}
