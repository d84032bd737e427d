//! The `castnet` binary.
fn main() {}
