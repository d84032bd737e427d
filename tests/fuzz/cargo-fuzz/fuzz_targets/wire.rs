//! Frames: see `castnet_fuzz::wire`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| castnet_fuzz::wire(data));
