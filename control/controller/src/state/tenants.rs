//! Tenants, who share the fabric: how many groups and slots and how much bandwidth each may have.

use castnet_proto::transport::Address;
use castnet_rules::{BitRate, RATE_TEXT, RateLimit};
use castnet_toml_reader::Value;

use crate::config::Config;
use crate::error::Refusal;
use crate::state::{Core, Record, pool};

/// In quotas of groups, each lane of a group counts once for each so many ranks: a record has a connection for each rank and lane.
const RANKS_PER_GROUP: u64 = 64;

/// A host without a tenant has one of so many parts of the pool of McstIDs, and one McstID at least.
const HOST_PART_OF_POOL: u64 = 4;

/// A burst within a quota of bandwidth, in milliseconds of the rate: a group that is created again has it again, and it counts nowhere.
const BURST_MS: u64 = 50;

/// The largest burst within a quota of bandwidth, in bytes. The default of a rate is always allowed.
fn burst_max(rate: BitRate) -> u64 {
    let burst = rate.bits_per_second() / 8 * BURST_MS / 1000;
    burst.max(RateLimit::of(rate).burst_bytes)
}

/// Those who share quotas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Names of certificates and of hosts in any case; `*` stands for any text. A group belongs to the first tenant that has its
    /// owner, otherwise to the first that has the host of its source or of its first rank.
    pub members: Vec<String>,
    /// Maximum number of groups. Each lane of a group counts, once for each 64 ranks. `None`: no limit.
    pub groups: Option<u64>,
    /// Maximum number of slots of collective groups at a switch, of all groups and lanes together, as requested. `None`:
    /// no limit.
    pub slots: Option<u64>,
    /// Maximum of the sum of the rate limits of its groups. Each of them must have one, with a burst of 50 ms of its rate, 256 KiB if that
    /// is more, at most. `None`: no limit.
    pub bandwidth: Option<BitRate>,
    /// The rate limit of a group that is created without one. `None`: it has none, and is refused where `bandwidth` is given.
    pub group_bandwidth: Option<BitRate>,
}

/// What groups use of the quotas of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quotas {
    pub(crate) groups: u64,
    pub(crate) slots: u64,
    /// Bits per second.
    pub(crate) bandwidth: u64,
}

impl Quotas {
    pub(crate) fn of(record: &Record) -> Self {
        let lanes = u64::from(record.lanes());
        let (ranks, slots) = record.collective().map_or((0, 0), |group| {
            (group.ranks.len() as u64, u64::from(group.slots()))
        });
        Self {
            groups: lanes * ranks.div_ceil(RANKS_PER_GROUP).max(1),
            slots: lanes * slots,
            bandwidth: record.rate_limit.map_or(0, |limit| limit.rate.bits_per_second()),
        }
    }
}

impl Tenant {
    /// Reads an item of `[[tenants]]`.
    pub(crate) fn read(value: Value<'_>) -> Option<Self> {
        let t = value.table("a tenant: [[tenants]]")?;
        let most = |name| t.get(name, |v| v.number(0..=u64::MAX, "is no number of them"));
        let (groups, slots) = (most("groups"), most("slots"));
        let rate = |name| t.get(name, |v| v.parsed(RATE_TEXT));
        let (bandwidth, group_bandwidth) = (rate("bandwidth"), rate("group_bandwidth"));
        let members = t.items("members", "a list of names: [\"gpu-*\"]", |v| v.string());
        Some(Self {
            name: t.need("name", "a name in quotes", Value::string)?,
            members,
            groups,
            slots,
            bandwidth,
            group_bandwidth,
        })
    }

    fn has(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let fits = |pattern: &String| fits(&pattern.to_ascii_lowercase(), &name);
        !name.is_empty() && self.members.iter().any(fits)
    }
}

/// Whether a name is as a pattern says, in which `*` stands for any text.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(head) else {
        return false;
    };
    let mut ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    ends.any(|at| fits(rest, &name[at..]))
}

