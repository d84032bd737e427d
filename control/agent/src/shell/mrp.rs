//! The thread for MRP.

use std::sync::Arc;
use std::time::Duration;

use castnet_mrp::Limits;
use crossbeam::channel::RecvTimeoutError;

use crate::Shared;
use crate::state::mrp::{FabricPort, Registrations, received};

/// How often the thread checks whether agent and dataplane still exist.
const LOOK: Duration = Duration::from_millis(100);

/// Starts the thread. It ends with the dataplane or with the agent.
pub(crate) fn start(shared: &Arc<Shared>, limits: Limits, fabric: Vec<FabricPort>) -> std::io::Result<()> {
    let weak = Arc::downgrade(shared);
    let packets = shared.dataplane.registrations().clone();
    let config = shared.dataplane.config().engine.registration.as_ref();
    let udp_port = config.map(|config| config.udp_port);
    let thread = std::thread::Builder::new().name("castnet-mrp".into());
    let work = move || {
        let mut registrations = Registrations::new(limits, fabric, udp_port);
        loop {
            let packet = packets.recv_timeout(LOOK);
            let Some(shared) = weak.upgrade() else { return };
            let packet = match packet {
                Err(RecvTimeoutError::Disconnected) => return,
                packet => packet.ok(),
            };
            let dataplane = &shared.dataplane;
            while registrations
                .poll_timeout()
                .is_some_and(|due| due <= dataplane.now())
            {
                shared.handle(|core, pipeline| registrations.handle_timeout(dataplane.now(), core, pipeline));
            }
            if let Some(packet) = packet {
                let handled = received(&packet).and_then(|received| {
                    shared.handle(|core, pipeline| {
                        registrations.handle(dataplane.now(), received, core, pipeline)
                    })
                });
                if let Err(reason) = handled {
                    // A dataplane that has stopped counts nothing.
                    let _ = dataplane.count_drop(packet.port, reason);
                }
            }
            let frames = registrations.poll_transmit();
            if !frames.is_empty()
                && let Err(error) = dataplane.transmit(frames)
            {
                tracing::debug!(%error, "registration packets are not sent");
            }
        }
    };
    thread.spawn(work).map(drop)
}
