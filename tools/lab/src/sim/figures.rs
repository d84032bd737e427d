//! What the commands of all papers have in common: which figures they run, and where reports and plots go.

use std::error::Error;
use std::path::{Path, PathBuf};

use castnet_console::exit::{Failure, Outcome, cannot_write_flag, first_failure};
use castnet_console::output::Output;
use castnet_console::plot;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use crate::sim::report::{FigureReport, Plot, Reports};

pub(crate) type Failed = Box<dyn Error + Send + Sync>;

/// The figures of a paper.
pub(crate) trait Figure: ValueEnum + Ord + Send + Sync + 'static {}

impl<F: ValueEnum + Ord + Send + Sync + 'static> Figure for F {}

#[derive(Debug, Args)]
pub(crate) struct FigureArgs<F: Figure> {
    /// Figures and tables of the paper
    #[arg(value_parser = chosen::<F>(), value_name = "FIGURE", required = true)]
    figures: Vec<Chosen<F>>,
    /// Few points, small groups: seconds instead of minutes
    #[arg(long)]
    pub(crate) quick: bool,
    /// Draws a plot; of several figures one each, with the name of the figure before the extension
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// What one argument names: a figure, or all.
#[derive(Clone, Debug)]
struct Chosen<F>(Vec<F>);

fn chosen<F: Figure>() -> impl TypedValueParser<Value = Chosen<F>> {
    let all = PossibleValue::new("all").help("Each of them");
    let each = F::value_variants().iter().filter_map(F::to_possible_value);
    PossibleValuesParser::new([all].into_iter().chain(each)).map(|name| {
        let one = F::from_str(&name, false).map(|figure| vec![figure]);
        Chosen(one.unwrap_or_else(|_| F::value_variants().to_vec()))
    })
}

impl<F: Figure> FigureArgs<F> {
    /// Runs each figure once, in order, and prints the reports. A plot that could not be written is found before. Each figure has one.
    pub(crate) fn run(self, output: Output, run: impl Fn(F) -> Result<FigureReport, Failed>) -> Outcome {
        let mut figures: Vec<F> = self.figures.into_iter().flat_map(|chosen| chosen.0).collect();
        figures.sort_unstable();
        figures.dedup();
        if let Some(svg) = &self.svg {
            let values = figures.iter().filter_map(F::to_possible_value);
            let names: Vec<String> = values.map(|value| value.get_name().to_owned()).collect();
            check(svg, &names)?;
        }
        let reports: Result<Vec<_>, _> = figures.into_iter().map(run).collect();
        Reports::of(reports.map_err(Failure::failed)?).show(self.svg, output)
    }
}

/// Fails if a plot of one of these figures could not be written now.
pub(crate) fn check(svg: &Path, names: &[impl AsRef<str>]) -> Outcome {
    for name in names {
        let file = plot_file(svg, name.as_ref(), names.len() == 1);
        plot::check(&file).map_err(|error| cannot_write_flag("--svg", &file, &error))?;
    }
    Ok(())
}

impl Reports {
    pub(crate) fn of(figures: Vec<FigureReport>) -> Self {
        let plots = Vec::new();
        Self { figures, plots }
    }

    /// Draws and prints all. A plot that cannot be drawn is an error behind the tables.
    pub(crate) fn show(mut self, svg: Option<PathBuf>, output: Output) -> Outcome {
        let drawn = svg.map_or(Ok(()), |file| self.draw(&file));
        output.conclude(&self, drawn)
    }

    /// Draws all, also after one that cannot be drawn.
    fn draw(&mut self, svg: &Path) -> Outcome {
        let drawn = |figure: &&FigureReport| !figure.plot.panels.is_empty();
        let is_one = self.figures.iter().filter(drawn).count() == 1;
        let mut ends: Vec<Outcome> = Vec::new();
        for figure in self.figures.iter().filter(drawn) {
            let file = plot_file(svg, figure.name, is_one);
            let Plot { axes, panels } = &figure.plot;
            let end = plot::write(&file, *axes, panels);
            if end.is_ok() {
                self.plots.push(file.display().to_string());
            }
            ends.push(end);
        }
        first_failure(ends)
    }
}

/// The plot of a figure. That of the only one has the name that was given.
fn plot_file(svg: &Path, name: &str, is_one: bool) -> PathBuf {
    match is_one {
        true => svg.to_owned(),
        false => beside(svg, name),
    }
}

/// `plots/all.svg` becomes `plots/all-fig8.svg`.
fn beside(file: &Path, name: &str) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let extension = file.extension().unwrap_or_default().to_string_lossy();
    let dot = if extension.is_empty() { "" } else { "." };
    file.with_file_name(format!("{stem}-{name}{dot}{extension}"))
}
