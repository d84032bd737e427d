//! The copies of a run of packets: one for each path, or one for all paths of an address of a static core. Slow twin: `replicate`.

use castnet_collective::PathId;
use castnet_collective::path::Paths;
use castnet_wire::{MacAddr, PortId};

use super::data::{Rewrite, Run, RunCommon};
use crate::egress::Egress;
use crate::group::headers::L3;
use crate::group::multicast::context::Group;
use crate::group::multicast::core::{Way, hops};
use crate::group::multicast::replicate::count_lost_copies;
use crate::group::rewrite::PathDestination;
use crate::observe::counters::Counters;
use crate::observe::trace::Observer;
use crate::output::cx::Cx;
use crate::output::{Output, Ports};
use crate::tables::route::Routes;

/// A copy of each packet of a run.
#[derive(Clone, Copy)]
struct Leg {
    port: PortId,
    /// Destination and source.
    macs: (MacAddr, MacAddr),
    dest: PathDestination,
    /// Who lacks the packet if it is lost: the path or, with an address of a static core, all its paths.
    path: PathId,
    core: Option<[u8; 4]>,
}

/// The copies of a run. Those that are known last are sent at the end, because they get the frames themselves.
struct Copies<'a> {
    common: RunCommon<'a>,
    /// If replicas share all bytes behind their headers: those to come.
    lends: Option<usize>,
    waiting: Option<Leg>,
    sent: u64,
}

impl Copies<'_> {
    #[inline(always)]
    fn add<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        counters: &mut Counters,
        group: &mut Group,
        run: &Run<E::Buf>,
        leg: Leg,
    ) {
        let Some(leg) = self.waiting.replace(leg) else {
            return;
        };
        let copies = match &mut self.lends {
            Some(to_come) => {
                *to_come = to_come.saturating_sub(1);
                let rewrite = Rewrite::<true>::new(&self.common, &leg.dest, leg.macs);
                run.replicate(cx, leg.port, &rewrite, *to_come)
            }
            None => {
                let rewrite = Rewrite::<false>::new(&self.common, &leg.dest, leg.macs);
                run.replicate(cx, leg.port, &rewrite, 0)
            }
        };
        for _ in copies..run.frames.len() as u64 {
            count_lost_copies(group, counters, (leg.path, leg.core));
        }
        counters.sent(leg.port, copies, copies * u64::from(run.headers.length));
        self.sent += copies;
    }

    /// One copy for each next hop of the switch's own route to the address of `leg`, or one by the path's port.
    #[inline(never)]
    fn add_core<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        (ports, routes): (&Ports, &Routes),
        counters: &mut Counters,
        group: &mut Group,
        run: &Run<E::Buf>,
        leg: Leg,
    ) {
        let addresses = (group.hot.mcst_id.0, leg.dest.ip.into(), run.headers.sport());
        let packet_len = run.headers.length as usize - L3;
        for (port, mac) in hops(routes, ports, addresses, packet_len, leg.port) {
            let macs = mac.map_or(leg.macs, |mac| (mac, ports.mac(port)));
            self.add(cx, counters, group, run, Leg { port, macs, ..leg });
        }
    }

    /// Returns the number of frames sent.
    fn finish<E: Egress, O: Observer>(
        self,
        cx: &mut Cx<'_, E, O>,
        counters: &mut Counters,
        run: &mut Run<E::Buf>,
    ) -> u64 {
        let (frames, length) = (run.frames.len() as u64, u64::from(run.headers.length));
        let Some(last) = self.waiting else {
            debug_assert!(false, "a packet that is accepted has a path to go to");
            counters.totals.copies_lost += run.frames.drain(..).count() as u64;
            return self.sent;
        };
        let (common, port) = (&self.common, last.port);
        match self.lends {
            Some(_) => run.send(cx, port, &Rewrite::<true>::new(common, &last.dest, last.macs)),
            None => run.send(cx, port, &Rewrite::<false>::new(common, &last.dest, last.macs)),
        }
        counters.sent(port, frames, frames * length);
        self.sent + frames
    }
}

impl Group {
    /// Sends the packets of a run to the paths in `takes`, by default all but the source's. Returns the number of frames sent.
    #[inline(never)]
    pub(super) fn send_run<E: Egress, O: Observer>(
        &mut self,
        output: &mut Output,
        cx: &mut Cx<'_, E, O>,
        run: &mut Run<E::Buf>,
        takes: Option<&Paths>,
    ) -> u64 {
        let Output {
            ports,
            next_hops,
            routes,
            shifts,
            counters,
        } = output;
        let (source, uses_core) = (self.hot.source, self.hot.uses_core);
        let paths = self.hot.destinations.len();
        // A single destination needs no replicas.
        let replicas = takes
            .map_or(paths.saturating_sub(1), Paths::len)
            .saturating_sub(1);
        let may_lend = replicas != 0 && !self.hot.has_routers && !uses_core;
        let lends = may_lend && cx.egress.lends(self.hot.ports, run.headers.length as usize);
        let takes = |path: PathId| path != source && takes.is_none_or(|takes| takes.contains(path));
        let mut copies = Copies {
            common: RunCommon::new(self.hot.mcst_id.0, shifts, &run.headers),
            lends: lends.then_some(replicas),
            waiting: None,
            sent: 0,
        };
        let mut members = self.hot.ports;
        if uses_core {
            self.cold.core.begin();
        }
        for path in (0..paths).map_while(PathId::new) {
            let (Some(port), Some(dest)) = (
                self.hot.next_port(&mut members, path.index()),
                self.hot.dest(path),
            ) else {
                counters.invariant_violated("each path has a port and a destination");
                break;
            };
            if !takes(path) {
                continue;
            }
            let leg = Leg {
                port,
                macs: (next_hops.get(dest.next_hop()), ports.mac(port)),
                dest: *dest,
                path,
                core: None,
            };
            let way = match uses_core {
                true => self.cold.core.way(path, takes),
                false => Way::Own,
            };
            match way {
                Way::Own => copies.add(cx, counters, self, run, leg),
                Way::Core(address) => {
                    let leg = Leg {
                        dest: leg.dest.with_ip(address),
                        core: Some(address),
                        ..leg
                    };
                    copies.add_core(cx, (ports, routes), counters, self, run, leg);
                }
                Way::Sent => {}
            }
        }
        copies.finish(cx, counters, run)
    }
}
