//! Switches that are dead though their links are up: behind ordinary switches, or where a carrier outlives them.
//!
//! A switch whose agent alone is gone forwards on, and nothing may be moved because of that. So its dataplane must be silent, too:
//! all neighbours that have heard its LLDP hear it no more, or none has heard it since its agent is gone, and a group waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::state::fabric::{Facts, NeighbourReport, SwitchReport, Who};
use crate::state::kinds::multicast::stall::waits_for;
use crate::state::{Core, Entry, Reach};

/// A switch that stops sends LLDP a little longer than its agent answers.
const GRACE: Duration = Duration::from_secs(1);

/// Signs of life of switches.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    /// By switch, the neighbours that have heard its LLDP, and when they last did.
    heard: BTreeMap<String, BTreeMap<String, Instant>>,
    /// Switches whose agents cannot be reached, and since when.
    unreachable: BTreeMap<String, Instant>,
    /// Groups that wait for a path, by the switch that has reported it since it was last asked for its neighbours.
    stalled: BTreeMap<String, BTreeSet<String>>,
}

impl Signs {
    pub(crate) fn lost(&mut self, switch: &str, now: Instant) {
        self.unreachable.entry(switch.into()).or_insert(now);
    }

    /// Takes in the report of a switch. Returns groups, and switches with groups, for which it may mean something.
    pub(crate) fn report(
        &mut self,
        facts: &Facts,
        by: &str,
        report: &SwitchReport,
        now: Instant,
    ) -> (BTreeSet<String>, BTreeSet<String>) {
        self.unreachable.remove(by);
        for neighbour in &report.neighbours {
            // A host may say any name, also that of a dead switch.
            if let Who::Switch { name, .. } = &neighbour.who
                && facts.knows_switch(name)
                && facts.believes_lldp(by, neighbour)
            {
                let age = Duration::from_nanos(neighbour.age_ns);
                let at = now.checked_sub(age).unwrap_or(now);
                self.heard.entry(name.clone()).or_default().insert(by.into(), at);
            }
        }
        let silent = self.unreachable.keys();
        let silent = silent.filter(|s| self.heard.get(*s).is_some_and(|by_whom| by_whom.contains_key(by)));
        let silent = silent.cloned().collect();
        (self.stalled.remove(by).unwrap_or_default(), silent)
    }

    pub(crate) fn note_stall(&mut self, switch: &str, group: &str) {
        let groups = self.stalled.entry(switch.into()).or_default();
        groups.insert(group.into());
    }

    /// Whether a switch has heard another one since this controller began.
    pub(crate) fn has_heard(&self, by: &str, switch: &str) -> bool {
        let heard = self.heard.get(switch);
        heard.is_some_and(|by_whom| by_whom.contains_key(by))
    }

    /// Whether a neighbour has heard it since its agent cannot be reached.
    fn lives(&self, switch: &str) -> bool {
        let heard = self.heard.get(switch).into_iter().flat_map(BTreeMap::values);
        let since = self.unreachable.get(switch);
        since.is_none_or(|since| heard.max().is_some_and(|at| *at > *since + GRACE))
    }

    /// Since when its agent cannot be reached, if no neighbour has heard it since.
    pub(crate) fn silent_since(&self, switch: &str) -> Option<Instant> {
        let since = self.unreachable.get(switch).copied();
        since.filter(|_| !self.lives(switch))
    }

    /// Those that have heard it, if none hears it any more.
    fn silence(&self, facts: &Facts, switch: &str) -> Option<String> {
        let heard = self.heard.get(switch)?;
        let hears = |by: &String| match facts.switches.get(by) {
            Some((Reach::Up, report)) => {
                let is_it =
                    |n: &NeighbourReport| matches!(&n.who, Who::Switch { name, .. } if name == switch);
                let all = &mut report.neighbours.iter();
                Some(all.any(|n| is_it(n) && facts.believes_lldp(by, n)))
            }
            // It may have heard it since.
            _ => None,
        };
        let silent = heard.keys().all(|by| hears(by) == Some(false));
        let by: Vec<&str> = heard.keys().map(String::as_str).collect();
        silent.then(|| format!("its LLDP is not heard any more by {}", by.join(", ")))
    }
}

/// Why a switch of a group's tree is taken for dead.
pub(crate) fn why_dead(core: &Core, entry: &Entry, switch: &str) -> Option<String> {
    let Some((Reach::Down(gone), _)) = core.facts.switches.get(switch) else {
        return None;
    };
    let stands_still = || {
        let mut switches = entry.record().plan.as_ref()?.rules.keys();
        switches.find_map(|by| {
            let stall = waits_for(entry, by, core.now).filter(|stall| stall.next_hop == switch)?;
            Some(format!("switch {by} has waited for it for {:.1?}", stall.waited))
        })
    };
    let sign = match core.signs.silence(&core.facts, switch) {
        None if core.signs.lives(switch) => return None,
        None => stands_still()?,
        Some(silence) => silence,
    };
    Some(format!("its agent cannot be reached ({gone}), and {sign}"))
}

#[cfg(test)]
mod tests {
    use castnet_topology::{End, Topology};

    use super::*;
    use crate::state::fabric::tests::{port, switch_seen};

    fn hears(names: &[(&str, u64)]) -> SwitchReport {
        let neighbours = names.iter().map(|(name, age_secs)| NeighbourReport {
            age_ns: age_secs * 1_000_000_000,
            ..switch_seen(0, name, "p")
        });
        SwitchReport {
            ports: BTreeMap::new(),
            neighbours: neighbours.collect(),
        }
    }

