//! The hand-shake, as a state machine without a socket: which message is expected, and what answers it.
//!
//! ```text
//! server: HELLO                 ACK             ACK           ACK (per ring)    CONNECTED
//! client:        INIT                ADD_REGION      ADD_RING          CONNECT
//! ```
//!
//! The client makes the memory: one region with a ring in each direction and a buffer per slot.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use super::doorbell::Event;
use super::proto::{
    AddRing, BadMessage, COOKIE, ETHERNET, Hello, Init, LOG2_RING_MAX, Message, Secret, VERSION,
};
use super::queue::{Buffers, Fault, Receiver, Sender};
use super::ring::Ring;
use crate::retired::{Late, Retired};
use crate::shared::{BadRegion, Region};

/// Our name for the peer. A peer of the same name fences its writes, see [`Link::fences`].
const NAME: &str = concat!("castnet ", env!("CARGO_PKG_VERSION"));
/// The most regions of a client, and their bytes together. Memory that this side touches first counts as its own.
const REGIONS_MAX: u16 = 16;
const BYTES_MAX: u64 = 512 << 20;
/// Rings start at cache lines.
const LINE: usize = 64;

/// Why a link ended or did not start. Its text goes to the peer and to the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    BadMessage(#[from] BadMessage),
    #[error("{kind} where {expected} was expected")]
    Unexpected {
        kind: &'static str,
        expected: &'static str,
    },
    #[error("version {}.{} is not spoken, only 2.0", .0 >> 8, .0 & 0xFF)]
    Version(u16),
    #[error("no interface with id {0}")]
    NoInterface(u32),
    #[error("interface {0} is already connected")]
    AlreadyConnected(u32),
    #[error("the interface is of Ethernet, not of mode {0}")]
    Mode(u8),
    #[error("a secret is required")]
    SecretRequired,
    #[error("the secret is wrong")]
    WrongSecret,
    #[error("the peer runs as user {uid}, which is not accepted (uid={uid} accepts it)")]
    User { uid: u32 },
    #[error("{kind} came without a descriptor")]
    NoDescriptor { kind: &'static str },
    #[error("region {index} where {expected} was expected, of at most {REGIONS_MAX}")]
    RegionIndex { index: u16, expected: usize },
    #[error("regions of more than {} MiB", BYTES_MAX >> 20)]
    TooMuchMemory,
    #[error("region {index}: {source}")]
    Region { index: u16, source: BadRegion },
    #[error("ring {0}: one ring in each direction is served, with index 0")]
    RingIndex(u16),
    #[error("the ring {0}: {1}")]
    BadRing(&'static str, &'static str),
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("the peer has ended the link: {0}")]
    Disconnected(String),
    #[error("the peer is gone")]
    Closed,
    #[error("the peer does not answer")]
    Silent,
    #[error("{step}: {source}")]
    Io { step: &'static str, source: io::Error },
}

impl Refusal {
    pub(super) fn io(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { step, source }
    }

    /// True if the peer can still be told.
    pub(super) fn is_ours(&self) -> bool {
        !matches!(self, Self::Disconnected(_) | Self::Closed | Self::Io { .. })
    }
}

/// What a link needs to know of the port.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) id: u32,
    pub(super) secret: Secret,
    /// As a power of two.
    pub(super) log2_ring: u8,
    /// Bytes of a buffer.
    pub(super) buffer: u32,
    /// Memory files must be sealed.
    pub(super) seals: bool,
    /// The memory of links that have ended.
    pub(super) retired: Retired,
}

/// A link that is up.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Wakes the peer, and this side.
    pub(super) outgoing: Event,
    pub(super) incoming: Event,
    /// False if the peer may look whether this side sleeps before its frame is visible, so that this side would not be
    /// woken: neither DPDK nor VPP has a full fence there.
    pub(super) fences: bool,
}

