//! The Mode-II machine: see `castnet_fuzz::translated`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| castnet_fuzz::translated::translated(data));
