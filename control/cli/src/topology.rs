use castnet_console::api;
use castnet_console::columns;
use castnet_console::connect::{self, CONTROLLER, Tls};
use castnet_console::exit::Outcome;
use castnet_console::output::{Output, Page, Report, Row};
use castnet_console::units::{bit_rate, bytes, plural};
use castnet_proto::transport::Controllers;
use clap::Args;
use serde::Serialize;

use crate::group::or_dash;

/// The fabric as the controller knows it: switches, hosts and links
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet topology
  castnet topology --controller unix:/run/castnet/controller.sock --output json")]
pub(crate) struct TopologyCommand {
    /// Address of the controller; of several, all with commas between them
    #[arg(long, value_name = "URL", env = "CASTNET_CONTROLLER", default_value = CONTROLLER)]
    controller: Controllers,
    #[command(flatten)]
    tls: Tls,
}

#[derive(Debug, Serialize)]
struct TopologyReport {
    from_file: bool,
    /// Why the controller's store fails now; empty: it works.
    store_failure: String,
    switches: Vec<SwitchRow>,
    /// Switches of the topology file that run no groups.
    forwarders: Vec<ForwarderRow>,
    /// Those who share the fabric by quotas.
    tenants: Vec<TenantRow>,
    hosts: Vec<HostRow>,
    links: Vec<LinkRow>,
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct SwitchRow(api::SwitchState);

impl SwitchRow {
    fn state(&self) -> &'static str {
        if self.0.reachable {
            "reachable"
        } else {
            "unreachable"
        }
    }

    fn ports(&self) -> usize {
        self.0.ports.len()
    }

    fn groups(&self) -> String {
        format!("{} of {}", self.0.groups, self.0.groups_max)
    }

    /// With the commit, without the features.
    fn version(&self) -> String {
        let (version, more) = self.0.version.split_once(" (").unwrap_or((&self.0.version, ""));
        let commit = more
            .strip_prefix("commit ")
            .and_then(|rest| rest.split([' ', ';']).next());
        commit.map_or(version.to_owned(), |commit| format!("{version} {commit}"))
    }

    fn remark(&self) -> String {
        let mut remarks: Vec<String> = Vec::new();
        remarks.extend(Some(self.0.reason.clone()).filter(|reason| !reason.is_empty()));
        match self.0.written_off.len() {
            0 => {}
            groups => remarks.push(format!(
                "may still have {} destroyed by force",
                plural(groups, "group")
            )),
        }
        match self.0.unknown_groups.len() {
            0 => {}
            groups => remarks.push(format!(
                "has {} that the store does not have (castnet group purge)",
                plural(groups, "group")
            )),
        }
        remarks.extend(self.0.wrong_links.iter().cloned());
        remarks.join("; ")
    }

    fn memory_free(&self) -> String {
        match self.0.memory_bytes_max {
            // Not asked yet.
            0 => "-".to_owned(),
            max => format!("{} of {}", bytes(self.0.memory_bytes_free), bytes(max)),
        }
    }
}

columns!(row: SwitchRow => (row.0) { name as "switch", endpoint as "agent" } row {
    state(), ports(), groups(), memory_free(),
} (row.0) { mcst_prefix as "mcst ids" } row { version(), remark() });

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct ForwarderRow(api::Forwarder);

columns!(row: ForwarderRow => (row.0) { name, kind });

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct HostRow(api::Host);

impl Row for HostRow {
    const COLUMNS: &'static [&'static str] = &["host", "ip", "mac", "switch", "port"];

    fn cells(&self) -> Vec<String> {
        let host = &self.0;
        let port = host.port.map(|port| port.to_string()).unwrap_or_default();
        let cells = [&host.name, &host.ip, &host.mac, &host.switch_name, &port];
        cells.map(|text| or_dash(text)).to_vec()
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct TenantRow(api::Tenant);

impl TenantRow {
    fn groups(&self) -> String {
        of(self.0.groups, self.0.groups_max)
    }

    fn slots(&self) -> String {
        of(self.0.slots, self.0.slots_max)
    }

    fn bandwidth(&self) -> String {
        let used = bit_rate(self.0.bandwidth as f64);
        let most = self.0.bandwidth_max.map(|most| bit_rate(most as f64));
        most.map_or(used.clone(), |most| format!("{used} of {most}"))
    }
}

fn of(used: u64, quota: Option<u64>) -> String {
    quota.map_or(used.to_string(), |quota| format!("{used} of {quota}"))
}

columns!(row: TenantRow => (row.0) { name as "tenant" } row { groups(), slots(), bandwidth() });

#[derive(Debug, Serialize)]
struct LinkRow {
    a: String,
    a_port: u32,
    b: String,
    b_port: u32,
    up: bool,
}

impl LinkRow {
    fn link(&self) -> String {
        format!(
            "{} port {} - {} port {}",
            self.a, self.a_port, self.b, self.b_port
        )
    }

    fn state(&self) -> &'static str {
        if self.up { "up" } else { "down" }
    }
}

columns!(row: LinkRow => row { link(), state() });

impl From<api::Topology> for TopologyReport {
    fn from(topology: api::Topology) -> Self {
        let link = |l: api::Link| {
            let (a, b) = (l.a.unwrap_or_default(), l.b.unwrap_or_default());
            LinkRow {
                a: a.switch_name,
                a_port: a.port,
                b: b.switch_name,
                b_port: b.port,
                up: l.up,
            }
        };
        Self {
            from_file: topology.from_file,
            store_failure: topology.store_failure,
            switches: topology.switches.into_iter().map(SwitchRow).collect(),
            forwarders: topology.forwarders.into_iter().map(ForwarderRow).collect(),
            tenants: topology.tenants.into_iter().map(TenantRow).collect(),
            hosts: topology.hosts.into_iter().map(HostRow).collect(),
            links: topology.links.into_iter().map(link).collect(),
        }
    }
}

impl Report for TopologyReport {
    fn page(&self, page: &mut Page) {
        if !self.store_failure.is_empty() {
            page.line(format!("Changes are refused: {}", self.store_failure));
        }
        page.title("Switches");
        page.rows(&self.switches, "none: castnet controller --switch NAME=URL");
        if !self.forwarders.is_empty() {
            page.title("Plain switches and routers");
            page.rows(&self.forwarders, "none");
        }
        if !self.tenants.is_empty() {
            page.title("Tenants");
            page.rows(&self.tenants, "none");
        }
        page.title("Hosts");
        page.rows(&self.hosts, "none seen yet");
        page.title(if self.from_file {
            "Links (from the topology file)"
        } else {
            "Links (reported by the switches)"
        });
        page.rows(&self.links, "none");
    }
}

impl TopologyCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let security = self.tls.security()?;
        let mut controller = connect::controller(&self.controller, &security).await?;
        let topology = controller.get_topology(api::GetTopologyRequest {}).await?;
        output.show(&TopologyReport::from(topology.into_inner()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_group_is_a_group() {
        let names = |n: usize| vec!["g".to_owned(); n];
        let switch = SwitchRow(api::SwitchState {
            written_off: names(2),
            unknown_groups: names(1),
            ..Default::default()
        });
        assert_eq!(
            switch.remark(),
            "may still have 2 groups destroyed by force; has 1 group that the store does not have (castnet group purge)"
        );
    }
}
