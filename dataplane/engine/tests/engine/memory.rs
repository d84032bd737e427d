//! Contract M6: memory of groups, compared with the paper's 0.69 MB for 1,000 groups at 64 ports (Cepheus III.D).

use crate::common::*;
use castnet_collective::{Multicast, MulticastConfig, PathId};
use castnet_engine::Context;
use castnet_wire::Nanos;

#[test]
fn a_thousand_groups_beside_the_papers_figure() {
    const PAPER: f64 = 690_000.0;
    println!("1,000 groups          hot bytes  per path  cold bytes   hot in MB   paper, 64 ports");
    for paths in [8usize, 64] {
        let rule = star(paths - 1);
        let group = Context::compile(&rule, &ports(paths)).unwrap();
        let group = group.multicast().unwrap();
        let (hot, cold) = (group.hot_bytes(), group.cold_bytes());
        let fixed = {
            let less = Context::compile(&star(paths - 2), &ports(paths)).unwrap();
            let less = less.multicast().unwrap();
            let per_path = hot - less.hot_bytes();
            assert!(per_path <= 16, "hot state per path in use: {per_path} bytes");
            hot - paths * per_path
        };
        println!(
            "at {paths:2} paths each {hot:14}  {:8}  {cold:10}  {:10.3}  {:14.2} MB",
            (hot - fixed) / paths,
            hot as f64 * 1000.0 / 1e6,
            PAPER / 1e6
        );
        // The machine's own state alone is what the paper counts: AckPSN and addresses per port.
        let machine = Multicast::new(MulticastConfig {
            paths: paths as u16,
            source: PathId::default(),
            start_psn: None,
            stall_timeout: Nanos::from_secs(1),
        });
        println!("  of which machine {:5}, fixed part {fixed}", machine.hot_bytes());
        // At 8 paths, what frames of 1,000 groups touch lies in a 1 MiB L2 with room to spare; at 64 too, if narrowly.
        assert!(hot * 1000 < 2 << 20, "{hot}");
        if paths == 8 {
            assert!((hot as f64) * 1000.0 < PAPER / 2.0, "{hot}");
        }
    }
}
