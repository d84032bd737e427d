//! The stages of a frame. Every frame ends in exactly one verdict.

mod fast;

use core::net::Ipv4Addr;

use castnet_wire::ethernet::ETHERTYPE_ARP;
use castnet_wire::{
    Batch, DropReason, Ethernet, FrameBuf, Header, IpAddrs, Nanos, ParseError, Parsed, PortId, RoceHeader,
    parse_frame, parse_network,
};

use crate::address::GroupKey;
use crate::bridge::Bridging;
use crate::egress::Egress;
use crate::engine::Engine;
use crate::group::context::{Context, with_group};
use crate::group::kind::Kind;
use crate::group::services::Services;
use crate::group::table::OF_CORE;
use crate::observe::tap::Watch;
use crate::observe::trace::{Observer, Off, Stage, Step, Verdict};
use crate::output::cx::Cx;

impl Engine {
    /// Runs all frames of `batch`, received at port `ingress`, through the pipeline, and sends the results. Empties the batch.
    pub fn process<E: Egress>(
        &mut self,
        now: Nanos,
        ingress: PortId,
        batch: &mut Batch<E::Buf>,
        egress: &mut E,
    ) {
        let bytes: usize = batch.iter().map(FrameBuf::length).sum();
        self.services
            .output
            .counters
            .received(ingress, batch.len() as u64, bytes as u64);
        let mut cx = Cx {
            now,
            ingress,
            egress,
            observer: &mut Off,
        };
        if self.taps.want_none(ingress, batch) {
            return self.fast_batch(&mut cx, batch);
        }
        // To keep the order, other frames are handled before the next recorded one.
        let mut others = Batch::new();
        for frame in batch.drain(..) {
            if !self.taps.may_want(ingress, &frame) {
                others.push(frame);
                continue;
            }
            self.fast_batch(&mut cx, &mut others);
            self.recorded_frame(&mut cx, frame);
        }
        self.fast_batch(&mut cx, &mut others);
    }

    /// Handles a frame that a subscriber may want, or one that it causes.
    #[inline(never)]
    fn recorded_frame<E: Egress>(&mut self, cx: &mut Cx<'_, E, Off>, frame: E::Buf) {
        let mut watch = Watch::of_frame(std::mem::take(&mut self.taps), cx.now, cx.ingress, &frame);
        let mut cx = Cx {
            now: cx.now,
            ingress: cx.ingress,
            egress: &mut *cx.egress,
            observer: &mut watch,
        };
        let verdict = self.forward(&mut cx, frame);
        self.services.output.counters.account(cx.ingress, verdict);
        self.taps = watch.finish_frame(verdict);
    }

