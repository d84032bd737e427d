//! Removal of all groups of one owner from switches: what a controller that does not return has left there.

use std::collections::{BTreeMap, BTreeSet};

use castnet_console::api;
use castnet_console::columns;
use castnet_console::exit::{Failure, Kind, Outcome};
use castnet_console::output::{Output, Page, Report};
use serde::Serialize;

use super::show::{OPERATOR, owner_text};

const WITH_YES: &str =
    "Again with --yes removes them. A controller that still runs with its store brings them back";

/// The owner that lists show by this word.
pub(super) fn owner(text: &str) -> Result<String, String> {
    match text {
        "" => Err(format!(
            "it is empty: write the name of a controller, or {OPERATOR} for what operators and rule files have installed"
        )),
        OPERATOR => Ok(String::new()),
        name => Ok(name.to_owned()),
    }
}

#[derive(Debug, Serialize)]
struct Purged {
    owner: String,
    /// Names of its groups: of those that were removed, or would be.
    groups: Vec<String>,
    /// False: nothing was removed.
    removed: bool,
    /// Further groups, which the switch may still have.
    unfinished: Vec<NotRemoved>,
}

#[derive(Debug, Serialize)]
struct NotRemoved {
    group: String,
    reason: String,
}

impl Purged {
    /// From the groups of `owner`, and how the removal of each ended. Fails if the switch may still have some.
    fn conclude(owner: String, ends: Vec<(String, Outcome)>) -> (Self, Outcome) {
        let (mut groups, mut unfinished, mut verdict) = (Vec::new(), Vec::new(), Ok(()));
        for (group, end) in ends {
            match end {
                Ok(()) => groups.push(group),
                Err(failure) => {
                    let reason = failure.what.clone();
                    verdict = verdict.and(Err(failure));
                    unfinished.push(NotRemoved { group, reason });
                }
            }
        }
        let left: Vec<&str> = unfinished.iter().map(|u| u.group.as_str()).collect();
        let left = format!("the switch may still have {}", left.join(", "));
        let verdict = verdict.map_err(|failure: Failure| failure.while_doing(left));
        let report = Self {
            owner,
            removed: !groups.is_empty(),
            groups,
            unfinished,
        };
        (report, verdict)
    }
}

impl Report for Purged {
    fn page(&self, page: &mut Page) {
        let names = self.groups.join(", ");
        match self.removed {
            _ if names.is_empty() => {}
            true => page.line(format!("removed from the switch: {names}")),
            false => page.line(format!(
                "these groups of {} would be removed from the switch, and their traffic would end: {names}\n{WITH_YES}",
                owner_text(&self.owner)
            )),
        }
        for NotRemoved { group, reason } in &self.unfinished {
            page.line(format!("group {group} may still be there: {reason}"));
        }
    }
}

/// Shows the groups of `owner` at a switch, and removes them if `is_meant`.
pub(super) async fn at_switch(
    agent: &mut api::AgentClient,
    owner: String,
    is_meant: bool,
    output: Output,
) -> Outcome {
    let request = api::ListGroupsRequest {
        mcst_id: None,
        brief: true,
    };
    let listed = agent.list_groups(request).await?.into_inner().groups;
    let mut owners: BTreeMap<String, usize> = BTreeMap::new();
    for group in &listed {
        *owners.entry(owner_text(&group.owner)).or_default() += 1;
    }
    let of_owner = listed.into_iter().filter(|g| g.owner == owner);
    let rules: Vec<api::GroupRule> = of_owner.filter_map(|g| g.rule).collect();
    if rules.is_empty() {
        let owners = owners.iter().map(|(name, groups)| format!("{name} ({groups})"));
        let owners = owners.collect::<Vec<_>>().join(", ");
        let failure = Failure::refused(format!("the switch has no groups of {}", owner_text(&owner)));
        return Err(match owners.is_empty() {
            true => failure.next("it has no groups at all"),
            false => failure.next(format!("owners of its groups: {owners}")),
        });
    }
    if !is_meant {
        return output.show(&Purged {
            owner,
            groups: rules.into_iter().map(|rule| rule.name).collect(),
            removed: false,
            unfinished: Vec::new(),
        });
    }
    let mut ends: Vec<(String, Outcome)> = Vec::new();
    for rule in rules {
        // Each further call would wait as long for a connection.
        if let Some((_, Err(failure))) = ends.last()
            && failure.kind == Kind::Unreachable
        {
            let same = Err(failure.clone());
            ends.push((rule.name, same));
            continue;
        }
        let request = api::RemoveGroupRequest {
            mcst_id: rule.mcst_id,
            owner: Some(owner.clone()),
            // One that was replaced meanwhile is of a controller that lives.
            generation: Some(rule.generation),
        };
        let end = agent.remove_group(request).await;
        ends.push((rule.name, end.map(drop).map_err(Failure::from)));
    }
    let (report, verdict) = Purged::conclude(owner, ends);
    output.conclude(&report, verdict)
}

