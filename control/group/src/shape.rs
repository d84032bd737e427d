//! Shapes of trees of relays.

use std::fmt;
use std::str::FromStr;

/// The shape of a multicast group's tree where it leads from switch to switch over ordinary switches and routers alone: there, relays at the hosts
/// pass data on to each other (NIC-based multicast over Myrinet, 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TreeShape {
    /// That of shortest paths: `shortest`. Among relays, it is a star.
    #[default]
    Shortest,
    /// The switch next to the source sends to all others: `star`.
    Star,
    /// Each passes it on to one other: `chain`.
    Chain,
    /// Each that has it sends to one more in each round: `binomial`.
    Binomial,
    /// All have a message soonest, by the postal model (5.5): `postal:LATENCY[,PACKETS]`.
    Postal {
        /// Time from a switch to the next one, in hundredths of the time that one more copy takes there.
        latency: u32,
        /// Packets of a message.
        packets: u32,
    },
}

/// Most packets of a message.
const PACKETS_MAX: u32 = 1_000_000;

impl fmt::Display for TreeShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Shortest => f.write_str("shortest"),
            Self::Star => f.write_str("star"),
            Self::Chain => f.write_str("chain"),
            Self::Binomial => f.write_str("binomial"),
            Self::Postal { latency, packets } => {
                write!(f, "postal:{}.{:02},{packets}", latency / 100, latency % 100)
            }
        }
    }
}

/// Error: the text names no shape of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no shape of a tree")]
pub struct NoTreeShape;

/// Time of a hop in hundredths of the time of one more copy, where nothing is measured: as between network namespaces of a machine
/// (docs/decisions/0022).
pub const DEFAULT_RELAY_LATENCY: u32 = 1000;

/// How the shape of a tree is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeChoice {
    /// The controller chooses that of the postal model for messages of so many bytes: `auto[:BYTES]`. It knows the latency.
    Auto {
        /// Bytes of a message.
        message: u32,
    },
    /// This one.
    Shape(TreeShape),
}

impl TreeChoice {
    /// Bytes of a message where none are given: a long one.
    const MESSAGE: u32 = 1 << 20;

    /// The shape, if a hop takes `latency` hundredths of a copy, and packets carry `payload` bytes.
    pub fn shape(self, latency: u32, payload: u32) -> TreeShape {
        match self {
            Self::Auto { message } => TreeShape::Postal {
                latency,
                packets: message.div_ceil(payload.max(1)).clamp(1, PACKETS_MAX),
            },
            Self::Shape(shape) => shape,
        }
    }
}

impl From<TreeShape> for TreeChoice {
    fn from(shape: TreeShape) -> Self {
        Self::Shape(shape)
    }
}

impl Default for TreeChoice {
    fn default() -> Self {
        Self::Shape(TreeShape::Shortest)
    }
}

impl fmt::Display for TreeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto { message } => write!(f, "auto:{message}"),
            Self::Shape(shape) => shape.fmt(f),
        }
    }
}

impl FromStr for TreeChoice {
    type Err = NoTreeShape;

    fn from_str(text: &str) -> Result<Self, NoTreeShape> {
        let message = match text.strip_prefix("auto") {
            Some("") => Some(Self::MESSAGE),
            Some(bytes) => {
                let bytes = bytes.strip_prefix(':').and_then(|bytes| bytes.parse().ok());
                Some(bytes.filter(|bytes| *bytes > 0).ok_or(NoTreeShape)?)
            }
            None => None,
        };
        Ok(match message {
            Some(message) => Self::Auto { message },
            None => Self::Shape(text.parse()?),
        })
    }
}

/// Error: the text is no latency of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no latency: 1 to 1000 times that of a copy")]
pub struct NoLatency;

/// A latency as it is written in a shape, in hundredths of a copy.
///
/// # Errors
/// It is no number from 1 to 1000.
pub fn tree_latency(text: &str) -> Result<u32, NoLatency> {
    let latency: f64 = text.parse().map_err(|_| NoLatency)?;
    if !(1.0..=1000.0).contains(&latency) {
        return Err(NoLatency);
    }
    Ok((latency * 100.0).round() as u32)
}

impl FromStr for TreeShape {
    type Err = NoTreeShape;

