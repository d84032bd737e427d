//! What `group show` says of a group: its generation, how it works, and who conflicts; for people and for machines.

use castnet_console::api;
use castnet_console::output::{Page, Report};
use castnet_proto::convert::rule_to_proto;
use castnet_proto::transport::Security;
use castnet_rules::{COLLECTIVE_EXAMPLE, RuleSet};
use serde_json::{Value, json};

use super::show::{GroupReport, SwitchReport};

/// The report as JSON and as text, blanks taken together.
fn both(report: &impl Report) -> (Value, String) {
    let mut page = Page::default();
    report.page(&mut page);
    let lines = page.text().lines();
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let text = lines.collect::<Vec<_>>().join("\n");
    (serde_json::to_value(report).expect("JSON"), text)
}

#[track_caller]
fn says(report: &impl Report, fields: &Value, lines: &[&str]) {
    let (json, text) = both(report);
    for (field, value) in fields.as_object().expect("fields") {
        assert_eq!(&json[field], value, "{field}");
    }
    for line in lines {
        assert!(text.lines().any(|l| l == *line), "{line:?} in\n{text}");
    }
}

/// Ranks 0 and 2 called different operations.
fn disagreement() -> api::Disagreement {
    let call = |operation: api::CollectiveOperation| api::CollectiveCall {
        primitive: api::CollectivePrimitive::AllReduce as i32,
        operation: operation as i32,
        data_type: api::CollectiveDataType::F32 as i32,
        elements: 1024,
        packets: 4,
        ..Default::default()
    };
    api::Disagreement {
        sequence: 7,
        rank: 0,
        call: Some(call(api::CollectiveOperation::Sum)),
        other_rank: 2,
        other_call: Some(call(api::CollectiveOperation::Max)),
    }
}

fn policies() -> Value {
    json!({
        "mode": "translated", "modes": ["leaf1 terminated"], "reproducible": true, "loss_policy": "reflect", "straggler_policy": "rnr", "ack_timeout_us": 67108,
        "stall_timeout_ms": 1500, "pmtu": 4096, "message_packets": 32,
    })
}

const POLICIES: [&str; 7] = [
    "mode translated",
    "mode elsewhere leaf1 terminated",
    "contributions in rank order (reproducible)",
    "losses reflect",
    "stragglers rnr",
    "ACK time-out 67 108 us",
    "stall time-out 1.50 s",
];

fn conflict() -> Value {
    let [sum, max] =
        ["sum", "max"].map(|operation| format!("allreduce of 1024 f32 by {operation} in 4 packets"));
    json!({ "sequence": 7, "callers": [
        { "rank": 0, "host": "a", "call": sum }, { "rank": 2, "host": "c", "call": max },
    ] })
}

const LIMIT: [&str; 1] = ["rate limit 400 Mb/s for each sender, in bursts of at most 256 KiB"];

fn limit() -> serde_json::Value {
    json!({ "rate_bits_per_second": 400_000_000, "burst_bytes": 262_144 })
}

#[tokio::test]
async fn a_collective_group_is_shown_with_its_policies_and_who_conflicts() {
    let member = |(rank, host): (u32, &str)| api::MemberState {
        rank,
        host: host.to_owned(),
        ..Default::default()
    };
    let settings = api::CollectiveSettings {
        pmtu: 4096,
        window_packets: 64,
        message_packets: 32,
        reproducible: Some(true),
        loss_policy: api::CollectiveLossPolicy::Reflect as i32,
        straggler_policy: api::CollectiveStragglerPolicy::Rnr as i32,
        ack_timeout_us: 67_108,
        stall_timeout_ms: 1500,
        lanes: 1,
        mode: api::CollectiveMode::Translated as i32,
        modes: vec![api::SwitchMode {
            switch: "leaf1".into(),
            mode: api::CollectiveMode::Terminated as i32,
        }],
        rate_limit: Some(api::RateLimit {
            bits_per_second: 400_000_000,
            burst_bytes: 256 << 10,
        }),
    };
    let state = api::CollectiveState {
        name: "job".to_owned(),
        phase: api::CollectivePhase::Failed as i32,
        generation: 3,
        description: "nightly training".to_owned(),
        settings: Some(settings),
        members: [(0, "a"), (1, "b"), (2, "c")].map(member).to_vec(),
        conflict: Some(disagreement()),
        ..Default::default()
    };
    let group = api::Group {
        collective: Some(api::Collective {
            state: Some(state),
            tree: Vec::new(),
        }),
        ..Default::default()
    };
    let report = GroupReport::gather(group, &[], &Security::default()).await;
    let fields = json!({ "generation": 3, "conflict": conflict(), "window_packets": 64 });
    says(
        &report,
        &fields,
        &["generation 3", "The ranks disagree about collective 7"],
    );
    let description = json!({ "description": "nightly training" });
    says(&report, &description, &["description nightly training"]);
    says(&report, &policies(), &POLICIES);
    says(&report, &limit(), &LIMIT);
    let (_, text) = both(&report);
    assert!(
        text.contains("2 c allreduce of 1024 f32 by max in 4 packets"),
        "{text}"
    );
}

