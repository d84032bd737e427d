//! Groups that hosts register by MRP. Controllers leave them alone.
//!
//! A registration begins here with the rule that the agent installs for it. Its packets are left out: hosts of these networks take the
//! frames of queue pairs alone, and `castnet-mrp` tests packets over networks of its own.

use std::time::Duration;

use castnet_proto::v1;
use castnet_rules::{Endpoint, GroupRule, HostEndpoint, HostPart, MulticastRule, NextHop};
use castnet_topology::Topology;
use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Qpn};
use tokio::time::{Instant, sleep};

use super::{LOOK, Loss, World};
use crate::frames::Stream;

/// So long a registration lasts: each controller looks at all switches meanwhile.
const LASTS: Duration = Duration::from_secs(3);

impl World {
    /// Two hosts at a switch have a group there for a while. The controller that leads may be killed meanwhile.
    pub(super) async fn register(&mut self, step: u64) -> Result<(), String> {
        let hosts = *self.random.one(&[["h0", "h1"], ["h2", "h3"]]);
        // Beside the pool of the controllers.
        let mcst_id = McstId([10, 201, 0, 1 + (step % 250) as u8].into());
        self.qpn += 1;
        let rule = rule(&self.topology, mcst_id, hosts, self.qpn);
        let (switch, rule) = rule.ok_or("a host without a link or an address")?;
        let service = self.switches.get(switch).map(|switch| switch.service.clone());
        let service = service.ok_or("a switch that does not exist")?;
        let leader = format!("MRP leader {}", hosts[0]);
        service.register(&leader, &rule)?;
        self.log
            .line(format_args!("{} is registered by {}", rule.name, hosts[0]));
        let group = v1::GroupState {
            name: rule.name.clone(),
            mcst_id: mcst_id.to_string(),
            pmtu: rule.pmtu.bytes() as u32,
            source: hosts[0].into(),
            members: hosts.map(member).into(),
            ..Default::default()
        };
        let mut stream = Stream::open(&mut self.frames.lock(), &group, self.qpn)?;
        let mark = self.mark()?;
        if self.random.below(2) == 0 {
            self.kill_leader().await;
        }
        let began = Instant::now();
        while began.elapsed() < LASTS {
            stream.go_on(&mut self.frames.lock())?;
            sleep(LOOK).await;
        }
        self.goes_on(&mut stream, &rule.name).await?;
        stream.close(&mut self.frames.lock());
        if !service.withdraw(&leader, mcst_id)? {
            return Err(format!("{} is gone, and was not withdrawn", rule.name));
        }
        self.check_since(mark, Loss::Nothing)
    }
}

fn member(host: &str) -> v1::MemberState {
    v1::MemberState {
        host: host.into(),
        ..Default::default()
    }
}

/// The rule of a group of hosts at one switch, the first of which sends, and that switch.
fn rule<'t>(
    topology: &'t Topology,
    mcst_id: McstId,
    hosts: [&str; 2],
    qpn: u32,
) -> Option<(&'t str, GroupRule)> {
    let (_, switch, _) = topology.attachment(hosts[0])?;
    let endpoint = |host: &str| {
        let (_, _, port) = topology.attachment(host)?;
        let known = topology.host(host)?;
        let end = HostEndpoint {
            name: host.into(),
            ip: known.ip?,
            mac: MacAddr(known.mac?),
            qpn: Qpn::new(qpn),
            part: HostPart::Plain,
        };
        Some(Endpoint::new(PortId::new(port)?, NextHop::Host(end)))
    };
    let kind = MulticastRule {
        start_psn: None,
        va_base: 0,
        carries_on: None,
        any_source: None,
        repair: None,
        source: 0,
    };
    let rule = GroupRule {
        name: format!("mrp-{mcst_id}"),
        generation: 1,
        mcst_id,
        pmtu: Pmtu::B1024,
        stall_timeout_ms: 1000,
        rate_limit: None,
        endpoints: hosts.into_iter().map(endpoint).collect::<Option<_>>()?,
        kind: kind.into(),
    };
    Some((switch, rule))
}
