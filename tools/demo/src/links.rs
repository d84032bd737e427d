//! The report of an AllReduce: the sums, and the bytes that each link carried.

use castnet_console::api;
use castnet_console::drops;
use castnet_console::output::{Page, Row};
use castnet_console::units::{Ratio, bytes, count};
use castnet_worker::engine::CollectiveCounters;
use serde::Serialize;

use crate::fabric::LINKS;
use crate::report::{SwitchReport, losses, time};

/// Bytes of whole frames that a link carried, towards the spine and away from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Bytes {
    pub(crate) up: u64,
    pub(crate) down: u64,
}

impl Bytes {
    pub(crate) fn since(self, then: Self) -> Self {
        Self {
            up: self.up.saturating_sub(then.up),
            down: self.down.saturating_sub(then.down),
        }
    }

    pub(crate) fn busier(self) -> u64 {
        self.up.max(self.down)
    }
}

/// One AllReduce in the switches, and the same in a ring if that was run too.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AllReduceReport {
    pub(crate) name: &'static str,
    pub(crate) group: String,
    pub(crate) mcst_id: String,
    pub(crate) operation: &'static str,
    #[serde(rename = "type")]
    pub(crate) data_type: &'static str,
    pub(crate) elements: u64,
    pub(crate) bytes: u64,
    /// Share of the frames that each direction of each link loses.
    pub(crate) loss: Ratio,
    /// How the switches carry the connections.
    pub(crate) mode: &'static str,
    /// Whether every rank had every sum, bit for bit, also in the ring.
    pub(crate) ok: bool,
    /// Until the last rank had its sums.
    pub(crate) seconds: f64,
    pub(crate) ring_seconds: Option<f64>,
    pub(crate) links: Vec<LinkReport>,
    pub(crate) switches: Vec<SwitchReport<CollectiveCounters>>,
    pub(crate) ranks: Vec<RankReport>,
    /// Injected losses included.
    pub(crate) drops: Vec<api::DropCount>,
    /// Whether bars are drawn: for a terminal.
    #[serde(skip)]
    pub(crate) bars: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct LinkReport {
    /// A host or a leaf.
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    #[serde(flatten)]
    pub(crate) carried: Bytes,
    /// Ratio of the busier direction to the bytes that a rank contributes.
    pub(crate) times: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ring: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ring_times: Option<f64>,
}

impl LinkReport {
    /// All links, in the order of [`LINKS`].
    pub(crate) fn all(carried: &[Bytes], ring: Option<&[Bytes]>, payload: u64) -> Vec<Self> {
        let times = |bytes: Bytes| bytes.busier() as f64 / payload.max(1) as f64;
        let link = |(index, (&(from, to), &carried)): (usize, (&(&'static str, &'static str), &Bytes))| {
            let ring = ring.and_then(|all| all.get(index)).copied();
            Self {
                from,
                to,
                carried,
                times: times(carried),
                ring,
                ring_times: ring.map(times),
            }
        };
        LINKS.iter().zip(carried).enumerate().map(link).collect()
    }
}

/// The last three only beside a ring.
const LINK_COLUMNS: [&str; 7] = [
    "link",
    "up",
    "down",
    "times",
    "ring up",
    "ring down",
    "ring times",
];

