//! The file of a Unix socket: who may connect.

use std::fmt;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::unistd::Group;

/// Who may connect to a Unix socket. Default: its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// Group of the file. `None`: that of the process.
    pub group: Option<String>,
    /// Mode of the file. `None`: 0660 with a group, otherwise 0600.
    pub mode: Option<SocketMode>,
}

/// Mode of a file, in octal digits such as `0660`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u32);

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err(format!(
                "{text:?} is no mode of a socket: octal digits such as 0660"
            )),
        }
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl SocketAccess {
    /// The set fields of `self`, the others from `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            group: self.group.or(other.group),
            mode: self.mode.or(other.mode),
        }
    }

    fn mode(&self) -> u32 {
        match (self.mode, &self.group) {
            (Some(SocketMode(mode)), _) => mode,
            (None, Some(_)) => 0o660,
            (None, None) => 0o600,
        }
    }

    fn apply(&self, path: &Path) -> io::Result<()> {
        if let Some(name) = &self.group {
            let group = Group::from_name(name)?;
            let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("there is no group {name:?}"));
            let group = group.ok_or_else(unknown)?;
            std::os::unix::fs::chown(path, None, Some(group.gid.as_raw()))
                .map_err(|e| io::Error::new(e.kind(), format!("it cannot be of group {name:?}: {e}")))?;
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(self.mode()))
    }
}

/// Listens at the file of a socket. It replaces the socket of a dead process, but not that of a running server, and no other file.
///
/// # Errors
/// A server listens there, or a file that is not a socket is there; those of the file system.
pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // A slip of the keyboard may name a configuration, or a link to one.
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "the file that is there is not a socket",
                ));
            }
            let why: String = match UnixStream::connect(path) {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                    return UnixListener::bind(path);
                }
                Ok(_) => "another process serves this socket".into(),
                Err(unknown) => format!("another process may serve this socket: {unknown}"),
            };
            Err(io::Error::new(error.kind(), why))
        }
        bound => bound,
    }
}

/// The same for a server of tokio, with its access. The file is removed when the second value is dropped.
pub(super) fn bind(path: &Path, access: &SocketAccess) -> io::Result<(tokio::net::UnixListener, SocketFile)> {
    let listener = bind_unix(path)?;
    access.apply(path).inspect_err(|_| {
        let _ = std::fs::remove_file(path);
    })?;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    Ok((listener, SocketFile::new(path)?))
}

/// Device, inode and time of a file, to know it again: a new file may get the inode of an old one.
type Identity = (u64, u64, i64, i64);

fn identity(path: &Path) -> io::Result<Identity> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino(), file.ctime(), file.ctime_nsec()))
}

/// Removes the file of a socket when its listener ends, unless another one has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    own: Identity,
}

impl SocketFile {
    /// The file that is there now.
    ///
    /// # Errors
    /// There is none.
    pub fn new(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            own: identity(path)?,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.own) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_socket_that_nobody_listens_at_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name| folder.path().join(name);
        let bound = |name| bind(&place(name), &SocketAccess::default());
        std::fs::write(place("file"), "precious").unwrap();
        std::os::unix::fs::symlink(place("file"), place("link")).unwrap();
        nix::unistd::mkfifo(&place("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::create_dir(place("folder")).unwrap();
        for name in ["file", "link", "pipe", "folder"] {
            let refused = bound(name).unwrap_err();
            assert_eq!(
                refused.to_string(),
                "the file that is there is not a socket",
                "{name}"
            );
        }
        assert_eq!(std::fs::read_to_string(place("link")).unwrap(), "precious");
        assert!(place("link").is_symlink() && place("folder").is_dir());

        let first = bound("socket").unwrap();
        let refused = bound("socket").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(refused.to_string(), "another process serves this socket");
        UnixStream::connect(place("socket")).expect("the first one serves it still");
        drop(first);
        bound("socket").unwrap();
    }

    #[tokio::test]
    async fn the_socket_of_a_successor_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (listener, file) = bind(&path, &SocketAccess::default()).unwrap();
        let others = SocketFile::new(&path).unwrap();
        drop(file);
        assert!(!path.exists());
        std::fs::write(&path, "of another one").unwrap();
        drop((others, listener));
        assert!(path.exists());
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!("660".parse::<SocketMode>().unwrap().to_string(), "0660");
        for bad in ["", "rw", "0680", "1777", "-1"] {
            assert!(bad.parse::<SocketMode>().is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_file_has_the_mode_and_the_group_that_are_configured() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let own = Group::from_gid(nix::unistd::getegid()).unwrap().unwrap();
        let cases = [
            (SocketAccess::default(), 0o600),
            (
                SocketAccess {
                    group: Some(own.name.clone()),
                    mode: None,
                },
                0o660,
            ),
            (
                SocketAccess {
                    group: Some(own.name),
                    mode: Some(SocketMode(0o666)),
                },
                0o666,
            ),
        ];
        for (access, mode) in cases {
            let _listener = bind(&path, &access).unwrap();
            let data = std::fs::metadata(&path).unwrap();
            assert_eq!((data.mode() & 0o777, data.gid()), (mode, own.gid.as_raw()));
            std::fs::remove_file(&path).unwrap();
        }
        let unknown = SocketAccess {
            group: Some("no-such-group".into()),
            mode: None,
        };
        let refused = bind(&path, &unknown).unwrap_err().to_string();
        assert!(refused.contains("no-such-group") && !path.exists(), "{refused}");
    }
}