#[test]
fn a_switch_shows_the_same_of_its_part() {
    let mut rule = RuleSet::from_toml(COLLECTIVE_EXAMPLE)
        .expect("the example")
        .groups
        .remove(0)
        .with_translated(|kind| {
            kind.reproducible = true;
            kind.loss_policy = castnet_rules::LossPolicy::Reflect;
            kind.straggler_policy = castnet_rules::StragglerPolicy::Rnr;
            kind.message_packets = 32;
        });
    rule.generation = 3;
    rule.stall_timeout_ms = 1500;
    rule.pmtu = castnet_wire::Pmtu::B4096;
    let leaf = castnet_rules::NextHop::Switch {
        name: "leaf1".into(),
        ip: None,
        qpn: castnet_wire::Qpn::VIRTUAL,
        mac: castnet_wire::MacAddr([6, 0, 0, 0, 0, 1]),
        ranks: vec![9],
        mode: Some(castnet_rules::CollectiveMode::Terminated),
        core: None,
    };
    rule.endpoints.push(castnet_rules::Endpoint::new(
        castnet_wire::PortId::default(),
        leaf,
    ));
    let state = api::TranslatedState {
        failed: true,
        conflict: Some(disagreement()),
        ..Default::default()
    };
    let installed = api::InstalledGroup {
        rule: Some(rule_to_proto(&rule)),
        state: Some(api::installed_group::State::Translated(state)),
        ..Default::default()
    };
    let report = SwitchReport::new("leaf1".to_owned(), installed);
    let fields = json!({ "generation": 3, "conflict": conflict() });
    says(
        &report,
        &fields,
        &["generation 3", "The ranks disagree about collective 7"],
    );
    says(&report, &policies(), &POLICIES);
}

#[tokio::test]
async fn a_multicast_group_is_shown_with_its_generation_and_policies() {
    let state = api::GroupState {
        name: "g".to_owned(),
        generation: 5,
        ended: "host h2 has left".to_owned(),
        va_base: 0x1000,
        stall_timeout_ms: 1500,
        on_member_loss: api::MemberLoss::Fail as i32,
        on_member_stall: Some(api::StallPolicy {
            after_ms: 700,
            then: api::MemberLoss::Evict as i32,
        }),
        rate_limit: Some(api::RateLimit {
            bits_per_second: 400_000_000,
            burst_bytes: 256 << 10,
        }),
        ..Default::default()
    };
    let group = api::Group {
        state: Some(state),
        ..Default::default()
    };
    let report = GroupReport::gather(group, &[], &Security::default()).await;
    let fields = json!({ "generation": 5, "va_base": 0x1000, "stall_timeout_ms": 1500 });
    let lines = ["generation 5", "address base 0x1000", "stall time-out 1.50 s"];
    says(&report, &fields, &lines);
    says(&report, &json!({ "description": "" }), &[]);
    assert!(!both(&report).1.contains("description"));
    let ended = json!({ "ended": "host h2 has left" });
    says(&report, &ended, &["end of the last run host h2 has left"]);
    let loss = json!({ "on_member_loss": "fail" });
    says(&report, &loss, &["on member loss fail"]);
    let stall = json!({ "on_member_stall": "evict", "member_stall_ms": 700 });
    says(&report, &stall, &["on member stall evict after 700.0 ms"]);
    says(&report, &limit(), &LIMIT);
    let (fields_of_all, text) = both(&report);
    assert!(
        fields_of_all["path"].is_null() && !text.contains("path"),
        "it is not placed: {text}"
    );

    let kind = api::MulticastRule {
        va_base: 0x1000,
        ..Default::default()
    };
    let rule = api::GroupRule {
        generation: 5,
        stall_timeout_ms: 1500,
        kind: Some(api::group_rule::Kind::Multicast(kind)),
        ..Default::default()
    };
    let installed = api::InstalledGroup {
        rule: Some(rule),
        ..Default::default()
    };
    let report = SwitchReport::new("leaf1".to_owned(), installed);
    says(&report, &fields, &lines);
    says(
        &report,
        &json!({ "start_psn": null }),
        &["start PSN learned from the first data"],
    );
}

