//! The engine and its groups: see `castnet_fuzz::engine`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| castnet_fuzz::engine::engine(data));
