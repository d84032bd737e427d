//! Tests of the public API: golden packets, a capture of real hosts, round trips, other
//! parsers as oracles, slow twins of the fast paths, and random bytes.

mod capture;
mod control;
mod edges;
mod golden;
mod icrc;
mod in_place;
mod lldp;
mod mrp;
mod oracle;
mod rewrite;
mod robust;
mod roundtrip;
mod rules;
mod support;
