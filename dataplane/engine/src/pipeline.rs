//! The way of a frame through the stages. Every path through here ends in one verdict.

use core::net::Ipv4Addr;

use castnet_wire::{
    Batch, DropReason, FrameBuf, Header, IpAddrs, Nanos, ParseError, Parsed, PortId, RoceHeader, parse_frame,
    parse_network,
};

use crate::classify;
use crate::counters::Counters;
use crate::egress::Egress;
use crate::engine::Engine;
use crate::plain::PlainFrame;
use crate::trace::{Observer, Off, Recorder, Stage, Step, Verdict};

/// What the stages of one frame share.
pub(crate) struct Cx<'a, E, O> {
    pub(crate) now: Nanos,
    pub(crate) ingress: PortId,
    pub(crate) egress: &'a mut E,
    pub(crate) observer: &'a mut O,
}

impl<E: Egress, O: Observer> Cx<'_, E, O> {
    /// Hands a finished frame to its port.
    #[inline(always)]
    pub(crate) fn send(&mut self, counters: &mut Counters, port: PortId, frame: E::Buf) {
        self.observer.sent(port, &frame);
        counters.sent(port, 1, frame.length() as u64);
        self.egress.send(port, frame);
    }

    /// Notes why a frame ends, and ends it.
    #[inline]
    pub(crate) fn drop(&mut self, stage: Stage, reason: DropReason, why: impl FnOnce() -> String) -> Verdict {
        self.observer
            .step(|| Step::new(stage, format!("drop ({reason})"), why()));
        Verdict::Dropped(reason)
    }
}

impl Engine {
    /// Takes all frames of `batch`, which came in by `ingress`, through the pipeline and into `egress`. Leaves the batch
    /// empty.
    pub fn process<E: Egress>(
        &mut self,
        now: Nanos,
        ingress: PortId,
        batch: &mut Batch<E::Buf>,
        egress: &mut E,
    ) {
        let bytes: usize = batch.iter().map(FrameBuf::length).sum();
        self.counters.received(ingress, batch.len() as u64, bytes as u64);
        let mut cx = Cx {
            now,
            ingress,
            egress,
            observer: &mut Off,
        };
        if self.taps.want_none(ingress, batch) {
            return self.fast_batch(&mut cx, batch);
        }
        // What came first leaves first: the others go before the next one that is recorded.
        let mut others = Batch::new();
        for frame in batch.drain(..) {
            if !self.taps.may_want(ingress, &frame) {
                others.push(frame);
                continue;
            }
            self.fast_batch(&mut cx, &mut others);
            self.recorded(&mut cx, frame);
        }
        self.fast_batch(&mut cx, &mut others);
    }

    /// One frame that a tap may want, or what leaves because of it.
    #[inline(never)]
    fn recorded<E: Egress>(&mut self, cx: &mut Cx<'_, E, Off>, frame: E::Buf) {
        let mut recorder = Recorder::new(cx.now, cx.ingress, PlainFrame::copy_of(&frame).0);
        let mut cx = Cx {
            now: cx.now,
            ingress: cx.ingress,
            egress: &mut *cx.egress,
            observer: &mut recorder,
        };
        let verdict = self.forward(&mut cx, frame);
        self.account(cx.ingress, verdict);
        self.taps.take(recorder.finish(verdict));
    }

    #[inline]
    pub(crate) fn account(&mut self, ingress: PortId, verdict: Verdict) {
        let totals = &mut self.counters.totals;
        match verdict {
            Verdict::Replicated => totals.replicated += 1,
            Verdict::Absorbed => totals.absorbed += 1,
            Verdict::Switched => totals.switched += 1,
            Verdict::Routed => totals.routed += 1,
            Verdict::Flooded => totals.flooded += 1,
            Verdict::Dropped(reason) => self.counters.dropped(ingress, reason),
        }
    }

