//! Installing and removing groups: whose they are, and what a refusal looks like.

use std::collections::BTreeMap;

use castnet_proto::convert::{Invalid, refuse, rule_faults};
use castnet_proto::v1::InstallOutcome;
use castnet_rules::{Fault, MulticastGroup};
use castnet_wire::McstId;
use castnet_worker::engine::InstallError as Refused;
use castnet_worker::{Dataplane, InstallError, Installed, Rule, Stopped};
use parking_lot::Mutex;
use tonic::{Code, Status};

/// Who installed which group; those that are not here are an operator's. Held over an installation, so that two
/// clients do not cross.
#[derive(Debug, Default)]
pub(crate) struct Owners(Mutex<BTreeMap<McstId, String>>);

/// An operator, or a rule file.
const NOBODY: &str = "";

impl Owners {
    /// Who has a group.
    pub(crate) fn of(&self, mcst_id: McstId) -> String {
        self.0.lock().get(&mcst_id).cloned().unwrap_or_default()
    }

    /// Installs `rule` for `owner`.
    pub(crate) fn install(
        &self,
        dataplane: &Dataplane,
        rule: &Rule,
        owner: &str,
    ) -> Result<InstallOutcome, Status> {
        let (mcst_id, fields) = (rule.mcst_id(), Fields::of(rule));
        let mut owners = self.0.lock();
        if let Some(running) = dataplane.rule(mcst_id) {
            let has = owners.get(&mcst_id).map_or(NOBODY, String::as_str);
            if has != owner {
                let (name, who) = (running.name(), who(has));
                let reason = format!("{mcst_id} is the address of group {name:?} of {who}");
                return Err(refuse(Code::AlreadyExists, fields.path("mcst_id"), reason));
            }
            if running.name() == rule.name() && running.generation() == rule.generation() {
                return unchanged(&running, rule, fields);
            }
        }
        let installed = dataplane.install(rule).map_err(|error| fields.refusal(&error))?;
        owners.insert(mcst_id, owner.into());
        Ok(match installed {
            Installed::New { .. } => InstallOutcome::Installed,
            Installed::Replaced { .. } => InstallOutcome::Replaced,
            Installed::Unchanged => InstallOutcome::Unchanged,
        })
    }

    /// Removes a group, where it is `owner`'s and of this generation, so far as they are given. Whether there was one.
    pub(crate) fn remove(
        &self,
        dataplane: &Dataplane,
        mcst_id: McstId,
        owner: Option<&str>,
        generation: Option<u64>,
    ) -> Result<bool, Status> {
        let mut owners = self.0.lock();
        let Some(running) = dataplane.rule(mcst_id) else {
            return Ok(false);
        };
        let has = owners.get(&mcst_id).map_or(NOBODY, String::as_str);
        if let Some(owner) = owner.filter(|owner| *owner != has) {
            let reason = format!(
                "group {:?} is of {}, not of {}",
                running.name(),
                who(has),
                who(owner)
            );
            return Err(refuse(Code::FailedPrecondition, "owner", reason));
        }
        if let Some(generation) = generation.filter(|g| *g != running.generation()) {
            let reason = format!(
                "group {:?} runs generation {}, not {generation}",
                running.name(),
                running.generation()
            );
            return Err(refuse(Code::FailedPrecondition, "generation", reason));
        }
        let removed = dataplane.remove_group(mcst_id).map_err(stopped)?;
        owners.remove(&mcst_id);
        Ok(removed.is_some())
    }
}

/// The same generation must be the same rule. A multicast group's start PSN may differ: who installs a rule again while
/// the source has long been sending has none to give, and a rule that runs needs none.
fn unchanged(running: &Rule, rule: &Rule, fields: Fields) -> Result<InstallOutcome, Status> {
    let same = match (running, rule) {
        (Rule::Multicast(running), Rule::Multicast(rule)) => {
            let rule = MulticastGroup {
                start_psn: running.start_psn,
                ..rule.clone()
            };
            rule == *running
        }
        (running, rule) => running == rule,
    };
    if same {
        return Ok(InstallOutcome::Unchanged);
    }
    let reason = format!(
        "group {:?} runs another rule under generation {}: give a newer one",
        running.name(),
        rule.generation()
    );
    Err(refuse(
        Code::FailedPrecondition,
        fields.path("generation"),
        reason,
    ))
}

fn who(owner: &str) -> String {
    if owner == NOBODY {
        "an operator".into()
    } else {
        format!("{owner:?}")
    }
}

/// The dataplane has ended.
pub(crate) fn stopped(stopped: Stopped) -> Status {
    Status::unavailable(stopped.to_string())
}

/// What the fields of a rule are called in the request.
#[derive(Clone, Copy)]
struct Fields {
    rule: &'static str,
    /// The list of its ports.
    ports: &'static str,
}

impl Fields {
    fn of(rule: &Rule) -> Self {
        match rule {
            Rule::Multicast(_) => Self {
                rule: "group",
                ports: "paths",
            },
            Rule::Collective(_) => Self {
                rule: "collective",
                ports: "endpoints",
            },
        }
    }

    fn path(self, field: &str) -> String {
        format!("{}.{field}", self.rule)
    }

    fn refusal(self, error: &InstallError) -> Status {
        let text = error.to_string();
        let (code, field) = match error {
            InstallError::Refused(refused) => match refused {
                Refused::Faults(faults) => return self.faults(faults, Code::InvalidArgument),
                Refused::NoPort { path, .. } => (
                    Code::InvalidArgument,
                    self.path(&format!("{}[{path}].port", self.ports)),
                ),
                Refused::MtuTooSmall { .. } => (Code::InvalidArgument, self.path("pmtu")),
                Refused::OwnAddress { .. } => (Code::InvalidArgument, self.path("mcst_id")),
                // It is the slots that take memory, and fewer that may fit.
                Refused::NoMemory { .. } if self.ports == "endpoints" => {
                    (Code::ResourceExhausted, self.path("slots"))
                }
                Refused::GroupsFull { .. } | Refused::NoMemory { .. } | Refused::NextHopsFull => {
                    (Code::ResourceExhausted, self.rule.into())
                }
            },
            InstallError::Clash(faults) => return self.faults(faults, Code::AlreadyExists),
            InstallError::Older { .. } => (Code::FailedPrecondition, self.path("generation")),
            _ => return Status::unavailable(text),
        };
        refuse(code, field, text)
    }

    /// What the checker found, with the switch's real ports and groups.
    fn faults(self, faults: &[Fault], code: Code) -> Status {
        match Invalid::all(rule_faults(self.rule, faults)) {
            Some(invalid) => invalid.refuse(code),
            None => Status::new(code, format!("{}: refused", self.rule)),
        }
    }
}