/// The memory of a client.
#[derive(Debug)]
pub(super) struct Offer {
    region: Rc<Region>,
    file: Late<OwnedFd>,
    log2_ring: u8,
    buffer: u32,
    /// To the server and to the client.
    events: [Event; 2],
    /// The next message.
    step: usize,
    fences: bool,
}

/// What a server has received of a client.
#[derive(Debug)]
pub(super) struct Parts {
    regions: Vec<Rc<Region>>,
    /// To the server and to the client.
    rings: [Option<(AddRing, Event)>; 2],
    fences: bool,
}

#[derive(Debug)]
pub(super) enum State {
    /// Client: expects HELLO.
    Greeting,
    /// Client: expects ACK, at last CONNECTED.
    Offering(Box<Offer>),
    /// Server: expects regions, rings and CONNECT. INIT was answered by the listener.
    Assembling(Parts),
}

/// What follows from a message.
#[derive(Debug)]
pub(super) enum Progress {
    Next(State),
    Up(Box<Link>),
}

/// The message of a server to each new connection.
pub(super) fn hello() -> Message {
    Message::Hello(Hello {
        name: NAME.to_owned(),
        versions: (VERSION, VERSION),
        region_max: REGIONS_MAX - 1,
        to_client_ring_max: 0,
        to_server_ring_max: 0,
        log2_ring_max: LOG2_RING_MAX,
    })
}

/// Checks the first message of a client, but for the id.
pub(super) fn check_init(init: &Init, secret: &Secret) -> Result<(), Refusal> {
    if init.version != VERSION {
        return Err(Refusal::Version(init.version));
    }
    if init.mode != ETHERNET {
        return Err(Refusal::Mode(init.mode));
    }
    match (secret.is_set(), init.secret.is_set()) {
        (true, false) => Err(Refusal::SecretRequired),
        (true, true) if !secret.matches(&init.secret) => Err(Refusal::WrongSecret),
        _ => Ok(()),
    }
}

/// Any message ends a link that is up.
pub(super) fn last(message: Message) -> Refusal {
    match message {
        Message::Disconnect { reason, .. } => Refusal::Disconnected(reason),
        other => Refusal::Unexpected {
            kind: other.kind(),
            expected: "DISCONNECT",
        },
    }
}

fn fences(peer: &str) -> bool {
    peer.starts_with("castnet ")
}

impl State {
    /// A server's, after the INIT of a client with this name.
    pub(super) fn assembling(peer: &str) -> Self {
        Self::Assembling(Parts {
            regions: Vec::new(),
            rings: [None, None],
            fences: fences(peer),
        })
    }

