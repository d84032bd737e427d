//! Flow control at the ports of a switch and at a host, by the public API.

mod gate;
mod pauses;
mod port;
mod storms;
