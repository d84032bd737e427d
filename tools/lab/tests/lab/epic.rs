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
    reason: Option<String>,
}

impl Cell {
    fn ratio(&self) -> f64 {
        self.castnet / self.paper
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
                    reason: cell["reason"].as_str().map(str::to_owned),
                });
            }
        }
    }
    cells
}

#[test]
fn all_cells_are_near_the_paper_or_have_a_reason() {
    let all = run(&[]);
    println!("{}", all["setting"]);
    let cells = cells(&all);
    assert_eq!(cells.len(), 5 * 4 * 9 + 4 + 4 * 10 + 4 * 9 + 4 * 4 + 3 * 8);
    for cell in &cells {
        assert!(cell.castnet > 0.0, "{cell:?}");
        // The paper does not simulate Mode-I.
        assert_eq!(cell.paper.is_nan(), cell.row == "Mode-I", "{cell:?}");
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
    // Losses: lower bounds for a switch that repairs.
    let least = |table: u64, column: &str, ratio: f64| {
        let cell = of(table, "Mode-II, repair").find(|c| c.column == column);
        let cell = cell.expect("a column of that name");
        assert!(cell.ratio() > ratio, "{cell:?}");
    };
    least(31, "0.1 %", 0.95);
    least(31, "0.5 %", 0.85);
    least(31, "1 %", 0.75);
    least(31, "5 %", 0.42);
    least(31, "15 %", 0.40);
    least(32, "2", 0.40);
    least(32, "8", 0.37);
    for table in [31, 32] {
        for (repair, reflect) in of(table, "Mode-II, repair").zip(of(table, "Mode-II, reflect")) {
            assert!(repair.castnet >= reflect.castnet, "{repair:?} {reflect:?}");
        }
    }
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
