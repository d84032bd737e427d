//! What other owners have left on the switches is shown and removed.

use castnet_proto::term::{is_joined_elsewhere, term_of};
use castnet_proto::v1;
use prost::Message;
use tonic::metadata::BinaryMetadataValue;
use tonic::{Code, Request, Status};

use crate::common::{Calls, Client, moment, refused, refused_field, two_tiers};

async fn purge(
    client: &Client,
    owner: Option<&str>,
    remove: bool,
) -> Result<v1::PurgeGroupsResponse, Status> {
    let owner = owner.map(Into::into);
    let request = v1::PurgeGroupsRequest { owner, remove };
    Ok(client.clone().purge_groups(request).await?.into_inner())
}

/// `SWITCH OWNER GROUP`, and whether it was removed.
fn lines(answer: v1::PurgeGroupsResponse) -> Vec<(String, bool)> {
    let line = |(switch, group): (&str, v1::LeftGroup)| {
        (format!("{switch} {} {}", group.owner, group.name), group.removed)
    };
    let each = answer.switches.iter();
    each.flat_map(|s| s.groups.iter().map(|g| line((&s.switch_name, g.clone()))))
        .collect()
}

/// A controller that lost its store has another name, and does not touch the groups of the old one by itself.
#[tokio::test(start_paused = true)]
async fn what_a_controller_left_is_removed_by_its_name_alone() {
    let (mut lab, old, client) = two_tiers().await;
    client.create(lab.given("old", &["h0", "h1"], 17)).await;
    let owner = old.owner();
    old.stop().await;
    lab.config.store = Some(lab.folder.path().join("new.redb"));

    // Its store may be the wrong one: nobody is told that a group is gone, and none is created.
    let (wrong, mut client) = lab.start().await;
    let new = lab.given("new", &["h2", "h3"], 18);
    let reason =
        "switch leaf0 has 1 of other controllers: start it with the store that knows them, or with --init";
    refused(client.create_group(new).await, Code::FailedPrecondition, reason);
    let unknown = "is not known yet";
    refused(client.try_get("old").await, Code::Unavailable, unknown);
    // Nor is a rank that was in a job.
    let back = v1::InitGroupRequest {
        returns_to: Some(1),
        ..lab.rank("job", 0, 2, 19)
    };
    refused(client.init_group(back).await, Code::Unavailable, unknown);
    wrong.stop().await;

    lab.config.init = true;
    let (init, _) = lab.start().await;
    init.stop().await;
    lab.config.init = false;
    let (new, client) = lab.start().await;
    // Nobody knows before all switches have said what they have.
    while client.try_get("old").await.unwrap_err().code() == Code::Unavailable {
        moment().await;
    }
    refused(client.try_get("old").await, Code::NotFound, "");
    client.create(lab.given("new", &["h2", "h3"], 18)).await;
    lab.switches.get_mut("spine0").unwrap().stop().await;

    let found = purge(&client, None, false).await.unwrap();
    let spine = found.switches.iter().find(|s| s.switch_name == "spine0");
    assert!(spine.unwrap().reason.contains("cannot be reached"), "{found:?}");
    let old = format!("leaf0 {owner} old");
    assert_eq!(lines(found), [(old.clone(), false)]);
    refused_field(
        purge(&client, None, true).await,
        Code::InvalidArgument,
        "owner",
        "",
    );
    // Of its own only what its store does not have.
    let own = purge(&client, Some(&new.owner()), true).await.unwrap();
    assert_eq!(lines(own), []);
    let others = purge(&client, Some("nobody"), true).await.unwrap();
    assert_eq!(lines(others), []);
    assert_eq!(lab.placed(), ["leaf0 old.1", "leaf1 new.1"]);

    let removed = purge(&client, Some(&owner), true).await.unwrap();
    assert_eq!(lines(removed), [(old, true)]);
    assert_eq!(lab.placed(), ["leaf1 new.1"]);
}

/// What a member is told about its group that says where it has joined.
async fn told(client: &Client, group: &str, joined: &v1::ControllerTerm) -> Result<(), Status> {
    let mut request = Request::new(v1::GetGroupRequest { group: group.into() });
    let term = BinaryMetadataValue::from_bytes(&joined.encode_to_vec());
    request.metadata_mut().insert_bin("castnet-joined-bin", term);
    client.clone().get_group(request).await.map(drop)
}

fn unsure(answer: Result<(), Status>, why: &str) {
    let status = answer.unwrap_err();
    let says = status.message().contains(why);
    assert!(says && is_joined_elsewhere(&status), "{status}");
}

/// A controller on a store with groups may be on the wrong one, too, or on an older copy.
#[tokio::test(start_paused = true)]
async fn a_member_is_told_that_its_group_is_gone_by_those_who_know() {
    let (mut lab, old, mut client) = two_tiers().await;
    client.create(lab.given("old", &["h0", "h1"], 17)).await;
    let rejoined = client.join_group(lab.joining("old", "h1", 17)).await.unwrap();
    let joined = term_of(rejoined.metadata()).unwrap().expect("a term");
    assert_eq!((&joined.owner, joined.epoch), (&old.owner(), 1));
    drop(rejoined);
    old.stop().await;

    // The next one on the store knows what became of it. One that ran later has made what this one does not know.
    let (old, client) = lab.start().await;
    told(&client, "old", &joined).await.unwrap();
    // Before it has seen what the switches have, there may be one.
    moment().await;
    refused(told(&client, "none", &joined).await, Code::NotFound, "");
    for (epoch, why) in [(2, "run on copies of the store"), (3, "(epoch 3 after 2)")] {
        let later = v1::ControllerTerm {
            epoch,
            ..joined.clone()
        };
        unsure(told(&client, "old", &later).await, why);
    }
    let owner = old.owner();
    old.stop().await;

    lab.config.store = Some(lab.folder.path().join("new.redb"));
    lab.config.init = true;
    let (_new, client) = lab.start().await;
    client.create(lab.given("new", &["h2", "h3"], 18)).await;
    for group in ["old", "new"] {
        let way = format!("castnet group purge --owner {owner} --yes");
        unsure(told(&client, group, &joined).await, &way);
    }
    let in_memory = v1::ControllerTerm {
        in_memory: true,
        ..joined.clone()
    };
    refused(told(&client, "old", &in_memory).await, Code::NotFound, "");
    // Looking is not purging.
    purge(&client, Some(&owner), false).await.unwrap();
    unsure(told(&client, "new", &joined).await, "");
    purge(&client, Some(&owner), true).await.unwrap();
    refused(told(&client, "old", &joined).await, Code::NotFound, "");
    // What it has is shown to all.
    told(&client, "new", &joined).await.unwrap();
}
