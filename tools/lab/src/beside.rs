//! The times of several sides beside each other: our own paths, and other programs that rank 0 runs.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use castnet_comm::machine::Collective;
use castnet_commands::collective::Row;
use castnet_console::exit::{Failure, Outcome, cannot_write};
use castnet_console::files;
use castnet_console::output::{Page, Report};
use castnet_console::plot::{self, Axes, Curve, Panel};
use castnet_console::service::is_stopped;
use castnet_console::units;
use serde::{Deserialize, Serialize};

const SIGINT: i32 = 2;
const SIGNAL_NOTED_WITHIN: Duration = Duration::from_secs(5);

/// A program that measures the same calls.
///
/// Its arguments are the seconds for each call, and the name and the bytes of each call. It prints a [`Measured`] for each of
/// them, one per line. A program without these arguments may print results of an earlier run: `LABEL=cat FILE`.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    pub(crate) label: String,
    command: String,
}

impl FromStr for Beside {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((label, command)) if !label.is_empty() && !command.trim().is_empty() => Ok(Self {
                label: label.to_owned(),
                command: command.to_owned(),
            }),
            _ => Err("LABEL=COMMAND is wanted"),
        }
    }
}

/// A line of another program. Further fields are ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    collective: String,
    bytes: u64,
    time_median_us: f64,
    /// The label; in the output of `castnet-lab bench` the path.
    #[serde(default)]
    path: String,
}

impl Measured {
    pub(crate) fn time(&self) -> Time {
        Time {
            collective: self.collective.clone(),
            bytes: self.bytes,
            us: self.time_median_us,
            wrong: None,
        }
    }
}

impl Report for Measured {
    fn page(&self, _: &mut Page) {}
}

impl Beside {
    /// Runs the program. Of the output of an earlier `castnet-lab bench`, only the collectives in the network are taken.
    pub(crate) fn run(&self, budget: Duration, calls: &[(Collective, u64)]) -> Outcome<Vec<Measured>> {
        let failed = |what: String| {
            Failure::failed(format!("--beside {}: {what}", self.label)).next("its own output is above")
        };
        let mut command = Command::new("sh");
        command.args(["-c", &self.command, &self.label]);
        command.arg(budget.as_secs_f64().to_string());
        for (collective, bytes) in calls {
            command.args([collective.name(), &bytes.to_string()]);
        }
        let out = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let out = out.map_err(|error| failed(format!("sh: {error}")))?;
        if out.status.signal() == Some(SIGINT) {
            await_signal();
        }
        if !out.status.success() {
            return Err(failed(format!("{}: {}", self.command, out.status)));
        }
        let mut rows = Vec::new();
        for line in String::from_utf8_lossy(&out.stdout).lines() {
            let row: Measured =
                serde_json::from_str(line).map_err(|error| failed(format!("{line:?}: {error}")))?;
            let is_wanted = calls
                .iter()
                .any(|(collective, _)| collective.name() == row.collective);
            if !is_wanted || !["", "in-network"].contains(&row.path.as_str()) {
                continue;
            }
            if !(row.time_median_us.is_finite() && row.time_median_us > 0.0) {
                return Err(failed(format!("{line:?}: time_median_us must be above 0")));
            }
            rows.push(Measured {
                path: self.label.clone(),
                ..row
            });
        }
        Ok(rows)
    }
}

