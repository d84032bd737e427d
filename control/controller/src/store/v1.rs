//! Layout 1 of the store, with a table and a record for each kind of group. Read once, to be converted.

use serde::de::Error as _;
use serde_json::{Error, Map, Value, json};

use crate::state::record::{Ending, Record};

/// Fields of a rule of any kind; the others are now in the part for its kind.
const OF_RULE: [&str; 6] = [
    "name",
    "generation",
    "mcst_id",
    "pmtu",
    "stall_timeout_ms",
    "endpoints",
];

/// `kind` is the name of its section.
pub(super) fn record(kind: &str, bytes: &[u8]) -> Result<Record, Error> {
    let mut group: Map<String, Value> = serde_json::from_slice(bytes)?;
    rename_psn(&mut group);
    // Both the record and the part for its kind ignore the fields of the other.
    group.insert("kind".into(), json!({ kind: group }));
    let (phase, failure) = phase(group.remove("phase").unwrap_or_default());
    group.insert("phase".into(), phase);
    let plan = group.get_mut("plan").and_then(|plan| plan.get_mut("rules"));
    let rules = plan.and_then(Value::as_object_mut).into_iter().flatten();
    for (_, rule) in rules {
        convert_rule(rule).map_err(Error::custom)?;
    }
    let mut record: Record = serde_json::from_value(group.into())?;
    if let Some(failure) = failure {
        let failure = serde_json::from_value(failure)?;
        record.ended = Some(Ending::refused(record.generation, failure));
    }
    Ok(record)
}

/// The phase, and why the group was refused.
fn phase(old: Value) -> (Value, Option<Value>) {
    match old {
        Value::String(name) if name == "Gathering" => ("Registered".into(), None),
        Value::Object(mut fields) => match (fields.remove("Removing"), fields.remove("Failed")) {
            (Some(after), _) => {
                let (after, failure) = phase(after);
                (json!({ "Removing": after }), failure)
            }
            (None, failure) => ("Refused".into(), failure),
        },
        same => (same, None),
    }
}

fn rename_psn(object: &mut Map<String, Value>) {
    if let Some(psn) = object.remove("psn_start") {
        object.insert("start_psn".into(), psn);
    }
}

/// Converts a rule of either kind to the present shape.
fn convert_rule(rule: &mut Value) -> Result<(), String> {
    let rule = rule.as_object_mut().ok_or("a rule is an object")?;
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
            let part = json!({ "rank": take("rank"), "sq_psn": take("sq_psn"), "rq_psn": take("rq_psn") });
            fields.insert("rank".into(), part);
            endpoint.insert("host".into(), host);
        }
    }
    rule.insert("endpoints".into(), endpoints);
    rename_psn(rule);
    // Endpoints were named by their port.
    for name in ["source", "parent"] {
        let Some(port) = rule.get(name).filter(|port| port.is_u64()).cloned() else {
            continue;
        };
        let endpoints = rule.get("endpoints").and_then(Value::as_array);
        let index = endpoints.and_then(|all| all.iter().position(|e| e.get("port") == Some(&port)));
        let index = index.ok_or_else(|| format!("no endpoint is at port {port}, the {name}'s"))?;
        rule.insert(name.into(), index.into());
    }
    let mut of_kind = rule.clone();
    of_kind.retain(|name, _| !OF_RULE.contains(&name.as_str()));
    rule.retain(|name, _| OF_RULE.contains(&name.as_str()));
    rule.insert("kind".into(), json!({ kind: of_kind }));
    Ok(())
}