    /// One frame.
    #[inline]
    pub(crate) fn forward<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        frame: E::Buf,
    ) -> Verdict {
        // By reference: moving so large a value out costs more than reading it.
        let parsed = parse_frame(frame.head(), frame.length());
        match &parsed {
            Ok(Parsed::Roce(header)) => {
                if let IpAddrs::V4 { src, dst } = header.ip
                    && let Some(place) = self.groups.find_next(dst)
                {
                    return self.group_frame(cx, place, header, src, frame);
                }
                self.other_frame(cx, &parsed, frame)
            }
            Ok(_) => self.other_frame(cx, &parsed, frame),
            Err(error) => self.odd_frame(cx, *error, frame),
        }
    }

    /// A frame whose destination is the group at `place`.
    #[inline]
    pub(crate) fn group_frame<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        place: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        frame: E::Buf,
    ) -> Verdict {
        match without_rest(cx, header, frame) {
            Ok(frame) => self.frame_of_kind(cx, place, header, src, frame),
            Err(verdict) => {
                if let Some(group) = self.groups.at_mut(place) {
                    cx.observer.group(group.mcst_id());
                    group.note_dropped();
                }
                verdict
            }
        }
    }

    /// A frame of no group, or to a group but not RoCEv2.
    #[inline(never)]
    fn other_frame<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        parsed: &Result<Parsed, ParseError>,
        frame: E::Buf,
    ) -> Verdict {
        if !self.ports.present.contains(cx.ingress) {
            return cx.drop(Stage::Parse, DropReason::NoPort, || {
                "the switch has no such port".into()
            });
        }
        match parsed {
            Ok(Parsed::Arp(arp)) => self.arp_frame(cx, arp, frame),
            Ok(Parsed::Lldp { at }) => self.lldp_frame(cx, *at, frame),
            Ok(Parsed::Ipv4 { header, .. }) if self.groups.find(header.dst).is_some() => {
                let place = self.groups.find(header.dst);
                if let Some(group) = place.and_then(|place| self.groups.at_mut(place)) {
                    group.note_dropped();
                    cx.observer.group(group.mcst_id());
                }
                cx.drop(Stage::Classify, DropReason::NotMulticastable, || {
                    let (dst, protocol) = (header.dst, header.protocol);
                    format!("{dst} is a group, and this is not RoCEv2 (IP protocol {protocol})")
                })
            }
            _ => {
                cx.observer
                    .step(|| Step::new(Stage::Classify, "no group", "its destination is no McstID"));
                self.bridge(cx, frame)
            }
        }
    }

    /// A frame that RoCEv2's parser refused. To a group it ends here; else whatever UDP carries is no business of a
    /// switch, and only Ethernet and IP must be right.
    #[inline(never)]
    fn odd_frame<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        error: ParseError,
        frame: E::Buf,
    ) -> Verdict {
        let group = classify::destination(frame.head()).and_then(|dst| self.groups.find(dst));
        if let Some(group) = group.and_then(|place| self.groups.at_mut(place)) {
            group.note_dropped();
            cx.observer.group(group.mcst_id());
            let reason = match error {
                ParseError::Field {
                    header: Header::Bth,
                    field: "opcode",
                    ..
                } => DropReason::NotMulticastable,
                _ => error.reason(),
            };
            return cx.drop(Stage::Parse, reason, || error.to_string());
        }
        match parse_network(frame.head(), frame.length()) {
            parsed @ Ok(_) => self.other_frame(cx, &parsed, frame),
            Err(error) => cx.drop(Stage::Parse, error.reason(), || error.to_string()),
        }
    }
}

/// The frame without the bytes behind its packet, where the packet is longer than a head: its ICRC would lie in the part
/// that replicas share, and only a trailer can be written for each. What a port pads is shorter.
#[inline(always)]
fn without_rest<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    header: &RoceHeader,
    frame: E::Buf,
) -> Result<E::Buf, Verdict> {
    if header.frame_len == frame.length() || header.frame_len <= E::Buf::HEAD {
        return Ok(frame);
    }
    cut(cx, header.frame_len, &frame)
}

/// A copy of the first `length` bytes; or its end, where no buffer is free.
#[cold]
fn cut<E: Egress, O: Observer>(
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
