//! Builders of fabrics of the usual shapes.
//!
//! Names and addresses follow from the position: host `h7` is the eighth, with address 10.0.0.8 and Ethernet address
//! 02:00:0a:00:00:08; the ports of switch number `n` (in the order of creation) have 06:ca:nn:nn:00:pp.

use core::net::Ipv4Addr;

use crate::error::TopologyError;
use crate::graph::{DEFAULT_MTU, End, PORTS_MAX, Topology};

impl Topology {
    /// One switch `s0` with `hosts` hosts: host `h<i>` at port `i`.
    pub fn star(hosts: usize) -> Result<Self, TopologyError> {
        Self::tree(hosts, 1)
    }

    /// A tree of `depth` tiers of switches with `fan_out` children each; those of the lowest tier are hosts. Switch
    /// `t<tier>-<i>` (`s0` if it is the only one) has its children at ports `0..fan_out`, its parent at port `fan_out`.
    pub fn tree(fan_out: usize, depth: usize) -> Result<Self, TopologyError> {
        size(
            "fan_out",
            fan_out,
            1,
            PORTS_MAX - usize::from(depth > 1),
            "1 to 64 ports, the parent's included",
        )?;
        size("depth", depth, 1, 8, "1 to 8 tiers")?;
        let hosts = fan_out.checked_pow(depth as u32).unwrap_or(usize::MAX);
        size("hosts of the tree", hosts, 1, HOSTS_MAX, "1 to 65536")?;
        let mut fabric = Builder::default();
        let name = |tier: usize, i: usize| {
            if depth == 1 {
                "s0".into()
            } else {
                format!("t{tier}-{i}")
            }
        };
        let mut width = 1;
        for tier in 0..depth {
            for i in 0..width {
                fabric.switch(&name(tier, i), fan_out + usize::from(tier > 0))?;
                if tier > 0 {
                    let parent = name(tier - 1, i / fan_out);
                    fabric.link(&parent, i % fan_out, &name(tier, i), fan_out)?;
                }
            }
            width *= fan_out;
        }
        for i in 0..hosts {
            fabric.host(&name(depth - 1, i / fan_out), i % fan_out)?;
        }
        Ok(fabric.topology)
    }

    /// `leaves` switches with `hosts_per_leaf` hosts each; every leaf is linked to each of `spines` switches. `leaf<i>`
    /// has hosts at the first ports and spine `j` at port `hosts_per_leaf + j`; `spine<j>` has leaf `i` at port `i`.
    pub fn leaf_spine(leaves: usize, spines: usize, hosts_per_leaf: usize) -> Result<Self, TopologyError> {
        size("leaves", leaves, 1, PORTS_MAX, "1 to 64: one port of each spine")?;
        size("spines", spines, 0, PORTS_MAX, "0 to 64")?;
        size(
            "ports of a leaf",
            hosts_per_leaf.saturating_add(spines),
            1,
            PORTS_MAX,
            "1 to 64, hosts and spines",
        )?;
        let mut fabric = Builder::default();
        for j in 0..spines {
            fabric.switch(&format!("spine{j}"), leaves)?;
        }
        for i in 0..leaves {
            let leaf = format!("leaf{i}");
            fabric.switch(&leaf, hosts_per_leaf + spines)?;
            for j in 0..spines {
                fabric.link(&leaf, hosts_per_leaf + j, &format!("spine{j}"), i)?;
            }
            for port in 0..hosts_per_leaf {
                fabric.host(&leaf, port)?;
            }
        }
        Ok(fabric.topology)
    }