/// Ctrl-C is for all programs in the foreground, and may end another one before this one has noted it.
fn await_signal() {
    let start = Instant::now();
    while !is_stopped() && start.elapsed() < SIGNAL_NOTED_WITHIN {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The time of a call.
#[derive(Clone, Debug)]
pub(crate) struct Time {
    collective: String,
    bytes: u64,
    us: f64,
    wrong: Option<u64>,
}

impl Time {
    pub(crate) fn of(row: &Row) -> Self {
        Self {
            collective: row.collective.to_owned(),
            bytes: row.bytes,
            us: row.time_median_us,
            wrong: row.wrong,
        }
    }
}

/// All times. Of several for one call of one side, the shortest counts.
#[derive(Debug)]
pub(crate) struct Sides {
    labels: Vec<String>,
    times: Vec<(usize, Time)>,
    /// All rows, one JSON object per line.
    json: String,
}

impl Sides {
    pub(crate) fn new(labels: impl Iterator<Item = String>) -> Self {
        Self {
            labels: labels.collect(),
            times: Vec::new(),
            json: String::new(),
        }
    }

    /// Adds a time of a side, and the row that it is from.
    pub(crate) fn add(&mut self, side: usize, time: Time, row: &impl Serialize) -> Outcome {
        self.json += &serde_json::to_string(row).map_err(Failure::failed)?;
        self.json.push('\n');
        self.times.push((side, time));
        Ok(())
    }

    fn of(&self, collective: &str, bytes: u64) -> impl Iterator<Item = &(usize, Time)> {
        let is_it = move |time: &Time| time.collective == collective && time.bytes == bytes;
        self.times.iter().filter(move |(_, time)| is_it(time))
    }

    fn shortest(&self, side: usize, collective: &str, bytes: u64) -> Option<f64> {
        let times = self.of(collective, bytes).filter(|(of, _)| *of == side);
        times.map(|(_, time)| time.us).min_by(f64::total_cmp)
    }

    /// Wrong elements of all calls.
    pub(crate) fn wrong(&self) -> u64 {
        self.times.iter().filter_map(|(_, time)| time.wrong).sum()
    }

    pub(crate) fn heading(&self) -> String {
        let mut text = format!("{:<14}{:>10}", "COLLECTIVE", "SIZE");
        for (side, label) in self.labels.iter().enumerate() {
            let _ = write!(
                text,
                " {:>width$}",
                label.to_uppercase(),
                width = Self::width(label)
            );
            if side > 0 {
                let _ = write!(text, "{:>8}", "TIMES");
            }
        }
        text + &format!("{:>8}\n", "#WRONG")
    }

    fn width(label: &str) -> usize {
        label.chars().count().max(14)
    }

    /// The times of a call, and how many times longer than the first each further one is.
    pub(crate) fn line(&self, collective: &str, bytes: u64) -> String {
        let mut text = format!("{collective:<14}{:>10}", units::bytes(bytes));
        let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let first = self.shortest(0, collective, bytes);
        for (side, label) in self.labels.iter().enumerate() {
            let us = self.shortest(side, collective, bytes);
            let width = Self::width(label);
            let _ = write!(text, " {:>width$}", dash(us.map(|us| format!("{us:.1}"))));
            if side > 0 {
                let times = us.zip(first).map(|(us, first)| format!("{:.2}", us / first));
                let _ = write!(text, "{:>8}", dash(times));
            }
        }
        let wrong = self.of(collective, bytes).filter_map(|(_, time)| time.wrong);
        let wrong = wrong.reduce(|a, b| a + b).map(|wrong| wrong.to_string());
        text + &format!("{:>8}\n", dash(wrong))
    }

    /// The calls in the order in which they were measured first.
    fn calls(&self) -> Vec<(&str, u64)> {
        let mut calls = Vec::new();
        for (_, time) in &self.times {
            let call = (time.collective.as_str(), time.bytes);
            if !calls.contains(&call) {
                calls.push(call);
            }
        }
        calls
    }

    /// The heading and all lines.
    pub(crate) fn table(&self) -> String {
        let line = |(collective, bytes)| self.line(collective, bytes);
        self.heading() + &self.calls().into_iter().map(line).collect::<String>()
    }

    /// Writes all rows, one JSON object per line.
    pub(crate) fn write(&self, file: &Path) -> Outcome {
        let written = files::replace(file, &self.json, are_rows);
        written.map(drop).map_err(|error| cannot_write(file, &error))
    }

    /// Draws a panel for each collective that has sizes.
    pub(crate) fn draw(&self, file: &Path) -> Outcome {
        let mut panels: Vec<Panel> = Vec::new();
        for (collective, bytes) in self.calls().into_iter().filter(|(_, bytes)| *bytes > 0) {
            if panels.last().is_none_or(|panel| panel.title != collective) {
                let curve = |name: &String| Curve {
                    name: name.clone(),
                    points: Vec::new(),
                };
                panels.push(Panel {
                    title: collective.to_owned(),
                    curves: self.labels.iter().map(curve).collect(),
                });
            }
            let Some(panel) = panels.last_mut() else { continue };
            for (side, curve) in panel.curves.iter_mut().enumerate() {
                let us = self.shortest(side, collective, bytes);
                curve.points.extend(us.map(|us| (bytes as f64, us)));
            }
        }
        let axes = Axes::logarithmic("bytes", "microseconds per call");
        plot::write(file, axes, &panels)
    }
}

/// Whether a text begins with a row, as what [`Sides::write`] writes.
pub(crate) fn are_rows(text: &str) -> bool {
    let row = text.lines().next().map(serde_json::from_str::<Measured>);
    row.is_some_and(|row| row.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(command: &str) -> Beside {
        format!("other={command}").parse().expect("a label and a command")
    }

    const CALLS: [(Collective, u64); 2] = [(Collective::AllReduce, 4096), (Collective::Barrier, 0)];
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_program_gets_the_calls_and_its_times_stand_beside_ours() {
        let line = r#"{\"collective\":\"$2\",\"bytes\":$3,\"time_median_us\":${1}5.5}"#;
        let rows = beside(&format!("echo \"{line}\"; echo \"{line}\""))
            .run(SECOND, &CALLS)
            .expect("it runs");
        assert_eq!(rows.len(), 2);
        let mut sides = Sides::new(["ours", "other"].map(str::to_owned).into_iter());
        let ours = Measured {
            time_median_us: 31.0,
            ..rows[0].clone()
        };
        sides.add(0, ours.time(), &ours).expect("added");
        sides.add(1, rows[0].time(), &rows[0]).expect("added");
        assert_eq!(
            sides.table().split_whitespace().collect::<Vec<_>>().join(" "),
            "COLLECTIVE SIZE OURS OTHER TIMES #WRONG allreduce 4 KiB 31.0 15.5 0.50 -"
        );
        let line = sides.line("barrier", 0);
        assert!(
            line.split_whitespace().rev().take(4).all(|cell| cell == "-"),
            "{line}"
        );
        assert!(
            sides
                .json
                .ends_with("\"time_median_us\":15.5,\"path\":\"other\"}\n"),
            "{}",
            sides.json
        );
    }

    #[test]
    fn of_an_earlier_bench_the_collectives_in_the_network_are_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("bench.json");
        let row = |collective: &str, path: &str| {
            format!(r#"{{"collective":"{collective}","bytes":4096,"time_median_us":7,"path":"{path}"}}"#)
        };
        let rows = [
            row("allreduce", "in-network"),
            row("allreduce", "between-hosts"),
            row("reduce", "in-network"),
        ];
        std::fs::write(&file, rows.join("\n")).expect("written");
        let taken = beside(&format!("cat {}", file.display())).run(SECOND, &CALLS);
        assert_eq!(taken.expect("it runs").len(), 1);
    }

    #[test]
    fn what_is_wrong_with_a_program_is_named() {
        for (command, wrong) in [
            ("exit 3", "exit status: 3"),
            ("echo nonsense", "nonsense"),
            (
                r#"echo '{"collective":"barrier","bytes":0,"time_median_us":0}'"#,
                "above 0",
            ),
            (
                r#"echo '{"collective":"barrier","bytes":-1,"time_median_us":1}'"#,
                "-1",
            ),
        ] {
            let failure = beside(command).run(SECOND, &CALLS).expect_err(command);
            assert!(failure.to_string().contains(wrong), "{failure}");
        }
        for text in ["", "x", "=x", "x= "] {
            assert!(text.parse::<Beside>().is_err(), "{text:?}");
        }
    }
}
