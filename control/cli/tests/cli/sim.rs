//! `castnet sim`: experiments on the simulated network.

use assert_cmd::Command;
use serde_json::Value;

fn sim(args: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("castnet"));
    command.args(["sim", "cepheus"]).args(args).assert()
}

#[test]
fn each_figure_has_the_papers_numbers_beside_ours_and_a_plot() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("all.svg");
    let svg = svg.to_str().expect("a path");
    let run = sim(&["all", "--quick", "--svg", svg, "--output", "json"]).success();
    let report: Value = serde_json::from_slice(&run.get_output().stdout).expect("JSON");
    let figures = report["figures"].as_array().expect("figures");
    assert!(figures.len() >= 3);
    for figure in figures {
        let name = figure["name"].as_str().expect("a name");
        assert!(!figure["table"].as_array().expect("rows").is_empty(), "{name}");
        for headline in figure["headlines"].as_array().expect("headlines") {
            for side in ["paper", "castnet"] {
                assert!(headline[side][1].as_f64() > Some(0.0), "{name}: {headline}");
            }
        }
        let plot = folder.path().join(format!("all-{name}.svg"));
        let plot = std::fs::read_to_string(plot).expect("a plot");
        assert!(plot.starts_with("<svg"), "{name}");
    }
}

#[test]
fn a_plot_that_cannot_be_written_is_an_error_behind_the_table() {
    for svg in ["/nowhere/fig8.svg", "/dev/full"] {
        let run = sim(&["fig8", "--quick", "--svg", svg]).code(1);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (table, error) = (text(&run.get_output().stdout), text(&run.get_output().stderr));
        assert!(table.contains("HEADLINE") && !table.contains("Drawn"), "{table}");
        assert!(
            error.starts_with(&format!("error: cannot write {svg}: ")),
            "{error}"
        );
    }
}

#[test]
fn a_table_is_for_people_and_unknown_figures_are_refused() {
    let run = sim(&["fig8", "--quick"]).success();
    let text = String::from_utf8_lossy(&run.get_output().stdout).into_owned();
    for part in ["fig8: ", "CHAIN OVER CEPHEUS", "HEADLINE", "3.00 to 5.20"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    sim(&["fig99"]).code(2);
    sim(&[]).code(2);
}
