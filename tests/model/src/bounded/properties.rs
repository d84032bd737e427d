//! What must hold in each state of a run.

use super::{Bounded, State};
use crate::switch::Rule;
use stateright::{Model, Property};

/// The contracts, and delivery in the end.
pub(super) fn all() -> Vec<Property<Bounded>> {
    vec![
        Property::always("M1: ACK(p) only after all have acknowledged p", |_, s: &State| {
            s.broken != Some(Rule::M1)
        }),
        Property::always("M2: NAK(e) only after all have all below e", |_, s: &State| {
            s.broken != Some(Rule::M2)
        }),
        Property::always(
            "M3: a packet is sent exactly to the paths that lack it",
            |_, s: &State| s.broken != Some(Rule::M3),
        ),
        Property::always(
            "repair: the source gets a NAK only of what the switch next to it lacks",
            |_, s: &State| s.broken != Some(Rule::Repair),
        ),
        Property::always("M4: only CNPs of the most congested path pass", |_, s: &State| {
            s.broken != Some(Rule::M4)
        }),
        Property::always(
            "M4: in final states the source has as many CNPs as the most congested receiver has sent",
            |model: &Bounded, s: &State| {
                let mut actions = Vec::new();
                model.actions(s, &mut actions);
                !actions.is_empty() || model.is_cnp_lost() || model.most_congested() == s.cnps_at_source
            },
        ),
        Property::always(
            "M5: all hosts accept the packets of all sources in one order",
            |_, s: &State| s.broken != Some(Rule::M5),
        ),
        Property::always("the MSN is that of the slowest path", |_, s: &State| {
            s.broken != Some(Rule::Msn)
        }),
        Property::always("every message is expected where it arrives", |_, s: &State| {
            s.broken != Some(Rule::Sense)
        }),
        // `eventually` of the checker misses cycles, and what differs before paths join. There are no cycles
        // (`tests/reduction.rs` checks it), and a settled state stays settled. In addition, the next property
        // checks all final states.
        Property::eventually(
            "everything is delivered and the source knows it",
            |model: &Bounded, s: &State| s.is_settled(model),
        ),
        Property::always(
            "everything is delivered in final states",
            |model: &Bounded, s: &State| {
                let mut actions = Vec::new();
                model.actions(s, &mut actions);
                !actions.is_empty() || s.broken.is_some() || s.is_settled(model)
            },
        ),
    ]
}
