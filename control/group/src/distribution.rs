//! How the data of a multicast group spreads.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use castnet_rules::ENDPOINTS_MAX;

use crate::shape::{NoTreeShape, TreeChoice, TreeShape};

/// Where the copies of a multicast group's data are made. A group asks for one with a [`TreeChoice`], and is planned with a [`TreeShape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution<S = TreeShape> {
    /// In the Castnet switches on the way: `switches[:SHAPE]`. Where ordinary switches and routers alone lead on, at the edge, in a tree of this
    /// shape.
    Switches(S),
    /// At the edge alone, in the Castnet switches next to members: `edge[:SHAPE]`. Others are taken for ordinary switches (NIC-based multicast
    /// over Myrinet).
    Edge(S),
    /// In a core of routers without state of the group: `static[:COPIES]`. Static routes replicate what the switch next to the source sends to
    /// multicast addresses (PEEL, Shufflecast).
    Static {
        /// The most copies of a packet that leave the switch next to the source: switches without members may get some of them, and drop them
        /// (PEEL 3.2). `None`: as many as reach switches with members alone.
        copies: Option<NonZeroU16>,
    },
}

impl<S> Distribution<S> {
    /// Whether its core is static.
    pub fn is_static(&self) -> bool {
        matches!(self, Self::Static { .. })
    }

    fn map<T>(self, change: impl FnOnce(S) -> T) -> Distribution<T> {
        match self {
            Self::Switches(shape) => Distribution::Switches(change(shape)),
            Self::Edge(shape) => Distribution::Edge(change(shape)),
            Self::Static { copies } => Distribution::Static { copies },
        }
    }
}

impl Distribution<TreeChoice> {
    /// How distributions are written.
    pub const FORMS: &str = "switches[:SHAPE], edge[:SHAPE] or static[:COPIES], with 1 to 1024 copies, and as shape auto[:BYTES], shortest, star, \
        chain, binomial or postal:LATENCY[,PACKETS], with the bytes of a message, the latency of a hop in times of a copy, 1 to 1000, and the \
        packets of a message, 1 to 1000000";

    /// With the shape that is chosen, if a hop takes `latency` hundredths of a copy, and packets carry `payload` bytes.
    pub fn resolved(self, latency: u32, payload: u32) -> Distribution {
        self.map(|choice| choice.shape(latency, payload))
    }
}

impl Distribution {
    /// The shape of its tree where ordinary switches and routers alone join switches. A static core has a star.
    pub fn shape(&self) -> TreeShape {
        match self {
            Self::Switches(shape) | Self::Edge(shape) => *shape,
            Self::Static { .. } => TreeShape::Star,
        }
    }
}

impl<S: Default> Default for Distribution<S> {
    fn default() -> Self {
        Self::Switches(S::default())
    }
}

impl<S: fmt::Display + Default + PartialEq> fmt::Display for Distribution<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, shape) = match self {
            Self::Switches(shape) => ("switches", shape),
            Self::Edge(shape) => ("edge", shape),
            Self::Static { copies: None } => return f.write_str("static"),
            Self::Static { copies: Some(copies) } => return write!(f, "static:{copies}"),
        };
        match *shape == S::default() {
            true => f.write_str(name),
            false => write!(f, "{name}:{shape}"),
        }
    }
}

/// Error: the text names no distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no distribution: write {}", Distribution::<TreeChoice>::FORMS)]
pub struct NoDistribution;

impl<S: FromStr<Err = NoTreeShape> + Default> FromStr for Distribution<S> {
    type Err = NoDistribution;

    fn from_str(text: &str) -> Result<Self, NoDistribution> {
        let (name, detail) = match text.split_once(':') {
            Some((name, detail)) => (name, Some(detail)),
            None => (text, None),
        };
        let shape = || {
            detail.map_or(Ok(S::default()), |shape| {
                shape.parse().map_err(|_| NoDistribution)
            })
        };
        match name {
            "switches" => Ok(Self::Switches(shape()?)),
            "edge" => Ok(Self::Edge(shape()?)),
            "static" => {
                let copies = |text: &str| {
                    let copies = text
                        .parse()
                        .ok()
                        .filter(|copies: &NonZeroU16| usize::from(copies.get()) <= ENDPOINTS_MAX);
                    copies.ok_or(NoDistribution)
                };
                let copies = detail.map(copies).transpose()?;
                Ok(Self::Static { copies })
            }
            _ => Err(NoDistribution),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Distribution<TreeChoice>, NoDistribution> {
        text.parse()
    }

    #[test]
    fn distributions_are_written_as_they_are_read() {
        for text in [
            "switches",
            "switches:chain",
            "switches:auto:65536",
            "edge",
            "edge:binomial",
            "edge:postal:4.25,16",
            "static",
            "static:1",
            "static:1024",
        ] {
            assert_eq!(read(text).expect(text).to_string(), text);
        }
        assert_eq!(read("edge:shortest").expect("the default").to_string(), "edge");
        assert_eq!(Distribution::<TreeChoice>::default().to_string(), "switches");
        for text in [
            "",
            ":",
            "host",
            "Edge",
            "switches:",
            "edge:ring",
            "edge:auto:0",
            "edge:chain:2",
            "static:",
            "static:0",
            "static:1025",
            "static:chain",
            "static:-1",
        ] {
            assert_eq!(read(text), Err(NoDistribution), "{text}");
        }
    }

    #[test]
    fn the_controller_chooses_the_shape() {
        let resolved = |text: &str| read(text).expect(text).resolved(425, 1024);
        assert_eq!(resolved("edge:auto:65537").to_string(), "edge:postal:4.25,65");
        assert_eq!(
            resolved("switches:auto:1"),
            Distribution::Switches(TreeShape::Postal {
                latency: 425,
                packets: 1
            })
        );
        assert_eq!(resolved("edge:chain").shape(), TreeShape::Chain);
        let copies = NonZeroU16::new(3);
        assert_eq!(resolved("static:3"), Distribution::Static { copies });
        assert!(resolved("static").is_static() && !resolved("edge").is_static());
    }
}
