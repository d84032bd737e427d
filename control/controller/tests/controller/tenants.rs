//! Quotas of tenants. That of groups: `sim/control`, by seeds.

use std::path::Path;

use castnet_controller::{Config, Tenant};
use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase;
use tonic::Code;

use crate::common::ranks::Rank;
use crate::common::{Calls, Client, Lab, refused};
use crate::lanes::given;
use crate::rates::limit;

fn tenant(name: &str, members: &[&str], groups: Option<u64>, slots: Option<u64>) -> Tenant {
    Tenant {
        name: name.into(),
        members: members.iter().map(|m| (*m).into()).collect(),
        groups,
        slots,
        ..Tenant::default()
    }
}

async fn lab(tenants: Vec<Tenant>) -> Lab {
    let mut lab = Lab::two_tiers().await;
    lab.config.tenants = tenants;
    lab
}

async fn uses(client: &Client) -> Vec<(String, u64, u64)> {
    let tenants = client.topology().await.tenants.into_iter();
    tenants.map(|t| (t.name, t.groups, t.slots)).collect()
}

/// A job counts for the tenant of the first rank that calls, with the slots that it requests.
#[tokio::test(start_paused = true)]
async fn a_job_beyond_the_slots_of_its_tenant_is_refused() {
    let lab = lab(vec![tenant("one", &["h0"], None, Some(300))]).await;
    let (_controller, mut client) = lab.start().await;
    let settings = |window_packets| {
        Some(v1::CollectiveSettings {
            window_packets,
            message_packets: 16,
            ..Default::default()
        })
    };
    let wide = v1::InitGroupRequest {
        settings: settings(256),
        ..lab.rank("wide", 0, 2, 17)
    };
    let words = "may have 300 slots, has 0";
    refused(client.init_group(wide).await, Code::ResourceExhausted, words);
    // Nothing is left of it.
    assert_eq!(uses(&client).await, [("one".into(), 0, 0)]);
    let join = |rank| v1::InitGroupRequest {
        settings: settings(64),
        ..lab.rank("job", rank, 2, 18)
    };
    let mut ranks = Rank::join_all(&client, [join(0), join(1)]).await;
    let active = ranks[0].until(CollectivePhase::Active).await;
    assert_eq!(uses(&client).await, [("one".into(), 1, u64::from(active.slots))]);
    client.destroy("job").await;
    assert_eq!(uses(&client).await, [("one".into(), 0, 0)]);
}

fn wide(bandwidth: &str, group_bandwidth: Option<&str>) -> Tenant {
    Tenant {
        bandwidth: bandwidth.parse().ok(),
        group_bandwidth: group_bandwidth.and_then(|rate| rate.parse().ok()),
        ..tenant("one", &["h0", "h1"], None, None)
    }
}

async fn bandwidth(client: &Client) -> (u64, Option<u64>) {
    let tenant = client.topology().await.tenants.remove(0);
    (tenant.bandwidth / 1_000_000, tenant.bandwidth_max)
}

