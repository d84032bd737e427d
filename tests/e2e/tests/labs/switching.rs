//! What belongs to no group is switched as an Ethernet switch would (contract S4): the kernel's own traffic goes through.

use anyhow::{Result, ensure};
use castnet_e2e::lab::{self, TWO_TIERS};
use castnet_e2e::{Lab, net};

/// Gives the kernels of `hosts` their addresses.
fn address(lab: &Lab, hosts: &[&str]) -> Result<()> {
    for host in hosts {
        net::ip(&format!(
            "-n {} address add {}/24 dev eth0",
            lab.host(host)?.name(),
            Lab::ip(host)
        ))?;
    }
    Ok(())
}

#[test]
fn a_ping_crosses_one_switch_and_three() {
    let no_ping = || match std::process::Command::new("ping").arg("-V").output() {
        Ok(_) => None,
        Err(_) => Some("needs the command `ping` (package iputils-ping)".to_string()),
    };
    if let Some(why) = net::missing().or_else(no_ping) {
        net::skip("switching", &why);
        return;
    }
    lab::in_lab("switching", TWO_TIERS, &[], |lab| {
        reach(lab, "h1", "h2", "leaf1")?;
        reach(lab, "h3", "h6", "leaf2")
    });
}

fn reach(lab: &Lab, from: &str, to: &str, switch: &str) -> Result<()> {
    address(lab, &[from, to])?;
    // Small, and as large as one frame can be.
    for size in ["56", "4200"] {
        let mut ping = lab.host(from)?.command("ping");
        let out = ping
            .args([
                "-c",
                "3",
                "-i",
                "0.2",
                "-W",
                "5",
                "-M",
                "do",
                "-s",
                size,
                &Lab::ip(to),
            ])
            .output()?;
        let text = String::from_utf8_lossy(&out.stdout);
        ensure!(
            out.status.success() && text.contains(" 0% packet loss"),
            "{from} to {to}, {size} bytes: {text}"
        );
    }
    let table = lab.castnet(&["fdb", "--agent", &lab.socket(switch)])?;
    ensure!(table.contains(to), "the switch has not learned {to}:\n{table}");
    Ok(())
}