impl Config {
    /// The tenant that a group belongs to; empty: none.
    pub(crate) fn tenant_of(&self, record: &Record) -> String {
        if self.tenants.is_empty() {
            return String::new();
        }
        let parties = record.kind.behaviour().parties();
        let first = parties.iter().map(|p| p.host).find(|host| !host.is_empty());
        let source = record.multicast().map(|group| group.source.as_str());
        let host = source.or(first).unwrap_or_default();
        let of = |name: &str| self.tenants.iter().find(|tenant| tenant.has(name));
        let tenant = of(&record.owner).or_else(|| of(host));
        tenant.map(|tenant| tenant.name.clone()).unwrap_or_default()
    }

    /// Whether an owner of groups is a host, by its certificate.
    pub(crate) fn is_host(&self, owner: &str) -> bool {
        let is_operator = self
            .roles
            .operators
            .iter()
            .any(|name| name.eq_ignore_ascii_case(owner));
        matches!(self.listen, Address::Tcp { tls: true, .. }) && !is_operator
    }

    /// Whether a group is a job that a host without a tenant has made by a call: it has a share of the memory of switches.
    pub(crate) fn has_share(&self, record: &Record) -> bool {
        let by_call = record.collective().is_some_and(|group| group.by_call);
        let has = |tenant: &Tenant| tenant.name == record.tenant || tenant.has(&record.owner);
        by_call && self.is_host(&record.owner) && !self.tenants.iter().any(has)
    }

    /// Sets the tenant of a new group, and its rate limit if it has none and the tenant has a default.
    pub(crate) fn assign_tenant(&self, record: &mut Record) {
        record.tenant = self.tenant_of(record);
        let tenant = self.tenants.iter().find(|tenant| tenant.name == record.tenant);
        let default = tenant.and_then(|tenant| tenant.group_bandwidth);
        record.rate_limit = record.rate_limit.or(default.map(RateLimit::of));
    }
}

impl Core {
    /// Bytes that groups of the owner of this one may still have at a switch with so much memory. `None`: as many as there are. Other than quotas of
    /// groups it is known when the group is planned: the planner gives it fewer slots, or another place.
    pub(crate) fn share_left(&self, record: &Record, switch: &str, memory_max: u64) -> Option<u64> {
        // 0: not reported.
        if memory_max == 0 || !self.config.has_share(record) {
            return None;
        }
        let share = u128::from(memory_max) * u128::from(self.config.host_memory) / 100;
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let own = self.groups.memory_of(&record.owner, switch, &record.name);
        Some(share.saturating_sub(own))
    }

    /// Refuses a group that exceeds a quota of its tenant; without a tenant, that of the host that creates it.
    pub(crate) fn check_quotas(&self, config: &Config, record: &Record) -> Result<(), Refusal> {
        let Some(tenant) = config.tenants.iter().find(|tenant| tenant.name == record.tenant) else {
            return match config.is_host(&record.owner) {
                true => self.check_host_quotas(config, record),
                false => Ok(()),
            };
        };
        let name = &tenant.name;
        match (tenant.bandwidth, record.rate_limit) {
            (Some(quota), None) => {
                let reason = format!(
                    "tenant {name:?} may have {quota}b/s of bandwidth for all its groups, so each of them needs a rate limit: give it one \
                     (--rate), or name one for all in the controller's configuration (group_bandwidth)"
                );
                return Err(Refusal::wrong("rate_limit", reason));
            }
            (Some(_), Some(RateLimit { rate, burst_bytes })) if burst_bytes > burst_max(rate) => {
                let most = burst_max(rate);
                let reason = format!(
                    "tenant {name:?} has a quota of bandwidth, in which a group with a rate limit of {rate}b/s may have a burst of {most} bytes \
                     at most, not {burst_bytes}"
                );
                return Err(Refusal::wrong("rate_limit.burst_bytes", reason));
            }
            _ => {}
        }
        let (used, more) = (self.groups.used_by(name), Quotas::of(record));
        let count: fn(u64) -> String = |n| n.to_string();
        // A sum of rates may be larger than each rate can be.
        let rate: fn(u64) -> String =
            |n| BitRate::new(n).map_or_else(|| format!("{n} b/s"), |rate| format!("{rate}b/s"));
        let bandwidth = tenant.bandwidth.map(BitRate::bits_per_second);
        for (what, quota, used, more, show) in [
            ("groups", tenant.groups, used.groups, more.groups, count),
            ("slots", tenant.slots, used.slots, more.slots, count),
            ("of bandwidth", bandwidth, used.bandwidth, more.bandwidth, rate),
        ] {
            let exceeded = |quota: &u64| used.checked_add(more).is_none_or(|sum| sum > *quota);
            if let Some(quota) = quota.filter(exceeded) {
                let (quota, used, more) = (show(quota), show(used), show(more));
                let reason = format!(
                    "tenant {name:?} may have {quota} {what}, has {used}, and this group needs {more} (each lane of a group counts, once for \
                     each {RANKS_PER_GROUP} ranks)"
                );
                return Err(Refusal::no_room("tenant", reason));
            }
        }
        Ok(())
    }

