//! Table I and figure 10: a client that writes three replicas.

use castnet_console::plot::{Axes, Curve, Panel};
use castnet_console::units::bytes;
use castnet_sim::HostCost;
use castnet_wire::Nanos;

use super::Extent;
use super::broadcast::TESTBED_DELAY;
use crate::sim::figures::Failed;
use crate::sim::lab::{Broadcast, Fabric, Method};
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Table};

/// Time of the client's storage stack for each message: the reciprocal of the paper's IOPS with one unicast. That stack is the
/// bottleneck there, not the link (V.B).
const CLIENT: HostCost = HostCost {
    send: Nanos(842),
    receive: Nanos::ZERO,
    copy_per_kib: Nanos::ZERO,
};

/// Further time of the storage stacks of client and server for an IO, whatever the method: set so that 8 KiB has the difference
/// that the paper reports.
const STACK: f64 = 2_800.0;

/// A way of writing replicas: the method, and the members with the client.
const SCHEMES: [(&str, Method, u16); 3] = [
    ("1-unicast", Method::Unicasts, 2),
    ("3-unicasts", Method::Unicasts, 4),
    ("Cepheus", Method::Cepheus, 4),
];

fn write(
    fabric: &Fabric,
    (_, method, members): (&str, Method, u16),
    size: u64,
    calls: u32,
) -> Result<(f64, u64), Failed> {
    let broadcast = Broadcast {
        calls,
        host_cost: CLIENT,
        ..Broadcast::new(method, members, size)
    };
    let times = broadcast.measure(fabric, size)?;
    Ok((times.returned, times.events))
}

pub(super) fn table1(extent: Extent) -> Result<FigureReport, Failed> {
    let fabric = Fabric::testbed(TESTBED_DELAY)?;
    let calls = if extent.quick { 500 } else { 20_000 };
    let (mut rows, mut headlines, mut curves, mut events) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for (scheme, paper) in SCHEMES.into_iter().zip([1.188, 0.413, 1.167]) {
        let (time, more) = write(&fabric, scheme, 8 << 10, calls)?;
        events += more;
        let millions = f64::from(calls) / time * 1e3;
        rows.push(vec![
            Cell::Text(scheme.0.to_owned()),
            Cell::Number(millions),
            Cell::Number(millions * 8.192 * 8.0),
        ]);
        curves.push(Curve {
            name: scheme.0.to_owned(),
            points: vec![(f64::from(scheme.2) - 1.0, millions)],
        });
        let what = format!("{}, millions of IOs per second", scheme.0);
        headlines.push(Headline::single(&what, paper, millions));
    }
    Ok(FigureReport {
        name: "table1",
        title: "Writes of 8 KiB to three replicas: IOs per second",
        setting: format!(
            "One client, three servers, one switch, 100 Gb/s, path MTU 4096; {calls} writes, up to 64 in flight. The client's storage stack takes\n\
             842 ns for each message: the first line is set by that, the others follow from it."
        ),
        table: Table {
            columns: vec!["scheme", "M IOPS", "goodput Gbit per s"],
            rows,
        },
        headlines,
        events,
        plot: Plot {
            axes: Axes::logarithmic("replicas", "million IOs per second"),
            panels: vec![Panel {
                title: "Writes of 8 KiB".to_owned(),
                curves,
            }],
        },
    })
}

pub(super) fn fig10(extent: Extent) -> Result<FigureReport, Failed> {
    let fabric = Fabric::testbed(TESTBED_DELAY)?;
    let sizes: &[u64] = match extent.quick {
        true => &[8, 512],
        false => &[4, 8, 16, 32, 64, 128, 256, 512, 1024],
    };
    let (mut points, mut events) = (Vec::new(), 0);
    for kib in sizes {
        let mut latency = [0.0; 3];
        for (latency, scheme) in latency.iter_mut().zip(SCHEMES) {
            let (time, more) = write(&fabric, scheme, kib << 10, 1)?;
            *latency = time + STACK;
            events += more;
        }
        points.push((kib << 10, latency));
    }
    let saved = |kib: u64| {
        let point = points.iter().find(|(size, _)| *size == kib << 10);
        point.map_or(f64::NAN, |(_, [_, unicasts, cepheus])| {
            100.0 * (1.0 - cepheus / unicasts)
        })
    };
    let row = |(size, latency): &(u64, [f64; 3])| {
        let mut cells = vec![Cell::Text(bytes(*size))];
        cells.extend(latency.map(|nanos| Cell::Number(nanos / 1e3)));
        cells.push(Cell::Number(100.0 * (1.0 - latency[2] / latency[1])));
        cells
    };
    let curve = |(index, (name, ..)): (usize, (&str, Method, u16))| Curve {
        name: name.to_owned(),
        points: points
            .iter()
            .map(|(size, latency)| (*size as f64, latency[index] / 1e3))
            .collect(),
    };
    let title = "Latency of one write to three replicas";
    Ok(FigureReport {
        name: "fig10",
        title,
        setting: format!(
            "As table1, one write at a time. The storage stacks take {:.1} us in addition, whatever the method: set by the first headline, from\n\
             which the second follows.",
            STACK / 1e3
        ),
        table: Table {
            columns: vec![
                "IO",
                "1-unicast us",
                "3-unicasts us",
                "cepheus us",
                "saved percent",
            ],
            rows: points.iter().map(row).collect(),
        },
        headlines: vec![
            Headline::single("percent less than 3-unicasts, 8 KiB", 23.0, saved(8)),
            Headline::single("percent less than 3-unicasts, 512 KiB", 60.0, saved(512)),
        ],
        events,
        plot: Plot {
            axes: Axes::logarithmic("bytes", "us"),
            panels: vec![Panel {
                title: title.to_owned(),
                curves: SCHEMES.into_iter().enumerate().map(curve).collect(),
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_by_the_switch_cost_the_client_as_much_as_one() {
        let quick = Extent {
            threads: 2,
            quick: true,
            whole: 1 << 20,
        };
        for report in [table1(quick), fig10(quick)] {
            let report = report.expect("it runs");
            for headline in &report.headlines {
                assert!(headline.is_met(), "{headline:?}");
            }
        }
    }
}
