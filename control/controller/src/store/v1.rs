//! Layout 1 of the store, which had a table and a record of its own for each kind of group. Read once, to be written anew.

use std::collections::{BTreeMap, BTreeSet};

use castnet_wire::{McstId, Pmtu, Psn};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::kinds::Kind;
use crate::kinds::collective::record::{Collective, RankRecord, Settings};
use crate::kinds::multicast::record::{MemberRecord, Multicast};
use crate::lifecycle::{self, Failure};
use crate::record::{Ending, Plan, Record, TreeSwitch, text};
use castnet_rules::GroupRule;

/// A multicast group.
#[derive(Deserialize)]
pub(super) struct Group {
    name: String,
    generation: u64,
    #[serde(with = "text::mcst_id")]
    mcst_id: McstId,
    #[serde(default, with = "text::mcst_ids")]
    more_lanes: Vec<McstId>,
    #[serde(with = "text::pmtu")]
    pmtu: Pmtu,
    #[serde(with = "text::psn")]
    start_psn: Psn,
    va_base: u64,
    stall_timeout_ms: u32,
    source: String,
    members: Vec<MemberRecord>,
    phase: GroupPhase,
    plan: Option<Layout>,
    placed: BTreeSet<String>,
}

#[derive(Deserialize)]
enum GroupPhase {
    Registered,
    Installing,
    Active,
    Degraded,
    Removing(GroupAfter),
    Failed(Failure),
}

#[derive(Deserialize)]
enum GroupAfter {
    Registered,
    Failed(Failure),
    Gone,
}

/// A collective group.
#[derive(Deserialize)]
pub(super) struct CollectiveGroupRecord {
    name: String,
    generation: u64,
    #[serde(with = "text::mcst_id")]
    mcst_id: McstId,
    #[serde(default, with = "text::mcst_ids")]
    more_lanes: Vec<McstId>,
    settings: Settings,
    #[serde(with = "text::psn")]
    psn_start: Psn,
    by_call: bool,
    ranks: Vec<RankRecord>,
    phase: CollectivePhase,
    ended: Option<Ending>,
    plan: Option<Layout>,
    placed: BTreeSet<String>,
}

#[derive(Deserialize)]
enum CollectivePhase {
    Gathering,
    Installing,
    Active,
    Broken,
    Removing(CollectiveAfter),
    Failed,
    Refused,
}

#[derive(Deserialize)]
enum CollectiveAfter {
    Gathering,
    Failed,
    Refused,
    Gone,
}

#[derive(Deserialize)]
struct Layout {
    tree: Vec<TreeSwitch>,
    rules: BTreeMap<String, OldRule>,
}

/// A rule of either kind, as rules were before all had one shape.
#[derive(Deserialize)]
#[serde(try_from = "Value")]
struct OldRule(GroupRule);

/// Fields that now stand in the section of a rule's kind.
const OF_KIND: [&str; 10] = [
    "start_psn",
    "va_base",
    "source",
    "slots",
    "message_packets",
    "reproducible",
    "loss_policy",
    "straggler_policy",
    "ack_timeout_us",
    "parent",
];

impl TryFrom<Value> for OldRule {
    type Error = String;

