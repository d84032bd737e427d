//! Plots of tables.

use std::error::Error;
use std::path::{Path, PathBuf};

use castnet_console::exit::{Failure, Outcome, cannot_write_flag};
use castnet_console::plot::save;
use plotters::prelude::*;

use super::spec::TableSpec;
use super::table::{Cell, Table};

/// The plot of a table with several columns.
fn file(folder: &Path, spec: &TableSpec) -> Option<PathBuf> {
    let name = format!("table-{}.svg", spec.number);
    (spec.columns.len() > 1).then(|| folder.join(name))
}

/// Fails if the plot of a table could not be written now.
pub(crate) fn check(folder: &Path, spec: &TableSpec) -> Outcome {
    let Some(file) = file(folder, spec) else {
        return Ok(());
    };
    let checked = castnet_console::plot::check(&file);
    checked.map_err(|error| cannot_write_flag("--plots", &file, &error))
}

/// Writes the plot of a table with several columns: our values as lines with dots, the paper's as plain lines.
pub(crate) fn write(folder: &Path, table: &Table) -> Outcome<Option<PathBuf>> {
    let Some(file) = file(folder, &table.spec) else {
        return Ok(None);
    };
    let svg =
        svg(table).map_err(|error| Failure::failed(format!("cannot draw {}: {error}", file.display())))?;
    save(&file, &svg)?;
    Ok(Some(file))
}

fn svg(table: &Table) -> Result<String, Box<dyn Error>> {
    let (spec, columns) = (&table.spec, table.spec.columns.len());
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (900, 520)).into_drawing_area();
    root.fill(&WHITE)?;
    let cells = table.cells.iter().flatten();
    let values = cells.flat_map(|cell| {
        [cell.ours, cell.paper]
            .into_iter()
            .chain(cell.others.iter().copied())
    });
    let top = values.fold(0.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            format!("Table {}: {}", spec.number, spec.title),
            ("sans-serif", 20),
        )
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(-0.2..columns as f64 - 0.8, 0.0..top)?;
    let name = |x: &f64| {
        let whole = x.round();
        let is_column = (x - whole).abs() < 1e-6 && whole >= 0.0;
        let column = is_column.then(|| spec.columns.get(whole as usize));
        column.flatten().cloned().unwrap_or_default()
    };
    chart
        .configure_mesh()
        .x_labels(2 * columns)
        .x_label_formatter(&name)
        .y_desc(spec.unit)
        .light_line_style(WHITE)
        .draw()?;
    for (index, (row, cells)) in table.rows().enumerate() {
        let way = row.name;
        let color = Palette99::pick(index).to_rgba();
        let points = |value: &dyn Fn(usize) -> f64| -> Vec<(f64, f64)> {
            (0..cells.len()).map(|i| (i as f64, value(i))).collect()
        };
        let ours = points(&|i| cells[i].ours);
        let paper = points(&|i| cells[i].paper);
        chart
            .draw_series(LineSeries::new(ours.clone(), color.stroke_width(2)))?
            .label(format!("{way}, castnet"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(ours.iter().map(|&at| Circle::new(at, 4, color.filled())))?;
        // Values of the method that explains a row, once.
        for (other, name) in row
            .others
            .iter()
            .enumerate()
            .filter(|_| index != 1 || spec.number < 31)
        {
            let shade = BLACK.mix(0.25 + 0.2 * other as f64);
            let points = points(&|i| cells[i].others[other]);
            chart
                .draw_series(LineSeries::new(points, shade.stroke_width(1)))?
                .label(match spec.number {
                    ..31 => format!("{way}, {name}"),
                    _ => (*name).to_owned(),
                })
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], shade.stroke_width(1)));
        }
        // Rows of one mode are compared with the paper's one row.
        let theirs = cells.iter().any(|cell| !cell.paper.is_nan());
        let is_first = |earlier: &Vec<Cell>| earlier[0].paper.to_bits() != cells[0].paper.to_bits();
        if theirs && table.cells[..index].iter().all(is_first) {
            chart
                .draw_series(DashedLineSeries::new(paper, 6, 4, color.stroke_width(1)))?
                .label(format!("{way}, paper"))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 8, y)], color.stroke_width(1)));
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    drop(chart);
    drop(root);
    Ok(svg)
}