    /// What follows from a message, which came with `descriptor`. Calls `answer` with the reply, if there is one.
    pub(super) fn handle(
        self,
        terms: &Terms,
        message: Message,
        descriptor: Option<Late<OwnedFd>>,
        answer: &mut dyn FnMut(&Message, Option<BorrowedFd<'_>>) -> io::Result<()>,
    ) -> Result<Progress, Refusal> {
        let mut reply = |message: &Message| answer(message, None).map_err(Refusal::io("answering"));
        match (self, message) {
            (_, message @ Message::Disconnect { .. }) => Err(last(message)),
            (Self::Greeting, Message::Hello(hello)) => {
                if !(hello.versions.0..=hello.versions.1).contains(&VERSION) {
                    return Err(Refusal::Version(hello.versions.1));
                }
                let offer = Offer::new(terms, &hello)?;
                reply(&Message::Init(Init {
                    version: VERSION,
                    id: terms.id,
                    mode: ETHERNET,
                    secret: terms.secret,
                    name: NAME.to_owned(),
                }))?;
                Ok(Progress::Next(Self::Offering(Box::new(offer))))
            }
            (Self::Offering(mut offer), Message::Ack) if offer.step < Offer::STEPS => {
                let (message, descriptor) = offer.message();
                answer(&message, descriptor).map_err(Refusal::io("answering"))?;
                offer.step += 1;
                Ok(Progress::Next(Self::Offering(offer)))
            }
            (Self::Offering(offer), Message::Connected { .. }) if offer.step == Offer::STEPS => {
                Ok(Progress::Up(Box::new(offer.link()?)))
            }
            (Self::Assembling(mut parts), Message::AddRegion { index, size }) => {
                parts.add_region(terms, index, size, descriptor)?;
                reply(&Message::Ack)?;
                Ok(Progress::Next(Self::Assembling(parts)))
            }
            (Self::Assembling(mut parts), Message::AddRing(ring)) => {
                parts.add_ring(ring, descriptor)?;
                reply(&Message::Ack)?;
                Ok(Progress::Next(Self::Assembling(parts)))
            }
            (Self::Assembling(parts), Message::Connect { .. }) => {
                let link = parts.link()?;
                reply(&Message::Connected {
                    name: NAME.to_owned(),
                })?;
                Ok(Progress::Up(Box::new(link)))
            }
            (state, message) => Err(Refusal::Unexpected {
                kind: message.kind(),
                expected: state.expected(),
            }),
        }
    }

    fn expected(&self) -> &'static str {
        match self {
            Self::Greeting => "HELLO",
            Self::Offering(offer) if offer.step < Offer::STEPS => "ACK",
            Self::Offering(_) => "CONNECTED",
            Self::Assembling(_) => "ADD_REGION, ADD_RING or CONNECT",
        }
    }
}

impl Offer {
    /// One region, two rings, CONNECT.
    const STEPS: usize = 4;

    fn new(terms: &Terms, hello: &Hello) -> Result<Self, Refusal> {
        let log2_ring = terms.log2_ring.min(hello.log2_ring_max);
        let start = 2 * Self::ring_stride(log2_ring);
        let size = start + 2 * ((terms.buffer as usize) << log2_ring);
        let (region, file) =
            Region::create("castnet-memif", size).map_err(Refusal::io("making shared memory"))?;
        let region = Rc::new(region.unmapped_by(&terms.retired));
        for offset in [0, Self::ring_stride(log2_ring)] {
            let ring = Ring::new(&region, offset, log2_ring);
            let ring = ring.ok_or(Refusal::BadRing("made here", "is outside its region"))?;
            ring.set_cookie(COOKIE);
        }
        let event = || Event::new().map_err(Refusal::io("making an event descriptor"));
        Ok(Self {
            region,
            file: Late::new(file, &terms.retired),
            log2_ring,
            buffer: terms.buffer,
            events: [event()?, event()?],
            step: 0,
            fences: fences(&hello.name),
        })
    }

    fn ring_stride(log2_ring: u8) -> usize {
        Ring::bytes(log2_ring).next_multiple_of(LINE)
    }

    fn message(&self) -> (Message, Option<BorrowedFd<'_>>) {
        match self.step {
            0 => {
                let size = self.region.size() as u64;
                (Message::AddRegion { index: 0, size }, Some(self.file.as_fd()))
            }
            ring @ (1 | 2) => {
                let message = Message::AddRing(AddRing {
                    to_server: ring == 1,
                    index: 0,
                    region: 0,
                    offset: ((ring - 1) * Self::ring_stride(self.log2_ring)) as u32,
                    log2_size: self.log2_ring,
                    private_header: 0,
                });
                (message, Some(self.events[ring - 1].as_fd()))
            }
            _ => (
                Message::Connect {
                    name: NAME.to_owned(),
                },
                None,
            ),
        }
    }

