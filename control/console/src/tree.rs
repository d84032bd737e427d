//! Trees drawn with lines: any, and those of groups.

use serde::Serialize;

use crate::api;
use crate::units::bytes;

/// A node with its label and children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Label of the node.
    pub label: String,
    /// Drawn from top to bottom.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Node>,
}

impl Node {
    /// A node without children.
    pub fn new(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            children: Vec::new(),
        }
    }

    /// One line per node.
    pub fn draw(&self) -> String {
        let mut out = String::new();
        out.push_str(&self.label);
        out.push('\n');
        draw_children(&self.children, "", &mut out);
        out
    }
}

fn draw_children(children: &[Node], indent: &str, out: &mut String) {
    for (i, child) in children.iter().enumerate() {
        let last = i + 1 == children.len();
        out.push_str(indent);
        out.push_str(if last { "└─ " } else { "├─ " });
        out.push_str(&child.label);
        out.push('\n');
        let deeper = format!("{indent}{}", if last { "   " } else { "│  " });
        draw_children(&child.children, &deeper, out);
    }
}

/// Text behind the label of an endpoint: of the switch in the first argument, to the next hop in the second.
pub type Remark<'a> = &'a dyn Fn(&str, &str) -> String;

/// The tree of a multicast group from the source down.
pub fn of_multicast(source: &str, tree: &[api::TreeNode]) -> Option<Node> {
    let mut root = Node::new(source);
    root.children
        .push(of_group(tree, &|_| String::new(), &|_, _| String::new())?);
    Some(root)
}

/// The IncTree of a collective group from its root down.
pub fn of_collective(tree: &[api::TreeNode], remark: Remark<'_>) -> Option<Node> {
    of_group(tree, &|node| format!(" {}", bytes(node.memory_bytes)), remark)
}

fn missing(node: &api::TreeNode) -> String {
    match (node.installed, node.reason.as_str()) {
        (true, _) => String::new(),
        (false, "") => "  (not installed)".to_owned(),
        (false, reason) => format!("  (not installed: {reason})"),
    }
}

/// The ordinary switches and routers between a switch and the one above it, and the multicast address to which that sends.
fn over(node: &api::TreeNode, core: Option<&str>) -> String {
    let via = match node.via.is_empty() {
        true => String::new(),
        false => format!(" over {}", node.via.join(", ")),
    };
    match core {
        Some(address) => format!("{via} by {address}"),
        None => via,
    }
}

/// Text behind the name of a switch.
type SwitchRemark<'a> = &'a dyn Fn(&api::TreeNode) -> String;

fn of_group(tree: &[api::TreeNode], at_switch: SwitchRemark<'_>, remark: Remark<'_>) -> Option<Node> {
    let first = tree.iter().find(|node| node.parent.is_empty())?;
    // A wrong plan may have a circle. A tree has at most as many levels as switches.
    Some(of_switch((first, None), tree, at_switch, remark, tree.len()))
}

