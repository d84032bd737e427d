//! The RC endpoint: see `castnet_fuzz::endpoint`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| castnet_fuzz::endpoint::endpoint(data));
