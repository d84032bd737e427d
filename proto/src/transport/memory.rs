//! Connections without sockets, for tests and simulations in virtual time.
//!
//! While a thread has a [`Network`], the files of Unix sockets are names in it: servers and clients of the thread meet there. The kernel is
//! not asked, so a runtime of this thread alone knows when everybody waits, and its clock can go on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::codegen::http::Uri;
use tonic::codegen::{Context, Poll, Service};

/// Bytes that a connection holds in each direction.
const BYTES: usize = 1 << 16;

type Listeners = Mutex<BTreeMap<PathBuf, mpsc::UnboundedSender<DuplexStream>>>;

#[derive(Debug, Default)]
struct Shared {
    listeners: Listeners,
    /// The last number that was drawn.
    drawn: Mutex<Option<u64>>,
}

thread_local! {
    static NETWORK: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// The network of this thread, until all of them are dropped.
#[derive(Debug)]
pub struct Network(Arc<Shared>);

impl Network {
    /// The network that this thread has, or a new one.
    pub fn join() -> Self {
        NETWORK.with_borrow_mut(|network| Self(network.get_or_insert_default().clone()))
    }

    /// From now on what is [drawn](crate::process::draw) in this thread follows from this seed.
    pub fn draw_from(&self, seed: u64) {
        *self.0.drawn.lock() = Some(seed);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // This one, and that of the thread.
        if Arc::strong_count(&self.0) == 2 {
            let _ = NETWORK.try_with(|network| network.take());
        }
    }
}

/// The next number, if there is a network that has a seed.
pub(crate) fn draw() -> Option<u64> {
    let network = network().ok()?;
    let mut drawn = network.drawn.lock();
    // An LCG with all of 2^64 as its period (Knuth), of which the high bits are the better ones.
    let next = (*drawn)?
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *drawn = Some(next);
    Some(next ^ (next >> 32))
}

fn network() -> io::Result<Arc<Shared>> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "this thread has no network");
    NETWORK.with_borrow(Clone::clone).ok_or_else(none)
}

/// Connections to a name.
///
/// # Errors
/// It is taken, or this thread has no network.
pub fn listen(name: &Path) -> io::Result<UnboundedReceiverStream<DuplexStream>> {
    let network = network()?;
    let mut listeners = network.listeners.lock();
    if listeners.get(name).is_some_and(|listener| !listener.is_closed()) {
        let taken = io::Error::new(io::ErrorKind::AddrInUse, "another process serves this socket");
        return Err(taken);
    }
    let (to, from) = mpsc::unbounded_channel();
    listeners.insert(name.into(), to);
    Ok(UnboundedReceiverStream::new(from))
}

/// A connection to who listens at a name.
///
/// # Errors
/// Nobody listens there, or this thread has no network.
pub fn connect(name: &Path) -> io::Result<DuplexStream> {
    let network = network()?;
    let (near, far) = tokio::io::duplex(BYTES);
    let listeners = network.listeners.lock();
    let is_accepted = listeners
        .get(name)
        .is_some_and(|listener| listener.send(far).is_ok());
    let refused = || io::ErrorKind::ConnectionRefused.into();
    is_accepted.then_some(near).ok_or_else(refused)
}

/// Whether this thread has a network.
pub fn is_here() -> bool {
    NETWORK.with_borrow(Option::is_some)
}

/// Connects to a name, at first and after each loss.
pub(super) struct Connector(pub(super) PathBuf);

impl Service<Uri> for Connector {
    type Response = TokioIo<DuplexStream>;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        std::future::ready(connect(&self.0).map(TokioIo::new))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_stream::StreamExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_name_is_one_listeners_and_free_after_it() {
        let name = Path::new("/run/s");
        assert!(listen(name).is_err() && connect(name).is_err() && !is_here());
        let network = Network::join();
        let refused = |name: &Path| connect(name).unwrap_err().kind();
        assert_eq!(refused(name), io::ErrorKind::ConnectionRefused);
        let mut accepted = listen(name).unwrap();
        assert_eq!(listen(name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let mut near = connect(name).unwrap();
        near.write_all(b"frame").await.unwrap();
        drop(near);
        let mut text = String::new();
        let mut far = accepted.next().await.unwrap();
        far.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "frame");
        drop(accepted);
        assert_eq!(refused(name), io::ErrorKind::ConnectionRefused);
        assert!(listen(name).is_ok());
        let again = Network::join();
        drop(network);
        assert!(is_here());
        drop(again);
        assert!(!is_here());
    }

    #[test]
    fn what_is_drawn_follows_from_the_seed_of_the_network() {
        use crate::process::draw;
        let [one, same, other] = [7, 7, 8].map(|seed| {
            let network = Network::join();
            network.draw_from(seed);
            [draw(), draw()]
        });
        assert!(one == same && one != other && one[0] != one[1]);
        assert_ne!([draw(), draw()], [draw(), draw()]);
    }
}
