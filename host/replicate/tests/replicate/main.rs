//! All tests of this crate's outside: the writer in virtual time over bad links, and a client with a server in threads.

mod session;
mod writer;