/// A group of another owner on the switches of the controller.
#[derive(Debug, Serialize)]
struct LeftLine {
    owner: String,
    group: String,
    /// Those that have it, or had it before it was removed.
    switches: Vec<String>,
}

impl LeftLine {
    fn owner(&self) -> String {
        owner_text(&self.owner)
    }

    fn switches(&self) -> String {
        self.switches.join(" ")
    }
}

columns!(row: LeftLine => row { owner(), group, switches() });

#[derive(Debug, Serialize)]
struct Unfinished {
    switch: String,
    /// `refuses: ...`, or `cannot be reached: ...`.
    reason: String,
    /// It refuses: the same again would change nothing.
    refuses: bool,
}

#[derive(Debug, Serialize)]
struct PurgedEverywhere {
    owner: Option<String>,
    groups: Vec<LeftLine>,
    /// Multicast addresses of groups that programmable routers copy.
    routes: Vec<String>,
    /// False: nothing was removed yet.
    removed: bool,
    /// Switches that may have more.
    unfinished: Vec<Unfinished>,
}

impl PurgedEverywhere {
    /// Fails if groups were to be removed, and there were none or may be more.
    fn verdict(&self) -> Outcome {
        if !self.removed {
            return Ok(());
        }
        let refusals = self.unfinished.iter().filter(|u| u.refuses);
        let refusals: Vec<_> = refusals
            .map(|u| format!("switch {} {}", u.switch, u.reason))
            .collect();
        if !refusals.is_empty() {
            return Err(Failure::refused(refusals.join("\n")));
        }
        if !self.unfinished.is_empty() {
            let switches: Vec<_> = self.unfinished.iter().map(|u| u.switch.as_str()).collect();
            let what = format!("these switches may have more of them: {}", switches.join(", "));
            return Err(Failure::unreachable(what).next("do it again when they can be reached"));
        }
        match (&self.owner, self.groups.is_empty() && self.routes.is_empty()) {
            (Some(owner), true) => Err(Failure::refused(format!(
                "no switch has groups of {}",
                owner_text(owner)
            ))
            .next(
                "castnet group purge\nshows the owners of groups on the switches. Members that wait for this owner are told now that \
                 their groups are gone",
            )),
            _ => Ok(()),
        }
    }
}

impl Report for PurgedEverywhere {
    fn page(&self, page: &mut Page) {
        let of = match self.owner.as_deref() {
            None => "of other owners".to_owned(),
            Some(owner) => format!("of {}", owner_text(owner)),
        };
        page.rows(&self.groups, &format!("no switch that answered has groups {of}"));
        if !self.routes.is_empty() {
            page.line(format!(
                "Routes in programmable routers: {}",
                self.routes.join(" ")
            ));
        }
        for Unfinished { switch, reason, .. } in &self.unfinished {
            page.line(format!("switch {switch} may have more: {reason}"));
        }
        match (&self.owner, self.removed) {
            _ if self.groups.is_empty() && self.routes.is_empty() => {}
            (_, true) => page.line("These were removed."),
            (None, _) => page.line("castnet group purge --owner NAME says what would be removed"),
            (Some(_), _) => page.line(format!(
                "These would be removed, and their traffic would end.\n{WITH_YES}"
            )),
        }
    }
}

