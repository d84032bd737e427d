//! What a controller has left on a switch is removed there by its name.

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
    let owner = fabric.controller.owner().to_owned();
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
    let said = |removed| json!({ "owner": owner, "groups": ["job"], "removed": removed });
    assert_eq!(would, said(false));
    assert_eq!(fabric.castnet(&list).await[0]["owner"], owner.as_str());

    let done = fabric.castnet(&[&purge[..], &["--yes"]].concat()).await;
    assert_eq!(done, said(true));
    assert_eq!(fabric.castnet(&list).await, json!([]));
}
