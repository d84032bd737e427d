//! A plot of frames out by fan-out, with a panel for each payload.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::options::Name;
use crate::report::Report;

/// In the order of their colours.
const NAMES: [Name; 5] = [
    Name::Castnet,
    Name::Ipv4Multicast,
    Name::Ovs,
    Name::Testpmd,
    Name::Copy,
];

/// Draws the first table. Returns false, without writing a file, if that table is empty.
pub fn write(file: &Path, report: &Report) -> Result<bool> {
    let of = report.cells.iter().filter(|c| NAMES.contains(&c.name));
    let mut payloads: Vec<usize> = of.clone().map(|c| c.setting.payload).collect();
    payloads.sort_unstable();
    payloads.dedup();
    if payloads.is_empty() {
        return Ok(false);
    }
    let size = (360 * payloads.len() as u32 + 20, 380);
    let root = SVGBackend::new(file, size).into_drawing_area();
    draw(&root, report, &payloads).map_err(|e| anyhow!("{}: {e}", file.display()))?;
    Ok(true)
}

fn draw<DB: DrawingBackend>(
    root: &DrawingArea<DB, plotters::coord::Shift>,
    report: &Report,
    payloads: &[usize],
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    root.fill(&WHITE)?;
    for (area, &payload) in root.split_evenly((1, payloads.len())).iter().zip(payloads) {
        let mut cells: Vec<_> = report
            .cells
            .iter()
            .filter(|c| c.setting.payload == payload)
            .collect();
        cells.retain(|c| NAMES.contains(&c.name));
        cells.sort_by_key(|c| c.setting.fanout);
        let top = cells.iter().map(|c| c.median.mfps_out).fold(1.0, f64::max) * 1.3;
        let most = cells.last().map_or(1, |c| c.setting.fanout);
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{payload} B of payload"), ("sans-serif", 16))
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(46)
            .build_cartesian_2d(0.5..most as f64 + 0.5, 0.0..top)?;
        chart
            .configure_mesh()
            .x_labels(most)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .x_desc("ports that each frame goes out of")
            .y_desc("million frames out per second of a core")
            .light_line_style(WHITE)
            .draw()?;
        for (index, name) in NAMES.into_iter().enumerate() {
            let of_name = cells.iter().filter(|c| c.name == name);
            let points: Vec<_> = of_name
                .map(|c| (c.setting.fanout as f64, c.median.mfps_out))
                .collect();
            if points.is_empty() {
                continue;
            }
            // The reference is no switch: grey.
            let color = match name {
                Name::Copy => RGBColor(160, 160, 160).to_rgba(),
                _ => Palette99::pick(index).to_rgba(),
            };
            chart
                .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?
                .label(name.label())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
            chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, color.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .draw()?;
    }
    root.present()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn each_payload_has_a_panel_and_each_switch_a_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("peers.svg");
        assert!(write(&file, &sample()).expect("drawn"));
        let svg = std::fs::read_to_string(&file).expect("the file");
        for (what, times) in [
            ("64 B of payload", 1),
            ("4096 B of payload", 1),
            ("ipv4_multicast", 3),
            ("OVS-DPDK", 0),
        ] {
            assert_eq!(svg.matches(what).count(), times, "{what}");
        }
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let file = Path::new("/nowhere/peers.svg");
        assert!(!write(file, &Report::default()).expect("nothing to do"));
        assert!(write(file, &sample()).is_err());
    }
}
