//! The fast path of data for a static core: the copies of a run of packets, one for all paths of an address. Slow twin: `replicate`.

use castnet_collective::PathId;
use castnet_collective::path::Paths;
use castnet_wire::{MacAddr, PortId};

use super::data::{Rewrite, Run, RunCommon};
use crate::egress::Egress;
use crate::group::headers::{Headers, L3};
use crate::group::multicast::context::Group;
use crate::group::multicast::core::{Way, hops};
use crate::group::multicast::replicate::{count_lost_copies, count_lost_copy};
use crate::group::rewrite::PathDestination;
use crate::observe::trace::Observer;
use crate::output::Output;
use crate::output::cx::Cx;

/// A copy of each packet of a run.
#[derive(Clone, Copy, Debug)]
pub(in crate::group::multicast) struct Leg {
    port: PortId,
    /// Destination and source.
    macs: (MacAddr, MacAddr),
    dest: PathDestination,
    lost: Lost,
}

/// Who lacks a packet whose copy is lost.
#[derive(Clone, Copy, Debug)]
enum Lost {
    Path(PathId),
    /// All paths of an address of the core.
    Core([u8; 4]),
}

impl Group {
    /// Sends the packets of a run to the paths in `takes`, by default all but the source's. Returns the number of frames sent.
    #[inline(never)]
    pub(super) fn send_to_core<E: Egress, O: Observer>(
        &mut self,
        output: &mut Output,
        cx: &mut Cx<'_, E, O>,
        (common, run): (&RunCommon, &mut Run<E::Buf>),
        takes: Option<&Paths>,
    ) -> u64 {
        // Kept between runs for its memory.
        let mut legs = std::mem::take(&mut self.cold.core.legs);
        legs.clear();
        self.find_legs(output, &run.headers, takes, &mut legs);
        let (frames, length) = (run.frames.len() as u64, u64::from(run.headers.length));
        let mut sent = 0;
        let Output { shifts, counters, .. } = output;
        let operator = shifts.find(common.payload);
        if let Some((last, others)) = legs.split_last() {
            for leg in others {
                let rewrite = Rewrite::new(common, &leg.dest, leg.macs);
                let change = common.icrc_change(operator, &rewrite);
                let copies = run.replicate(cx, leg.port, (&rewrite, change));
                for _ in copies..frames {
                    match leg.lost {
                        Lost::Path(path) => count_lost_copy(self, counters, path),
                        Lost::Core(address) => count_lost_copies(self, counters, address),
                    }
                }
                counters.sent(leg.port, copies, copies * length);
                sent += copies;
            }
            let rewrite = Rewrite::new(common, &last.dest, last.macs);
            let change = common.icrc_change(operator, &rewrite);
            for (mut frame, check) in run.frames.drain(..) {
                rewrite.write(check, change, &mut frame);
                cx.egress.send(last.port, frame);
            }
            counters.sent(last.port, frames, frames * length);
            sent += frames;
        } else {
            debug_assert!(false, "a packet that is accepted has a path to go to");
            counters.totals.copies_lost += run.frames.drain(..).count() as u64;
        }
        self.cold.core.legs = legs;
        sent
    }

    fn find_legs(
        &mut self,
        output: &mut Output,
        headers: &Headers,
        takes: Option<&Paths>,
        legs: &mut Vec<Leg>,
    ) {
        let source = self.hot.source;
        let takes = |path| path != source && takes.is_none_or(|takes| takes.contains(path));
        let mcst_id = self.hot.mcst_id.0;
        let mut ports = self.hot.ports;
        self.cold.core.begin();
        for path in (0..self.hot.destinations.len()).map_while(PathId::new) {
            let (Some(port), Some(dest)) =
                (self.hot.next_port(&mut ports, path.index()), self.hot.dest(path))
            else {
                output
                    .counters
                    .invariant_violated("each path has a port and a destination");
                break;
            };
            if !takes(path) {
                continue;
            }
            let own = Leg {
                port,
                macs: (output.next_hops.get(dest.next_hop()), output.ports.mac(port)),
                dest: *dest,
                lost: Lost::Path(path),
            };
            let address = match self.cold.core.way(path, takes) {
                Way::Own => {
                    legs.push(own);
                    continue;
                }
                Way::Sent => continue,
                Way::Core(address) => address,
            };
            let core = Leg {
                dest: dest.with_ip(address),
                lost: Lost::Core(address),
                ..own
            };
            let before = legs.len();
            let addresses = (mcst_id, address.into(), headers.sport());
            let packet_len = headers.length as usize - L3;
            legs.extend(
                hops(&output.routes, &output.ports, addresses, packet_len).map(|hop| Leg {
                    port: hop.port,
                    macs: (hop.mac, output.ports.mac(hop.port)),
                    ..core
                }),
            );
            if legs.len() == before {
                legs.push(core);
            }
        }
    }
}
