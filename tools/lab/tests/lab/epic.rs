//! EPIC's appendix K in its short form, which takes seconds: each cell is near the paper's or has a reason, and
//! selected cells keep their values.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A cell of the program's output.
#[derive(Clone, Debug)]
struct Cell {
    table: u64,
    row: String,
    column: String,
    paper: f64,
    castnet: f64,
    others: Vec<f64>,
    /// What appendix F.4 expects.
    expected: f64,
    counts: Value,
    reason: Option<String>,
}

impl Cell {
    fn ratio(&self) -> f64 {
        self.castnet / self.paper
    }

    fn count(&self, name: &str) -> f64 {
        self.counts[name].as_f64().unwrap_or(f64::NAN)
    }
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn run(options: &[&str]) -> Value {
    let program = env!("CARGO_BIN_EXE_castnet-lab");
    let output = Command::new(program)
        .args(["sim", "epic", "--quick", "--output", "json"])
        .args(options)
        .output()
        .expect("it starts");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn cells(all: &Value) -> Vec<Cell> {
    let mut cells = Vec::new();
    for table in list(all, "tables") {
        for row in list(table, "rows") {
            for cell in list(row, "cells") {
                let number = |name: &str| cell[name].as_f64().unwrap_or(f64::NAN);
                cells.push(Cell {
                    table: table["table"].as_u64().unwrap_or_default(),
                    row: text(&row["name"]),
                    column: text(&cell["column"]),
                    paper: number("paper"),
                    castnet: number("castnet"),
                    others: list(cell, "others").iter().filter_map(Value::as_f64).collect(),
                    expected: number("f4"),
                    counts: cell["counts"].clone(),
                    reason: cell["reason"].as_str().map(str::to_owned),
                });
            }
        }
    }
    cells
}

#[test]
fn all_cells_are_near_the_paper_or_have_a_reason() {
    let all = run(&["--check"]);
    println!("{}", all["setting"]);
    let cells = cells(&all);
    assert_eq!(cells.len(), 5 * 4 * 9 + 4 + 8 * 10 + 8 * 9 + 4 * 4 + 3 * 8);
    for cell in &cells {
        assert!(cell.castnet > 0.0, "{cell:?}");
        // The paper does not simulate Mode-I.
        assert_eq!(
            cell.paper.is_nan(),
            cell.row == "Mode-I" || cell.row.starts_with("Mode-I,"),
            "{cell:?}"
        );
        let is_near = cell.paper.is_nan() || (0.9..=1.1).contains(&cell.ratio());
        assert_eq!(is_near, cell.reason.is_none(), "{cell:?}");
        assert_ne!(cell.reason.as_deref(), Some("?"), "{cell:?}");
    }
    let of = |table: u64, row: &str| {
        let row = row.to_owned();
        cells.iter().filter(move |c| c.table == table && c.row == row)
    };
    // In the network, without losses: Mode-II's AllReduce at all sizes, the others where one microsecond is a small part.
    for table in 25..=29 {
        for cell in of(table, "Mode-II").chain(of(table, "Mode-III")) {
            let is_long = ["4M", "64M", "256M", "1G"].contains(&cell.column.as_str());
            if (table == 25 && cell.row == "Mode-II") || is_long {
                assert!((0.97..=1.08).contains(&cell.ratio()), "{cell:?}");
            }
            assert!(cell.ratio() > 0.97, "{cell:?}");
        }
    }
    // The paper's own method has the paper's times.
    for table in 25..=29 {
        let rows = ["Ring", "Mode-II", "Mode-III"];
        for cell in rows.iter().flat_map(|row| of(table, row)) {
            // The AllGather one by one is Mode-II's, whose last ACK is waited for: a microsecond.
            let least = if cell.row == "Mode-III" { 0.94 } else { 0.97 };
            for other in &cell.others {
                assert!((least..=1.03).contains(&(other / cell.paper)), "{cell:?}");
            }
        }
    }
    for table in [31, 32] {
        let rows = of(table, "Mode-II, repair, selective").zip(of(table, "Mode-II, reflect, go back, probe"));
        for (repair, reflect) in rows {
            assert!(repair.castnet >= reflect.castnet, "{repair:?} {reflect:?}");
        }
        let rows = ["Mode-II, repair", "Mode-III"].map(|mode| {
            let row = |hosts: &str| of(table, &format!("{mode}, {hosts}"));
            row("selective").zip(row("go back"))
        });
        for (selective, goes_back) in rows.into_iter().flatten() {
            // RNICs do not probe, and what they send again is more than what was lost.
            assert_eq!(goes_back.count("probes"), 0.0, "{goes_back:?}");
            if selective.column == "0.1 %" {
                // Chance decides whether any of the few losses were theirs.
                continue;
            }
            let [least, most] = [selective, goes_back].map(|cell| cell.count("sent again by hosts"));
            assert!(least <= most, "{selective:?} {goes_back:?}");
            let lost = [selective, goes_back].map(|cell| cell.count("lost"));
            let is_lossy = selective.column != "0 %" && selective.column != "0";
            assert_eq!(
                lost.map(|lost| lost > 0.0),
                [is_lossy; 2],
                "{selective:?} {goes_back:?}"
            );
        }
        // Without loss nothing is sent again, and F.4 expects what is measured.
        for cell in cells
            .iter()
            .filter(|c| c.table == table && ["0 %", "0"].contains(&c.column.as_str()))
        {
            let again =
                ["sent again by hosts", "sent again by switch", "time-outs"].map(|name| cell.count(name));
            assert_eq!((again, cell.expected), ([0.0; 3], cell.castnet), "{cell:?}");
        }
    }
    // 0.95 squared on one link; with eight of them in Mode-II to the 16th.
    let expected = |table: u64, row: &str, column: &str| {
        let row: Vec<&Cell> = of(table, row).collect();
        let cell = row
            .iter()
            .find(|c| c.column == column)
            .expect("a column of that name");
        cell.expected / row[0].castnet
    };
    for (table, row, column, value) in [
        (31, "Mode-II, repair, selective", "5 %", 0.9025),
        (31, "Mode-III, selective", "5 %", 0.9025),
        (32, "Mode-II, repair, go back", "8", 0.440_126_67),
        (32, "Mode-III, go back", "8", 0.9025),
        (32, "Mode-I, go back", "8", 0.9025),
    ] {
        let found = expected(table, row, column);
        assert!((found - value).abs() < 1e-6, "{table}, {row}, {column}: {found}");
    }
}

#[test]
fn a_figure_outside_of_its_band_fails_the_check() {
    // Four packets in flight do not fill a link of five microseconds.
    let slow = [
        "sim",
        "epic",
        "--quick",
        "--table",
        "32",
        "--window",
        "4",
        "--message-packets",
        "1",
    ];
    let epic = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_castnet-lab"));
        command.args(slow).args(more).output().expect("it starts")
    };
    assert_eq!(epic(&[]).status.code(), Some(0));
    let output = epic(&["--check"]);
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(1), false));
    let complaint = String::from_utf8_lossy(&output.stderr);
    let cell = "table 32, Mode-III, selective, 0: ";
    assert!(
        complaint.contains(cell) && complaint.contains("(band 0.97 to 2.00)"),
        "{complaint}"
    );
}

