//! Castnet beside other switches. `cargo bench -p castnet-peers --features dpdk -- --help` says what can be asked for; docs/peers.md
//! says what is compared, and how.

use std::process::ExitCode;

fn main() -> ExitCode {
    match castnet_peers::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("peers: {why:#}");
            ExitCode::FAILURE
        }
    }
}
