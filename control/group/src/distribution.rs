//! How the data of a multicast group spreads.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use castnet_rules::ENDPOINTS_MAX;

use crate::shape::{NoTreeShape, TreeChoice, TreeShape};

/// Where the copies of a multicast group's data are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// In the Castnet switches on the way: `switches[:SHAPE]`. Where ordinary switches and routers alone lead on, at the edge, in a tree of this
    /// shape.
    Switches(TreeChoice),
    /// At the edge alone, in the Castnet switches next to members: `edge[:SHAPE]`. Others are taken for ordinary switches (NIC-based multicast
    /// over Myrinet).
    Edge(TreeChoice),
    /// In a core of routers without state of the group: `static[:COPIES]`. Static routes replicate what the switch next to the source sends to
    /// multicast addresses (PEEL, Shufflecast).
    Static {
        /// The most copies of a packet that leave the switch next to the source: switches without members may get some of them, and drop them
        /// (PEEL 3.2). `None`: as many as reach switches with members alone.
        copies: Option<NonZeroU16>,
    },
}

impl Distribution {
    /// How distributions are written.
    pub const FORMS: &str = "switches[:SHAPE], edge[:SHAPE] or static[:COPIES], with 1 to 1024 copies, and as shape auto[:BYTES], shortest, star, \
        chain, binomial or postal:LATENCY[,PACKETS], with the bytes of a message, the latency of a hop in times of a copy, 1 to 1000, and the \
        packets of a message, 1 to 1000000";

    /// Whether its core is static.
    pub fn is_static(self) -> bool {
        matches!(self, Self::Static { .. })
    }

    /// The shape of its tree where ordinary switches and routers alone join switches, if a hop takes `latency` hundredths of a copy, and packets
    /// carry `payload` bytes. A static core has a star.
    pub fn shape(self, latency: u32, payload: u32) -> TreeShape {
        match self {
            Self::Switches(choice) | Self::Edge(choice) => choice.shape(latency, payload),
            Self::Static { .. } => TreeShape::Star,
        }
    }

    /// The same, with the shape that is chosen.
    pub fn resolved(self, latency: u32, payload: u32) -> Self {
        let shape = self.shape(latency, payload).into();
        match self {
            Self::Switches(_) => Self::Switches(shape),
            Self::Edge(_) => Self::Edge(shape),
            Self::Static { .. } => self,
        }
    }
}

impl Default for Distribution {
    fn default() -> Self {
        Self::Switches(TreeChoice::default())
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, choice) = match self {
            Self::Switches(choice) => ("switches", choice),
            Self::Edge(choice) => ("edge", choice),
            Self::Static { copies: None } => return f.write_str("static"),
            Self::Static { copies: Some(copies) } => return write!(f, "static:{copies}"),
        };
        match *choice == TreeChoice::default() {
            true => f.write_str(name),
            false => write!(f, "{name}:{choice}"),
        }
    }
}

/// Error: the text names no distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no distribution: write {}", Distribution::FORMS)]
pub struct NoDistribution;

impl FromStr for Distribution {
    type Err = NoDistribution;

    fn from_str(text: &str) -> Result<Self, NoDistribution> {
        let (name, detail) = match text.split_once(':') {
            Some((name, detail)) => (name, Some(detail)),
            None => (text, None),
        };
        let choice = || -> Result<TreeChoice, NoDistribution> {
            let choice = detail.map(str::parse).transpose();
            Ok(choice
                .map_err(|_: NoTreeShape| NoDistribution)?
                .unwrap_or_default())
        };
        let copies = |text: &str| {
            let copies = text.parse().ok();
            copies.filter(|copies: &NonZeroU16| usize::from(copies.get()) <= ENDPOINTS_MAX)
        };
        match name {
            "switches" => Ok(Self::Switches(choice()?)),
            "edge" => Ok(Self::Edge(choice()?)),
            "static" => {
                let copies = detail.map(|text| copies(text).ok_or(NoDistribution));
                Ok(Self::Static {
                    copies: copies.transpose()?,
                })
            }
            _ => Err(NoDistribution),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Distribution, NoDistribution> {
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
        assert_eq!(Distribution::default().to_string(), "switches");
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
        assert_eq!(resolved("switches:auto:1").to_string(), "switches:postal:4.25,1");
        assert_eq!(resolved("edge:chain").to_string(), "edge:chain");
        assert_eq!(resolved("static:3").to_string(), "static:3");
        assert_eq!(resolved("static").shape(425, 1024), TreeShape::Star);
        assert!(resolved("static").is_static() && !resolved("edge").is_static());
    }
}