#[test]
fn a_run_can_be_repeated() {
    let [one, other] = [(); 2].map(|()| run(&["--table", "32", "--seed", "7", "--jobs", "2"]));
    assert_eq!(one, other);
    assert_eq!(one["setting"]["seed"], 7);
    assert_eq!(list(&one, "tables").len(), 1);
}

#[test]
fn plots_are_written() {
    let folder = std::env::temp_dir().join(format!("castnet-plots-{}", std::process::id()));
    let name = folder.to_string_lossy().into_owned();
    run(&["--table", "25", "--table", "30", "--plots", &name]);
    let svg = std::fs::read_to_string(folder.join("table-25.svg"));
    // A table with one cell has no plot.
    let none = folder.join("table-30.svg").exists();
    let _ = std::fs::remove_dir_all(&folder);
    assert!(svg.is_ok_and(|s| s.starts_with("<svg") && s.contains("AllReduce")));
    assert!(!none);
}

#[test]
fn a_plot_that_cannot_be_written_is_an_error_and_the_others_are_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let plot = folder.path().join("table-25.svg");
    let epic = |plots: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_castnet-lab"));
        command.args([
            "sim", "epic", "--quick", "--table", "25", "--table", "26", "--plots",
        ]);
        let output = command.arg(plots).output().expect("it starts");
        (output.status.code(), output.stdout.is_empty())
    };
    std::fs::write(&plot, "precious").expect("written");
    // A file that nothing is written over is found before the tables.
    assert_eq!(epic(folder.path()), (Some(2), true));
    assert_eq!(std::fs::read(&plot).expect("a file"), b"precious");
    std::fs::remove_file(&plot).expect("removed");
    std::os::unix::fs::symlink("/dev/full", &plot).expect("a link");
    assert_eq!(epic(folder.path()), (Some(1), false));
    assert!(folder.path().join("table-26.svg").exists());
    // So is a folder that cannot be made.
    assert_eq!(epic(Path::new("/dev/null/plots")), (Some(2), true));
}
