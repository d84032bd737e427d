//! The multicast machine: see `castnet_fuzz::multicast`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| castnet_fuzz::multicast::multicast(data));