    /// The server may have set head and tail to 0 when it received CONNECT, so that nothing is lent before.
    fn link(self) -> Result<Link, Refusal> {
        let ring = |n: usize| {
            Ring::new(
                &self.region,
                n * Self::ring_stride(self.log2_ring),
                self.log2_ring,
            )
            .ok_or(Refusal::BadRing("made here", "is outside its region"))
        };
        let buffers = |n: usize| Buffers {
            start: (2 * Self::ring_stride(self.log2_ring) + n * ((self.buffer as usize) << self.log2_ring))
                as u32,
            size: self.buffer,
        };
        let regions: Rc<[_]> = Rc::from([self.region.clone()]);
        let [outgoing, incoming] = self.events;
        Ok(Link {
            sender: Sender::new(ring(0)?, regions.clone(), Some(buffers(0))),
            receiver: Receiver::new(ring(1)?, regions, Some(buffers(1))),
            outgoing,
            incoming,
            fences: self.fences,
        })
    }
}

impl Parts {
    fn add_region(
        &mut self,
        terms: &Terms,
        index: u16,
        size: u64,
        descriptor: Option<Late<OwnedFd>>,
    ) -> Result<(), Refusal> {
        let file = descriptor.ok_or(Refusal::NoDescriptor { kind: "ADD_REGION" })?;
        let expected = self.regions.len();
        if usize::from(index) != expected || index >= REGIONS_MAX {
            return Err(Refusal::RegionIndex { index, expected });
        }
        let before: u64 = self.regions.iter().map(|r| r.size() as u64).sum();
        if size > BYTES_MAX - before {
            return Err(Refusal::TooMuchMemory);
        }
        let region = file
            .try_clone()
            .map_err(BadRegion::Io)
            .and_then(|file| Region::map(file, size, terms.seals))
            .map_err(|source| Refusal::Region { index, source })?;
        self.regions.push(Rc::new(region.unmapped_by(&terms.retired)));
        Ok(())
    }

    fn add_ring(&mut self, ring: AddRing, descriptor: Option<Late<OwnedFd>>) -> Result<(), Refusal> {
        let fd = descriptor.ok_or(Refusal::NoDescriptor { kind: "ADD_RING" })?;
        let name = ring_name(ring.to_server);
        if ring.index != 0 {
            return Err(Refusal::RingIndex(ring.index));
        }
        if ring.private_header != 0 {
            return Err(Refusal::BadRing(name, "has private headers"));
        }
        let event = Event::of_peer(fd).ok_or(Refusal::BadRing(name, "has no event descriptor"))?;
        let slot = &mut self.rings[usize::from(!ring.to_server)];
        if slot.is_some() {
            return Err(Refusal::BadRing(name, "is there twice"));
        }
        *slot = Some((ring, event));
        Ok(())
    }

    fn link(self) -> Result<Link, Refusal> {
        let regions: Rc<[_]> = self.regions.into();
        let open = |part: Option<(AddRing, Event)>, to_server| {
            let name = ring_name(to_server);
            let (place, event) = part.ok_or(Refusal::BadRing(name, "is missing"))?;
            let region = regions.get(usize::from(place.region));
            let region = region.ok_or(Refusal::BadRing(name, "is in a region that is missing"))?;
            let ring = Ring::new(region, place.offset as usize, place.log2_size);
            let ring = ring.ok_or(Refusal::BadRing(
                name,
                "is not inside its region, is not aligned, or has more than 2^14 slots",
            ))?;
            if ring.cookie() != COOKIE {
                return Err(Refusal::BadRing(name, "does not start with the cookie"));
            }
            ring.set_tail(0);
            Ok((ring, event))
        };
        let [to_server, to_client] = self.rings;
        let (incoming_ring, incoming) = open(to_server, true)?;
        let (outgoing_ring, outgoing) = open(to_client, false)?;
        Ok(Link {
            sender: Sender::new(outgoing_ring, regions.clone(), None),
            receiver: Receiver::new(incoming_ring, regions.clone(), None),
            outgoing,
            incoming,
            fences: self.fences,
        })
    }
}

fn ring_name(to_server: bool) -> &'static str {
    if to_server {
        "to the server"
    } else {
        "to the client"
    }
}
