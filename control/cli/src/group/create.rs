use std::collections::BTreeSet;
use std::convert::Infallible;
use std::str::FromStr;

use castnet_console::api;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::rate::RateArgs;
use castnet_console::units::{name, number, qpn};
use castnet_group::{DEFAULT_MEMBER_STALL_MS, Description, Distribution, MulticastSettings, StallPolicy};
use castnet_proto::convert::creation_with;
use castnet_rules::{DEFAULT_REPAIR_SLOTS, DEFAULT_STALL_TIMEOUT_MS, FaultKind, RepairRule};
use castnet_wire::{AnySource, MacAddr, MulticastRepair, Pmtu};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

/// What groups of all kinds have.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Its name: letters, digits, '-', '_' and '.'
    #[arg(value_parser = name)]
    pub(crate) name: String,
    /// Payload bytes of a full packet: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = Pmtu::B1024)]
    pub(crate) pmtu: Pmtu,
    /// Number of sub-groups, 1 to 16, which the workers of a switch share: for a group that is too much for one core. Hosts use
    /// them as one group
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) lanes: u8,
    /// The group's address, or that of its first lane [default: the next free address of the controller's pool]. Not for groups
    /// that pass routers: they have an address per switch
    #[arg(long, value_name = "IP")]
    pub(crate) mcst_id: Option<std::net::Ipv4Addr>,
    /// After this time, a path that has not acknowledged and a collective that still waits are reported
    #[arg(long, value_name = "MS", default_value_t = DEFAULT_STALL_TIMEOUT_MS, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) stall_timeout_ms: u32,
    /// What it is for, as a text for people: at most 200 characters; empty: none. castnet group show has it
    #[arg(long, value_name = "TEXT", default_value_t = Description::default(), hide_default_value = true)]
    pub(crate) description: Description,
    #[command(flatten)]
    pub(crate) rate: RateArgs,
}

/// A multicast group.
#[derive(Clone, Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    common: Common,
    /// The host that sends
    #[arg(long, value_name = "HOST", value_parser = name)]
    source: String,
    /// The hosts that receive, with commas or given again; the source may be left out
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', required = true, value_parser = name)]
    members: Vec<String>,
    /// The source's start PSN [default: a random one]
    #[arg(long, value_name = "PSN", value_parser = clap::value_parser!(u32).range(0..1 << 24))]
    start_psn: Option<u32>,
    /// Base of the source's virtual addresses, for WRITE
    #[arg(long, value_name = "VA", default_value = "0", value_parser = number)]
    va_base: u64,
    /// A receiver whose process has died is put out while the others go on, or the group fails with it; they also go on
    /// without one that leaves
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Loss::Evict)]
    on_member_loss: Loss,
    /// What becomes of it when a receiver stalls: it has acknowledged nothing for --member-stall-ms, although its switch has
    /// sent it the same packet again and again. The group waits for it, goes on without it, or fails. With evict it also goes
    /// on without one that refuses the stream with a fatal NAK, which ends the source's connection otherwise
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Stall::Wait)]
    on_member_stall: Stall,
    /// How long a receiver may stall, with --on-member-stall evict or fail [default: 5000]. With --fallback auto, the source leaves a group that stands
    /// still after 10 seconds
    #[arg(id = "on_member_stall.after_ms", long = "member-stall-ms", value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=600_000))]
    member_stall_ms: Option<u32>,
    /// Each member may send, one after the other, and --source is the first: for castnet host turns. Its traffic ends when a
    /// member leaves or is lost. The switches bridge the PSNs of the hosts, or the hosts synchronize them when the source changes
    #[arg(
        long,
        value_parser = PossibleValuesParser::new(AnySource::NAMES).try_map(|name| name.parse::<AnySource>()),
        value_name = "PSNS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "bridged"
    )]
    any_source: Option<AnySource>,
    /// Where its copies are made. `switches[:SHAPE]`: in the Castnet switches on the way and, where ordinary switches and routers alone lead on, at the
    /// edge. `edge[:SHAPE]`: only in the switches next to members. SHAPE is that of the tree at the edge: shortest (a star there), star, chain, binomial,
    /// or `postal:LATENCY[,PACKETS]`, the tree in which all have a message of so many packets soonest, if a packet takes LATENCY times as long to
    /// the next switch as one more copy of it takes. With `auto[:BYTES]` the controller chooses that for messages of so many bytes, 1 MiB by
    /// default, with the latency that castnet-lab calibrate has measured. `static[:COPIES]`: in routers, which have no state of the group and replicate
    /// what is sent to the multicast addresses of the topology file (its multicast_routes). At most COPIES of a packet leave the source's switch:
    /// some may reach switches without members, which drop them. castnet group show tells where copies are made
    #[arg(long, value_name = "HOW", default_value_t = Distribution::default())]
    distribution: Distribution,
    #[command(flatten)]
    replaced: Replaced,
    /// Who repeats what is lost: the source, or the nearest switch, which keeps --repair-slots packets for it
    #[arg(
        long,
        value_parser = PossibleValuesParser::new(MulticastRepair::NAMES).try_map(|name| name.parse::<MulticastRepair>()),
        value_name = "SIDE",
        default_value_t = MulticastRepair::Source
    )]
    repair: MulticastRepair,
    /// Packets that each switch keeps, with --repair switch: at least as many as the source has outstanding; a power of two [default: 256]
    #[arg(id = "repair.slots", long = "repair-slots", value_name = "PACKETS", requires = "repair", value_parser = clap::value_parser!(u16).range(2..=32768))]
    repair_slots: Option<u16>,
    /// One of the members that another tool connects: it has joined at once
    #[arg(
        id = "members.connection",
        long = "connection",
        value_name = "HOST=IP,MAC,QPN[,VA,RKEY,LENGTH]"
    )]
    connection: Vec<Joined>,
}

