//! Tenants, who share the fabric: how many groups and slots each may have.

use castnet_toml_reader::Value;

use crate::config::Config;
use crate::core::Core;
use crate::error::Refusal;
use crate::record::Record;

/// Those who share quotas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Names of certificates and of hosts; `*` stands for any text. A group belongs to the first tenant that has its
    /// owner, otherwise to the first that has the host of its source or of its first rank.
    pub members: Vec<String>,
    /// Maximum number of groups; each lane counts. `None`: no limit.
    pub groups: Option<u64>,
    /// Maximum number of slots of collective groups at a switch, of all groups and lanes together, as requested. `None`:
    /// no limit.
    pub slots: Option<u64>,
}

/// What groups use of the quotas of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quotas {
    pub(crate) groups: u64,
    pub(crate) slots: u64,
}

impl Quotas {
    pub(crate) fn of(record: &Record) -> Self {
        let lanes = u64::from(record.lanes());
        let each = record.collective().map_or(0, |group| u64::from(group.slots()));
        Self {
            groups: lanes,
            slots: lanes * each,
        }
    }
}

impl Tenant {
    /// Reads an item of `[[tenants]]`.
    pub(crate) fn read(value: Value<'_>) -> Option<Self> {
        let t = value.table("a tenant: [[tenants]]")?;
        let most = |name| t.get(name, |v| v.number(0..=u64::MAX, "is no number of them"));
        let (groups, slots) = (most("groups"), most("slots"));
        let members = t.items("members", "a list of names: [\"gpu-*\"]", |v| v.string());
        Some(Self {
            name: t.need("name", "a name in quotes", Value::string)?,
            members,
            groups,
            slots,
        })
    }

    fn has(&self, name: &str) -> bool {
        !name.is_empty() && self.members.iter().any(|pattern| fits(pattern, name))
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
}

impl Core {
    /// Refuses a group that exceeds a quota of its tenant.
    pub(crate) fn check_quotas(&self, config: &Config, record: &Record) -> Result<(), Refusal> {
        let Some(tenant) = config.tenants.iter().find(|tenant| tenant.name == record.tenant) else {
            return Ok(());
        };
        let (used, more) = (self.groups.used_by(&tenant.name), Quotas::of(record));
        for (what, quota, used, more) in [
            ("groups", tenant.groups, used.groups, more.groups),
            ("slots", tenant.slots, used.slots, more.slots),
        ] {
            if let Some(quota) = quota.filter(|quota| used + more > *quota) {
                return Err(Refusal::Quota {
                    tenant: tenant.name.clone(),
                    what,
                    quota,
                    used,
                    more,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
