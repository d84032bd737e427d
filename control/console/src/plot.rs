//! Plots as SVG files.

use std::error::Error;
use std::io;
use std::path::Path;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::exit::{Failure, Outcome, cannot_write};
use crate::files;

/// Both axes of all panels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Axes {
    x: &'static str,
    y: &'static str,
    is_linear: bool,
}

impl Axes {
    /// Logarithmic axes.
    pub fn logarithmic(x: &'static str, y: &'static str) -> Self {
        Self {
            x,
            y,
            is_linear: false,
        }
    }

    /// Axes that begin at 0. Points are not marked.
    pub fn linear(x: &'static str, y: &'static str) -> Self {
        Self {
            x,
            y,
            is_linear: true,
        }
    }
}

/// A line with a dot at each point.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Both coordinates are above 0, or at least 0 on linear axes.
    pub points: Vec<(f64, f64)>,
}

/// One of several plots beside each other, with axes of its own.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Text above it.
    pub title: String,
    /// Curves with the same name have the same colour in all panels, if they have the same index.
    pub curves: Vec<Curve>,
}

/// Size of a panel in pixels.
const PANEL: (u32, u32) = (400, 340);
const PANELS_PER_LINE: usize = 3;

/// Writes the panels to a file, as [`save`] does.
///
/// # Errors
/// Those of [`save`].
pub fn write(file: &Path, axes: Axes, panels: &[Panel]) -> Outcome {
    let svg = svg(axes, panels)
        .map_err(|error| Failure::failed(format!("cannot draw {}: {error}", file.display())))?;
    save(file, &svg)
}

/// Writes a drawing to a file. The plotters backend for files does not report a full disk.
///
/// # Errors
/// The file cannot be written, or something else than a drawing of Castnet is there.
pub fn save(file: &Path, svg: &str) -> Outcome {
    let saved = files::replace(file, svg, is_drawing);
    saved.map(drop).map_err(|error| cannot_write(file, &error))
}

/// Fails if [`save`] would fail now. Changes nothing.
pub fn check(file: &Path) -> io::Result<()> {
    files::check_replaceable(file, is_drawing)
}

/// Whether a text begins as the backend begins a drawing.
fn is_drawing(text: &str) -> bool {
    text.starts_with("<svg width=\"")
}

fn svg(axes: Axes, panels: &[Panel]) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    let columns = panels.len().clamp(1, PANELS_PER_LINE);
    let lines = panels.len().div_ceil(columns).max(1);
    let size = (PANEL.0 * columns as u32, PANEL.1 * lines as u32);
    let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, panel) in root.split_evenly((lines, columns)).iter().zip(panels) {
        let points = || panel.curves.iter().flat_map(|curve| curve.points.iter().copied());
        let range = |values: &dyn Fn((f64, f64)) -> f64| {
            let low = points().map(values).fold(f64::MAX, f64::min);
            let high = points().map(values).fold(0.0, f64::max);
            low.min(high) / 1.3..high * 1.3
        };
        if points().next().is_none() {
            continue;
        }
        let (x, y) = (range(&|(x, _)| x), range(&|(_, y)| y));
        match axes.is_linear {
            true => draw(area, axes, panel, 0.0..x.end, 0.0..y.end)?,
            false => draw(area, axes, panel, x.log_scale(), y.log_scale())?,
        }
    }
    root.present()?;
    drop(root);
    Ok(svg)
}

fn draw<X, Y>(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    axes: Axes,
    panel: &Panel,
    x: X,
    y: Y,
) -> Result<(), Box<dyn Error>>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(56)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .light_line_style(WHITE)
        .draw()?;
    for (index, curve) in panel.curves.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(curve.points.clone(), color.stroke_width(2)))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        if !axes.is_linear {
            chart.draw_series(curve.points.iter().map(|&at| Circle::new(at, 3, color.filled())))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_panel_has_its_title_and_its_curves() {
        let folder = tempfile::tempdir().expect("a folder");
        let curve = |name: &str, factor: f64| Curve {
            name: name.to_owned(),
            points: vec![(4.0, factor), (4096.0, 2.0 * factor), (4e6, 90.0 * factor)],
        };
        let panel = |title: &str| Panel {
            title: title.to_owned(),
            curves: vec![curve("fast", 10.0), curve("slow", 30.0)],
        };
        let empty = Panel {
            title: "nothing".to_owned(),
            curves: Vec::new(),
        };
        let file = folder.path().join("plot.svg");
        let panels = [panel("one"), panel("two"), panel("three"), panel("four"), empty];
        let axes = Axes::logarithmic("bytes", "us");
        write(&file, axes, &panels).expect("drawn");
        let svg = std::fs::read_to_string(&file).expect("the file");
        for (text, times) in [("one", 1), ("four", 1), ("fast", 4), ("slow", 4), ("nothing", 0)] {
            assert_eq!(svg.matches(&format!("\n{text}\n")).count(), times, "{text}");
        }
        for (file, reason) in [
            ("/nowhere/plot.svg", "No such file"),
            ("/dev/full", "No space left"),
        ] {
            let failure = write(Path::new(file), axes, &panels).expect_err("no plot");
            assert!(
                failure
                    .what
                    .starts_with(&format!("cannot write {file}: {reason}")),
                "{}",
                failure.what
            );
        }
        let notes = folder.path().join("notes");
        std::fs::write(&notes, "precious").expect("written");
        check(&notes).expect_err("no drawing is there");
        write(&notes, axes, &panels).expect_err("no drawing is there");
        assert_eq!(std::fs::read(&notes).expect("the file"), b"precious");
        // It is longer than what it is recognized by.
        assert!(svg.len() > 4096);
        check(&file).expect("a drawing is there");
        write(&file, axes, &[]).expect("an empty plot");
        write(&file, Axes::linear("ms", "Gb/s"), &panels).expect("drawn");
        let svg = std::fs::read_to_string(&file).expect("the file");
        assert!(svg.contains("\n0.0\n"), "the axes begin at 0");
        assert!(!svg.contains("<circle"));
    }
}