    /// Refuses a group that exceeds what a host without a tenant may create: groups, and McstIDs of a pool that may be small.
    fn check_host_quotas(&self, config: &Config, record: &Record) -> Result<(), Refusal> {
        let (host, quota) = (&record.owner, config.host_groups);
        let (used, more) = (self.groups.owned_by(host), Quotas::of(record).groups);
        if used + more > quota {
            let reason = format!(
                "host {host:?} may have created {quota} groups, has {used}, and this one needs {more} (each lane of a group counts, once for \
                 each {RANKS_PER_GROUP} ranks): an operator gives it a tenant, or more host_groups"
            );
            return Err(Refusal::no_room("host_groups", reason));
        }
        let pool = self.mcst_pool;
        let share = (pool::size(pool) / HOST_PART_OF_POOL).max(1);
        let of_pool = record.all_mcst_ids().filter(|mcst_id| pool.contains(&mcst_id.0));
        let (used, more) = (self.groups.of_pool(host), of_pool.count() as u64);
        if used + more > share {
            let reason = format!(
                "host {host:?} may have {share} McstIDs of the pool {pool}, has {used}, and this group needs {more}: an operator gives the \
                 host a tenant, or makes mcst_pool larger"
            );
            return Err(Refusal::no_room("mcst_pool", reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use castnet_rules::{HostEndpoint, TranslatedRule};
    use castnet_wire::Psn;

    use super::*;
    use crate::state::core::tests::{core, join, mcst_id, new_group, rule};
    use crate::state::{Kind, Multicast, Plan};

    /// A rank takes memory before it has a host.
    #[test]
    fn free_ranks_count_in_the_quota_of_a_host() {
        let mut core = core(|config| {
            config.host_groups = 4;
            config.listen = "https://127.0.0.1:0".parse().expect("an address");
        });
        core.seat_rank(join("a", 0, 129, ""), "h0").map(drop).unwrap();
        assert_eq!(core.groups.owned_by("h0"), 3);
        let refused = core.seat_rank(join("b", 0, 65, ""), "h0").map(drop).unwrap_err();
        let words = "may have created 4 groups, has 3, and this one needs 2 (each lane of a group counts, once for each 64 ranks)";
        assert!(refused.to_string().contains(words), "{refused}");
        core.seat_rank(join("b", 0, 64, ""), "h0").map(drop).unwrap();
        for group in ["a", "b"] {
            core.forget(group).unwrap();
        }
        assert_eq!(core.groups.owned_by("h0"), 0);
    }

    /// In a small pool one certificate took all McstIDs long before it had its number of groups.
    #[test]
    fn no_host_takes_all_mcst_ids_of_a_small_pool() {
        let mut core = core(|config| {
            config.mcst_pool = "10.200.0.0/28".parse().expect("a pool");
            config.listen = "https://127.0.0.1:0".parse().expect("an address");
        });
        for job in ["a", "b", "c"] {
            core.seat_rank(join(job, 0, 2, ""), "h0").map(drop).unwrap();
        }
        let refused = core.seat_rank(join("d", 0, 2, ""), "h0").map(drop).unwrap_err();
        let words = "may have 3 McstIDs of the pool 10.200.0.0/28, has 3, ";
        assert!(refused.to_string().contains(words), "{refused}");
        core.seat_rank(join("e", 1, 2, ""), "h1").map(drop).unwrap();
        // What is gone does not count.
        core.forget("a").unwrap();
        core.seat_rank(join("d", 0, 2, ""), "h0").map(drop).unwrap();
        assert_eq!(core.groups.of_pool("h0"), 3);
    }

    /// A job is spread over switches, and counts at each what it has there.
    #[test]
    fn a_host_without_a_tenant_has_a_part_of_the_memory_of_each_switch() {
        let mut core = core(|config| {
            config.listen = "https://127.0.0.1:0".parse().expect("an address");
            config.tenants = vec![Tenant {
                name: "t".into(),
                members: vec!["of-t".into()],
                ..Tenant::default()
            }];
        });
        core.seat_rank(join("a", 0, 2, ""), "h0").map(drop).unwrap();
        let plan = Plan {
            rules: [("s".to_owned(), rule(TranslatedRule::root(64)))].into(),
            ..Plan::default()
        };
        core.try_change("a", |r| {
            r.placed.insert("s".into());
            r.plan = Some(plan.into());
        });
        let own = core.group("a").unwrap().record().clone();
        let bytes = own.reserved_on("s");
        let left = |name: &str, owner: &str, switch| {
            let (name, owner) = (name.to_owned(), owner.to_owned());
            core.share_left(
                &Record {
                    name,
                    owner,
                    ..own.clone()
                },
                switch,
                1_000_000,
            )
        };
        assert!(bytes > 0 && bytes < 500_000, "{bytes}");
        assert_eq!(left("b", "h0", "s"), Some(500_000 - bytes));
        // What it has itself it may have again, and others have their own.
        for (name, owner, switch) in [("a", "h0", "s"), ("b", "h1", "s"), ("b", "h0", "t")] {
            assert_eq!(
                left(name, owner, switch),
                Some(500_000),
                "{name} {owner} {switch}"
            );
        }
        let of_tenant = Record {
            tenant: "t".into(),
            ..own.clone()
        };
        assert_eq!(core.share_left(&of_tenant, "s", 1_000_000), None);
        // An operator gives the host a tenant, and the group is planned again.
        assert_eq!(left("a", "of-t", "s"), None);
        // Whoever looks at a plan asks for what an operator would create.
        let mut seen = own.clone();
        if let Kind::Collective(group) = &mut seen.kind {
            group.by_call = false;
        }
        assert_eq!(core.share_left(&seen, "s", 1_000_000), None);
        core.config = Config {
            host_memory: 100,
            ..(*core.config).clone()
        }
        .into();
        assert_eq!(core.share_left(&own, "t", 1_000_099), Some(1_000_099));
    }

    #[test]
    fn free_ranks_count_in_the_quota_of_a_tenant() {
        let mut core = core(|config| {
            config.tenants = vec![Tenant {
                name: "t".into(),
                members: vec!["h*".into()],
                groups: Some(4),
                ..Tenant::default()
            }];
        });
        core.seat_rank(join("a", 0, 129, ""), "h0").map(drop).unwrap();
        assert_eq!(core.groups.used_by("t").groups, 3);
        let refused = core.seat_rank(join("b", 0, 65, ""), "h0").map(drop).unwrap_err();
        let words = "tenant \"t\" may have 4 groups, has 3, and this group needs 2 ";
        assert!(refused.to_string().starts_with(words), "{refused}");
        core.forget("a").unwrap();
        assert_eq!(core.groups.used_by("t"), Quotas::default());
        // A job of 1024 ranks and 16 lanes counted 16 times, and had 16384 connections.
        let mut lanes = join("c", 0, 65, "");
        lanes.settings.lanes = Some(2);
        lanes.more = vec![HostEndpoint {
            qpn: castnet_wire::Qpn::new(99),
            ..lanes.endpoint.clone()
        }];
        core.seat_rank(lanes, "h0").map(drop).unwrap();
        assert_eq!(core.groups.used_by("t").groups, 4);
    }

    #[test]
    fn a_group_is_of_the_first_tenant_that_has_its_source() {
        let tenant = |name: &str, members: &str| Tenant {
            name: name.into(),
            members: vec![members.into()],
            ..Tenant::default()
        };
        let core = core(|config| config.tenants = vec![tenant("one", "h0"), tenant("all", "h*")]);
        for (source, tenant) in [("h0", "one"), ("h1", "all"), ("x", "")] {
            let mut group = new_group("g", &["h0", "h1", "x"]);
            group.source = source.into();
            let kind = Kind::Multicast(Multicast::new(group, Psn::new(0), 100));
            let record = Record::new("g".into(), (mcst_id(1), Vec::new()), kind);
            assert_eq!(core.config.tenant_of(&record), tenant, "{source}");
        }
    }

    /// A host had the rate of its link with a limit of 1 kb/s: it sent a burst of 1 GiB, left, and joined again.
    #[test]
    fn a_burst_within_a_quota_of_bandwidth_is_short() {
        let refused = |bandwidth: Option<&str>, rate: &str, burst_bytes| {
            let mut core = core(|config| {
                config.tenants = vec![Tenant {
                    name: "t".into(),
                    members: vec!["h*".into()],
                    bandwidth: bandwidth.map(|rate| rate.parse().expect("a rate")),
                    ..Tenant::default()
                }];
            });
            let mut rank = join("a", 0, 2, "");
            let rate = rate.parse().expect("a rate");
            rank.settings.rate_limit = Some(RateLimit { rate, burst_bytes });
            let refusal = core.seat_rank(rank, "h0").map(drop).err()?;
            Some(tonic::Status::from(refusal).message().to_owned())
        };
        for (rate, most) in [("1k", 256 << 10), ("40M", 256 << 10), ("1G", 6_250_000)] {
            assert_eq!(refused(Some("10G"), rate, most), None, "{rate}");
            let why = refused(Some("10G"), rate, most + 1).expect("refused");
            let words = format!("a burst of {most} bytes at most, not {}", most + 1);
            assert!(
                why.starts_with("rate_limit.burst_bytes: ") && why.contains(&words),
                "{why}"
            );
        }
        assert_eq!(refused(None, "1k", RateLimit::BURST_MAX), None);
    }

    /// Names of certificates are in lower case, those of hosts as they are given.
    #[test]
    fn a_tenant_has_its_members_in_any_case() {
        let tenant = Tenant {
            members: vec!["H*".into(), "gpu-1".into()],
            ..Tenant::default()
        };
        for (name, is_member) in [
            ("h9", true),
            ("H9", true),
            ("GPU-1", true),
            ("gpu-2", false),
            ("", false),
        ] {
            assert_eq!(tenant.has(name), is_member, "{name}");
        }
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name) in [
            ("h1", "h1"),
            ("*", ""),
            ("gpu-*", "gpu-17"),
            ("*.a.example", "x.y.a.example"),
            ("a*b*c", "abbc"),
            ("a*b*c", "a-b-b-c"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("h1", "h10"),
            ("gpu-*", "cpu-1"),
            ("*b", "abc"),
            ("a*b*c", "acb"),
            ("", "a"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
