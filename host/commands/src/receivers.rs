//! What became of each receiver of a stream, in the report of its source.

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::remark;
use castnet_console::units::{bytes, count};
use castnet_member::{Fate, Member, ReceiverState, Source};
use serde::{Serialize, Serializer};

use super::failure;

/// Most receivers that a sentence names. JSON has all.
const NAMED_MAX: usize = 32;

/// The receivers of a stream whose source has every acknowledgement.
#[derive(Clone, Debug)]
pub(super) enum Receivers {
    Known(Vec<ReceiverLine>),
    /// Those of a rule file, which this host does not know.
    OfRuleFile,
    /// Why the controller has not said what became of them.
    Unasked(Failure),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ReceiverLine {
    host: String,
    outcome: Got,
    /// Of one that has acknowledged everything: whether it has reported that it has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reported: Option<bool>,
    /// Bytes that it has, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Got {
    /// It has acknowledged everything.
    All,
    /// It joined by its own will while the stream ran, and has what came from then on.
    Late,
    Part,
    Nothing,
    /// The group went on without it. It may have a part.
    Gone,
}

impl ReceiverLine {
    fn new(ReceiverState { host, fate }: ReceiverState, all: u64) -> Self {
        let reported = match fate {
            Fate::All => Some(false),
            Fate::Reported => Some(true),
            _ => None,
        };
        let (outcome, bytes, why) = match fate {
            Fate::All | Fate::Reported => (Got::All, Some(all), None),
            Fate::Late => (Got::Late, None, None),
            Fate::Left { bytes: 0, why } => (Got::Nothing, Some(0), Some(why)),
            Fate::Left { bytes, why } => (Got::Part, Some(bytes), Some(why)),
            Fate::Gone { why } => (Got::Gone, None, Some(why)),
            Fate::Absent => {
                let why = "it became a member while the group ran";
                (Got::Nothing, Some(0), Some(why.to_owned()))
            }
        };
        Self {
            host,
            outcome,
            reported,
            bytes,
            why,
        }
    }

    fn is_missing(&self) -> bool {
        !matches!(self.outcome, Got::All | Got::Late)
    }

    fn text(&self) -> String {
        let has = match (self.outcome, self.bytes) {
            (Got::All, _) => "has everything".to_owned(),
            (Got::Late, _) => "joined late, and has what came from then on".to_owned(),
            (Got::Part, Some(part)) => format!("has {} of it", bytes(part)),
            (Got::Nothing, _) => "got nothing".to_owned(),
            (Got::Part | Got::Gone, _) => "is gone, and may have a part".to_owned(),
        };
        let why = self
            .why
            .as_ref()
            .map_or_else(String::new, |why| format!(": {why}"));
        format!("{} {has}{why}", self.host)
    }
}

impl Serialize for Receivers {
    /// `null`: they are not known.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Known(all) => all.serialize(to),
            Self::OfRuleFile | Self::Unasked(_) => to.serialize_none(),
        }
    }
}

/// The first ones, and how many more there are.
fn named(all: &[&ReceiverLine], text: impl Fn(&ReceiverLine) -> String, between: &str) -> String {
    let mut named: Vec<_> = all.iter().take(NAMED_MAX).map(|line| text(line)).collect();
    if let more @ 1.. = all.len().saturating_sub(NAMED_MAX) {
        named.push(format!("{} more", count(more as u64)));
    }
    named.join(between)
}

impl Receivers {
    /// The source leaves its group, and asks for them. They have acknowledged so many bytes.
    pub(super) fn leave_and_ask(source: Member<'_, Source>, bytes: u64) -> Self {
        match source.leave_and_ask() {
            Ok(Some(all)) => {
                let line = |receiver| ReceiverLine::new(receiver, bytes);
                Self::Known(all.into_iter().map(line).collect())
            }
            Ok(None) => Self::OfRuleFile,
            Err(error) => Self::Unasked(
                failure::member(error)
                    .while_doing("who has everything is not known: asking for the receivers"),
            ),
        }
    }