    fn from_str(text: &str) -> Result<Self, NoTreeShape> {
        Ok(match text {
            "shortest" => Self::Shortest,
            "star" => Self::Star,
            "chain" => Self::Chain,
            "binomial" => Self::Binomial,
            _ => {
                let model = text.strip_prefix("postal:").ok_or(NoTreeShape)?;
                let (latency, packets) = model.split_once(',').unwrap_or((model, "1"));
                let latency = tree_latency(latency).map_err(|_| NoTreeShape)?;
                let packets: u32 = packets.parse().map_err(|_| NoTreeShape)?;
                if !(1..=PACKETS_MAX).contains(&packets) {
                    return Err(NoTreeShape);
                }
                Self::Postal { latency, packets }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_trees_are_read_as_they_are_written() {
        for text in [
            "shortest",
            "star",
            "chain",
            "binomial",
            "postal:1.00,1",
            "postal:4.25,16",
        ] {
            let shape: TreeShape = text.parse().expect(text);
            assert_eq!(shape.to_string(), text);
        }
        let short: TreeShape = "postal:4.256".parse().expect("without packets");
        assert_eq!(
            short,
            TreeShape::Postal {
                latency: 426,
                packets: 1
            }
        );
        let bad = [
            "",
            "ring",
            "postal",
            "postal:",
            "postal:0.5",
            "postal:NaN,1",
            "postal:2,0",
            "postal:2000",
            "postal:2,1,1",
        ];
        for text in bad {
            assert_eq!(text.parse::<TreeShape>(), Err(NoTreeShape), "{text}");
            assert_eq!(text.parse::<TreeChoice>(), Err(NoTreeShape), "{text}");
        }
    }

    #[test]
    fn the_postal_tree_is_chosen_for_a_message_in_packets() {
        let choice = |text: &str| text.parse::<TreeChoice>().expect("a choice");
        for text in ["auto:65537", "chain", "postal:4.25,16"] {
            assert_eq!(choice(text).to_string(), text);
        }
        assert_eq!(choice("auto").shape(1000, 4096).to_string(), "postal:10.00,256");
        assert_eq!(
            choice("auto:65537").shape(425, 1024).to_string(),
            "postal:4.25,65"
        );
        assert_eq!(choice("auto:1").shape(425, 1024).to_string(), "postal:4.25,1");
        assert_eq!(choice("star").shape(425, 1024), TreeShape::Star);
        for text in ["auto:", "auto:0", "auto:x", "automatic", "auto:-1"] {
            assert_eq!(text.parse::<TreeChoice>(), Err(NoTreeShape), "{text}");
        }
    }
    #[test]
    fn the_shape_of_a_tree_is_that_of_its_text() {
        let postal = |latency, packets| Some(TreeShape::Postal { latency, packets });
        for (text, expected) in [
            ("postal:1", postal(100, 1)),
            ("postal:1000,1000000", postal(100_000, 1_000_000)),
            ("postal:2.5,7", postal(250, 7)),
            ("postal:2.05", postal(205, 1)),
            ("postal:0.99", None),
            ("postal:1000.01", None),
            ("postal:1,0", None),
            ("postal:1,1000001", None),
            ("star", Some(TreeShape::Star)),
            ("ring", None),
        ] {
            let expected = expected.map(TreeChoice::Shape);
            assert_eq!(text.parse::<TreeChoice>().ok(), expected, "{text}");
        }
        for (text, message) in [
            ("auto", Some(1 << 20)),
            ("auto:1", Some(1)),
            ("auto:0", None),
            ("auto:", None),
            ("auto1", None),
        ] {
            let expected = message.map(|message| TreeChoice::Auto { message });
            assert_eq!(text.parse::<TreeChoice>().ok(), expected, "{text}");
        }
        let auto = |message, payload| TreeChoice::Auto { message }.shape(300, payload);
        assert_eq!(Some(auto(1024, 1024)), postal(300, 1));
        assert_eq!(Some(auto(1025, 1024)), postal(300, 2));
        assert_eq!(Some(auto(7, 0)), postal(300, 7));
        assert_eq!(Some(auto(u32::MAX, 1)), postal(300, 1_000_000));
    }
}
