//! Rate limits of groups.

use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase;
use castnet_proto::v1::plan_group_request::Group;
use tonic::Code;

use crate::common::ranks::{Rank, all};
use crate::common::{Calls, Lab, refused_field, two_tiers};
use crate::lanes::given;

pub(crate) fn limit(bits_per_second: u64, burst_bytes: u64) -> Option<v1::RateLimit> {
    Some(v1::RateLimit {
        bits_per_second,
        burst_bytes,
    })
}

/// The limits of the rules on a switch.
fn at(lab: &Lab, switch: &str) -> Vec<Option<v1::RateLimit>> {
    let rules = lab.rules(switch).into_iter();
    rules.map(|rule| rule.rate_limit).collect()
}

/// Its lanes share it. It is planned, shown, stored, and installed again on a switch that has lost it.
#[tokio::test(start_paused = true)]
async fn each_lane_of_a_group_has_an_equal_part_of_its_limit() {
    let mut lab = Lab::two_tiers().await;
    let folder = tempfile::tempdir().unwrap();
    lab.config.store = Some(folder.path().join("store"));
    let (controller, mut client) = lab.start().await;
    let mut request = given(&lab, "g", &["h0", "h2"], 17, 4);
    request.rate_limit = limit(1_000_000_000, 0);
    let of_group = limit(1_000_000_000, 500_000);
    let planned = client.plan_group(v1::PlanGroupRequest {
        group: Some(Group::Multicast(request.clone())),
    });
    assert_eq!(planned.await.unwrap().into_inner().rate_limit, of_group);
    let created = client.create(request).await;
    assert_eq!(created.rate_limit, of_group);
    let each = [limit(250_000_000, 125_000); 4];
    for switch in ["leaf0", "spine0", "leaf1"] {
        assert_eq!(at(&lab, switch), each, "{switch}");
    }
    let free = client.create(lab.given("free", &["h0", "h1"], 40)).await;
    assert_eq!(free.rate_limit, None);
    let (_controller, client) = lab.restart(controller).await;
    let again = client.get("g").await.state.unwrap();
    assert_eq!(again.rate_limit, of_group);
    assert_eq!(at(&lab, "leaf1"), each);
}

/// The first rank sets it; a rank that gives another one is refused, one that gives none takes that of the group.
#[tokio::test(start_paused = true)]
async fn ranks_agree_on_the_limit_of_their_job() {
    let (lab, _controller, mut client) = two_tiers().await;
    let join = |rank, rate_limit| v1::InitGroupRequest {
        settings: Some(v1::CollectiveSettings {
            rate_limit,
            ..Default::default()
        }),
        ..lab.rank("job", rank, 2, 17)
    };
    let mut ranks = vec![Rank::join(&client, join(0, limit(400_000_000, 0))).await];
    let other = client.init_group(join(1, limit(500_000_000, 0))).await;
    let says = "400M, burst 262144 bytes";
    refused_field(other, Code::InvalidArgument, "settings.rate_limit", says);
    ranks.push(Rank::join(&client, join(1, None)).await);
    let states = all(&mut ranks, CollectivePhase::Active).await;
    let agreed = limit(400_000_000, 262_144);
    for state in states {
        assert_eq!(state.settings.unwrap().rate_limit, agreed);
    }
    assert_eq!(at(&lab, "leaf0"), [agreed]);
}
