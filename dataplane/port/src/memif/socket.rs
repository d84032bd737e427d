//! The control socket: a Unix socket of packets (SOCK_SEQPACKET), at a path or with an abstract name.
#![allow(unsafe_code)]

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    accept4, bind, connect, getsockopt, listen, recvmsg, sendmsg, socket, sockopt,
};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, chown};

use super::proto::{BadMessage, MESSAGE, Message};
use crate::retired::{Late, Retired};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// The kernel's limit of descriptors in a message (SCM_MAX_FD). With room for all, none is lost and left open.
const DESCRIPTORS: usize = 253;

/// Where the control socket is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// A file.
    Path(PathBuf),
    /// A name in the network namespace, without a file and its permissions. Written with `@` in front.
    Abstract(String),
}

impl Address {
    /// Returns `None` if the text is empty or too long for the kernel: 107 bytes.
    pub fn new(text: &str) -> Option<Self> {
        let address = match text.strip_prefix('@') {
            Some(name) => Self::Abstract(name.to_owned()),
            None => Self::Path(text.into()),
        };
        (text.len() > usize::from(text.starts_with('@')) && address.unix().is_ok()).then_some(address)
    }

    fn unix(&self) -> nix::Result<UnixAddr> {
        match self {
            Self::Path(path) => UnixAddr::new(path),
            Self::Abstract(name) => UnixAddr::new_abstract(name.as_bytes()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Abstract(name) => write!(f, "@{name}"),
        }
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// A listening socket. Its file is removed on drop, unless another socket has taken its place.
#[derive(Debug)]
pub(super) struct Listening {
    fd: OwnedFd,
    /// The file, and its device and inode.
    file: Option<(PathBuf, (u64, u64))>,
    /// What clients have passed.
    retired: Retired,
}

impl Listening {
    /// Listens at `address`, in the place of a socket whose process is gone. The file gets this mode and group before
    /// anybody can connect.
    pub(super) fn new(address: &Address, mode: u32, group: Option<u32>) -> io::Result<Self> {
        let fd = new_socket()?;
        // The kernel gives the file the mode of the socket, less the umask: nobody's but the owner's at first.
        fchmod(&fd, Mode::S_IRUSR | Mode::S_IWUSR)?;
        match bind(fd.as_raw_fd(), &address.unix()?) {
            Err(Errno::EADDRINUSE) => {
                if let Address::Path(path) = address {
                    remove_stale(path)?;
                }
                bind(fd.as_raw_fd(), &address.unix()?)?;
            }
            other => other?,
        }
        let file = match address {
            Address::Path(path) => Some((path.clone(), identity(path)?)),
            Address::Abstract(_) => None,
        };
        // Removes the file if a step fails.
        let retired = Retired::new();
        let listening = Self { fd, file, retired };
        if let Address::Path(path) = address {
            if group.is_some() {
                chown(path, None, group.map(Gid::from_raw))?;
            }
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        }
        listen(&listening.fd, Backlog::new(BACKLOG)?)?;
        Ok(listening)
    }

    /// The next connection, if any. None while too much that clients have passed waits to be closed.
    pub(super) fn accept(&self) -> Option<Connection> {
        if self.retired.is_full() {
            return None;
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        Connection::new(accept4(&self.fd, flags).ok()?, &self.retired).ok()
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some((path, own)) = &self.file
            && identity(path).is_ok_and(|now| now == *own)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.st_dev(), file.st_ino()))
}

/// Removes a socket's file if no process listens at it.
fn remove_stale(path: &Path) -> io::Result<()> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the file that is there is not a socket",
        ));
    }
    match connect(new_socket()?.as_raw_fd(), &UnixAddr::new(path)?) {
        Err(Errno::ECONNREFUSED) => std::fs::remove_file(path),
        // A socket of another type has a process, too.
        _ => Err(Errno::EADDRINUSE.into()),
    }
}

/// One end of a control connection. Another thread closes it, and with it the descriptors that were not received.
#[derive(Debug)]
pub(super) struct Connection {
    fd: Late<OwnedFd>,
    /// The user of the process that connected or that listens.
    pub(super) uid: u32,
}

/// What came from the peer.
#[derive(Debug)]
pub(super) enum Incoming {
    Message(Message, Option<Late<OwnedFd>>),
    /// Nothing now.
    Nothing,
    /// The peer is gone.
    Closed,
}

impl Connection {
    fn new(fd: OwnedFd, retired: &Retired) -> io::Result<Self> {
        let uid = getsockopt(&fd, sockopt::PeerCredentials)?.uid();
        let fd = Late::new(fd, retired);
        Ok(Self { fd, uid })
    }

    /// Connects without waiting.
    pub(super) fn open(address: &Address, retired: &Retired) -> io::Result<Self> {
        let fd = new_socket()?;
        connect(fd.as_raw_fd(), &address.unix()?)?;
        Self::new(fd, retired)
    }

    /// Sends a message, with a descriptor if given. An error if the peer is gone, or has not read earlier ones.
    pub(super) fn send(&self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.send_bytes(&message.encode(), descriptor)
    }

    pub(super) fn send_bytes(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let descriptors: Vec<RawFd> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let rights = &rights[..descriptors.len()];
        sendmsg::<()>(self.fd.as_raw_fd(), &[IoSlice::new(bytes)], rights, flags, None)?;
        Ok(())
    }

    /// Receives the next message, with the first descriptor that came with it. All others are closed. Nothing while too much
    /// waits to be closed.
    pub(super) fn receive(&self) -> Result<Incoming, BadMessage> {
        let retired = self.fd.retired();
        if retired.is_full() {
            return Ok(Incoming::Nothing);
        }
        let mut bytes = [0; MESSAGE + 1];
        let mut space = nix::cmsg_space!([RawFd; DESCRIPTORS]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let received = match recvmsg::<()>(self.fd.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Incoming::Nothing),
            Err(_) => return Ok(Incoming::Closed),
            Ok(received) => received,
        };
        let length = received.bytes;
        let mut descriptors = Vec::new();
        for message in received.cmsgs().into_iter().flatten() {
            if let ControlMessageOwned::ScmRights(fds) = message {
                // SAFETY: the kernel has just made these descriptors for us, and nothing else owns them.
                let fds = fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
                descriptors.extend(fds.map(|fd| Late::new(fd, retired)));
            }
        }
        // A packet of no bytes is not told apart from the end, and is no message.
        if length == 0 {
            return Ok(Incoming::Closed);
        }
        let message = Message::decode(&bytes[..length])?;
        Ok(Incoming::Message(message, descriptors.into_iter().next()))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