/// The limits of a tenant's groups sum up to its bandwidth at most, also over a restart; lanes share the limit of their group. A group
/// without a limit is refused, and so is a job.
#[tokio::test(start_paused = true)]
async fn limits_of_groups_count_for_the_bandwidth_of_their_tenant() {
    let mut lab = lab(vec![wide("1G", None)]).await;
    let folder = tempfile::tempdir().unwrap();
    lab.config.store = Some(folder.path().join("store"));
    let (controller, mut client) = lab.start().await;
    let limited = |name: &str, mbps: u64, qpn| v1::CreateGroupRequest {
        rate_limit: limit(mbps * 1_000_000, 0),
        ..given(&lab, name, &["h0", "h2"], qpn, 2)
    };
    client.create(limited("a", 600, 17)).await;
    let words = "tenant \"one\" may have 1Gb/s of bandwidth, has 600Mb/s, and this group needs 401Mb/s";
    let more = client.create_group(limited("b", 401, 27)).await;
    refused(more, Code::ResourceExhausted, words);
    client.create(limited("c", 400, 37)).await;
    let words = "rate_limit: tenant \"one\" may have 1Gb/s of bandwidth for all its groups, so each of them needs a rate limit";
    let group = client.create_group(lab.given("d", &["h0", "h2"], 47)).await;
    refused(group, Code::InvalidArgument, words);
    let job = client.init_group(lab.rank("job", 0, 2, 57)).await;
    refused(job, Code::InvalidArgument, words);
    // Others are not concerned.
    client.create(lab.given("free", &["h2", "h0"], 67)).await;
    assert_eq!(bandwidth(&client).await, (1000, Some(1_000_000_000)));
    let (_controller, mut client) = lab.restart(controller).await;
    assert_eq!(bandwidth(&client).await.0, 1000);
    assert!(client.create_group(limited("e", 1, 77)).await.is_err());
    client.destroy("a").await;
    assert_eq!(bandwidth(&client).await.0, 400);
    client.create(limited("e", 600, 77)).await;
}

/// It is part of the plan, and ranks learn it.
#[tokio::test(start_paused = true)]
async fn a_tenant_may_have_a_default_limit() {
    let lab = lab(vec![wide("1G", Some("400M"))]).await;
    let (_controller, mut client) = lab.start().await;
    let default = limit(400_000_000, 262_144);
    let created = client.create(lab.given("a", &["h0", "h2"], 17)).await;
    assert_eq!(created.rate_limit, default);
    assert_eq!(lab.rule("leaf0").rate_limit, default);
    let mut ranks = lab.ranks(&client, "job", 2, 27).await;
    let active = ranks[1].until(CollectivePhase::Active).await;
    assert_eq!(active.settings.clone().unwrap().rate_limit, default);
    assert_eq!(bandwidth(&client).await.0, 800);
    let more = client.create_group(lab.given("b", &["h0", "h2"], 37)).await;
    refused(more, Code::ResourceExhausted, "");
}

#[test]
fn bandwidth_in_a_configuration_is_a_rate() {
    let read = |rows: &str| {
        let text = format!("[[tenants]]\nname = \"a\"\nmembers = [\"*\"]\n{rows}");
        Config::from_toml(&text, Path::new("/"))
    };
    let config = read("bandwidth = \"40G\"\ngroup_bandwidth = \"2.5G\"").unwrap();
    let tenant = &config.tenants[0];
    assert_eq!(tenant.bandwidth.unwrap().to_string(), "40G");
    let each = tenant.group_bandwidth.unwrap();
    assert_eq!(each.bits_per_second(), 2_500_000_000);
    let faults = read("bandwidth = 40\ngroup_bandwidth = \"much\"").unwrap_err();
    let faults = faults.to_string();
    for says in [
        "tenants[0].bandwidth: a whole number where ",
        "tenants[0].group_bandwidth: \"much\" is not a rate in bits per second",
    ] {
        assert!(faults.contains(says), "{faults}");
    }
}

#[test]
fn tenants_that_cannot_work_are_refused() {
    let faults = |tenants| {
        let config = Config {
            tenants,
            ..Config::new(Vec::new())
        };
        let faults = config.check().unwrap_err();
        let fields = faults.0.iter().filter_map(|fault| fault.split_once(": "));
        fields.map(|(field, _)| field.to_owned()).collect::<Vec<_>>()
    };
    let same = || tenant("a", &["h*"], Some(1), None);
    assert_eq!(faults(vec![same(), same()]), ["tenants[1].name"]);
    let empty = tenant("", &[], None, None);
    let all = ["tenants[0].name", "tenants[0].members", "tenants[0].groups"];
    assert_eq!(faults(vec![empty]), all);
    let wanted = ["tenants[0].group_bandwidth"];
    assert_eq!(faults(vec![wide("1G", Some("2G"))]), wanted);
}
