//! Streams of states: what is sent is what has changed, and a client that is too slow lacks nothing.

use std::collections::BTreeMap;

use castnet_proto::states::{Assembled, WatchedGroups};
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;
use castnet_proto::v1::controller_client::ControllerClient;
use castnet_proto::v1::controller_event::Event;
use castnet_topology::Topology;
use tonic::Streaming;
use tonic::transport::Endpoint;

use crate::common::{Calls, Client, Lab, creation, last, next};

async fn watch(client: &Client) -> Streaming<v1::ControllerEvent> {
    let request = v1::WatchControllerEventsRequest { differences: true };
    let mut events = client.clone().watch_events(request).await.unwrap().into_inner();
    next(&mut events).await;
    events
}

fn unnumbered(state: &v1::GroupState) -> v1::GroupState {
    v1::GroupState {
        number: 0,
        ..state.clone()
    }
}

/// Members that are sent to a watcher and to the first member, of a group whose members join one by one.
async fn sent_for(members: usize) -> (usize, usize) {
    let lab = Lab::new(Topology::star(members).unwrap()).await;
    let (_controller, client) = lab.start().await;
    let mut events = watch(&client).await;
    let hosts: Vec<String> = (0..members).map(|n| format!("h{n}")).collect();
    let names: Vec<&str> = hosts.iter().map(String::as_str).collect();
    client.create(creation("g", &names)).await;
    let mut streams = Vec::new();
    for host in &names {
        let mut request = lab.joining("g", host, 17);
        request.brief = true;
        streams.push(client.join(request).await);
    }
    let (mut groups, mut to_watcher) = (WatchedGroups::default(), 0);
    loop {
        let event = next(&mut events).await;
        if let Some(Event::Group(state)) = &event.event {
            to_watcher += state.members.len();
        }
        let whole = groups.complete(event).unwrap().event;
        if let Some(Event::Group(state)) = whole
            && state.phase() == Active
        {
            let now = client.get("g").await.state.unwrap();
            assert_eq!(unnumbered(&state), unnumbered(&now));
            break;
        }
    }
    let state = last(streams.last_mut().unwrap()).await;
    let seen: Vec<&str> = state.members.iter().map(|m| m.host.as_str()).collect();
    assert_eq!(seen, [names[0], names[members - 1]], "the source and itself");
    let mut to_member = 0;
    while let Some(state) = streams[0].message().await.unwrap() {
        to_member += state.members.len();
    }
    (to_watcher, to_member)
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_grows_with_the_joins_and_not_with_their_square() {
    for members in [10, 40] {
        let (to_watcher, to_member) = sent_for(members).await;
        // All at first, and each once when it joins.
        assert!(to_watcher <= 3 * members, "{to_watcher} for {members} members");
        assert!(to_member <= 2 * members, "{to_member} for {members} members");
    }
}

#[tokio::test(start_paused = true)]
async fn ranks_get_what_has_changed_since_their_last_state() {
    const RANKS: u32 = 20;
    let lab = Lab::new(Topology::star(RANKS as usize).unwrap()).await;
    let (_controller, client) = lab.start().await;
    let mut streams = Vec::new();
    for rank in 0..RANKS {
        let mut request = lab.rank("job", rank, RANKS, 17);
        request.differences = true;
        let mut stream = client.clone().init_group(request).await.unwrap().into_inner();
        // The others join only when this one waits.
        let first = next(&mut stream).await;
        streams.push((stream, first));
    }
    for (rank, (mut stream, mut message)) in streams.into_iter().enumerate() {
        let (mut state, mut sent) = (Assembled::default(), 0);
        loop {
            sent += message.members.len();
            let whole = state.apply(message).unwrap();
            assert_eq!(whole.members.len(), RANKS as usize);
            if whole.phase() == v1::CollectivePhase::Active {
                break;
            }
            message = next(&mut stream).await;
        }
        // All at first, each when it joins, and all when they get their addresses.
        assert!(sent <= 3 * RANKS as usize, "{sent} to rank {rank}");
    }
}

/// More events than wait for a slow client.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_too_slow_gets_the_states_that_it_lacks() {
    const GROUPS: usize = 700;
    let mut lab = Lab::two_tiers().await;
    lab.config.mcst_pool = "10.200.0.0/16".parse().unwrap();
    let (controller, client) = lab.start().await;
    client.create(creation("early", &["h0", "h1"])).await;
    // What is on the way to it waits at the controller.
    let endpoint = Endpoint::new(controller.address().unwrap().to_string()).unwrap();
    let channel = endpoint
        .initial_stream_window_size(65_535)
        .connect()
        .await
        .unwrap();
    let mut slow = watch(&ControllerClient::new(channel)).await;
    let mut works = tokio::task::JoinSet::new();
    for first in 0..16 {
        let client = client.clone();
        works.spawn(async move {
            for n in (first..GROUPS).step_by(16) {
                let name = format!("g{n}");
                client.create(creation(&name, &["h0", "h2"])).await;
                if n % 50 != 0 {
                    client.destroy(&name).await;
                }
            }
        });
    }
    works.join_all().await;
    client.destroy("early").await;
    client.create(creation("late", &["h0", "h3"])).await;
    let states = client.groups().await.into_iter().filter_map(|g| g.state);
    let listed: BTreeMap<String, v1::GroupState> = states.map(|s| (s.name.clone(), unnumbered(&s))).collect();
    let (mut groups, mut known, mut has_lagged) = (WatchedGroups::default(), BTreeMap::new(), false);
    while known != listed {
        match groups.complete(next(&mut slow).await).unwrap().event {
            Some(Event::Group(state)) => drop(known.insert(state.name.clone(), unnumbered(&state))),
            Some(Event::GroupGone(name)) => drop(known.remove(&name)),
            Some(Event::Lagged(_)) => has_lagged = true,
            _ => {}
        }
    }
    assert!(has_lagged);
}