    fn second(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    /// s is gone 100 s after the start, and a and b have heard it before.
    struct Scene {
        start: Instant,
        signs: Signs,
        facts: Facts,
    }

    impl Scene {
        fn new() -> Self {
            let start = Instant::now();
            let facts = Facts::new(None, ["a", "b", "s"].map(String::from), []);
            let mut scene = Self {
                start,
                signs: Signs::default(),
                facts,
            };
            for by in ["a", "b"] {
                scene.report(by, 90, &[("s", 10)]);
            }
            scene.lose("s", 100);
            scene
        }

        fn report(&mut self, by: &str, at: u64, heard: &[(&str, u64)]) -> BTreeSet<String> {
            let report = hears(heard);
            let now = self.start + second(at);
            let (_, silent) = self.signs.report(&self.facts, by, &report, now);
            self.facts.switches.insert(by.into(), (Reach::Up, report));
            silent
        }

        fn lose(&mut self, switch: &str, at: u64) {
            self.signs.lost(switch, self.start + second(at));
            let known = self.facts.switches.entry(switch.into()).or_default();
            known.0 = Reach::Down("gone".into());
        }

        fn silence(&self) -> Option<String> {
            self.signs.silence(&self.facts, "s")
        }
    }

    #[test]
    fn a_switch_is_silent_once_all_that_have_heard_it_say_so() {
        let mut scene = Scene::new();
        assert!(!scene.signs.lives("s") && scene.silence().is_none());
        assert_eq!(
            scene.report("a", 110, &[]),
            ["s".to_owned()].into(),
            "look at its groups"
        );
        assert_eq!(scene.silence(), None, "b may hear it");
        scene.lose("b", 111);
        assert_eq!(scene.silence(), None, "b cannot say");
        scene.report("b", 112, &[("c", 0)]);
        assert_eq!(
            scene.silence().as_deref(),
            Some("its LLDP is not heard any more by a, b")
        );
        assert!(scene.report("c", 113, &[]).is_empty(), "it has never heard it");
        scene.report("c", 114, &[("s", 14)]);
        assert_eq!(scene.silence(), None);
    }

    #[test]
    fn at_a_port_of_a_host_nobody_is_a_switch() {
        let mut file = Topology::new();
        for name in ["a", "s"] {
            file.add_switch(name, [(0, [2; 6]), (1, [2; 6])]).unwrap();
        }
        file.add_host("h", None, None).unwrap();
        file.connect(End::port("a", 0), End::port("s", 0), 1500).unwrap();
        file.connect(End::port("a", 1), End::host("h"), 1500).unwrap();
        let mut facts = Facts::new(Some(file), ["a", "s"].map(String::from), []);
        let (mut signs, now) = (Signs::default(), Instant::now());
        let at = |port| {
            let mut report = hears(&[("s", 0)]);
            report.neighbours[0].port = port;
            report
        };
        for report in [at(1), at(2), hears(&[("nobody", 0)])] {
            signs.report(&facts, "a", &report, now);
        }
        assert!(signs.heard.is_empty(), "{signs:?}");
        signs.report(&facts, "a", &at(0), now);
        assert_eq!(signs.heard.len(), 1);
        // A port that the file has not: the other end must hear it, too.
        for (switch, far) in [("a", "s"), ("s", "a")] {
            let (_, report) = facts.switches.entry(switch.into()).or_default();
            report.ports = BTreeMap::from([port("p", 5)]);
            report.neighbours = vec![switch_seen(5, far, "p")];
        }
        let heard = |facts: &Facts| facts.believes_lldp("a", &facts.switches["a"].1.neighbours[0]);
        assert!(heard(&facts));
        facts.switches.get_mut("s").unwrap().1.neighbours.clear();
        assert!(!heard(&facts));
    }

    /// Groups were not moved off it. Where the other switch hears this port in return, or has not reported, it is the switch.
    #[test]
    fn without_a_file_a_host_does_not_keep_a_dead_switch_alive() {
        let mut facts = Facts::new(None, ["a", "s"].map(String::from), []);
        let (mut signs, start) = (Signs::default(), Instant::now());
        let report = |at: u8, far: &str| SwitchReport {
            ports: BTreeMap::from([port("p", 0)]),
            neighbours: vec![switch_seen(at, far, "p")],
        };
        facts.switches.insert("a".into(), (Reach::Up, report(0, "s")));
        facts.switches.insert("s".into(), (Reach::Up, report(0, "a")));
        signs.report(&facts, "a", &report(0, "s"), start);
        assert_eq!(signs.heard.len(), 1);
        signs.lost("s", start);
        facts.switches.get_mut("s").unwrap().0 = Reach::Down("gone".into());
        // Nothing is heard over the link any more, and a host at another port says that it is the switch.
        signs.report(&facts, "a", &report(5, "s"), start + second(10));
        facts.switches.insert("a".into(), (Reach::Up, report(5, "s")));
        assert!(!signs.lives("s"));
        assert!(signs.silence(&facts, "s").is_some());
    }

    #[test]
    fn a_switch_that_was_heard_since_its_agent_is_gone_lives() {
        let mut scene = Scene::new();
        scene.report("a", 120, &[("s", 20)]);
        assert!(!scene.signs.lives("s"), "at the same moment");
        scene.report("a", 120, &[("s", 18)]);
        assert!(scene.signs.lives("s"));
        // Its agent is back, and gone again: what was heard before that does not count.
        scene.report("s", 130, &[]);
        assert!(scene.signs.lives("s"));
        scene.lose("s", 140);
        assert!(!scene.signs.lives("s"));
        scene.lose("s", 150);
        scene.report("b", 150, &[("s", 5)]);
        assert!(scene.signs.lives("s"), "it is gone since 140");
    }
}
