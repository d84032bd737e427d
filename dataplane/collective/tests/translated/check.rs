//! Invariants that are checked at each event.

use crate::net::Net;
use crate::program::{self, Payload};
use castnet_collective::PacketShape;
use castnet_collective::translated::CollectiveMode;
use castnet_wire::{Control, Psn, Syndrome, Verdict};
use std::ops::Range;

/// A rank takes its packets in `news` for received: their receivers must have the results. In Mode-III, the switch must have them.
pub(crate) fn acknowledged(net: &Net, host: usize, news: Range<u64>) {
    let sender = &net.hosts[host];
    assert!(
        news.end <= sender.sent,
        "seed {}: an ACK ahead of the data at rank {host}",
        net.setting.seed
    );
    if net.setting.mode == CollectiveMode::Augmented {
        for at in news {
            assert!(
                net.accepted[host].contains(&at),
                "seed {}: rank {host} is told that packet {at} is accepted",
                net.setting.seed
            );
        }
        return;
    }
    let calls = net.setting.odd.get(&(host as u16)).unwrap_or(&net.setting.calls);
    for at in news {
        let item = sender.out[at as usize];
        let call = &calls[item.collective];
        for receiver in &net.hosts {
            let rank = receiver.config.rank;
            let reflected = item.index.is_none() || call.primitive == castnet_wire::Primitive::AllReduce;
            let concerned = match item.index {
                Some(index) if !reflected => program::receives(call, rank, index),
                _ => usize::from(rank) == host,
            };
            // The receiver counts in its own order: all before `g` that it gets, it has.
            let newest = receiver.received.len().checked_sub(1).map(|i| receiver.into[i].g);
            assert!(
                !concerned || newest.is_some_and(|newest| newest >= item.g),
                "seed {}: M1: rank {host} is told that {item:?} is received, rank {rank} lacks it",
                net.setting.seed
            );
        }
    }
}

pub(crate) fn received_data(net: &Net, host: usize, at: usize, payload: Payload, shape: PacketShape) {
    let item = net.hosts[host].into[at];
    let call = &net.setting.calls[item.collective];
    let expected = Payload {
        collective: item.collective,
        index: item.index.unwrap_or(u32::MAX),
        ranks: program::expected_ranks(call, net.setting.tree.ranks, item.index.unwrap_or_default()),
    };
    assert_eq!(payload, expected, "seed {}: C1 at rank {host}", net.setting.seed);
    assert_eq!(shape, item.shape(), "seed {}", net.setting.seed);
}

pub(crate) fn received_control(net: &mut Net, host: usize, at: usize, control: &Control) {
    let item = net.hosts[host].into[at];
    assert_eq!(
        (item.index, control.sequence as usize),
        (None, item.collective),
        "seed {}",
        net.setting.seed
    );
    if control.verdict == Verdict::Agreed {
        assert_eq!(control.call, net.setting.calls[item.collective]);
        assert_eq!(control.rank, 0, "the lowest rank speaks for all");
    } else {
        net.hosts[host].failed = Some(*control);
    }
}

/// The messages that an ACK counts are those of the host's own numbers.
pub(crate) fn message_count(net: &Net, host: usize, psn: Psn, msn: u32, syndrome: Syndrome) {
    let host = &net.hosts[host];
    let ahead = psn.diff(host.config.sq_psn) + i32::from(syndrome == Syndrome::Ack);
    assert!(ahead >= 0, "an ACK of what was before the first packet");
    let messages = host.out[..ahead as usize]
        .iter()
        .filter(|i| i.ends_message())
        .count();
    assert_eq!(msn as usize, messages, "seed {}", net.setting.seed);
}