    #[inline]
    pub(crate) fn forward<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        frame: E::Buf,
    ) -> Verdict {
        // By reference: moving the large value costs more.
        let parsed = parse_frame(frame.head(), frame.length());
        match &parsed {
            Ok(Parsed::Roce(header)) => {
                if let IpAddrs::V4 { src, dst } = header.ip
                    && let Some(slot) = self.groups.find_next(GroupKey::of(src, dst))
                {
                    return match slot & OF_CORE {
                        0 => self.group_frame(cx, slot, header, src, frame),
                        _ => self.core_frame(cx, slot & !OF_CORE, header, (src, dst), frame),
                    };
                }
                self.ungrouped_frame(cx, &parsed, frame)
            }
            Ok(_) => self.ungrouped_frame(cx, &parsed, frame),
            Err(error) => self.unparsed_frame(cx, *error, frame),
        }
    }

    #[inline]
    pub(crate) fn group_frame<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        frame: E::Buf,
    ) -> Verdict {
        match without_padding(cx, header, frame) {
            Ok(frame) => match self.groups.at_mut(slot) {
                Some(group) => {
                    let services = &mut self.services;
                    with_group!(group, group => group.frame(services, cx, slot, header, src, frame))
                }
                None => Verdict::Dropped(DropReason::NotMember),
            },
            Err(verdict) => {
                self.note_dropped(cx, Some(slot));
                verdict
            }
        }
    }

    /// Data that a static core has brought, and may take on. For the group it is data of the switch next to the source, whatever port that leads
    /// to the core it has come by.
    #[inline(never)]
    fn core_frame<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        header: &RoceHeader,
        (src, dst): (Ipv4Addr, Ipv4Addr),
        frame: E::Buf,
    ) -> Verdict {
        let rule = self.groups.at(slot).map(Context::rule);
        let Some((mcst_id, source)) = rule.and_then(|rule| Some((rule.mcst_id, rule.upstream()?))) else {
            return Verdict::Dropped(DropReason::NotMember);
        };
        let ingress = cx.ingress;
        if !self.bridge.leads_to_core(ingress, source.port) {
            self.note_dropped(cx, Some(slot));
            return cx.drop(Stage::Classify, DropReason::NotMember, || {
                from_no_core(ingress, dst)
            });
        }
        if source.next_hop.core() != Some(dst) {
            self.note_dropped(cx, Some(slot));
            return cx.drop(Stage::Classify, DropReason::OverCovered, || {
                format!("data from {src} to {mcst_id} comes by another address than {dst}")
            });
        }
        if self.bridge.tables.routes.replicates(dst) {
            self.relay(cx, &frame);
        }
        cx.observer.step(|| {
            let why =
                format!("{dst} is an address of the static core, and {src} the source of this group there");
            Step::new(Stage::Classify, format!("data of {mcst_id}"), why)
        });
        self.group_frame(cx, slot, header, src, frame)
    }

    /// Data of the core for a group here that goes on to others, too: this switch is a relay (Shufflecast 3).
    fn relay<E: Egress, O: Observer>(&mut self, cx: &mut Cx<'_, E, O>, frame: &E::Buf) {
        let copy = cx.egress.gather(cx.ingress, &frame.segments());
        let verdict = copy.map(|copy| self.bridging().bridge(cx, copy));
        let totals = &mut self.services.output.counters.totals;
        match verdict {
            Some(Verdict::Dropped(_)) | None => totals.copies_lost += 1,
            Some(_) => totals.copies += 1,
        }
    }

    /// Returns false if there is no group.
    fn note_dropped<E: Egress, O: Observer>(&mut self, cx: &mut Cx<'_, E, O>, slot: Option<u32>) -> bool {
        let Some(group) = slot.and_then(|slot| self.groups.at_mut(slot)) else {
            return false;
        };
        cx.observer.group(group.mcst_id());
        with_group!(group, group => group.note_dropped());
        true
    }

    fn bridging(&mut self) -> Bridging<'_> {
        let Services { output, events, .. } = &mut self.services;
        Bridging {
            own: &mut self.bridge,
            output,
            events,
            groups: &self.groups,
        }
    }

    /// The group of a frame, whatever it is.
    fn group_of(&self, head: &[u8]) -> Option<u32> {
        self.groups.find_key(GroupKey::of_frame(head)?)
    }

    /// Handles a frame that belongs to no group, or that is for a group but not RoCEv2.
    #[inline(never)]
    fn ungrouped_frame<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        parsed: &Result<Parsed, ParseError>,
        frame: E::Buf,
    ) -> Verdict {
        if !self.services.output.ports.present.contains(cx.ingress) {
            return cx.drop(Stage::Parse, DropReason::NoPort, || {
                "the switch has no such port".into()
            });
        }
        if let Ok(Parsed::Roce(header)) = parsed
            && let Some(dst) = self.bridge.forged_core(cx.ingress, header)
        {
            let ingress = cx.ingress;
            return cx.drop(Stage::Classify, DropReason::NotMember, || {
                from_no_core(ingress, dst)
            });
        }
        match parsed {
            Ok(Parsed::Arp(arp)) => self.bridging().arp_frame(cx, arp, frame),
            Ok(Parsed::Lldp { at }) => self.bridging().lldp_frame(cx, *at, frame),
            Ok(Parsed::Ipv4 { header, l3 }) if self.bridge.is_registration(header, *l3, frame.head()) => {
                self.bridging().registration_frame(cx, frame)
            }
            Ok(Parsed::Ipv4 { header, .. }) if self.note_dropped(cx, self.group_of(frame.head())) => {
                cx.drop(Stage::Classify, DropReason::NotMulticastable, || {
                    let (dst, protocol) = (header.dst, header.protocol);
                    format!("{dst} is a group, and this is not RoCEv2 (IP protocol {protocol})")
                })
            }
            _ => {
                cx.observer
                    .step(|| Step::new(Stage::Classify, "no group", "its destination is no McstID"));
                self.bridging().bridge(cx, frame)
            }
        }
    }

    /// The RoCEv2 parser refused the frame. For a group it is dropped. Else it is a frame like any other: what is behind its Ethernet header
    /// concerns its hosts (contract S4).
    #[inline(never)]
    fn unparsed_frame<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        error: ParseError,
        frame: E::Buf,
    ) -> Verdict {
        if self.note_dropped(cx, self.group_of(frame.head())) {
            let reason = match error {
                ParseError::Field {
                    header: Header::Bth,
                    field: "opcode",
                    ..
                } => DropReason::NotMulticastable,
                _ => DropReason::Malformed,
            };
            return cx.drop(Stage::Parse, reason, || error.to_string());
        }
        let parsed = parse_network(frame.head(), frame.length());
        // Hosts remove any number of tags, and would believe it.
        let is_arp = |(ethernet, _): (Ethernet, usize)| ethernet.ethertype == ETHERTYPE_ARP;
        match parsed {
            Err(error) if Ethernet::parse_any(frame.head()).is_ok_and(is_arp) => {
                cx.drop(Stage::Parse, DropReason::Malformed, || error.to_string())
            }
            parsed => self.ungrouped_frame(cx, &parsed, frame),
        }
    }
}

fn from_no_core(ingress: PortId, dst: Ipv4Addr) -> String {
    format!("{dst} is of a static core, and no route leads there by port {ingress}, nor is it a core port")
}

/// Removes bytes behind a packet longer than a head: its ICRC would lie in the part that replicas share. Padded frames are shorter.
#[inline(always)]
fn without_padding<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    header: &RoceHeader,
    frame: E::Buf,
) -> Result<E::Buf, Verdict> {
    if header.frame_len == frame.length() || header.frame_len <= E::Buf::HEAD {
        return Ok(frame);
    }
    copy_prefix(cx, header.frame_len, &frame)
}

/// Copies the first `length` bytes to a new frame, if a buffer is free.
#[cold]
fn copy_prefix<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    length: usize,
    frame: &E::Buf,
) -> Result<E::Buf, Verdict> {
    let mut left = length;
    let parts = frame.segments().map(|segment| {
        let part = segment.get(..left).unwrap_or(segment);
        left -= part.len();
        part
    });
    let copy = cx.egress.gather(cx.ingress, &parts);
    copy.ok_or_else(|| {
        cx.drop(Stage::Verify, DropReason::TxFull, || {
            "no buffer for its packet without the bytes behind it".into()
        })
    })
}