/// A wrong name would be waited for without a word. Where nobody was seen yet, as in a lab that begins, nothing is said.
#[test]
fn a_created_group_names_the_hosts_that_no_switch_has_seen() {
    let group = |seen: &[bool]| {
        let member = |(n, seen): (usize, &bool)| api::MemberState {
            host: format!("h{n}"),
            switch_name: if *seen { "s1".into() } else { String::new() },
            ..Default::default()
        };
        let members = seen.iter().enumerate().map(member);
        let state = api::GroupState {
            name: "g".into(),
            members: members.clone().collect(),
            ..Default::default()
        };
        let ranks = api::CollectiveState {
            name: "g".into(),
            members: members.collect(),
            ..Default::default()
        };
        (super::group_created(state), crate::job::created(ranks, ""))
    };
    let warning = "no switch has seen h1, h3 yet: the group waits for ever if that is a wrong name (castnet topology lists who was seen)";
    let (multicast, collective) = group(&[true, false, true, false]);
    says(&multicast, &json!({"not_seen": ["h1", "h3"]}), &[warning]);
    says(&collective, &json!({"not_seen": ["h1", "h3"]}), &[warning]);
    let mut most = [false; 1000];
    most[0] = true;
    let (_, text) = both(&group(&most).0);
    assert!(text.contains(" h8 and 991 more yet: "), "{text}");
    for seen in [[true; 2], [false; 2]] {
        let (multicast, collective) = group(&seen);
        for (json, text) in [both(&multicast), both(&collective)] {
            assert!(
                json.get("not_seen").is_none() && !text.contains("no switch"),
                "{text}"
            );
        }
    }
}

/// Who goes on as if it were done everywhere learns by the exit code that it is not.
#[test]
fn a_switch_that_is_still_to_do_it_is_an_exit_code() {
    assert!(super::still_pending(&[]).is_ok());
    let switches = ["leaf1", "leaf2"].map(String::from);
    let failure = super::still_pending(&switches).expect_err("two are pending");
    assert_eq!(failure.code(), 4);
    assert!(
        failure.what.starts_with("leaf1, leaf2 cannot be reached"),
        "{failure}"
    );
}

/// The flags are right: a hint to list them would not help.
#[test]
fn who_needs_what_is_down_is_led_to_the_switches() {
    let refused = |code, field: &str| {
        let status = castnet_proto::convert::refuse(code, field, "no path: switch leaf1 is down");
        super::refused(status)
    };
    let failure = refused(tonic::Code::FailedPrecondition, "members[1].host");
    assert_eq!(failure.what, "--members: no path: switch leaf1 is down");
    let next = failure.next.expect("a next step");
    assert!(next.starts_with("castnet topology shows the switches"), "{next}");
    let never = refused(tonic::Code::InvalidArgument, "members[1].host");
    assert!(never.next.is_some_and(|next| next.contains("lists the settings")));
    // The reason is the group's, which says what to do.
    assert_eq!(refused(tonic::Code::FailedPrecondition, "group").next, None);
}

/// Such as one whose headers are longer than a client accepts.
#[test]
fn a_call_without_an_answer_says_nothing_of_memory() {
    let status = || tonic::Status::resource_exhausted("no memory");
    let next = |status| super::refused(status).next.expect("a next step");
    assert!(next(status()).contains("how much memory"));
    let mut lost = status();
    lost.set_source(std::sync::Arc::new(std::io::Error::other(
        "the connection is lost",
    )));
    assert!(next(lost).contains("see that the other side runs"));
}
