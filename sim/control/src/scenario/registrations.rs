//! Groups that hosts register by MRP. Controllers leave them alone.
//!
//! A registration begins here with the rule that the agent installs for it. Its packets are left out: hosts of these networks take the
//! frames of queue pairs alone, and `castnet-mrp` tests packets over networks of its own.

use std::time::Duration;

use castnet_proto::v1;
use castnet_rules::{GroupRule, HostEndpoint, HostPart, MulticastRule};
use castnet_topology::Topology;
use castnet_wire::{MacAddr, McstId, Pmtu, Qpn};
use tokio::time::{Instant, sleep};

use super::{LOOK, Loss, World};
use crate::frames::Stream;

/// So long a registration lasts: each controller looks at all switches meanwhile.
const LASTS: Duration = Duration::from_secs(2);

impl World {
    /// Two hosts at a switch have a group there for a while. The controller that leads may be killed meanwhile.
    pub(super) async fn register(&mut self, step: u64) -> Result<(), String> {
        let hosts = *self.random.one(&[["h0", "h1"], ["h2", "h3"]]);
        // Beside the pool of the controllers.
        let mcst_id = McstId([10, 201, 0, 1 + (step % 250) as u8].into());
        self.qpn += 1;
        let rule = rule(&self.topology, mcst_id, hosts, self.qpn)?;
        let switch = self.topology.attachment(hosts[0]);
        let switch = switch.and_then(|(_, switch, _)| self.switches.get(switch));
        let service = switch.ok_or("a host without a switch")?.service.clone();
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

/// The rule of a group of the hosts at a switch, the first of which sends.
fn rule(topology: &Topology, mcst_id: McstId, hosts: [&str; 2], qpn: u32) -> Result<GroupRule, String> {
    let end = |host: &str| {
        let known = topology.host(host)?;
        Some(HostEndpoint {
            name: host.into(),
            ip: known.ip?,
            mac: MacAddr(known.mac?),
            qpn: Qpn::new(qpn),
            part: HostPart::Plain,
        })
    };
    let ends: Option<Vec<HostEndpoint>> = hosts.into_iter().map(end).collect();
    let ends = ends.ok_or("a host without an address")?;
    let (name, kind) = (format!("mrp-{mcst_id}"), MulticastRule::default());
    let rule = GroupRule::star(&name, mcst_id, Pmtu::B1024, kind, ends);
    rule.map_err(|faults| format!("{faults:?}"))
}