/// Shows the groups of `owner` on all switches of the controller, and removes them if `is_meant`.
pub(super) async fn everywhere(
    controller: &mut api::ControllerClient,
    owner: Option<String>,
    is_meant: bool,
    output: Output,
) -> Outcome {
    let request = api::PurgeGroupsRequest {
        owner: owner.clone(),
        remove: is_meant,
    };
    let switches = controller.purge_groups(request).await?.into_inner().switches;
    let mut groups: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let (mut routes, mut unfinished) = (BTreeSet::new(), Vec::new());
    for left in switches {
        routes.extend(left.routes);
        for group in left.groups.into_iter().filter(|g| g.removed == is_meant) {
            let on = groups.entry((group.owner, group.name)).or_default();
            on.push(left.switch_name.clone());
        }
        if !left.reason.is_empty() {
            unfinished.push(Unfinished {
                switch: left.switch_name,
                reason: left.reason,
                refuses: left.refuses,
            });
        }
    }
    let line = |((owner, group), switches)| LeftLine {
        owner,
        group,
        switches,
    };
    let report = PurgedEverywhere {
        owner,
        groups: groups.into_iter().map(line).collect(),
        routes: routes.into_iter().collect(),
        removed: is_meant,
        unfinished,
    };
    output.conclude(&report, report.verdict())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_a_name_or_the_word_for_operators_and_never_empty() {
        assert_eq!(owner("controller-3f2a9c"), Ok("controller-3f2a9c".to_owned()));
        assert_eq!(owner(&owner_text("")), Ok(String::new()));
        assert!(owner("").is_err_and(|error| error.contains("or operator for")));
    }

    #[test]
    fn a_purge_that_fails_in_the_middle_says_what_it_has_removed() {
        let lost = || Err(Failure::unreachable("no answer"));
        let ends = [("a", Ok(())), ("b", lost()), ("c", Ok(())), ("d", lost())];
        let ends = ends.map(|(group, end)| (group.to_owned(), end)).into();
        let (report, verdict) = Purged::conclude("us".to_owned(), ends);
        let mut page = Page::default();
        report.page(&mut page);
        assert_eq!(
            page.text(),
            "removed from the switch: a, c\ngroup b may still be there: no answer\ngroup d may still be there: no answer\n"
        );
        let failure = verdict.expect_err("it is not done");
        assert_eq!(
            (failure.code(), failure.what.as_str()),
            (4, "the switch may still have b, d: no answer")
        );
        assert!(report.removed);
        let (report, _) = Purged::conclude("us".to_owned(), vec![("a".to_owned(), lost())]);
        let mut page = Page::default();
        report.page(&mut page);
        assert_eq!(page.text(), "group a may still be there: no answer\n");
        assert!(!report.removed);
    }

    #[test]
    fn a_purge_that_finds_nothing_to_remove_is_refused() {
        let verdict = |removed, groups: &[&str], routes: &[&str], unfinished: &[&str]| {
            let line = |group: &&str| LeftLine {
                owner: String::new(),
                group: (*group).to_owned(),
                switches: Vec::new(),
            };
            let left = |switch: &&str| Unfinished {
                switch: (*switch).to_owned(),
                reason: "refuses: why".to_owned(),
                refuses: switch.starts_with("tls"),
            };
            let report = PurgedEverywhere {
                owner: Some(String::new()),
                groups: groups.iter().map(line).collect(),
                routes: routes.iter().map(ToString::to_string).collect(),
                removed,
                unfinished: unfinished.iter().map(left).collect(),
            };
            report.verdict().map_err(|failure| (failure.code(), failure.what))
        };
        let nothing = "no switch has groups of operator".to_owned();
        assert_eq!(verdict(true, &[], &[], &[]), Err((3, nothing)));
        let more = "these switches may have more of them: leaf1".to_owned();
        assert_eq!(verdict(true, &[], &[], &["leaf1"]), Err((4, more)));
        let refused = "switch tls1 refuses: why".to_owned();
        assert_eq!(verdict(true, &["g"], &[], &["leaf1", "tls1"]), Err((3, refused)));
        assert_eq!(verdict(true, &["g"], &[], &[]), Ok(()));
        assert_eq!(verdict(true, &[], &["239.200.0.0/32"], &[]), Ok(()));
        assert_eq!(verdict(false, &[], &[], &["leaf1"]), Ok(()));
    }
}