impl LinkReport {
    fn cells(&self) -> Vec<String> {
        let mut cells = vec![
            format!("{} - {}", self.from, self.to),
            bytes(self.carried.up),
            bytes(self.carried.down),
            format!("{:.2}", self.times),
        ];
        if let (Some(ring), Some(times)) = (self.ring, self.ring_times) {
            cells.extend([bytes(ring.up), bytes(ring.down), format!("{times:.2}")]);
        }
        cells
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct RankReport {
    pub(crate) rank: usize,
    pub(crate) host: String,
    pub(crate) switch: String,
    pub(crate) elements: u64,
    /// Elements that differ from the sum.
    pub(crate) wrong: u64,
    pub(crate) seconds: f64,
}

impl Row for RankReport {
    const COLUMNS: &'static [&'static str] = &["rank", "host", "at", "elements", "time", ""];

    fn cells(&self) -> Vec<String> {
        let end = match self.wrong {
            0 => "every sum".to_owned(),
            wrong => format!("{} WRONG SUMS", count(wrong)),
        };
        vec![
            self.rank.to_string(),
            self.host.clone(),
            self.switch.clone(),
            count(self.elements),
            time(self.seconds),
            end,
        ]
    }
}

/// Characters of the longest bar.
const BAR: usize = 40;

fn bar(share: f64) -> String {
    const PARTS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
    let eighths = (share.clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    let (whole, part) = (eighths / 8, eighths % 8);
    let mut bar = "█".repeat(whole);
    bar.extend(part.checked_sub(1).map(|part| PARTS[part]));
    bar
}

impl AllReduceReport {
    pub(crate) fn section(&self, page: &mut Page) {
        page.title(format!(
            "{}: AllReduce{}, {} (group {}, McstID {})",
            self.name,
            if self.mode == "augmented" {
                ", repaired at each hop"
            } else {
                ""
            },
            losses(self.loss),
            self.group,
            self.mcst_id
        ));
        let mut facts = vec![
            (
                "each rank gives",
                format!(
                    "{} {}, {}",
                    count(self.elements),
                    self.data_type,
                    bytes(self.bytes)
                ),
            ),
            ("time", time(self.seconds)),
        ];
        if let Some(seconds) = self.ring_seconds {
            facts.push(("the ring's time", time(seconds)));
        }
        let most = |times: &dyn Fn(&LinkReport) -> Option<f64>| {
            self.links.iter().filter_map(times).fold(0.0, f64::max)
        };
        let (here, ring) = (most(&|l| Some(l.times)), most(&|l| l.ring_times));
        let mut load = format!("{here:.2} times what a rank gives, headers and repeats included");
        if ring > 0.0 {
            load.push_str(&format!("; {ring:.2} times with a ring"));
        }
        facts.push(("busiest link", load));
        page.facts(&facts);
        page.line("");
        let rows: Vec<_> = self.links.iter().map(LinkReport::cells).collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        page.table(&LINK_COLUMNS[..columns.min(LINK_COLUMNS.len())], rows);
        if self.bars {
            page.line("");
            self.draw(page);
        }
        page.line("");
        page.rows(&self.switches, "no switch took part");
        page.line("");
        page.rows(&self.ranks, "no rank took part");
        page.line("");
        page.line(drops::sentence(&self.drops));
    }

    /// Two bars per link: its bytes in the busier direction, and those with a ring.
    fn draw(&self, page: &mut Page) {
        let most = |link: &LinkReport| link.carried.busier().max(link.ring.map_or(0, Bytes::busier));
        let longest = self.links.iter().map(most).max().unwrap_or(0).max(1);
        let mut line = |name: &str, kind: &str, carried: Bytes| {
            let bar = bar(carried.busier() as f64 / longest as f64);
            page.line(format!("{name:<13} {kind:<8} {bar} {}", bytes(carried.busier())));
        };
        for link in &self.links {
            line(&format!("{} - {}", link.from, link.to), "switches", link.carried);
            if let Some(ring) = link.ring {
                line("", "ring", ring);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(wrong: u64, bars: bool) -> AllReduceReport {
        let carried = vec![
            Bytes {
                up: 1 << 20,
                down: (1 << 20) + 512
            };
            LINKS.len()
        ];
        let ring = vec![
            Bytes {
                up: 1 << 21,
                down: 1 << 21
            };
            LINKS.len()
        ];
        AllReduceReport {
            name: "Act 3",
            group: "demo-sums".to_owned(),
            mcst_id: "10.200.0.3".to_owned(),
            operation: "sum",
            data_type: "f32",
            elements: 1 << 18,
            bytes: 1 << 20,
            loss: Ratio(0.0),
            mode: "translated",
            ok: wrong == 0,
            seconds: 0.5,
            ring_seconds: Some(0.75),
            links: LinkReport::all(&carried, Some(&ring), 1 << 20),
            switches: vec![],
            ranks: vec![RankReport {
                rank: 0,
                host: "h1".to_owned(),
                switch: "leaf1".to_owned(),
                elements: 1 << 18,
                wrong,
                seconds: 0.5,
            }],
            drops: vec![],
            bars,
        }
    }

    fn text(wrong: u64, bars: bool) -> String {
        let mut page = Page::default();
        report(wrong, bars).section(&mut page);
        page.text().to_owned()
    }

    #[test]
    fn the_visitor_sees_what_each_link_carried_beside_a_ring() {
        let plain = text(0, false);
        for part in [
            "busiest link     1.00 times what a rank gives, headers and repeats included; 2.00 times with a ring",
            "leaf2 - spine",
            "every sum",
            "drops: none",
        ] {
            assert!(plain.contains(part), "no '{part}' in:\n{plain}");
        }
        assert!(!plain.contains('█'));
        let drawn = text(0, true);
        let bars: Vec<usize> = drawn
            .lines()
            .map(|line| line.matches('█').count())
            .filter(|n| *n > 0)
            .collect();
        assert_eq!(bars, [BAR / 2, BAR].repeat(LINKS.len()), "{drawn}");
        let json = serde_json::to_value(report(0, true)).expect("JSON");
        assert_eq!(
            (&json["links"][0]["up"], &json["links"][0]["ring"]["up"]),
            (&(1 << 20).into(), &(1 << 21).into())
        );
        assert!(json.get("bars").is_none());
    }

    #[test]
    fn wrong_sums_are_not_to_be_overlooked() {
        assert!(text(3, false).contains("3 WRONG SUMS"));
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!((bar(0.0).as_str(), bar(1.0).chars().count()), ("", BAR));
        assert_eq!(bar(0.5 + 1.0 / (8 * BAR) as f64), "█".repeat(BAR / 2) + "▏");
        assert_eq!(bar(7.0), bar(1.0));
    }
}
