//! What happens on the switch, as it tells it.

use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use castnet_e2e::process::PATIENCE;
use castnet_proto::transport::{Address, Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::agent_client::AgentClient;
use tokio::runtime::Runtime;

pub use castnet_proto::v1::agent_event::Event;

/// All that happens on a switch since this was made.
pub struct Events {
    events: Receiver<Event>,
    _runtime: Runtime,
}

impl Events {
    /// Begins to listen; returns when whatever happens from now on will be heard.
    ///
    /// # Errors
    /// The switch cannot be reached.
    pub fn watch(agent: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let agent: Address = agent.parse()?;
        let mut stream = runtime.block_on(async {
            let channel = connect(&agent, &Security::default()).await?;
            let answer = AgentClient::new(channel)
                .watch_events(v1::WatchAgentEventsRequest {})
                .await?;
            let mut stream = answer.into_inner();
            // The first one says only that the others will come.
            stream.message().await?;
            anyhow::Ok(stream)
        })?;
        let (tell, events) = channel();
        runtime.spawn(async move {
            while let Ok(Some(event)) = stream.message().await {
                let Some(event) = event.event else { continue };
                if tell.send(event).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            events,
            _runtime: runtime,
        })
    }

    /// Waits for the first event of which `pick` makes something.
    ///
    /// # Errors
    /// None comes within the tests' patience.
    pub fn wait_for<T>(&self, mut pick: impl FnMut(&Event) -> Option<T>) -> Result<T> {
        let (deadline, mut others) = (Instant::now() + PATIENCE, Vec::new());
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            let event = self
                .events
                .recv_timeout(rest)
                .with_context(|| format!("among events: {others:?}"))?;
            if let Some(picked) = pick(&event) {
                return Ok(picked);
            }
            others.push(event);
            if others.len() > 1000 {
                bail!("too many other events: {others:?}");
            }
        }
    }
}
