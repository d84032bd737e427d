use std::io;
use std::path::PathBuf;
use std::time::Duration;

use castnet_member::MemberError;
use castnet_rnic::{RnicError, Status, status_text};

/// Error of a client or a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum ReplicateError {
    /// The RNIC returned an error.
    #[error(transparent)]
    Rnic(#[from] RnicError),
    /// The group could not be joined, or has ended.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A value is out of range.
    #[error("{what}")]
    OutOfRange { what: String },
    /// The control connection could not be established.
    #[error("server {address} cannot be reached: {error}")]
    Connect { address: String, error: io::Error },
    /// The server cannot listen.
    #[error("cannot listen at {address}: {error}")]
    Listen { address: String, error: io::Error },
    /// The control connection has ended.
    #[error("{server} has ended its connection{}", reason(.why))]
    Gone { server: String, why: String },
    /// The server has not answered.
    #[error("{server} has not answered for {after:?}")]
    NoAnswer { server: String, after: Duration },
    /// The client has asked for nothing.
    #[error("{client} has asked for nothing for {after:?}")]
    SilentClient { client: String, after: Duration },
    /// The server refused or failed.
    #[error("{server}: {what}")]
    Server { server: String, what: String },
    /// The other end does not speak this protocol.
    #[error("{server} sent what is no message of castnet host replicate: {what}")]
    Malformed { server: String, what: String },
    /// Two of the given addresses are of one server.
    #[error("two of the servers are {server}: each needs a name of its own")]
    SameServer { server: String },
    /// A server has less memory than is to be written.
    #[error("{server} serves {bytes} bytes, and {needed} bytes are to be written")]
    TooSmall { server: String, bytes: u64, needed: u64 },
    /// A write failed.
    #[error("write {write}{} failed: {}", at(.server), status_text(*.status))]
    Write {
        write: u64,
        /// `None`: by multicast, which has one connection for all servers.
        server: Option<String>,
        status: Status,
    },
    /// Nothing was acknowledged.
    #[error("no write has been acknowledged for {after:?}")]
    Silent { after: Duration },
    /// The writing ended too early.
    #[error("{error}; {acknowledged} writes were acknowledged before, and {under_way} more were under way")]
    Broken {
        error: Box<ReplicateError>,
        acknowledged: u64,
        under_way: u64,
    },
    /// The file behind the memory.
    #[error("{}: {doing}: {error}", .path.display())]
    File {
        path: PathBuf,
        doing: &'static str,
        error: io::Error,
    },
    /// The file cannot be served.
    #[error("{}: {what}", .path.display())]
    BadFile { path: PathBuf, what: String },
    /// The server's flag to stop was set while a client wrote.
    #[error("the server was stopped")]
    Stopped,
    /// The flag to stop was set.
    #[error("interrupted")]
    Interrupted,
}

fn reason(why: &str) -> String {
    match why {
        "" => String::new(),
        why => format!(": {why}"),
    }
}

fn at(server: &Option<String>) -> String {
    server
        .as_ref()
        .map_or_else(String::new, |server| format!(" to {server}"))
}
