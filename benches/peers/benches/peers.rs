//! Castnet beside other switches. `cargo bench -p castnet-peers --features dpdk -- --help` shows the options,
//! docs/peers.md the comparison.

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
