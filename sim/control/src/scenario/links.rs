//! Links between switches that are down for a while. The switches at both ends report it, as ports without a link.

use castnet_topology::{End, Link, LinkId};
use castnet_wire::PortId;
use tokio::time::{Instant, sleep};

use super::{ALWAYS, LINK_PATIENCE, LOOK, Loss, PATIENCE, World, found};

impl World {
    /// A link goes down, or is up again.
    pub(super) fn set_link(&self, link: LinkId, up: bool) {
        self.frames.lock().set_link_up(link, up);
        let ends = self.topology.link(link).map(|link| [&link.a, &link.b]);
        for end in ends.into_iter().flatten() {
            let End::Switch { switch, port } = end else {
                continue;
            };
            if let Some(switch) = self.switches.get(switch)
                && let Some(port) = PortId::new(*port)
            {
                switch.service.link_changed(port);
            }
        }
    }

    /// A link between switches goes down until the fault ends. The group that always runs gets another path before that, or is told that
    /// there is none.
    pub(super) async fn lose_link(&mut self) -> Result<Loss, String> {
        let all = self.topology.links();
        let all: Vec<(LinkId, &Link)> = all.filter(|(_, link)| is_between_switches(link)).collect();
        let (link, Link { a, b, .. }) = *self.random.one(&all);
        let names = [format!("link {a} - {b}"), format!("link {b} - {a}")];
        let [name, _] = &names;
        self.log.line(format_args!("{name} is down"));
        let mut rest = self.topology.clone();
        rest.set_link_up(link, false);
        let has_other = rest.connected(a.node(), b.node());
        self.set_link(link, false);
        self.cut.push(link);
        let (began, before) = (Instant::now(), self.messages()?);
        loop {
            // One message may have been on its way.
            let (goes_on, said) = (self.messages()? > before + 1, self.reason().await);
            match has_other {
                // Jobs do not wait so long for a link.
                true if goes_on && began.elapsed() > LINK_PATIENCE / 2 => return Ok(Loss::State),
                true if goes_on => return Ok(Loss::Nothing),
                false if names.iter().any(|name| said.contains(name)) => return Ok(Loss::Frames),
                _ if began.elapsed() < PATIENCE => sleep(LOOK).await,
                true => {
                    return Err(format!("{name} is down, and {ALWAYS} stands still: {said}"));
                }
                false => return Err(format!("{ALWAYS} needs {name}, and is not told so: {said}")),
            }
        }
    }

    /// Why the group that always runs is not as it should be.
    async fn reason(&self) -> String {
        let (_, mut leader) = self.candidates.leader(None).await;
        found(&mut leader, ALWAYS)
            .await
            .map_or_else(|status| status.to_string(), |state| state.reason)
    }
}

fn is_between_switches(Link { a, b, .. }: &Link) -> bool {
    matches!((a, b), (End::Switch { .. }, End::Switch { .. }))
}
