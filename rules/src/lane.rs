//! Lanes: sub-groups of the same members that stand for one group.
//!
//! A group belongs to one worker of a switch, so that it needs no locks. If that is too little, it is split into K
//! lanes, each with its own McstID and one queue pair of each member. Members spread their messages over the lanes. On
//! a switch, lane 2 of the group `g` is the group `g/2`.

/// Most lanes of a group.
pub const LANES_MAX: u8 = 16;

/// Name of lane `lane` of `lanes` on a switch. A single lane has the name of the group.
pub fn lane_name(group: &str, lane: u8, lanes: u8) -> String {
    match lanes {
        0 | 1 => group.into(),
        _ => format!("{group}/{lane}"),
    }
}

/// Group and lane of a name on a switch; `None` if it is not the name of a lane.
pub fn lane_of(name: &str) -> Option<(&str, u8)> {
    let (group, lane) = name.rsplit_once('/')?;
    let lane = lane.parse().ok().filter(|lane| *lane < LANES_MAX)?;
    (!group.is_empty()).then_some((group, lane))
}
