//! Deliberate faults.

use super::message::Content;
use super::nodes::{PacketSwitch, START, UP};
use castnet_collective::translated::{CallId, CollectiveMode, Effect, Effects, EndpointId, EndpointKind};
use castnet_wire::{DropReason, NakCode, Psn, Syndrome};

/// A deliberate fault that the checker must find. The machine is unchanged: the fault changes its effects or its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None.
    Nothing,
    /// A leaf acknowledges a contribution when it arrives, as between two hosts.
    AckAtOnce,
    /// A repeated contribution is added again.
    AddAgain,
    /// A contribution beyond the range of the pipe is added to the slot of another packet (EPIC 5.1).
    AddBeyondRange,
    /// When the sum of a packet is complete, the slot half a ring ahead is recycled, as in the paper's Mode-II (EPIC 5.1, figure 6).
    RecycleWhenComplete,
    /// The root copies a complete sum into the broadcast pipe at once (EPIC H.4).
    HandOverAtOnce,
    /// Each packet behind a gap causes a NAK (EPIC H.4).
    NakEach,
    /// Switches send no NAKs (EPIC H.4).
    NoNak,
    /// Switches treat an edge between two modes as one between switches of one mode.
    OneMode,
}

/// Changes the effects of a data packet of `from`.
pub(super) fn apply_fault(
    fault: Fault,
    PacketSwitch { machine, contents }: &mut PacketSwitch,
    (index, from): (usize, EndpointId),
    psn: Psn,
    effects: &mut Effects,
) {
    let status = machine.status();
    let endpoint = &status.endpoints[from.index()];
    let (start, missing) = match endpoint.kind {
        EndpointKind::Rank { sq_psn, .. } => (sq_psn, endpoint.unconfirmed),
        EndpointKind::Switch => (START, endpoint.expected),
    };
    // The contributions of Mode-III are in the first half.
    let ring = machine.slots() >> u16::from(status.mode == CollectiveMode::Augmented);
    let is_taken = |e: &Effect| matches!(e, Effect::Aggregate { .. } | Effect::Store { .. });
    let (taken, refused) = (
        effects.iter().any(is_taken),
        effects.iter().any(|e| matches!(e, Effect::Drop(_))),
    );
    let complete = effects.iter().find_map(|e| match *e {
        Effect::Complete { slot, .. } => Some(slot),
        _ => None,
    });
    let feedback = |psn, syndrome| Effect::Acknowledge {
        to: from,
        psn,
        msn: 0,
        syndrome,
    };
    let add = Effect::Aggregate {
        slot: psn.diff(start).rem_euclid(ring.into()) as u16,
        from,
        first: false,
        kernel: CallId(0),
    };
    match (fault, complete) {
        (Fault::AckAtOnce, _) if index > 0 && from.index() != UP => {
            effects.insert(0, feedback(psn, Syndrome::Ack));
        }
        (Fault::AddAgain, _) if index == 0 && !taken && !refused => effects.push(add),
        (Fault::AddBeyondRange, _) if effects.contains(&Effect::Drop(DropReason::EarlyContribution)) => {
            effects.push(add);
        }
        (Fault::RecycleWhenComplete, Some(slot)) => {
            contents[usize::from((slot + ring / 2) % ring)] = Content::NONE;
        }
        (Fault::HandOverAtOnce, Some(slot)) if index == 0 => effects.push(Effect::HandOver {
            from: slot,
            to: ring + slot,
        }),
        (Fault::NakEach, _)
            if (taken || effects.contains(&Effect::Drop(DropReason::ControlMissing)))
                && endpoint.nak_sent
                && !effects.iter().any(is_nak) =>
        {
            let missing = start.add(missing.diff(START));
            effects.push(feedback(missing, Syndrome::Nak(NakCode::PsnSequenceError)));
        }
        _ => {}
    }
}

fn is_nak(effect: &Effect) -> bool {
    matches!(effect, Effect::Acknowledge { syndrome, .. } if *syndrome != Syndrome::Ack)
}