    /// The three-tier fat tree of `k`-port switches: `k` pods of `k/2` edge and `k/2` aggregation switches, `(k/2)^2`
    /// core switches, `k^3/4` hosts. Switches `edge<pod>-<i>` and `agg<pod>-<i>` have lower neighbours at ports below
    /// `k/2`, upper ones from `k/2` on; `core<i>` has pod `p` at port `p`.
    pub fn fat_tree(k: usize) -> Result<Self, TopologyError> {
        let allowed = "an even number, 2 to 64";
        size("k", k, 2, PORTS_MAX, allowed)?;
        if !k.is_multiple_of(2) {
            return Err(TopologyError::BadSize {
                what: "k",
                given: k,
                allowed,
            });
        }
        Self::three_tier(k, k / 2, k / 2)
    }

    /// A fat tree of three tiers without oversubscription: `pods` pods of `edges` edge switches with `hosts` hosts each. Each
    /// edge switch is linked to the `hosts` aggregation switches of its pod, and each of those to `edges` core switches of its
    /// own. Names and ports are those of [`Topology::fat_tree`].
    pub fn three_tier(pods: usize, edges: usize, hosts: usize) -> Result<Self, TopologyError> {
        let half = PORTS_MAX / 2;
        size(
            "pods",
            pods,
            1,
            PORTS_MAX,
            "1 to 64: one port of each core switch",
        )?;
        size(
            "edges",
            edges,
            1,
            half,
            "1 to 32: half the ports of an aggregation switch",
        )?;
        size(
            "hosts",
            hosts,
            1,
            half,
            "1 to 32: half the ports of an edge switch",
        )?;
        let mut fabric = Builder::default();
        for c in 0..hosts * edges {
            fabric.switch(&format!("core{c}"), pods)?;
        }
        for pod in 0..pods {
            for a in 0..hosts {
                let agg = format!("agg{pod}-{a}");
                fabric.switch(&agg, 2 * edges)?;
                for c in 0..edges {
                    fabric.link(&agg, edges + c, &format!("core{}", a * edges + c), pod)?;
                }
            }
            for e in 0..edges {
                let edge = format!("edge{pod}-{e}");
                fabric.switch(&edge, 2 * hosts)?;
                for a in 0..hosts {
                    fabric.link(&edge, hosts + a, &format!("agg{pod}-{a}"), e)?;
                }
                for port in 0..hosts {
                    fabric.host(&edge, port)?;
                }
            }
        }
        Ok(fabric.topology)
    }
}

const HOSTS_MAX: usize = 1 << 16;

fn size(
    what: &'static str,
    given: usize,
    least: usize,
    most: usize,
    allowed: &'static str,
) -> Result<(), TopologyError> {
    if (least..=most).contains(&given) {
        Ok(())
    } else {
        Err(TopologyError::BadSize { what, given, allowed })
    }
}

pub(crate) fn port_mac(switch: usize, port: u8) -> [u8; 6] {
    let [hi, lo] = (switch as u16).to_be_bytes();
    [0x06, 0xCA, hi, lo, 0, port]
}

#[derive(Default)]
struct Builder {
    topology: Topology,
    switches: usize,
    hosts: usize,
}

impl Builder {
    fn switch(&mut self, name: &str, ports: usize) -> Result<(), TopologyError> {
        let number = self.switches;
        self.switches += 1;
        self.topology
            .add_switch(name, (0..ports).map(|p| (p as u8, port_mac(number, p as u8))))
    }

    fn host(&mut self, switch: &str, port: usize) -> Result<(), TopologyError> {
        let name = format!("h{}", self.hosts);
        self.hosts += 1;
        let ip = Ipv4Addr::from((10 << 24) + self.hosts as u32);
        let [a, b, c, d] = ip.octets();
        self.topology
            .add_host(&name, Some(ip), Some([2, 0, a, b, c, d]))?;
        self.topology
            .connect(End::port(switch, port as u8), End::host(name), DEFAULT_MTU)?;
        Ok(())
    }

    fn link(&mut self, a: &str, a_port: usize, b: &str, b_port: usize) -> Result<(), TopologyError> {
        self.topology.connect(
            End::port(a, a_port as u8),
            End::port(b, b_port as u8),
            DEFAULT_MTU,
        )?;
        Ok(())
    }
}