    fn try_from(mut value: Value) -> Result<Self, String> {
        let rule = value.as_object_mut().ok_or("a rule is an object")?;
        let paths = rule.remove("paths");
        let kind = if paths.is_some() {
            "multicast"
        } else {
            "translated"
        };
        let mut endpoints = paths.or_else(|| rule.remove("endpoints")).unwrap_or_default();
        for endpoint in endpoints.as_array_mut().into_iter().flatten() {
            let endpoint = endpoint.as_object_mut().ok_or("an endpoint is an object")?;
            if let Some(mut host) = endpoint.remove("rank") {
                let fields = host.as_object_mut().ok_or("a rank is an object")?;
                let mut take = |name: &str| fields.remove(name).unwrap_or_default();
                let part =
                    json!({ "rank": take("rank"), "sq_psn": take("sq_psn"), "rq_psn": take("rq_psn") });
                fields.insert("rank".into(), part);
                endpoint.insert("host".into(), host);
            }
        }
        rule.insert("endpoints".into(), endpoints);
        if let Some(psn) = rule.remove("psn_start") {
            rule.insert("start_psn".into(), psn);
        }
        // Its port was what named an endpoint.
        for name in ["source", "parent"] {
            let Some(port) = rule.get(name).filter(|port| port.is_u64()).cloned() else {
                continue;
            };
            let endpoints = rule.get("endpoints").and_then(Value::as_array);
            let index = endpoints.and_then(|all| all.iter().position(|e| e.get("port") == Some(&port)));
            let index = index.ok_or_else(|| format!("no endpoint is at port {port}, the {name}'s"))?;
            rule.insert(name.into(), index.into());
        }
        let section: Map<_, _> = OF_KIND
            .iter()
            .filter_map(|name| Some(((*name).into(), rule.remove(*name)?)))
            .collect();
        rule.insert("kind".into(), json!({ kind: section }));
        serde_json::from_value(value).map(Self).map_err(|e| e.to_string())
    }
}

impl Layout {
    fn into_plan(self) -> Plan {
        let rules = self.rules.into_iter();
        Plan {
            tree: self.tree,
            rules: rules.map(|(switch, rule)| (switch, rule.0)).collect(),
        }
    }
}

impl From<Group> for Record {
    fn from(old: Group) -> Self {
        use lifecycle::{After, Phase};
        let (phase, failure) = match old.phase {
            GroupPhase::Registered => (Phase::Registered, None),
            GroupPhase::Installing => (Phase::Installing, None),
            GroupPhase::Active => (Phase::Active, None),
            GroupPhase::Degraded => (Phase::Degraded, None),
            GroupPhase::Removing(GroupAfter::Registered) => (Phase::Removing(After::Registered), None),
            GroupPhase::Removing(GroupAfter::Gone) => (Phase::Removing(After::Gone), None),
            GroupPhase::Removing(GroupAfter::Failed(why)) => (Phase::Removing(After::Refused), Some(why)),
            GroupPhase::Failed(why) => (Phase::Refused, Some(why)),
        };
        let kind = Kind::Multicast(Multicast {
            pmtu: old.pmtu,
            start_psn: old.start_psn,
            va_base: old.va_base,
            stall_timeout_ms: old.stall_timeout_ms,
            source: old.source,
            members: old.members.into(),
        });
        Self {
            generation: old.generation,
            phase,
            ended: failure.map(|failure| Ending::refused(old.generation, failure)),
            plan: old.plan.map(|plan| plan.into_plan().into()),
            placed: old.placed,
            ..Self::new(old.name, (old.mcst_id, old.more_lanes), kind)
        }
    }
}

impl From<CollectiveGroupRecord> for Record {
    fn from(old: CollectiveGroupRecord) -> Self {
        use lifecycle::{After, Phase};
        let phase = match old.phase {
            CollectivePhase::Gathering => Phase::Registered,
            CollectivePhase::Installing => Phase::Installing,
            CollectivePhase::Active => Phase::Active,
            CollectivePhase::Broken => Phase::Broken,
            CollectivePhase::Failed => Phase::Failed,
            CollectivePhase::Refused => Phase::Refused,
            CollectivePhase::Removing(CollectiveAfter::Gathering) => Phase::Removing(After::Registered),
            CollectivePhase::Removing(CollectiveAfter::Failed) => Phase::Removing(After::Failed),
            CollectivePhase::Removing(CollectiveAfter::Refused) => Phase::Removing(After::Refused),
            CollectivePhase::Removing(CollectiveAfter::Gone) => Phase::Removing(After::Gone),
        };
        let kind = Kind::Collective(Collective {
            settings: old.settings,
            start_psn: old.psn_start,
            by_call: old.by_call,
            ranks: old.ranks,
        });
        Self {
            generation: old.generation,
            phase,
            ended: old.ended,
            plan: old.plan.map(|plan| plan.into_plan().into()),
            placed: old.placed,
            ..Self::new(old.name, (old.mcst_id, old.more_lanes), kind)
        }
    }
}
