//! A switch is killed and comes back while a file is under way: the controller installs its part again, the switch takes
//! up the stream where it is, and each receiver has every byte.

use anyhow::Result;
use castnet_e2e::lab::TWO_TIERS;
use castnet_e2e::{Lab, Transfer, net};

const RECEIVERS: [&str; 5] = ["h2", "h3", "h4", "h5", "h6"];

/// The source's leaf, the spine and the receivers' leaf, one after the other, each in mid-stream.
fn every_switch_once(lab: &mut Lab, transfer: &Transfer<'_>) -> Result<()> {
    lab.create_group(transfer)?;
    // On a busy machine the safeguard would be faster than the switch.
    let mut running = lab.start_transfer_with(transfer, &["--fallback", "off"])?;
    for switch in ["spine", "leaf2", "leaf1"] {
        running.source.wait_until("data was under way", |_| {
            lab.data_in(transfer.group, switch) > Some(1000)
        })?;
        lab.restart_switch(switch)?;
        let back = format!("{switch} was back in the stream, and the group whole");
        running.source.wait_until(&back, |_| {
            lab.data_in(transfer.group, switch) > Some(0) && is_active(lab, transfer.group)
        })?;
    }
    running.finish()
}

/// Whether the controller takes the group as installed on all its switches.
fn is_active(lab: &Lab, group: &str) -> bool {
    let controller = lab.socket("controller");
    lab.castnet_json(&["group", "show", group, "--controller", &controller])
        .is_ok_and(|shown| shown["phase"] == "active")
}

#[test]
fn each_switch_is_killed_and_comes_back_in_mid_transfer() {
    if net::is_skipped("restart") {
        return;
    }
    for (op, extra, seed) in [
        ("send", &[][..], 7),
        ("write", &["--fault", "loss=0.2%,seed=3"], 8),
    ] {
        let mut lab = Lab::start(TWO_TIERS, extra).expect("the lab starts");
        let transfer = Transfer {
            group: op,
            source: "h1",
            receivers: &RECEIVERS,
            op,
            size: 96 << 20,
            seed,
        };
        if let Err(error) = every_switch_once(&mut lab, &transfer) {
            panic!("{error:#}\n{}", lab.logs());
        }
    }
}
