//! Forwarding: each frame of an endpoint goes to the other one, data and feedback, with its connection bridged. The smallest kind,
//! without protocol state, timers or fast path: the example of `docs/new-kind.md`.

use core::net::Ipv4Addr;

use castnet_rules::{GroupRule, NextHop};
use castnet_wire::{DropReason, FrameBuf, PortId, RoceHeader, TokenBucket};

use crate::address;
use crate::egress::Egress;
use crate::group::classify::{self, Class, Refusal};
use crate::group::install::{macs, rule_bytes};
use crate::group::kind::Kind;
use crate::group::lookup::LookupTable;
use crate::group::meter::{self, Metered};
use crate::group::rewrite;
use crate::group::rewrite::PathDestination;
use crate::group::services::Services;
use crate::observe::counters::{CountersSnapshot, ForwardingCounters, ForwardingEndpoint};
use crate::observe::trace::{Observer, Stage, Step, Verdict};
use crate::output::cx::Cx;
use crate::tables::next_hops::{NextHops, NextHopsFull};

/// A compiled group. It has the alignment of [`crate::Group`].
#[derive(Debug)]
#[repr(align(64))]
pub struct Forwarding {
    rule: GroupRule,
    /// Finds the endpoint that sent a frame.
    table: LookupTable,
    /// The destination of frames to each endpoint.
    destinations: [PathDestination; 2],
    meters: [Option<TokenBucket>; 2],
    counters: ForwardingCounters,
    endpoints: [ForwardingEndpoint; 2],
}

/// The state of a forwarding group, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardingStatus {
    /// Its rule, endpoints in order of their ports.
    pub rule: GroupRule,
    /// Its counters.
    pub counters: ForwardingCounters,
    /// Counters of its endpoints, in the order of the rule.
    pub endpoints: Vec<ForwardingEndpoint>,
    /// Bytes of group memory that the group uses.
    pub memory_bytes: usize,
}

impl Forwarding {
    pub(crate) fn new(rule: GroupRule) -> Box<Self> {
        // The rule has been checked: it has exactly two endpoints.
        let ends = [&rule.endpoints[0], &rule.endpoints[1]];
        Box::new(Self {
            table: LookupTable::of_all(&rule, None),
            destinations: ends.map(PathDestination::new),
            meters: ends.map(|endpoint| meter::of(&rule, endpoint)),
            counters: ForwardingCounters::default(),
            endpoints: ends.map(|endpoint| ForwardingEndpoint {
                port: endpoint.port,
                frames_in: 0,
                frames_out: 0,
            }),
            rule,
        })
    }

    pub(crate) fn copy_state(&mut self, of: &Self) {
        self.meters = of.meters;
    }

    /// The index of the endpoint that sent a frame, and the frame's class, or why it is dropped.
    fn admit(
        &self,
        ingress: PortId,
        header: &RoceHeader,
        src: Ipv4Addr,
        frame: &impl FrameBuf,
    ) -> Result<(usize, Class), Refusal> {
        let mac = address::source_mac(frame.head());
        let from = self.table.find(ingress, src, header.bth.dest_qp, mac);
        let from = from.ok_or(classify::NOT_MEMBER)?;
        let class = classify::class(header)?;
        classify::check_packet(header, frame, self.rule.pmtu.bytes())?;
        Ok((from, class))
    }

    fn describe(&self, endpoint: usize) -> String {
        let endpoint = &self.rule.endpoints[endpoint];
        format!("{} (port {})", endpoint.next_hop.name(), endpoint.port)
    }
}

impl Kind for Box<Forwarding> {
    type Status = ForwardingStatus;

    fn rule(&self) -> &GroupRule {
        &self.rule
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Forwarding>() - size_of::<LookupTable>() + self.table.bytes() + rule_bytes(&self.rule)
    }

    fn bind(&mut self, next_hops: &mut NextHops, _: Option<Ipv4Addr>) -> Result<(), NextHopsFull> {
        let destinations = &mut self.destinations;
        next_hops.acquire_all(macs(&self.rule), |i, index| destinations[i].bind(index))
    }

    fn unbind(&self, next_hops: &mut NextHops) {
        self.destinations
            .iter()
            .for_each(|dest| next_hops.release(dest.next_hop()));
    }

    // Not inlined: it would make the slow path of other kinds larger.
    #[inline(never)]
    fn frame<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        _: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        mut frame: E::Buf,
    ) -> Verdict {
        let (group, output) = (self, &mut services.output);
        let (ingress, mcst_id) = (cx.ingress, group.rule.mcst_id);
        cx.observer.group(mcst_id);
        let (from, class) = match group.admit(ingress, header, src, &frame) {
            Ok(admitted) => admitted,
            Err((stage, reason)) => {
                group.note_dropped();
                return cx.drop(stage, reason, || {
                    let from = (ingress, src, address::source_mac(frame.head()));
                    let texts = ["is not forwarded", ""];
                    classify::explain_refusal(reason, &group.rule, from, header, NextHop::ip, texts)
                });
            }
        };
        if matches!(class, Class::Data)
            && let Some(bucket) = &mut group.meters[from]
        {
            match meter::meter(cx, bucket, header, frame.length()) {
                Metered::Within => {}
                Metered::Marked => {
                    group.counters.rate_marks += 1;
                    meter::mark(&mut frame, header);
                }
                Metered::Over => {
                    group.note_dropped();
                    group.counters.rate_drops += 1;
                    return meter::drop_over(cx, &group.rule, frame.length());
                }
            }
        }
        group.endpoints[from].frames_in += 1;
        let to = 1 - from;
        let port = group.endpoints[to].port;
        cx.observer.step(|| {
            let decision = format!("group {}, {}", group.rule.name, header.bth.opcode);
            let why = format!("from {}, to {}", group.describe(from), group.describe(to));
            Step::new(Stage::Classify, decision, why)
        });
        if !output.ports.up.contains(port) {
            group.note_dropped();
            output.counters.totals.copies_lost += 1;
            return cx.drop(Stage::Replicate, DropReason::PortDown, || {
                "the port of the other endpoint is down".into()
            });
        }
        let dest = (&group.destinations[to], port);
        rewrite::bridge(output, mcst_id.0, dest, header, &mut frame);
        group.endpoints[to].frames_out += 1;
        group.counters.forwarded += 1;
        cx.send(&mut output.counters, port, frame);
        Verdict::Replicated
    }

    fn note_dropped(&mut self) {
        self.counters.dropped += 1;
    }

    fn snapshot(&self, into: &mut CountersSnapshot) -> bool {
        let endpoints = self.endpoints.iter().copied();
        into.forwarding.add(&self.rule, self.counters, endpoints)
    }

    fn status(&self) -> ForwardingStatus {
        ForwardingStatus {
            rule: self.rule.clone(),
            counters: self.counters,
            endpoints: self.endpoints.to_vec(),
            memory_bytes: self.memory_bytes(),
        }
    }
}
