//! Routes after a restart of the controller.

use std::fmt::Write as _;

use castnet_planner::shufflecast::Shufflecast;

use super::*;
use crate::state::core::tests::core_over;
use crate::state::fabric::SwitchReport;
use crate::state::fabric::tests::switch_seen;
use crate::state::kinds::multicast::refine::tests::{run, star};
use crate::store::Stored;

/// The eight ToRs of a 2,2-Shufflecast. Nothing is known of them.
fn shufflecast() -> (Core, Arc<Relays>) {
    let fabric = Shufflecast::new(2, 2).unwrap();
    let (mut file, mut splitters) = (String::new(), String::new());
    for tor in fabric.tors() {
        let _ = write!(
            file,
            "[[switches]]\nname = \"tor{tor}\"\nports = 6\nmcst_prefix = \"10.21{tor}.0.0/24\"\n"
        );
        // Ports 0 and 1 send, 2 to 5 receive.
        let far = 2 + fabric.partition(tor);
        let links = (0..).zip(fabric.splitter(tor));
        let links =
            links.map(|(port, to): (usize, _)| format!("{{ port = {port}, to = \"tor{to}:{far}\" }}"));
        let links: Vec<String> = links.collect();
        let _ = write!(
            splitters,
            "[[splitters]]\nfrom = \"tor{tor}\"\nlinks = [{}]\n",
            links.join(", ")
        );
    }
    let mut topology = Topology::from_toml(&(file + &splitters)).unwrap();
    let block = "239.1.0.0/16".parse().unwrap();
    let layout = castnet_planner::shufflecast::layout(&topology, block).unwrap();
    for (address, route) in layout.addresses {
        topology.add_multicast_route(address, route).unwrap();
    }
    let core = core_over(topology);
    let relays = core.multicast_routes.relays.clone().unwrap();
    (core, relays)
}

fn connects(core: &mut Core, switch: &str, now: Instant) {
    let report = SwitchReport::default();
    core.signs.report(&core.facts, switch, &report, now);
    core.facts.report(switch, report);
}

fn is_lost(core: &mut Core, switch: &str, now: Instant) {
    core.facts.set_reach(switch, Reach::Down("gone".into()));
    core.signs.lost(switch, now);
}

/// Looks at the relays. The switches whose routes change, and when to look again.
fn looks(core: &mut Core, relays: &Relays, now: Instant) -> (BTreeSet<String>, Option<Instant>) {
    core.now = now;
    (core.look_at_relays(relays), core.timers.time(&Owner::Relays))
}

/// The routes went back to the static ones until tor5 was taken for dead again.
#[test]
fn relays_keep_their_routes_after_a_restart_until_it_is_known_which_one_has_failed() {
    let (mut core, relays) = shufflecast();
    let (start, patience) = (Instant::now(), core.config.timeouts.link);
    for tor in 0..5 {
        assert_eq!(looks(&mut core, &relays, start), (BTreeSet::new(), None));
        connects(&mut core, &format!("tor{tor}"), start);
    }
    is_lost(&mut core, "tor5", start);
    for tor in ["tor6", "tor7"] {
        assert_eq!(
            looks(&mut core, &relays, start),
            (BTreeSet::new(), Some(start + patience))
        );
        connects(&mut core, tor, start);
    }
    looks(&mut core, &relays, start);
    // It was known already: the others do not wait for it.
    is_lost(&mut core, "tor7", start + patience / 2);
    assert!(core.wanted_routes("tor0", None).is_none());
    let (changed, due) = looks(&mut core, &relays, start + patience);
    let all: BTreeSet<String> = (0..8).map(|tor| format!("tor{tor}")).collect();
    assert_eq!((changed, due), (all, Some(start + patience / 2 + patience)));
    let fabric = relays.fabric();
    let mut recovered = Relaying::of(fabric);
    recovered.apply(&fabric.recovery(fabric.tor(5).unwrap()));
    for (tor, splitter) in relays.tors() {
        let wanted = core.wanted_routes(&splitter.from, None).unwrap();
        let routes = relays.routes(&core.facts.topology(), &recovered, tor);
        assert!(wanted.routes.into_values().eq(routes), "{tor}");
    }
    // Later failures move the rules of those alone that they concern.
    connects(&mut core, "tor5", start + patience);
    connects(&mut core, "tor7", start + patience);
    let (changed, _) = looks(&mut core, &relays, start + patience);
    assert!(!changed.is_empty() && changed.len() < 8, "{changed:?}");
}

/// All relay: they get their routes at once.
#[test]
fn relays_that_all_work_get_their_routes() {
    let (mut core, relays) = shufflecast();
    for tor in 0..8 {
        connects(&mut core, &format!("tor{tor}"), Instant::now());
    }
    let (changed, due) = looks(&mut core, &relays, Instant::now());
    assert_eq!((changed.len(), due), (8, None));
    assert_eq!(looks(&mut core, &relays, Instant::now()), (BTreeSet::new(), None));
    assert!(core.wanted_routes("tor0", None).is_some());
}

/// A router that was reconciled first lost the routes of all groups.
#[test]
fn a_group_has_its_address_from_the_start() {
    let mut core = star();
    run(&mut core, "g", 1, "static", &[0, 1, 2]);
    let draft = core.begin_refinement("g").unwrap();
    let own = Ipv4Net::from(draft.refinement.address);
    core.finish_refinement("g", draft);
    let stored = Stored {
        groups: vec![core.group("g").unwrap().record().clone()],
        ..Stored::default()
    };
    let core = Core::new(core.config.clone(), stored, Instant::now(), 1);
    let wanted = core.wanted_routes("core", None).unwrap();
    assert_eq!(Vec::from_iter(wanted.routes.into_keys()), [own]);
}

/// Its links are no links of the file. Without them, one whose agent alone is gone would be taken for dead.
#[test]
fn a_relay_is_heard_at_the_ports_of_its_splitter() {
    let (core, _) = shufflecast();
    let splitter = &core.facts.file.as_ref().unwrap().splitters()[0];
    let (_, End::Switch { switch, port }) = &splitter.links[0] else {
        panic!("{splitter:?}")
    };
    let mut heard = switch_seen(*port, &splitter.from, "p");
    assert!(core.facts.believes_lldp(switch, &heard));
    heard.port = 63;
    assert!(!core.facts.believes_lldp(switch, &heard));
}