    /// `hosts` have got so many bytes, the last ones from host to host. `before`: the receivers of the group that the source has left.
    pub(super) fn between_hosts<'h>(
        hosts: impl IntoIterator<Item = &'h String>,
        before: Vec<ReceiverState>,
        bytes: u64,
    ) -> Self {
        let hosts: Vec<_> = hosts.into_iter().collect();
        let state = |host: &&String| ReceiverState {
            host: (*host).clone(),
            fate: Fate::Reported,
        };
        let others = before.into_iter().filter(|other| !hosts.contains(&&other.host));
        let others = others.map(|ReceiverState { host, fate }| {
            let fate = match fate {
                Fate::All | Fate::Late => Fate::Gone {
                    why: "it has left the group, and does not go on from host to host".to_owned(),
                },
                fate => fate,
            };
            ReceiverState { host, fate }
        });
        let all = hosts.iter().map(state).chain(others);
        Self::Known(all.map(|receiver| ReceiverLine::new(receiver, bytes)).collect())
    }

    /// For people: one or more lines.
    pub(super) fn texts(&self) -> Vec<String> {
        let all = match self {
            Self::OfRuleFile => {
                let text = "those of the rule files, which this host does not know: the switches acknowledge for them";
                return vec![text.to_owned()];
            }
            Self::Unasked(failure) => return vec![failure.what.clone()],
            Self::Known(all) => all,
        };
        let those = |reported| all.iter().filter(move |line| line.reported == reported);
        let share = |reported, have: &str| {
            let lines: Vec<_> = those(reported).collect();
            let hosts = named(&lines, |line| line.host.clone(), ", ");
            let of = |lines: usize| count(lines as u64);
            (!lines.is_empty()).then(|| format!("{} of {} {have}: {hosts}", of(lines.len()), of(all.len())))
        };
        let mut texts: Vec<_> = share(Some(true), "have everything")
            .into_iter()
            .chain(share(Some(false), "have acknowledged everything"))
            .collect();
        if texts.is_empty() {
            texts.push(format!("0 of {} have everything", count(all.len() as u64)));
        }
        let others: Vec<_> = those(None).collect();
        if !others.is_empty() {
            let each = named(&others, ReceiverLine::text, "\n");
            texts.extend(each.lines().map(str::to_owned));
        }
        texts
    }

    /// Fails if one has not everything, or if that is not known; with `allow_missing` it is only said.
    pub(super) fn check(&self, allow_missing: bool) -> Outcome {
        let failure = match self {
            Self::OfRuleFile => return Ok(()),
            Self::Unasked(failure) => failure.clone(),
            Self::Known(all) => {
                let missing: Vec<_> = all.iter().filter(|line| line.is_missing()).collect();
                if missing.is_empty() {
                    return Ok(());
                }
                Failure::failed(format!(
                    "{} of {} receivers have not everything: {}",
                    count(missing.len() as u64),
                    count(all.len() as u64),
                    named(&missing, ReceiverLine::text, "; ")
                ))
                .next("send it to them again, in a group of theirs; --allow-missing takes this for success")
            }
        };
        if allow_missing {
            remark(&failure.what);
            return Ok(());
        }
        Err(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(host: &str, fate: Fate) -> ReceiverState {
        ReceiverState {
            host: host.to_owned(),
            fate,
        }
    }

    fn known(all: Vec<ReceiverState>) -> Receivers {
        let lines = all
            .into_iter()
            .map(|receiver| ReceiverLine::new(receiver, 300_000));
        Receivers::Known(lines.collect())
    }

    fn some() -> Receivers {
        let why = |why: &str| why.to_owned();
        known(vec![
            state(
                "h2",
                Fate::Left {
                    bytes: 0,
                    why: why("an MTU of 1500"),
                },
            ),
            state("h3", Fate::Reported),
            state(
                "h4",
                Fate::Left {
                    bytes: 64 << 10,
                    why: why("the disk is full"),
                },
            ),
            state(
                "h5",
                Fate::Gone {
                    why: why("host h5 stalls"),
                },
            ),
            state("h6", Fate::Late),
            state("h7", Fate::Absent),
            state("h8", Fate::All),
        ])
    }

    #[test]
    fn each_receiver_is_named_with_what_it_has() {
        assert_eq!(
            some().texts(),
            [
                "1 of 7 have everything: h3",
                "1 of 7 have acknowledged everything: h8",
                "h2 got nothing: an MTU of 1500",
                "h4 has 64 KiB of it: the disk is full",
                "h5 is gone, and may have a part: host h5 stalls",
                "h6 joined late, and has what came from then on",
                "h7 got nothing: it became a member while the group ran",
            ]
        );
        let json = serde_json::to_value(some()).expect("JSON");
        let outcomes: Vec<_> = json.as_array().expect("a list").iter().collect();
        let of = |at: usize, field: &str| outcomes[at][field].clone();
        let all: Vec<_> = (0..7).map(|at| of(at, "outcome")).collect();
        assert_eq!(all, ["nothing", "all", "part", "gone", "late", "nothing", "all"]);
        let reported: Vec<_> = (0..7).filter_map(|at| of(at, "reported").as_bool()).collect();
        assert_eq!(reported, [true, false]);
        let bytes: Vec<_> = (0..6).map(|at| of(at, "bytes").as_u64()).collect();
        assert_eq!(
            bytes,
            [Some(0), Some(300_000), Some(64 << 10), None, None, Some(0)]
        );
        assert_eq!(of(3, "why"), "host h5 stalls");
    }

    #[test]
    fn a_receiver_that_lacks_something_is_a_failure_unless_that_is_allowed() {
        let failure = some().check(false).expect_err("four lack something");
        assert_eq!(failure.code(), 1);
        let what = &failure.what;
        assert!(
            what.starts_with("4 of 7 receivers have not everything: h2 got"),
            "{what}"
        );
        assert!(!what.contains("h6") && what.contains("h7"), "{what}");
        assert!(!what.contains("h8"), "{what}");
        some().check(true).expect("allowed");
        let whole = known(vec![state("h3", Fate::All), state("h6", Fate::Late)]);
        whole.check(false).expect("all have what they asked for");
        Receivers::OfRuleFile.check(false).expect("nobody is known");
        let silent = || Receivers::Unasked(Failure::unreachable("no answer"));
        assert_eq!(silent().check(false).map_err(|failure| failure.code()), Err(4));
        silent().check(true).expect("allowed");
        assert!(serde_json::to_value(silent()).expect("JSON").is_null());
    }

    #[test]
    fn those_that_do_not_go_on_from_host_to_host_are_named() {
        let stalls = || Fate::Gone {
            why: "host h3 stalls".to_owned(),
        };
        let before = vec![
            state("h2", Fate::All),
            state("h3", stalls()),
            state("h4", Fate::All),
        ];
        let texts = Receivers::between_hosts(&["h2".to_owned()], before, 9).texts();
        assert_eq!(texts[0], "1 of 3 have everything: h2");
        assert!(
            texts[1].ends_with("host h3 stalls") && texts[2].starts_with("h4 is gone"),
            "{texts:?}"
        );
    }

    #[test]
    fn of_many_only_some_are_named_in_a_sentence() {
        assert_eq!(
            known(vec![state("h1", Fate::Absent)]).texts()[0],
            "0 of 1 have everything"
        );
        let many = (0..40).map(|n| state(&format!("h{n}"), Fate::Absent)).collect();
        let failure = known(many).check(false).expect_err("none has anything");
        assert!(failure.what.ends_with("; 8 more"), "{}", failure.what);
    }
}
