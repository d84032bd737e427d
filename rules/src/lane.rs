//! Lanes: sub-groups of the same members that stand for one group.
//!
//! A group belongs to one worker of a switch, which is what spares it locks. One that is too hot for a core is therefore K
//! groups: each has a McstID of its own and one queue pair of each member, and the members spread their messages over
//! them. On a switch, lane 2 of the group `g` is the group `g/2`.

/// The most lanes of a group.
pub const LANES_MAX: u8 = 16;

/// What lane `lane` of a group of `lanes` lanes is called on a switch: the group's own name where it is the only one.
pub fn lane_name(group: &str, lane: u8, lanes: u8) -> String {
    match lanes {
        0 | 1 => group.into(),
        _ => format!("{group}/{lane}"),
    }
}

/// The group and the lane that a name on a switch stands for; `None` where it is a group of its own.
pub fn lane_of(name: &str) -> Option<(&str, u8)> {
    let (group, lane) = name.rsplit_once('/')?;
    let lane = lane.parse().ok().filter(|lane| *lane < LANES_MAX)?;
    (!group.is_empty()).then_some((group, lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_told_by_their_names() {
        assert_eq!(lane_name("g", 0, 1), "g");
        for lane in 0..LANES_MAX {
            assert_eq!(lane_of(&lane_name("g.x", lane, LANES_MAX)), Some(("g.x", lane)));
        }
        for name in ["g", "/1", "g/", "g/x", "g/16", "g/-1", "g/999"] {
            assert_eq!(lane_of(name), None, "{name}");
        }
    }
}
