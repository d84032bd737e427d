//! Quotas of tenants.

use castnet_controller::{Config, Tenant};
use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase;
use tonic::Code;

use crate::common::ranks::Rank;
use crate::common::{Client, Lab, destruction};

fn tenant(name: &str, members: &[&str], groups: Option<u64>, slots: Option<u64>) -> Tenant {
    Tenant {
        name: name.into(),
        members: members.iter().map(|m| (*m).into()).collect(),
        groups,
        slots,
    }
}

async fn lab(tenants: Vec<Tenant>) -> Lab {
    let mut lab = Lab::two_tiers().await;
    lab.config.tenants = tenants;
    lab
}

async fn uses(client: &Client) -> Vec<(String, u64, u64)> {
    let topology = client.clone().get_topology(v1::GetTopologyRequest {}).await;
    let tenants = topology.unwrap().into_inner().tenants.into_iter();
    tenants.map(|t| (t.name, t.groups, t.slots)).collect()
}

async fn destroy(client: &Client, group: &str) {
    let request = destruction(group);
    client.clone().destroy_group(request).await.unwrap();
}

/// A group counts for the tenant of its source until it is gone, also over a restart. Lanes count each.
#[tokio::test]
async fn a_tenant_has_as_many_groups_as_its_quota_says() {
    let lab = lab(vec![
        tenant("one", &["h0", "h1"], Some(2), None),
        tenant("two", &["h*"], Some(1), None),
    ])
    .await;
    let (controller, mut client) = lab.start().await;
    client
        .create_group(lab.given("a", &["h0", "h2"], 17))
        .await
        .unwrap();
    let wide = v1::CreateGroupRequest {
        lanes: 2,
        ..crate::common::creation("b", &["h1", "h2"])
    };
    let refused = client.create_group(wide).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let words = "tenant \"one\" may have 2 groups, has 1, and this group needs 2";
    assert!(refused.message().contains(words), "{refused}");
    client
        .create_group(lab.given("b", &["h1", "h2"], 18))
        .await
        .unwrap();
    client
        .create_group(lab.given("c", &["h2", "h0"], 19))
        .await
        .unwrap();
    for (name, source) in [("x", "h0"), ("y", "h3")] {
        let other = if source == "h0" { "h1" } else { "h2" };
        let refused = client.create_group(lab.given(name, &[source, other], 20)).await;
        assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    }
    let full = [("one".into(), 2, 0), ("two".into(), 1, 0)];
    assert_eq!(uses(&client).await, full);
    controller.stop().await;
    let (_controller, mut client) = lab.start().await;
    assert_eq!(uses(&client).await, full);
    destroy(&client, "a").await;
    client
        .create_group(lab.given("x", &["h0", "h1"], 20))
        .await
        .unwrap();
    assert_eq!(uses(&client).await, full);
}

/// Calls at the same time get no more than one at a time would.
#[tokio::test]
async fn many_at_once_do_not_exceed_it() {
    let lab = lab(vec![tenant("one", &["*"], Some(5), None)]).await;
    let (_controller, client) = lab.start().await;
    let calls = (0..20).map(|n| {
        let (mut client, request) = (client.clone(), lab.given(&format!("g{n}"), &["h0", "h2"], 17 + n));
        async move { client.create_group(request).await.is_ok() }
    });
    let created = calls.collect::<tokio::task::JoinSet<_>>().join_all().await;
    assert_eq!(created.into_iter().filter(|ok| *ok).count(), 5);
}

/// A job counts for the tenant of the first rank that calls, with the slots that it requests.
#[tokio::test]
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
    let refused = client.init_group(wide).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(
        refused.message().contains("may have 300 slots, has 0"),
        "{refused}"
    );
    assert_eq!(
        uses(&client).await,
        [("one".into(), 0, 0)],
        "nothing is left of it"
    );
    let join = |rank| v1::InitGroupRequest {
        settings: settings(64),
        ..lab.rank("job", rank, 2, 18)
    };
    let mut ranks = Vec::new();
    for rank in 0..2 {
        ranks.push(Rank::join(&client, join(rank)).await);
    }
    let active = ranks[0].until(CollectivePhase::Active).await;
    assert_eq!(uses(&client).await, [("one".into(), 1, u64::from(active.slots))]);
    destroy(&client, "job").await;
    assert_eq!(uses(&client).await, [("one".into(), 0, 0)]);
}

#[test]
fn tenants_that_cannot_work_are_refused() {
    let faults = |tenants| {
        let config = Config {
            tenants,
            ..Config::new(Vec::new())
        };
        let faults = config.check().unwrap_err();
        faults.0.into_iter().map(|f| f.field).collect::<Vec<_>>()
    };
    let same = || tenant("a", &["h*"], Some(1), None);
    assert_eq!(faults(vec![same(), same()]), ["tenants[1].name"]);
    let empty = tenant("", &[], None, None);
    let all = ["tenants[0].name", "tenants[0].members", "tenants[0].groups"];
    assert_eq!(faults(vec![empty]), all);
}
