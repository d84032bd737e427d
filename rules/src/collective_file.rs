//! Collective groups in rule files.

use castnet_wire::{McstId, Psn, Qpn};

use crate::collective::{
    CollectiveGroup, CollectiveHop, DEFAULT_ACK_TIMEOUT_US, DEFAULT_MESSAGE_PACKETS, LossPolicy,
    RankEndpoint, StragglerPolicy,
};
use crate::collective_draft::{CollectiveDraft, CollectiveHopDraft, EndpointDraft, RankDraft};
use crate::fault::FaultKind;
use crate::file::{PORT, line, optional, quoted, read_mac, read_name, read_pmtu, read_port};
use crate::group::DEFAULT_STALL_TIMEOUT_MS;
use crate::limit::{IP_TEXT, Limit};
use crate::reader::{Fields, Reader, Value};

const ENDPOINTS: &str = "a list of endpoints: [[collectives.endpoints]]";
pub(crate) fn read_collective<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<CollectiveDraft> {
    let mut f = r.table(value, "a collective group: [[collectives]]")?;
    let group = CollectiveDraft {
        name: read_name(r, &mut f),
        generation: optional(r, &mut f, "generation", 0, |r, v| r.number(v, &Limit::U64)),
        mcst_id: f
            .need(r, "mcst_id", IP_TEXT)
            .and_then(|v| r.parsed(&v, IP_TEXT))
            .map(McstId),
        pmtu: f
            .need(r, "pmtu", "256, 512, 1024, 2048 or 4096")
            .and_then(|v| read_pmtu(r, &v)),
        psn_start: optional(r, &mut f, "psn_start", Psn::new(0), read_psn),
        slots: f
            .need(r, "slots", "a power of two, 2 to 32768")
            .and_then(|v| r.number(&v, &Limit::SLOTS))
            .map(|n| n as u16),
        message_packets: optional(r, &mut f, "message_packets", DEFAULT_MESSAGE_PACKETS, |r, v| {
            r.number(v, &Limit::U16).map(|n| n as u16)
        }),
        reproducible: optional(r, &mut f, "reproducible", false, |r, v| r.truth(v)),
        loss_policy: optional(r, &mut f, "loss_policy", LossPolicy::default(), |r, v| {
            r.parsed(v, "a policy: \"repair\" or \"reflect\"")
        }),
        straggler_policy: optional(
            r,
            &mut f,
            "straggler_policy",
            StragglerPolicy::default(),
            |r, v| r.parsed(v, "a policy: \"keep-alive\", \"rnr\" or \"none\""),
        ),
        ack_timeout_us: optional(r, &mut f, "ack_timeout_us", DEFAULT_ACK_TIMEOUT_US, read_u32),
        stall_timeout_ms: optional(r, &mut f, "stall_timeout_ms", DEFAULT_STALL_TIMEOUT_MS, read_u32),
        parent: optional(r, &mut f, "parent", None, |r, v| read_port(r, v).map(Some)),
        endpoints: f.need(r, "endpoints", ENDPOINTS).and_then(|v| {
            let values = r.array(&v, ENDPOINTS)?;
            Some(
                values
                    .iter()
                    .map(|v| read_endpoint(r, v).unwrap_or_default())
                    .collect(),
            )
        }),
    };
    f.finish(r);
    Some(group)
}

fn read_endpoint<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<EndpointDraft> {
    let mut f = r.table(value, "an endpoint: [[collectives.endpoints]]")?;
    let port = f.need(r, "port", PORT).and_then(|v| read_port(r, &v));
    let (rank, switch) = (f.take(r, "rank"), f.take(r, "switch"));
    match (&rank, &switch) {
        (None, None) => f.fault(r, FaultKind::NoCollectiveHop),
        (Some(_), Some(_)) => f.fault(r, FaultKind::TwoCollectiveHops),
        _ => {}
    }
    let rank = rank.and_then(|v| read_rank(r, &v)).map(CollectiveHopDraft::Rank);
    let switch = switch.and_then(|v| read_switch(r, &v));
    f.finish(r);
    Some(EndpointDraft {
        port,
        next_hop: rank.or(switch),
    })
}

