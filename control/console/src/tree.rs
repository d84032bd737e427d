//! A tree drawn with lines.

use serde::Serialize;

/// A node with its label and what hangs below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// What the node is.
    pub label: String,
    /// Left to right, as drawn top to bottom.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Node>,
}

impl Node {
    /// A node without children yet.
    pub fn new(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            children: Vec::new(),
        }
    }

    /// The drawing, one line for each node.
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
}
