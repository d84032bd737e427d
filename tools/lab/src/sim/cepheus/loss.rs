//! Figure 13: completion time and throughput under packet loss.

use castnet_console::plot::{Axes, Curve, Panel};
use castnet_console::units::bytes;

use super::Extent;
use crate::sim::figures::Failed;
use crate::sim::lab::{Broadcast, Fabric, Loss, Method};
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Relation, Table};

/// How data reach all members under loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    /// The source repeats what any receiver has lost.
    Cepheus,
    /// The switches repeat it.
    Repair,
    Chain,
}

impl Scheme {
    const EACH: [Self; 3] = [Self::Cepheus, Self::Repair, Self::Chain];

    fn name(self) -> &'static str {
        match self {
            Self::Cepheus => "Cepheus",
            Self::Repair => "repair by switches",
            Self::Chain => "chain",
        }
    }

    /// QP time-out: 4.096 us * 2^8, 1 ms. A lost credit of the chain, or a lost NAK, costs as much. A switch that repairs takes a 32nd
    /// of it for silence, so there it is 4 ms: a source requests an ACK each 22 us.
    fn timeout(self) -> u8 {
        match self {
            Self::Cepheus | Self::Chain => 8,
            Self::Repair => 10,
        }
    }
}

/// Completion times for one loss rate, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Point {
    members: u16,
    rate: f64,
    times: [f64; 3],
}

impl Point {
    fn time(&self, scheme: Scheme) -> f64 {
        self.times[scheme as usize]
    }

    /// Of the chain, over that of Cepheus.
    fn ratio(&self) -> f64 {
        self.time(Scheme::Chain) / self.time(Scheme::Cepheus)
    }
}

pub(super) fn fig13(extent: Extent) -> Result<FigureReport, Failed> {
    let (scales, size): ([u16; 2], u64) = match extent.quick {
        true => ([16, 64], 8 << 20),
        false => ([64, 512], 128 << 20),
    };
    let rates: &[f64] = match extent.quick {
        true => &[0.0, 1e-4],
        false => &[0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4],
    };
    let fabric = Fabric::fat_tree(extent.threads)?;
    let mut events = 0;
    let mut points = Vec::new();
    for members in scales {
        for rate in rates {
            let mut times = [0.0; 3];
            for scheme in Scheme::EACH {
                let (time, handled) = time(&fabric, scheme, members, size, *rate, extent.whole)?;
                times[scheme as usize] = time;
                events += handled;
            }
            points.push(Point {
                members,
                rate: *rate,
                times,
            });
        }
    }
    let [small, large] = scales;
    let least = points.iter().filter(|p| p.members == small).map(Point::ratio);
    let worst = points.last().map_or(f64::NAN, Point::ratio);
    let reason = match extent.quick {
        true => "the groups have 16 and 64 members, the paper's 64 and 512",
        false => {
            "one time of going back repairs several losses here: a switch absorbs the NAK of a packet that the source has sent again already.\n\
             With these NAKs forwarded, and a source that goes back at each of them, the ratio is 0.91 (docs/cepheus-figures.md)"
        }
    };
    let title = "Completion time under loss";
    Ok(FigureReport {
        name: "fig13",
        title,
        setting: format!(
            "As fig12, {} to {small} and {large} members. Each link that leaves a switch loses frames at random. The chain has as many slices as\n\
             members. Go-back-N, QP time-out 1 ms. Repair: by the switches from their rings, time-out 4 ms. Normalized is the time without\n\
             loss over that with it. Only times without loss are continued, from {}.",
            bytes(size),
            bytes(extent.whole.min(size)),
        ),
        table: table(&points),
        headlines: vec![
            Headline::bound(
                &format!("chain over Cepheus, {small} members, least of all rates"),
                Relation::AtLeast,
                1.0,
                least.fold(f64::MAX, f64::min),
            ),
            Headline::bound(
                &format!("chain over Cepheus, {large} members, rate 1e-4"),
                Relation::AtMost,
                1.0,
                worst,
            )
            .because(reason),
        ],
        events,
        plot: plot(&points, scales),
    })
}

/// Nanoseconds until the last receiver has all, and the handled events.
fn time(
    fabric: &Fabric,
    scheme: Scheme,
    members: u16,
    size: u64,
    rate: f64,
    whole: u64,
) -> Result<(f64, u64), Failed> {
    let method = match scheme {
        Scheme::Cepheus | Scheme::Repair => Method::Cepheus,
        Scheme::Chain => Method::Chain { slices: members },
    };
    let broadcast = Broadcast {
        loss: Loss {
            rate,
            timeout: scheme.timeout(),
        },
        repairs: scheme == Scheme::Repair,
        ..Broadcast::new(method, members, size)
    };
    let times = broadcast.measure(fabric, if rate > 0.0 { size } else { whole })?;
    Ok((times.arrived, times.events))
}

fn table(points: &[Point]) -> Table {
    let row = |point: &Point| {
        let base = points
            .iter()
            .find(|p| p.members == point.members)
            .unwrap_or(point);
        let mut cells = vec![
            Cell::Text(point.members.to_string()),
            Cell::Text(format!("{:e}", point.rate)),
        ];
        cells.extend(point.times.map(|time| Cell::Number(time / 1e6)));
        cells.extend(Scheme::EACH.map(|scheme| Cell::Number(base.time(scheme) / point.time(scheme))));
        cells.push(Cell::Number(point.ratio()));
        cells
    };
    Table {
        columns: vec![
            "members",
            "loss",
            "cepheus ms",
            "repair ms",
            "chain ms",
            "cepheus normalized",
            "repair normalized",
            "chain normalized",
            "chain over cepheus",
        ],
        rows: points.iter().map(row).collect(),
    }
}

fn plot(points: &[Point], scales: [u16; 2]) -> Plot {
    let panel = |members: u16| Panel {
        title: format!("{members} members"),
        curves: Scheme::EACH
            .map(|scheme| Curve {
                name: scheme.name().to_owned(),
                points: points
                    .iter()
                    .filter(|p| p.members == members && p.rate > 0.0)
                    .map(|p| (p.rate, p.time(scheme) / 1e6))
                    .collect(),
            })
            .to_vec(),
    };
    Plot {
        axes: Axes::logarithmic("loss rate", "ms"),
        panels: scales.map(panel).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_costs_a_multicast_more_than_a_chain_unless_the_switches_repair() {
        let report = fig13(Extent {
            threads: 2,
            quick: true,
            whole: 1 << 20,
        });
        let report = report.expect("it runs");
        let cell = |row: usize, column: usize| match &report.table.rows[row][column] {
            Cell::Number(value) => *value,
            other => panic!("{other:?}"),
        };
        // Rows: 16 members without loss and with 1e-4, 64 members without and with.
        let [cepheus, repair, chain] = [5, 6, 7].map(|column| cell(3, column));
        assert!(cepheus < chain && chain <= 1.0, "{cepheus} and {chain}");
        assert!(cepheus < cell(1, 5), "more receivers lose more");
        assert!(repair > 0.9, "{repair}");
        assert!(report.headlines[0].is_met(), "{:?}", report.headlines);
    }

    #[test]
    fn a_bound_is_met_on_its_side_only() {
        let bound = |relation, ours| Headline::bound("it", relation, 1.0, ours).is_met();
        assert!(bound(Relation::AtLeast, 1.5) && !bound(Relation::AtLeast, 0.99));
        assert!(bound(Relation::AtMost, 0.5) && !bound(Relation::AtMost, 1.01));
    }
}
