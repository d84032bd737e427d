use castnet_rules::{LANES_MAX, lane_name, lane_of};

#[test]
fn lanes_are_recognized_by_name() {
    assert_eq!(lane_name("g", 0, 1), "g");
    for lane in 0..LANES_MAX {
        assert_eq!(lane_of(&lane_name("g.x", lane, LANES_MAX)), Some(("g.x", lane)));
    }
    for name in ["g", "/1", "g/", "g/x", "g/16", "g/-1", "g/999"] {
        assert_eq!(lane_of(name), None, "{name}");
    }
}
