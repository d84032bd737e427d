//! The table of results, in the format of nccl-tests and the OSU benchmarks.

use castnet_comm::CommPath;
use castnet_comm::machine::Collective;
use castnet_console::output::{Page, Report};
use castnet_local::PathCounters;
use serde::Serialize;

use super::MeasureArgs;

/// The measurement of a size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub collective: &'static str,
    /// As in nccl-tests: the blocks of all ranks together for reducescatter and allgather.
    pub bytes: u64,
    /// Elements of a block, or of the whole.
    pub count: u64,
    /// Type of an element.
    #[serde(rename = "type")]
    pub data_type: String,
    /// The operation, or `-`.
    pub op: String,
    /// The rank that has or receives the data.
    pub root: Option<u16>,
    /// The result overwrote the contribution.
    pub in_place: bool,
    /// Ranks of the job.
    pub ranks: u16,
    /// `in-network` or `between-hosts`.
    pub path: &'static str,
    /// `direct` or `hierarchical`.
    pub ranks_path: &'static str,
    /// Measured calls.
    pub iterations: u32,
    /// Mean over calls and ranks.
    pub time_avg_us: f64,
    /// Mean over ranks of the median over calls.
    pub time_median_us: f64,
    /// Mean of the fastest rank.
    pub time_min_us: f64,
    /// Mean of the slowest rank.
    pub time_max_us: f64,
    /// Bytes over mean time.
    pub algbw_gb_s: f64,
    /// `algbw` times how often each byte crosses each link of a ring: comparable with a link's rate.
    pub busbw_gb_s: f64,
    /// Wrong elements at all ranks. `None`: not checked.
    pub wrong: Option<u64>,
}

pub(super) fn path_name(path: &CommPath) -> &'static str {
    match path {
        CommPath::InNetwork { .. } => "in-network",
        CommPath::HostBased { .. } => "between-hosts",
        CommPath::Unused => "unused",
    }
}

/// Name and width.
const COLUMNS: [(&str, usize); 12] = [
    ("size", 12),
    ("count", 12),
    ("type", 6),
    ("op", 7),
    ("root", 5),
    ("avg us", 11),
    ("min us", 11),
    ("max us", 11),
    ("algbw GB/s", 11),
    ("busbw GB/s", 11),
    ("#wrong", 7),
    ("path", 14),
];

fn line(cells: &[String; COLUMNS.len()]) -> String {
    let mut line = String::new();
    for (cell, (_, width)) in cells.iter().zip(COLUMNS) {
        line.push_str(&format!("{cell:>width$}"));
    }
    line + "\n"
}

fn heading() -> String {
    line(&COLUMNS.map(|(name, _)| name.to_uppercase()))
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| v.to_string())
}

impl Row {
    fn line(&self) -> String {
        let time = |us: f64| format!("{us:.2}");
        let rate = |gb_s: f64| match self.bytes {
            0 => "-".to_owned(),
            _ => format!("{gb_s:.4}"),
        };
        line(&[
            self.bytes.to_string(),
            self.count.to_string(),
            self.data_type.clone(),
            self.op.clone(),
            or_dash(self.root),
            time(self.time_avg_us),
            time(self.time_min_us),
            time(self.time_max_us),
            rate(self.algbw_gb_s),
            rate(self.busbw_gb_s),
            or_dash(self.wrong),
            self.ranks_path.to_owned(),
        ])
    }
}

impl Report for Row {
    fn page(&self, page: &mut Page) {
        page.line(self.line());
    }
}

pub(super) struct Table {
    title: String,
    rows: u32,
    busbw_sum: f64,
    is_checked: bool,
    has_no_data: bool,
    pub wrong: u64,
}

impl Table {
    pub(super) fn new(collective: Collective, measure: &MeasureArgs) -> Self {
        Self {
            title: format!(
                "{}: {} calls with the clock after {} without",
                collective.name(),
                measure.iters(),
                measure.warmup
            ),
            rows: 0,
            busbw_sum: 0.0,
            is_checked: false,
            has_no_data: collective == Collective::Barrier,
            wrong: 0,
        }
    }