/// Flags that there were: each is refused with what to write.
#[derive(Clone, Debug, Default, Args)]
struct Replaced {
    #[arg(long, aliases = ["core-copies", "tree", "path"], hide = true, num_args = 0..=1, default_missing_value = "", value_parser = |_: &str| gone(SPREADS))]
    core: Option<Infallible>,
    #[arg(long, aliases = ["ranks", "window", "mode", "mode-at", "reproducible"], hide = true, num_args = 0..=1, default_missing_value = "", value_parser = |_: &str| gone("castnet job create"))]
    collective: Option<Infallible>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "", value_parser = |_: &str| gone("castnet group install FILE --agent URL"))]
    rules: Option<Infallible>,
}

const SPREADS: &str = "--distribution switches[:SHAPE], edge[:SHAPE] or static[:COPIES]";

fn gone(instead: &str) -> Result<Infallible, String> {
    Err(format!("write {instead}"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Loss {
    Evict,
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stall {
    Wait,
    Evict,
    Fail,
}

#[derive(Clone, Debug)]
pub(crate) struct Joined {
    host: String,
    connection: api::Connection,
}

impl FromStr for Joined {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write HOST=IP,MAC,QPN or HOST=IP,MAC,QPN,VA,RKEY,LENGTH";
        let (host, rest) = text.split_once('=').ok_or(form)?;
        let parts: Vec<&str> = rest.split(',').map(str::trim).collect();
        let (ip, mac, qpn_text, memory) = match parts[..] {
            [ip, mac, qpn] => (ip, mac, qpn, None),
            [ip, mac, qpn, va, rkey, length] => (ip, mac, qpn, Some((va, rkey, length))),
            _ => return Err(form.to_owned()),
        };
        ip.parse::<std::net::Ipv4Addr>()
            .map_err(|_| format!("'{ip}' is no IPv4 address"))?;
        mac.parse::<MacAddr>().map_err(|e| format!("'{mac}' is {e}"))?;
        let memory = match memory {
            None => None,
            Some((va, rkey, length)) => {
                let rkey =
                    u32::try_from(number(rkey)?).map_err(|_| format!("'{rkey}' is no rkey: 32 bits"))?;
                Some(api::RemoteMemory {
                    va: number(va)?,
                    rkey,
                    length: number(length)?,
                })
            }
        };
        let connection = api::Connection {
            ip: ip.to_owned(),
            mac: mac.to_owned(),
            qpn: qpn(qpn_text)?.value(),
            memory,
            more_lanes: Vec::new(),
        };
        Ok(Self {
            host: name(host)?,
            connection,
        })
    }
}

impl Create {
    /// What the flags contradict each other in.
    pub(crate) fn check(&self) -> Outcome {
        let refuse = |what: String, next: &str| Err(Failure::usage(what).next(next));
        if self.distribution.is_static() && self.any_source.is_some() {
            return refuse(
                format!("--distribution static {}", FaultKind::CoreOfAnySource),
                "leave --any-source out, or take --distribution switches",
            );
        }
        if self.member_stall_ms.is_some() && self.on_member_stall == Stall::Wait {
            return refuse(
                "--member-stall-ms is given in a group that waits for a receiver that stalls".into(),
                "leave it out, or take --on-member-stall evict or fail",
            );
        }
        if self.repair_slots.is_some() && self.repair == MulticastRepair::Source {
            return refuse(
                "--repair-slots is given in a group whose switches keep no packets: its source repeats what is lost".into(),
                "leave it out, or take --repair switch",
            );
        }
        let mut given = BTreeSet::new();
        for Joined { host, .. } in &self.connection {
            if !given.insert(host) {
                return refuse(
                    format!("--connection is given twice for host {host}"),
                    "a host is one member with one connection: leave one of them out",
                );
            }
            if *host != self.source && !self.members.contains(host) {
                return refuse(
                    format!("--connection is given for host {host}, which is no member"),
                    "leave it out, or name the host in --members, too",
                );
            }
        }
        Ok(())
    }

    pub(crate) fn request(self) -> api::CreateGroupRequest {
        let mut hosts = vec![self.source.clone()];
        for host in &self.members {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
        let connection = |host: &str| {
            self.connection
                .iter()
                .find(|c| c.host == host)
                .map(|c| c.connection.clone())
        };
        let members = hosts
            .into_iter()
            .map(|host| api::NewMember {
                connection: connection(&host),
                host,
            })
            .collect();
        let settings = MulticastSettings {
            pmtu: self.common.pmtu,
            va_base: self.va_base,
            stall_timeout_ms: self.common.stall_timeout_ms,
            fails_with_receiver: self.on_member_loss == Loss::Fail,
            on_stall: (self.on_member_stall != Stall::Wait).then_some(StallPolicy {
                after_ms: self.member_stall_ms.unwrap_or(DEFAULT_MEMBER_STALL_MS),
                fails: self.on_member_stall == Stall::Fail,
            }),
            any_source: self.any_source,
            distribution: self.distribution,
            repair: (self.repair == MulticastRepair::Switch).then_some(RepairRule {
                slots: self.repair_slots.unwrap_or(DEFAULT_REPAIR_SLOTS),
                ..RepairRule::default()
            }),
        };
        api::CreateGroupRequest {
            name: self.common.name,
            source: self.source,
            members,
            start_psn: self.start_psn,
            mcst_id: self.common.mcst_id.map(|ip| ip.to_string()),
            lanes: self.common.lanes.into(),
            rate_limit: self.common.rate.message(),
            description: self.common.description.to_string(),
            ..creation_with(&settings)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GroupCommand, Verb};
    use super::*;
    use clap::Parser;

    #[test]
    fn a_connection_is_written_in_one_word() {
        let joined: Joined = "h1=10.0.0.1,02:00:00:00:00:01,0x11"
            .parse()
            .expect("a connection");
        assert_eq!((joined.host.as_str(), joined.connection.qpn), ("h1", 0x11));
        let joined: Joined = "h1=10.0.0.1,02:00:00:00:00:01,17,0x1000,0xab,4096"
            .parse()
            .expect("with memory");
        let memory = joined.connection.memory.expect("memory");
        assert_eq!((memory.va, memory.rkey, memory.length), (0x1000, 0xab, 4096));
        for bad in [
            "h1",
            "h1=10.0.0.1",
            "h1=10.0.0.300,02:00:00:00:00:01,17",
            "h1=10.0.0.1,02:00,17",
            "h 1=10.0.0.1,02:00:00:00:00:01,17",
            "h1=10.0.0.1,02:00:00:00:00:01,1",
            "h1=10.0.0.1,02:00:00:00:00:01,17,0x1000",
            "h1=10.0.0.1,02:00:00:00:00:01,17,0,0x1ffffffff,1",
        ] {
            assert!(bad.parse::<Joined>().is_err(), "{bad}");
        }
    }

    #[test]
    fn flags_that_were_replaced_say_what_to_write() {
        for (flag, instead) in [
            ("--core static", SPREADS),
            ("--core-copies", SPREADS),
            ("--tree auto:4096", SPREADS),
            ("--path edge --tree chain", SPREADS),
            ("--collective --ranks h1,h2", "castnet job create"),
            ("--window 9 --mode augmented", "castnet job create"),
            ("--rules r.toml", "castnet group install FILE --agent URL"),
        ] {
            let line = format!("castnet group create g --source h1 --members h2 {flag}");
            let refused = crate::cli::Cli::try_parse_from(line.split_whitespace()).err();
            let said = refused.map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(&format!("write {instead}\n")), "{flag}: {said}");
        }
    }

    /// What `castnet group create g --source h1 --members h2,h1,h2` takes with more flags.
    fn create(more: &[&str]) -> Create {
        let line = [
            "castnet",
            "group",
            "create",
            "g",
            "--source",
            "h1",
            "--members",
            "h2,h1,h2",
        ];
        let cli = crate::cli::Cli::try_parse_from(line.iter().chain(more)).expect("a command line");
        let crate::cli::Command::Group(GroupCommand {
            verb: Verb::Create(create),
            ..
        }) = cli.command
        else {
            panic!("another command");
        };
        create
    }

    const H2: &str = "h2=10.0.0.2,02:00:00:00:00:02,0x12";

    #[test]
    fn the_source_is_a_member_and_nobody_is_one_twice() {
        let flags = [
            "--on-member-stall",
            "fail",
            "--member-stall-ms",
            "700",
            "--connection",
            H2,
        ];
        let create = create(&flags);
        create.check().expect("no contradiction");
        let request = create.request();
        let hosts: Vec<_> = request
            .members
            .iter()
            .map(|m| (m.host.as_str(), m.connection.is_some()))
            .collect();
        assert_eq!(hosts, [("h1", false), ("h2", true)]);
        let policy = api::StallPolicy {
            after_ms: 700,
            then: api::MemberLoss::Fail as i32,
        };
        assert_eq!(request.on_member_stall, Some(policy));
    }

    #[test]
    fn what_flags_stand_for_that_are_left_out() {
        let stall = create(&["--on-member-stall", "evict"]).request().on_member_stall;
        assert_eq!(stall.map(|policy| policy.after_ms), Some(DEFAULT_MEMBER_STALL_MS));
        assert_eq!(create(&[]).request().on_member_stall, None);
        let repair = create(&["--repair", "switch"]).request().repair;
        assert_eq!(
            repair.map(|repair| repair.slots),
            Some(DEFAULT_REPAIR_SLOTS.into())
        );
        let described = |more: &[&str]| create(more).request().description;
        assert_eq!(described(&["--description", ""]), described(&[]));
        assert_eq!(described(&[]), "");
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        let h3 = "h3=10.0.0.3,02:00:00:00:00:03,0x13";
        for (flags, what) in [
            (&["--connection", H2, "--connection", H2][..], "twice for host h2"),
            (&["--connection", h3], "host h3, which is no member"),
            (
                &["--member-stall-ms", "700"],
                "--member-stall-ms is given in a group that waits",
            ),
            (
                &["--member-stall-ms", "700", "--on-member-stall", "wait"],
                "--member-stall-ms is given in a group that waits",
            ),
            (
                &["--repair", "source", "--repair-slots", "64"],
                "--repair-slots is given in a group whose switches keep no packets",
            ),
            (
                &["--distribution", "static", "--any-source"],
                "leads from one source",
            ),
        ] {
            let failure = create(flags).check().expect_err(what);
            assert!(
                failure.code() == 2 && failure.what.contains(what) && failure.next.is_some(),
                "{failure}"
            );
        }
        for flags in [
            &["--member-stall-ms", "700", "--on-member-stall", "evict"][..],
            &["--repair", "switch", "--repair-slots", "64"],
            &["--connection", "h1=10.0.0.1,02:00:00:00:00:01,0x11"],
        ] {
            create(flags).check().expect("no contradiction");
        }
    }

    #[test]
    fn numbers_are_checked_where_they_are_written() {
        assert_eq!(number("0x10"), Ok(16));
        assert!(number("ten").is_err());
        assert!(qpn("0").is_err() && qpn("0x1000000").is_err() && qpn("0x11").is_ok());
    }
}
