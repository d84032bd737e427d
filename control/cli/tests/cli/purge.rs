//! What a controller has left on switches is removed by its name.

use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase;
use serde_json::json;

use crate::collective::until;
use crate::fabric::Fabric;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_an_owner_are_named_and_then_removed() {
    let fabric = Fabric::new().await;
    let settings = v1::CollectiveSettings::default();
    let mut ranks = fabric.ranks("job", 17, settings).await;
    for rank in &mut ranks {
        until(rank, CollectivePhase::Active).await;
    }
    let leaf = fabric.switches[0].0.address().to_string();
    let owner = fabric.controller().owner().to_owned();
    let list = ["group", "list", "--agent", &leaf];

    let (code, text) = fabric
        .refused(&["group", "purge", "--owner", "nobody", "--agent", &leaf])
        .await;
    assert!(
        code == Some(3) && text.contains(&format!("{owner} (1)")),
        "{text}"
    );

    let purge = ["group", "purge", "--owner", &owner, "--agent", &leaf];
    let would = fabric.castnet(&purge).await;
    let said = |removed| json!({ "owner": owner, "groups": ["job"], "removed": removed, "unfinished": [] });
    assert_eq!(would, said(false));
    assert_eq!(fabric.castnet(&list).await[0]["owner"], owner.as_str());

    let done = fabric.castnet(&[&purge[..], &["--yes"]].concat()).await;
    assert_eq!(done, said(true));
    assert_eq!(fabric.castnet(&list).await, json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_controller_removes_what_one_has_left() {
    let mut fabric = Fabric::new().await;
    let settings = v1::CollectiveSettings::default();
    let mut ranks = fabric.ranks("job", 17, settings).await;
    for rank in &mut ranks {
        until(rank, CollectivePhase::Active).await;
    }
    let all = ["leaf0", "leaf1", "spine0"];
    let owner = fabric.controller().owner();
    fabric.stop_controller().await;
    // Without a store, each controller is another owner.
    fabric.start_controller().await;

    let left = json!([{ "owner": owner, "group": "job", "switches": all }]);
    let said = |owner: Option<&str>| json!({ "owner": owner, "groups": left, "routes": [], "removed": false, "unfinished": [] });
    assert_eq!(fabric.castnet(&["group", "purge"]).await, said(None));
    let purge = ["group", "purge", "--owner", &owner];
    assert_eq!(fabric.castnet(&purge).await, said(Some(&owner)));
    let text = fabric.run(purge.to_vec()).await;
    assert!(
        text.contains("leaf0 leaf1 spine0") && text.contains("--yes"),
        "{text}"
    );

    for (owner, exit, says) in [
        ("nobody", 3, "no switch has groups of nobody"),
        ("operator", 3, "no switch has groups of operator"),
        ("", 2, "it is empty"),
    ] {
        let (code, text) = fabric
            .refused(&["group", "purge", "--owner", owner, "--yes"])
            .await;
        assert!(code == Some(exit) && text.contains(says), "{text}");
    }

    let (spine, _) = fabric.switches.pop().expect("the spine");
    spine.stop().await;
    let (code, text) = fabric.refused(&[&purge[..], &["--yes"]].concat()).await;
    assert!(code == Some(4) && text.contains("more of them: spine0"), "{text}");
    let leaf = fabric.switches[0].0.address().to_string();
    let list = ["group", "list", "--agent", &leaf];
    assert_eq!(fabric.castnet(&list).await, json!([]));
    let (code, text) = fabric.refused(&["group", "purge", "--yes"]).await;
    assert!(code == Some(2) && text.contains("--owner"), "{text}");
}
