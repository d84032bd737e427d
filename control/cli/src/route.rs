use std::net::Ipv4Addr;
use std::str::FromStr;

use castnet_console::api;
use castnet_console::columns;
use castnet_console::connect::AgentArgs;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Done, Output, Rows};
use castnet_rules::Ipv4Net;
use castnet_wire::MacAddr;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::port::{AtPort, PortNames};

/// Static IP routes of a switch
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet route list
  castnet route add 10.2.0.0/16 --via spine1=02:00:00:00:00:11 --via spine2=02:00:00:00:00:12
  castnet route add 239.1.0.0/16 --replicate --via leaf0=02:00:00:00:00:21 --via leaf1=02:00:00:00:00:22
  castnet route add 239.200.0.1/32 --copy-to 239.1.0.4,10.201.0.7
  castnet route remove 10.2.0.0/16

Several --via share the flows between them (equal-cost multipath, by hash); with --replicate each gets a copy.")]
pub(crate) struct RouteCommand {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    agent: AgentArgs,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Lists the routes
    List,
    /// Adds a route, or replaces the one of the same prefix
    Add {
        /// Destination addresses, such as 10.2.0.0/16
        prefix: Ipv4Net,
        /// A next hop: the port (name or number) and the Ethernet address at its other end; may be given again
        #[arg(long, value_name = "PORT=MAC", required_unless_present = "copy_to")]
        via: Vec<Via>,
        /// Each next hop gets a copy, but none leaves by the port that the packet came in by; only for multicast addresses
        #[arg(long)]
        replicate: bool,
        /// For one multicast address, instead of next hops: each RoCEv2 packet is copied to these addresses, by the other routes
        #[arg(long, value_name = "IP,IP", value_delimiter = ',', conflicts_with_all = ["via", "replicate"])]
        copy_to: Vec<Ipv4Addr>,
    },
    /// Removes the route of a prefix
    #[command(visible_alias = "del")]
    Remove {
        /// The prefix, as listed
        prefix: Ipv4Net,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Via {
    port: String,
    mac: MacAddr,
}

impl FromStr for Via {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, mac) = text
            .split_once('=')
            .ok_or("write PORT=MAC, such as spine1=02:00:00:00:00:11".to_owned())?;
        if port.is_empty() {
            return Err("the port is empty: write PORT=MAC".to_owned());
        }
        Ok(Self {
            port: port.to_owned(),
            mac: mac.parse().map_err(|e| format!("'{mac}' is {e}"))?,
        })
    }
}

#[derive(Debug, Serialize)]
struct RouteRow {
    prefix: String,
    next_hops: Vec<AtPort<api::RouteHop>>,
    replicate: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    copy_to: Vec<String>,
    /// The controller that has set it; empty: an operator.
    #[serde(skip_serializing_if = "String::is_empty")]
    owner: String,
}

impl RouteRow {
    fn next_hops(&self) -> String {
        if !self.copy_to.is_empty() {
            return format!("a copy to each: {}", self.copy_to.join(", "));
        }
        let hops = self.next_hops.iter();
        let hops: Vec<_> = hops
            .map(|hop| format!("{} at {}", hop.of.mac, hop.port_name))
            .collect();
        let all = if self.replicate { "a copy to each: " } else { "" };
        format!("{all}{}", hops.join(", "))
    }
}

columns!(row: RouteRow => row { prefix, next_hops() });

#[derive(Debug, Serialize)]
struct Changed {
    prefix: String,
    replaced: bool,
    removed: bool,
}

impl RouteCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let mut agent = self.agent.connect().await?;
        match self.verb {
            Verb::List => {
                let names = PortNames::fetch(&mut agent).await?;
                let listed = agent.list_routes(api::ListRoutesRequest {}).await?;
                let hop = |h: api::RouteHop| names.at(h.port, h);
                let row = |r: api::Route| RouteRow {
                    prefix: r.prefix,
                    next_hops: r.next_hops.into_iter().map(hop).collect(),
                    replicate: r.replicate,
                    copy_to: r.copy_to,
                    owner: r.owner,
                };
                let rows = listed.into_inner().routes.into_iter().map(row).collect();
                output.show(&Rows::new(
                    rows,
                    "no routes: traffic of no group is switched by Ethernet address",
                ))
            }
            Verb::Add {
                prefix,
                via,
                replicate,
                copy_to,
            } => {
                let names = PortNames::fetch(&mut agent).await?;
                let hop = |v: &Via| {
                    Ok(api::RouteHop {
                        port: names.find(&v.port)?,
                        mac: v.mac.to_string(),
                    })
                };
                let next_hops = via.iter().map(hop).collect::<Outcome<Vec<_>>>()?;
                let route = api::Route {
                    prefix: prefix.to_string(),
                    next_hops,
                    replicate,
                    copy_to: copy_to.iter().map(Ipv4Addr::to_string).collect(),
                    owner: String::new(),
                };
                let request = api::AddRouteRequest { route: Some(route) };
                let replaced = agent.add_route(request).await?.into_inner().replaced;
                let did = if replaced { "replaced" } else { "added" };
                output.show(&Done {
                    facts: Changed {
                        prefix: prefix.to_string(),
                        replaced,
                        removed: false,
                    },
                    sentence: format!("{did} the route to {prefix}"),
                })
            }
            Verb::Remove { prefix } => {
                let request = api::RemoveRouteRequest {
                    prefix: prefix.to_string(),
                    owner: None,
                };
                if !agent.remove_route(request).await?.into_inner().removed {
                    return Err(
                        Failure::refused(format!("there is no route to {prefix}")).next("castnet route list")
                    );
                }
                output.show(&Done {
                    facts: Changed {
                        prefix: prefix.to_string(),
                        replaced: false,
                        removed: true,
                    },
                    sentence: format!("removed the route to {prefix}"),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_hops_are_a_port_and_an_address() {
        let via: Via = "spine1=02:00:00:00:00:11".parse().expect("a next hop");
        assert_eq!(
            (via.port.as_str(), via.mac),
            ("spine1", MacAddr([2, 0, 0, 0, 0, 0x11]))
        );
        for bad in ["spine1", "=02:00:00:00:00:11", "spine1=here", ""] {
            assert!(bad.parse::<Via>().is_err(), "{bad}");
        }
    }
}
