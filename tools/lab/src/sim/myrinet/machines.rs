//! The machines of the paper as a simulated network: each host has a switch of its own, which is its NIC, and an ordinary switch
//! joins them.

use std::path::Path;

use castnet_console::exit::{self, Outcome};
use castnet_console::settings;
use castnet_sim::{HostCost, LinkProfile, Simulation, SwitchCost};
use castnet_toml_reader::{Faults, Table, Value};
use castnet_topology::{End, LinkId, SwitchKind, Topology};
use castnet_wire::Nanos;

use crate::sim::figures::Failed;
use crate::sim::lab::Fabric;

/// Those of the paper's machines.
pub(super) const PAPER: &str = include_str!("costs.toml");

/// The ordinary switch.
const CORE: &str = "spine0";

/// What hosts, NICs and links cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// Of a host at the GM level.
    pub(super) gm: HostCost,
    /// Of a host at the MPI level.
    pub(super) mpi: HostCost,
    pub(super) nic: SwitchCost,
    /// Between a host and its NIC.
    pci: LinkProfile,
    network: LinkProfile,
}

impl Costs {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Outcome<Self> {
        let text = exit::read_text(path)?;
        Self::from_toml(&text).map_err(|faults| {
            settings::faulty(path, faults)
                .next("castnet-lab sim myrinet --example shows a file with all keys")
        })
    }

    /// All faults are reported, each with line, column and key.
    pub(super) fn from_toml(text: &str) -> Result<Self, Faults> {
        castnet_toml_reader::read(text, &[], |file| {
            let gm = section(file, "host", host);
            let mpi = section(file, "mpi", host);
            let nic = section(file, "nic", nic);
            let pci = section(file, "pci", link);
            let network = section(file, "network", link);
            Some(Self {
                gm: gm?,
                mpi: mpi?,
                nic: nic?,
                pci: pci?,
                network: network?,
            })
        })
    }

    /// The costs of calls at one level, of NICs and of links.
    pub(super) fn text(&self, host: HostCost) -> String {
        let us = |time: Nanos| time.0 as f64 / 1e3;
        let nic = self.nic;
        format!(
            "A host takes {} us to post a message and {} us to take one, and {} us for each KiB. A NIC takes {} us for a request to send, {} us for\n\
             another packet, {} us for an acknowledgement, {} us for a further copy. PCI {} Mb/s, links {} Mb/s, path MTU 4096.",
            us(host.send),
            us(host.receive),
            us(host.copy_per_kib),
            us(nic.message),
            us(nic.packet),
            us(nic.control),
            us(nic.copy),
            self.pci.rate_bps / 1_000_000,
            self.network.rate_bps / 1_000_000,
        )
    }

    /// So many hosts with their NICs.
    pub(super) fn fabric(&self, hosts: u16) -> Result<Fabric, Failed> {
        let mut topology = Topology::leaf_spine(hosts.into(), 1, 1)?;
        topology.set_switch_kind(CORE, SwitchKind::Plain);
        Ok(Fabric::new(topology, self.network.delay, 1))
    }

    /// Gives the nodes and links of a simulation of [`Costs::fabric`] their costs.
    pub(super) fn apply(&self, sim: &mut Simulation, topology: &Topology) -> Result<(), Failed> {
        for (link, ends) in topology.links() {
            let has_host = [&ends.a, &ends.b].iter().any(|end| matches!(end, End::Host(_)));
            let profile = |from: &End| match from.node() {
                _ if has_host => self.pci,
                // A worm is on all links of its path at once: its time on the wire is that of the first one.
                CORE => LinkProfile {
                    rate_bps: u64::MAX,
                    delay: Nanos::ZERO,
                    ..self.network
                },
                _ => self.network,
            };
            sim.set_profile(LinkId(link.0), [profile(&ends.a), profile(&ends.b)]);
        }
        for switch in topology.switches().filter(|switch| switch.name != CORE) {
            sim.set_switch_cost(&switch.name, self.nic)?;
        }
        Ok(())
    }
}

fn section<T>(file: &Table<'_>, name: &'static str, read: impl FnOnce(&Table<'_>) -> Option<T>) -> Option<T> {
    file.need(name, "a table", |value| read(&value.table("a table")?))
}

/// A time of at most a second.
fn nanos(table: &Table<'_>, name: &'static str) -> Option<Nanos> {
    let read = |value: Value<'_>| value.number(0..=1_000_000_000, "is not in 0 to 1000000000");
    table.need(name, "a number of nanoseconds", read).map(Nanos)
}

fn host(table: &Table<'_>) -> Option<HostCost> {
    let [send, receive, copy] = ["send_ns", "receive_ns", "copy_ns_per_kib"].map(|name| nanos(table, name));
    Some(HostCost {
        send: send?,
        receive: receive?,
        copy_per_kib: copy?,
    })
}

fn nic(table: &Table<'_>) -> Option<SwitchCost> {
    let names = ["request_ns", "packet_ns", "acknowledgement_ns", "copy_ns"];
    let [message, packet, control, copy] = names.map(|name| nanos(table, name));
    Some(SwitchCost {
        message: message?,
        packet: packet?,
        control: control?,
        copy: copy?,
    })
}

fn link(table: &Table<'_>) -> Option<LinkProfile> {
    let read = |value: Value<'_>| value.number(1..=1_000_000, "is not in 1 to 1000000");
    let mbps: Option<u64> = table.need("rate_mbps", "a number of Mb/s", read);
    let delay = nanos(table, "delay_ns");
    Some(LinkProfile {
        rate_bps: mbps? * 1_000_000,
        delay: delay?,
        ..LinkProfile::default()
    })
}
