//! Listening sockets of this process. Ports of any thread share the one at their address; the id in a client's first
//! message says which port it wants.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arrayvec::ArrayVec;
use castnet_wire::Nanos;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::control::{self, Refusal, State};
use super::proto::{Message, Secret};
use super::socket::{Address, Connection, Incoming, Listening};
use super::{Peers, Shared};

/// Connections that have not said which port they want. One is closed for one more.
const PENDING_MAX: usize = 16;
/// Connections accepted per call.
const BOUND: usize = 16;

/// What a port wants of its clients.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) secret: Secret,
    pub(super) peers: Peers,
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
struct Entry {
    wants: Registration,
    /// A client for this port, and its name.
    arrived: Option<(Connection, String)>,
    /// True from the arrival of a client until its link has ended.
    busy: bool,
}

#[derive(Debug, Default)]
struct Inner {
    ports: BTreeMap<u32, Entry>,
    pending: Vec<Connection>,
    next_log: Nanos,
}

#[derive(Debug)]
pub(super) struct Listener {
    address: Address,
    mode: u32,
    group: Option<u32>,
    socket: Listening,
    /// The socket and the pending connections.
    epoll: Epoll,
    inner: Mutex<Inner>,
}

static LISTENERS: Mutex<Vec<Weak<Listener>>> = Mutex::new(Vec::new());

impl Listener {
    /// Listens at `address`, or shares the socket there, for the port with this id.
    pub(super) fn open(
        address: &Address,
        mode: u32,
        group: Option<u32>,
        id: u32,
        wants: Registration,
    ) -> io::Result<Seat> {
        let mut all = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|listener| listener.strong_count() > 0);
        let known = all
            .iter()
            .filter_map(Weak::upgrade)
            .find(|l| l.address == *address);
        let listener = match known {
            Some(known) if (known.mode, known.group) != (mode, group) => {
                return Err(io::Error::other(
                    "another port has the same socket with another mode or group",
                ));
            }
            Some(known) => known,
            None => {
                let socket = Listening::new(address, mode, group)?;
                let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
                epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
                let listener = Arc::new(Self {
                    address: address.clone(),
                    mode,
                    group,
                    socket,
                    epoll,
                    inner: Mutex::default(),
                });
                all.push(Arc::downgrade(&listener));
                listener
            }
        };
        let mut inner = listener.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.ports.contains_key(&id) {
            return Err(io::Error::other(format!(
                "another port has the same socket and the id {id}"
            )));
        }
        let entry = Entry {
            wants,
            arrived: None,
            busy: false,
        };
        inner.ports.insert(id, entry);
        drop(inner);
        Ok(Seat { listener, id })
    }

    /// Accepts clients and gives them to their ports. Returns at once if another thread does that now.
    fn serve(&self, now: Nanos) {
        let Ok(mut inner) = self.inner.try_lock() else {
            return;
        };
        // First those that are there: a flood of others closes none that has said what it wants.
        self.receive(&mut inner, now);
        self.accept(&mut inner, now);
    }

    fn accept(&self, inner: &mut Inner, now: Nanos) {
        for _ in 0..BOUND {
            let Some(connection) = self.socket.accept() else {
                break;
            };
            let uid = connection.uid;
            if !inner.accepts(uid) {
                let refusal = refuse(&connection, Refusal::User { uid });
                self.log(inner, now, uid, &refusal);
                continue;
            }
            if connection.send(&control::hello(), None).is_err()
                || self
                    .epoll
                    .add(&connection, EpollEvent::new(EpollFlags::EPOLLIN, 1))
                    .is_err()
            {
                continue;
            }
            if inner.pending.len() == PENDING_MAX {
                let users: ArrayVec<u32, PENDING_MAX> = inner.pending.iter().map(|c| c.uid).collect();
                let surplus = inner.pending.remove(surplus(&users));
                let _ = self.epoll.delete(&surplus);
            }
            inner.pending.push(connection);
        }
    }

    /// Receives the first messages of pending connections.
    fn receive(&self, inner: &mut Inner, now: Nanos) {
        let mut index = 0;
        while let Some(connection) = inner.pending.get(index) {
            let (message, _) = match connection.receive() {
                Ok(Incoming::Nothing) => {
                    index += 1;
                    continue;
                }
                Ok(Incoming::Message(message, descriptor)) => (Ok(message), descriptor),
                Ok(Incoming::Closed) => (Err(Refusal::Closed), None),
                Err(bad) => (Err(bad.into()), None),
            };
            let connection = inner.pending.remove(index);
            let _ = self.epoll.delete(&connection);
            let uid = connection.uid;
            if let Err(refusal) = message.and_then(|message| inner.assign(connection, message))
                && !matches!(refusal, Refusal::Closed)
            {
                self.log(inner, now, uid, &refusal);
            }
        }
    }

    fn log(&self, inner: &mut Inner, now: Nanos, uid: u32, refusal: &Refusal) {
        if now >= inner.next_log {
            inner.next_log = now + super::LOG_INTERVAL;
            tracing::warn!(socket = %self.address, uid, %refusal, "a memif client was refused");
        }
    }
}