    /// The row as text, with title and heading if it is the first.
    pub(super) fn take(&mut self, row: &Row, path: &CommPath) -> String {
        let mut text = String::new();
        if self.rows == 0 {
            text = format!("# {}, {} ranks\n# {path}\n{}", self.title, row.ranks, heading());
        }
        text.push_str(&row.line());
        self.rows += 1;
        self.busbw_sum += row.busbw_gb_s;
        self.is_checked |= row.wrong.is_some();
        self.wrong += row.wrong.unwrap_or(0);
        text
    }

    /// Empty for barriers, unless ranks have shared memory.
    pub(super) fn end(&self, calls: PathCounters) -> String {
        let paths = match calls.hierarchical_calls {
            0 => String::new(),
            shared => format!(
                "# calls of this rank, those of the measurement itself included: {} direct, {shared} hierarchical\n",
                calls.direct_calls
            ),
        };
        if self.has_no_data {
            return paths;
        }
        let mean = self.busbw_sum / f64::from(self.rows.max(1));
        let wrong = match self.is_checked {
            true => format!("wrong elements: {}", self.wrong),
            false => "not checked".to_owned(),
        };
        format!("# mean bus bandwidth {mean:.4} GB/s; {wrong}\n{paths}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(wrong: Option<u64>) -> Row {
        Row {
            collective: "reduce",
            bytes: 4096,
            count: 1024,
            data_type: "f32".to_owned(),
            op: "sum".to_owned(),
            root: Some(3),
            in_place: false,
            ranks: 4,
            path: "in-network",
            ranks_path: "direct",
            iterations: 20,
            time_avg_us: 51.234,
            time_median_us: 51.0,
            time_min_us: 50.0,
            time_max_us: 53.0,
            algbw_gb_s: 0.08,
            busbw_gb_s: 0.12,
            wrong,
        }
    }

    fn table() -> Table {
        let measure = MeasureArgs {
            iters: None,
            warmup: 5,
            no_verify: false,
            verify: false,
            timeout: castnet_console::units::Span(std::time::Duration::ZERO),
        };
        Table::new(Collective::Reduce { root: 3 }, &measure)
    }

    #[test]
    fn figures_stand_under_their_names_and_the_first_line_says_what_was_run() {
        let path = CommPath::HostBased {
            reason: "asked for".to_owned(),
        };
        let mut table = table();
        let first = table.take(&row(Some(0)), &path);
        let lines: Vec<_> = first.lines().collect();
        assert_eq!(
            lines[0],
            "# reduce: 20 calls with the clock after 5 without, 4 ranks"
        );
        assert!(lines[1].starts_with("# between hosts (ring"), "{first}");
        assert_eq!(lines[2].len(), lines[3].len(), "{first}");
        for (name, value) in [
            ("root", "3"),
            ("avg us", "51.23"),
            ("#wrong", "0"),
            ("type", "f32"),
        ] {
            let end = lines[2].find(&name.to_uppercase()).expect("a column") + name.len();
            assert!(lines[3][..end].ends_with(value), "{name} in {first}");
        }
        let next = table.take(&row(Some(2)), &path);
        assert_eq!((next.lines().count(), table.wrong), (1, 2));
        assert_eq!(
            table.end(PathCounters::default()),
            "# mean bus bandwidth 0.1200 GB/s; wrong elements: 2\n"
        );
    }

    #[test]
    fn what_nobody_checked_is_not_called_right() {
        let mut table = table();
        let text = table.take(
            &row(None),
            &CommPath::HostBased {
                reason: String::new(),
            },
        );
        assert!(text.trim_end().ends_with("-        direct"), "{text}");
        assert!(table.end(PathCounters::default()).ends_with("; not checked\n"));
    }
}