fn read_rank<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<RankDraft> {
    let mut f = r.table(value, "a rank: { rank, name, ip, qpn, mac, sq_psn, rq_psn }")?;
    let rank = RankDraft {
        rank: f
            .need(r, "rank", "a rank, 0 to 1023")
            .and_then(|v| r.number(&v, &Limit::RANK))
            .map(|n| n as u16),
        name: read_name(r, &mut f),
        ip: f.need(r, "ip", IP_TEXT).and_then(|v| r.parsed(&v, IP_TEXT)),
        qpn: f
            .need(r, "qpn", "the host's QPN, 0x2 to 0xfffffe")
            .and_then(|v| r.number(&v, &Limit::QPN))
            .map(|n| Qpn::new(n as u32)),
        mac: read_mac(r, &mut f),
        sq_psn: needed_psn(r, &mut f, "sq_psn"),
        rq_psn: needed_psn(r, &mut f, "rq_psn"),
    };
    f.finish(r);
    Some(rank)
}

fn read_switch<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<CollectiveHopDraft> {
    const RANKS: &str = "the ranks behind it: [0, 1]";
    let mut f = r.table(value, "a switch: { name, mac, ranks }")?;
    let hop = CollectiveHopDraft::Switch {
        name: read_name(r, &mut f),
        mac: read_mac(r, &mut f),
        ranks: f.need(r, "ranks", RANKS).and_then(|v| {
            let values = r.array(&v, RANKS)?;
            // Each is read, so that each fault is told.
            let ranks: Vec<_> = values.iter().map(|v| r.number(v, &Limit::RANK)).collect();
            ranks.into_iter().map(|n| n.map(|n| n as u16)).collect()
        }),
    };
    f.finish(r);
    Some(hop)
}

fn read_psn<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<Psn> {
    r.number(value, &Limit::PSN).map(|n| Psn::new(n as u32))
}

fn needed_psn<'t>(r: &mut Reader<'t>, f: &mut Fields<'_, 't>, name: &'static str) -> Option<Psn> {
    f.need(r, name, "a PSN, 0 to 0xffffff")
        .and_then(|v| read_psn(r, &v))
}

fn read_u32<'t>(r: &mut Reader<'t>, value: &Value<'_, 't>) -> Option<u32> {
    r.number(value, &Limit::U32).map(|n| n as u32)
}

pub(crate) fn write_collective(out: &mut String, group: &CollectiveGroup) {
    let CollectiveGroup {
        name,
        generation,
        mcst_id,
        pmtu,
        psn_start,
        slots,
        message_packets,
        reproducible,
        loss_policy,
        straggler_policy,
        ack_timeout_us,
        stall_timeout_ms,
        parent,
        endpoints,
    } = group;
    let (name, pmtu) = (quoted(name), pmtu.bytes());
    line(
        out,
        format_args!(
            "[[collectives]]\nname = {name}\ngeneration = {generation}\nmcst_id = \"{mcst_id}\"\npmtu = {pmtu}\n\
             psn_start = {psn_start}\nslots = {slots}\nmessage_packets = {message_packets}\nreproducible = {reproducible}"
        ),
    );
    line(
        out,
        format_args!(
            "loss_policy = \"{loss_policy}\"\nstraggler_policy = \"{straggler_policy}\"\nack_timeout_us = \
             {ack_timeout_us}\nstall_timeout_ms = {stall_timeout_ms}"
        ),
    );
    if let Some(parent) = parent {
        line(out, format_args!("parent = {parent}"));
    }
    if endpoints.is_empty() {
        line(out, format_args!("endpoints = []"));
    }
    for endpoint in endpoints {
        let hop = match &endpoint.next_hop {
            CollectiveHop::Rank(rank) => rank_text(rank),
            CollectiveHop::Switch { name, mac, ranks } => {
                let name = quoted(name);
                format!("switch = {{ name = {name}, mac = \"{mac}\", ranks = {ranks:?} }}")
            }
        };
        line(
            out,
            format_args!("\n[[collectives.endpoints]]\nport = {}\n{hop}", endpoint.port),
        );
    }
    out.push('\n');
}

fn rank_text(rank: &RankEndpoint) -> String {
    let RankEndpoint {
        rank,
        name,
        ip,
        qpn,
        mac,
        sq_psn,
        rq_psn,
    } = rank;
    let name = quoted(name);
    format!(
        "rank = {{ rank = {rank}, name = {name}, ip = \"{ip}\", qpn = {qpn}, mac = \"{mac}\", sq_psn = {sq_psn}, \
         rq_psn = {rq_psn} }}"
    )
}