/// Tells a client why it is refused.
fn refuse(connection: &Connection, refusal: Refusal) -> Refusal {
    let reason = refusal.to_string();
    let _ = connection.send(&Message::Disconnect { code: 0, reason }, None);
    refusal
}

/// The connection to close for one more, by the users of those there are: the oldest of the user with most. So no user keeps
/// others out.
fn surplus(users: &[u32]) -> usize {
    let count = |user: u32| users.iter().filter(|other| **other == user).count();
    // Of equal ones, the last.
    (0..users.len())
        .rev()
        .max_by_key(|index| count(users[*index]))
        .unwrap_or(0)
}

impl Inner {
    /// True if any port accepts the user.
    fn accepts(&self, uid: u32) -> bool {
        self.ports.values().any(|port| port.wants.peers.accept(uid))
    }

    fn assign(&mut self, connection: Connection, message: Message) -> Result<(), Refusal> {
        match self.entry(&connection, message) {
            Ok((entry, name)) => {
                connection
                    .send(&Message::Ack, None)
                    .map_err(Refusal::io("answering"))?;
                entry.busy = true;
                entry.arrived = Some((connection, name));
                let shared = &entry.wants.shared;
                shared.attention.store(true, Ordering::Release);
                shared.wake.wake();
                Ok(())
            }
            Err(refusal) => Err(refuse(&connection, refusal)),
        }
    }

    fn entry(&mut self, connection: &Connection, message: Message) -> Result<(&mut Entry, String), Refusal> {
        let init = match message {
            Message::Init(init) => init,
            other => {
                return Err(Refusal::Unexpected {
                    kind: other.kind(),
                    expected: "INIT",
                });
            }
        };
        let id = init.id;
        let entry = self.ports.get_mut(&id).ok_or(Refusal::NoInterface(id))?;
        let uid = connection.uid;
        if !entry.wants.peers.accept(uid) {
            return Err(Refusal::User { uid });
        }
        control::check_init(&init, &entry.wants.secret)?;
        if entry.busy {
            return Err(Refusal::AlreadyConnected(id));
        }
        Ok((entry, init.name))
    }
}

/// The place of a port at a listener.
#[derive(Debug)]
pub(super) struct Seat {
    listener: Arc<Listener>,
    id: u32,
}

impl Seat {
    /// Serves clients of all ports of the socket.
    pub(super) fn serve(&self, now: Nanos) {
        self.listener.serve(now);
    }

    /// A client that wants this port. Waits for a thread that serves clients, which is short.
    pub(super) fn take(&self) -> Option<(Connection, State)> {
        let mut inner = self.listener.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (connection, name) = inner.ports.get_mut(&self.id)?.arrived.take()?;
        Some((connection, State::assembling(&name)))
    }

    /// The link has ended: the next client may come. Waits as [`Seat::take`].
    pub(super) fn release(&self) {
        let mut inner = self.listener.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = inner.ports.get_mut(&self.id) {
            entry.busy = entry.arrived.is_some();
        }
    }
}

impl AsFd for Seat {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.epoll.0.as_fd()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.listener.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.ports.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_with_most_connections_loses_the_oldest_of_them() {
        for (users, expected) in [
            (&[7][..], 0),
            (&[7, 7, 7], 0),
            (&[7, 8, 8], 1),
            (&[7, 8, 9, 8, 9, 9], 2),
            (&[7, 8, 8, 7], 0),
        ] {
            assert_eq!(surplus(users), expected, "{users:?}");
        }
    }

    #[test]
    fn a_user_is_accepted_at_the_socket_if_one_of_its_ports_accepts_it() {
        let mut inner = Inner::default();
        let own = nix::unistd::geteuid().as_raw();
        let other = own + 1000;
        let mut accepts = |id, peers| {
            let wants = Registration {
                secret: Secret::default(),
                peers,
                shared: Arc::default(),
            };
            let (arrived, busy) = (None, false);
            inner.ports.insert(id, Entry { wants, arrived, busy });
            [own, other, other + 1].map(|uid| inner.accepts(uid))
        };
        assert_eq!(accepts(0, Peers::Own), [true, false, false]);
        assert_eq!(accepts(1, Peers::User(other)), [true, true, false]);
        assert_eq!(accepts(2, Peers::Any), [true; 3]);
    }
}
