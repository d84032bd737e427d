//! Tests of the wire crate from the outside: golden packets, a capture of real hosts, round trips, other people's
//! parsers as oracles, slow twins of the fast paths, and bytes at random.

mod capture;
mod control;
mod golden;
mod icrc;
mod lldp;
mod oracle;
mod rewrite;
mod robust;
mod roundtrip;
mod rules;
mod support;
