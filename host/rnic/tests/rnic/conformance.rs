//! The software RNIC does what every RNIC must; devices of a machine are held to the same by `castnet host selftest`.

use castnet_rnic::conformance::{self, software};

#[test]
fn the_software_rnic_does_what_every_rnic_must() {
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
