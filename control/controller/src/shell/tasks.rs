//! Tasks beside those of single groups and switches: they look at the state when something has changed, and carry out what that asks for.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep_until;
use tonic::Code;

use super::link::{CHANGES_TOGETHER, SwitchError};
use super::plan::Purpose;
use super::shared::Shared;
use crate::config::Checkpoint;
use crate::state::{Asked, Core, Planning, broken_links, multicast_routes};

/// Pause before a group is looked at whose rules are on their way to its switches.
const PAUSE: Duration = Duration::from_millis(200);

/// Tells the state when something is due.
pub(crate) async fn keep_time(shared: Arc<Shared>) {
    let mut due = shared.due.subscribe();
    loop {
        let at = *due.borrow_and_update();
        let is_due = async {
            match at {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shared.stopped.cancelled() => return,
            () = is_due => shared.lock().handle_timeout(),
            _ = due.changed() => {}
        }
    }
}

pub(crate) async fn watch_links(shared: Arc<Shared>) {
    let mut changes = shared.fabric.subscribe();
    loop {
        changes.mark_unchanged();
        let names: BTreeSet<String> = {
            let mut core = shared.lock();
            let changed = std::mem::take(&mut core.links_changed);
            let on_switches = changed.switches.iter().flat_map(|s| core.groups.on_switch(s));
            on_switches.chain(changed.groups).collect()
        };
        let mut names = names.into_iter().peekable();
        while names.peek().is_some() {
            {
                let mut core = shared.lock();
                for name in names.by_ref().take(CHANGES_TOGETHER) {
                    broken_links::look(&mut core, &name);
                }
            }
            shared.let_others().await;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps the relays of a Shufflecast, while there is one.
pub(crate) async fn watch_relays(shared: Arc<Shared>) {
    let Some(relays) = shared.lock().multicast_routes.relays.clone() else {
        return;
    };
    let mut changes = shared.fabric.subscribe();
    loop {
        changes.mark_unchanged();
        let changed = shared.lock().look_at_relays(&relays);
        for switch in changed {
            sync_routes(&shared, &switch, None);
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Brings the routes of a switch to what they should be, in the background. What fails is tried again when it is reconciled.
pub(crate) fn sync_routes(shared: &Arc<Shared>, switch: &str, only: Option<Ipv4Addr>) {
    let Some(link) = shared.links.get(switch).cloned() else {
        return;
    };
    let shared_too = shared.clone();
    shared.spawn(async move {
        if let Err(error) = link.sync_routes(&shared_too, only).await {
            let switch = &link.config.name;
            tracing::warn!(switch, %error, "its multicast routes are not as they should be");
        }
    });
}

/// Refines a group soon, if it can be.
pub(crate) async fn refine_soon(shared: Arc<Shared>, name: String) {
    tokio::time::sleep(PAUSE).await;
    let Some(draft) = shared.lock().begin_refinement(&name) else {
        return;
    };
    let address = draft.refinement.address;
    for router in &draft.routers {
        let Some(link) = shared.links.get(router) else {
            continue;
        };
        if let Err(error) = link.sync_routes(&shared, Some(address)).await {
            tracing::warn!(group = name, router, %error, "stays on the addresses of the static core");
            let mut core = shared.lock();
            if matches!(&error, SwitchError::Refused(status) if status.code() == Code::AlreadyExists) {
                core.multicast_routes.is_of_another(address);
            }
            core.multicast_routes.settle(address);
            return multicast_routes::sweep_soon(&mut core);
        }
    }
    shared.lock().finish_refinement(&name, draft);
}

pub(crate) async fn plan(shared: Arc<Shared>, planning: Planning) {
    let Planning { mut record, then } = planning;
    let then = |core: &mut Core, record, layout| {
        then(core, record, layout);
        Ok(())
    };
    // It fails where there is nothing to plan any more.
    let _ = shared
        .plan_for(Purpose::Place, |core| record(core).ok_or(()), then)
        .await;
}

pub(crate) async fn sync(shared: Arc<Shared>, asked: Asked) {
    let Asked {
        group,
        switch,
        number,
        after,
        then,
    } = asked;
    shared.config.checkpoints.pass(after).await;
    let done = match shared.links.get(&switch) {
        Some(link) => link.sync(&shared, &group).await,
        None => Err(SwitchError::Unreachable("no agent is configured for it".into())),
    };
    let is_passed = done.is_ok() || matches!(then, Some(Checkpoint::Removed(_)));
    shared.config.checkpoints.pass(then.filter(|_| is_passed)).await;
    let done = done.map_err(|error| error.declined(&switch));
    shared.lock().handle_synced(&group, number, done);
}
