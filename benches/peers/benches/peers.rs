//! Castnet beside other switches. `cargo bench -p castnet-peers --features dpdk -- --help` says what can be asked for; docs/peers.md
//! says what is compared, and how.

fn main() -> anyhow::Result<()> {
    castnet_peers::main()
}