/// `core`: the address of a static core to which the switch above sends.
fn of_switch(
    (switch, core): (&api::TreeNode, Option<&str>),
    tree: &[api::TreeNode],
    at_switch: SwitchRemark<'_>,
    remark: Remark<'_>,
    depth_left: usize,
) -> Node {
    use api::endpoint::NextHop;
    let name = &switch.switch_name;
    let (over, more) = (over(switch, core), at_switch(switch));
    let mut out = Node::new(format!("[{name}]{over}{more}{}", missing(switch)));
    for endpoint in switch.rule.iter().flat_map(|rule| rule.downstream()) {
        let mut node = match &endpoint.next_hop {
            Some(NextHop::Host(host)) => {
                let rank = host.rank().map(|part| format!("rank {}: ", part.rank));
                let ip = match host.ip.as_str() {
                    "" => String::new(),
                    ip => format!(" ({ip})"),
                };
                Node::new(format!("{}{}{ip}", rank.unwrap_or_default(), host.name))
            }
            Some(NextHop::Switch(next)) => match tree.iter().find(|node| node.switch_name == next.name) {
                Some(found) if depth_left > 0 => {
                    let below = (found, next.core.as_deref());
                    of_switch(below, tree, at_switch, remark, depth_left - 1)
                }
                _ => Node::new(format!("[{}]", next.name)),
            },
            None => continue,
        };
        node.label.push_str(&remark(name, endpoint.name()));
        out.children.push(node);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_are_drawn_to_their_last_leaf() {
        let leaf = |name: &str, hosts: &[&str]| Node {
            label: name.to_owned(),
            children: hosts.iter().map(|h| Node::new(*h)).collect(),
        };
        let tree = Node {
            label: "h1".to_owned(),
            children: vec![leaf("leaf1", &["h2", "h3"]), leaf("leaf2", &["h4"])],
        };
        assert_eq!(
            tree.draw(),
            "h1\n├─ leaf1\n│  ├─ h2\n│  └─ h3\n└─ leaf2\n   └─ h4\n"
        );
    }

    fn rank(port: u32, rank: u32) -> api::Endpoint {
        let part = api::RankPart {
            rank,
            ..Default::default()
        };
        let host = api::HostEndpoint {
            name: format!("h{rank}"),
            ip: format!("10.0.0.{rank}"),
            part: Some(api::host_endpoint::Part::Rank(part)),
            ..Default::default()
        };
        api::Endpoint {
            port,
            next_hop: Some(api::endpoint::NextHop::Host(host)),
            ..Default::default()
        }
    }

    fn host(port: u32, name: &str) -> api::Endpoint {
        let host = api::HostEndpoint {
            name: name.to_owned(),
            ip: format!("10.0.0.{port}"),
            ..Default::default()
        };
        api::Endpoint {
            port,
            next_hop: Some(api::endpoint::NextHop::Host(host)),
            ..Default::default()
        }
    }

    fn switch(port: u32, name: &str) -> api::Endpoint {
        let switch = api::SwitchEndpoint {
            name: name.to_owned(),
            ..Default::default()
        };
        api::Endpoint {
            port,
            next_hop: Some(api::endpoint::NextHop::Switch(switch)),
            ..Default::default()
        }
    }

    fn multicast_node(name: &str, parent: &str, source: u32, endpoints: Vec<api::Endpoint>) -> api::TreeNode {
        api::TreeNode {
            switch_name: name.to_owned(),
            parent: parent.to_owned(),
            installed: true,
            reason: String::new(),
            rule: Some(api::GroupRule {
                endpoints,
                kind: Some(api::group_rule::Kind::Multicast(api::MulticastRule {
                    source,
                    ..Default::default()
                })),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn the_tree_is_drawn_from_the_source_through_the_switches() {
        let tree = [
            multicast_node(
                "leaf1",
                "",
                0,
                vec![host(1, "h1"), host(2, "h2"), switch(3, "spine")],
            ),
            multicast_node("spine", "leaf1", 0, vec![switch(0, "leaf1"), switch(1, "leaf2")]),
            multicast_node("leaf2", "spine", 1, vec![host(1, "h4"), switch(3, "spine")]),
        ];
        let drawn = of_multicast("h1", &tree).expect("a tree").draw();
        let expected = "h1\n└─ [leaf1]\n   ├─ h2 (10.0.0.2)\n   └─ [spine]\n      └─ [leaf2]\n         └─ h4 (10.0.0.1)\n";
        assert_eq!(drawn, expected);
        assert_eq!(of_multicast("h1", &[]), None);
    }

    #[test]
    fn a_plan_that_runs_in_a_circle_is_drawn_to_an_end() {
        let tree = [
            multicast_node("a", "", 9, vec![switch(1, "b")]),
            multicast_node("b", "a", 9, vec![switch(1, "a")]),
        ];
        assert!(of_multicast("h1", &tree).expect("a tree").draw().lines().count() < 10);
    }

    fn collective_node(
        name: &str,
        parent: Option<(&str, u32)>,
        endpoints: Vec<api::Endpoint>,
    ) -> api::TreeNode {
        api::TreeNode {
            switch_name: name.to_owned(),
            parent: parent.map(|p| p.0.to_owned()).unwrap_or_default(),
            installed: true,
            memory_bytes: 4096,
            rule: Some(api::GroupRule {
                endpoints,
                kind: Some(api::group_rule::Kind::Translated(api::TranslatedRule {
                    parent: parent.map(|p| p.1),
                    ..Default::default()
                })),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn the_tree_is_drawn_from_its_root_to_the_ranks() {
        let mut tree = vec![
            collective_node("spine", None, vec![switch(0, "leaf1"), switch(1, "leaf2")]),
            collective_node(
                "leaf1",
                Some(("spine", 2)),
                vec![rank(1, 0), rank(2, 1), switch(3, "spine")],
            ),
            collective_node("leaf2", Some(("spine", 0)), vec![switch(3, "spine"), rank(1, 2)]),
        ];
        tree[2].installed = false;
        let far = |switch: &str, endpoint: &str| match (switch, endpoint) {
            ("leaf1", "h1") => "  3 packets behind".to_owned(),
            ("spine", "leaf1") => "  7 packets behind".to_owned(),
            _ => String::new(),
        };
        let drawn = of_collective(&tree, &far).expect("a tree").draw();
        let expected = "\
[spine] 4 KiB
├─ [leaf1] 4 KiB  7 packets behind
│  ├─ rank 0: h0 (10.0.0.0)
│  └─ rank 1: h1 (10.0.0.1)  3 packets behind
└─ [leaf2] 4 KiB  (not installed)
   └─ rank 2: h2 (10.0.0.2)
";
        assert_eq!(drawn, expected);
        assert_eq!(of_collective(&[], &far), None);
        let circle = [
            collective_node("a", None, vec![switch(1, "b")]),
            collective_node("b", Some(("a", 9)), vec![switch(1, "a")]),
        ];
        assert!(
            of_collective(&circle, &far)
                .expect("a tree")
                .draw()
                .lines()
                .count()
                < 10
        );
    }
}
