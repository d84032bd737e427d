//! `castnet switch` with an AF_XDP device and a tap device: two of the kernel's own stacks talk through it.
#![cfg(feature = "dpdk")]

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use castnet_dpdk_tests::PATIENCE;
use castnet_dpdk_tests::program::{Running, binary};
use castnet_e2e::net::{self, Namespace};

const TEST: &str = "AF_XDP and tap";

#[test]
fn two_stacks_of_the_kernel_talk_through_af_xdp_and_tap() {
    if let Some(why) = net::missing() {
        return net::skip(TEST, &why);
    }
    // Neither device has a send queue for the second worker.
    let binary = binary().expect("castnet with the feature dpdk");
    for workers in [1, 2] {
        if let Err(error) = talk(&binary, workers) {
            panic!("{workers} workers: {error:#}");
        }
    }
}

fn talk(binary: &Path, workers: usize) -> Result<()> {
    let (sw, host) = (Namespace::new("sw")?, Namespace::new("h1")?);
    net::veth(&sw, "x1", &host, "eth0", 1500)?;
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let ready = folder.join("ready");
    let agent = format!("unix:{}", folder.join("sw.sock").display());
    // `ip netns exec` becomes the program, so it is the switch that is told to stop.
    let mut command = sw.command(binary);
    command.args(["switch", "--name", "sw", "--listen", &agent, "--lldp", "0s"]);
    command.args(["--hugepages", "no", "--port", "a=dpdk:net_af_xdp0,iface=x1"]);
    command.args(["--port", "b=dpdk:net_tap0,iface=castnet0"]);
    command.args(vec!["--worker=any"; workers]);
    command.arg("--ready-file").arg(&ready);
    let mut switch = Running::start("sw", folder, command)?;
    let said = switch.said();
    if let Err(error) = switch.wait_until(|| ready.exists()) {
        let said = said();
        if said.contains("net_af_xdp0") {
            net::skip(TEST, &format!("no AF_XDP here: {said}"));
            return Ok(());
        }
        return Err(error.context(said));
    }
    net::ip(&format!("-n {} addr add 10.9.0.1/24 dev eth0", host.name()))?;
    net::ip(&format!("-n {} addr add 10.9.0.2/24 dev castnet0", sw.name()))?;
    net::ip(&format!("-n {} link set castnet0 up", sw.name()))?;

    let ping = |words: &[&str]| -> Result<String> {
        let mut command: Command = host.command("ping");
        let out = command
            .args(["-n", "-W", "1"])
            .args(words)
            .arg("10.9.0.2")
            .output()?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    };
    // The switch looks after its links at times.
    let start = Instant::now();
    while !ping(&["-c", "1"])?.contains(" 0% packet loss") {
        ensure!(start.elapsed() < PATIENCE, "no answer: {}", said());
    }
    let answers = ping(&["-c", "20", "-i", "0.01", "-s", "1400"])?;
    ensure!(answers.contains(" 0% packet loss"), "{answers}{}", said());
    switch.stop().with_context(said)
}
