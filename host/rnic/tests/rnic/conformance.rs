//! The software RNIC passes the conformance checks. `castnet host selftest` runs them on devices of a machine.

use castnet_rnic::conformance::{self, software};

#[test]
fn the_software_rnic_passes_all_checks() {
    for mtu in [1500, 4200] {
        let mut bench = software(mtu).expect("two RNICs");
        let reports = conformance::run(&mut bench, &mut |_| {});
        let faults: Vec<_> = reports
            .iter()
            .filter_map(|r| r.outcome.as_ref().err().map(|e| format!("{}: {e}", r.name)))
            .collect();
        assert!(faults.is_empty(), "MTU {mtu}: {faults:#?}");
        assert!(reports.len() >= 18);
    }
}
