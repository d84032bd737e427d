//! `castnet-lab sim`: experiments of papers.

use assert_cmd::Command;
use serde_json::Value;

fn sim(args: &[&str]) -> assert_cmd::assert::Assert {
    run("cepheus", args)
}

fn run(paper: &str, args: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("castnet-lab"));
    command.args(["sim", paper]).args(args).assert()
}

#[test]
fn each_figure_of_cepheus_has_the_papers_numbers_beside_ours_and_a_plot() {
    each_figure_has_numbers_and_a_plot("cepheus", 7);
}

#[test]
fn each_figure_of_peel_has_the_papers_numbers_beside_ours_and_a_plot() {
    each_figure_has_numbers_and_a_plot("peel", 9);
}

#[test]
fn each_figure_of_myrinet_has_the_papers_numbers_beside_ours_and_a_plot() {
    each_figure_has_numbers_and_a_plot("myrinet", 5);
}

#[test]
fn costs_of_other_machines_change_the_figures_of_myrinet() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("costs.toml");
    let example = run("myrinet", &["--example"]).success();
    let text = String::from_utf8_lossy(&example.get_output().stdout).into_owned();
    let figure = |args: &[&str]| {
        let run = run("myrinet", &[&["fig4", "--quick"][..], args].concat()).success();
        String::from_utf8_lossy(&run.get_output().stdout).into_owned()
    };
    let path = file.to_str().expect("a path");
    std::fs::write(&file, &text).expect("a file");
    assert_eq!(figure(&["--costs", path]), figure(&[]));
    std::fs::write(&file, text.replace("copy_ns = 1100", "copy_ns = 9900")).expect("a file");
    assert_ne!(figure(&["--costs", path]), figure(&[]));
    std::fs::write(&file, text.replace("copy_ns = 1100", "copies = 1")).expect("a file");
    run("myrinet", &["fig4", "--costs", path]).code(2);
    run("myrinet", &["fig9"]).code(2);
    run("myrinet", &["fig7", "--calls", "0"]).code(2);
}

fn each_figure_has_numbers_and_a_plot(paper: &str, count: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("all.svg");
    let svg = svg.to_str().expect("a path");
    let run = run(paper, &["all", "--quick", "--svg", svg, "--output", "json"]).success();
    let report: Value = serde_json::from_slice(&run.get_output().stdout).expect("JSON");
    let figures = report["figures"].as_array().expect("figures");
    assert_eq!(figures.len(), count);
    for figure in figures {
        let name = figure["name"].as_str().expect("a name");
        assert!(!figure["table"].as_array().expect("rows").is_empty(), "{name}");
        for headline in figure["headlines"].as_array().expect("headlines") {
            assert!(headline["paper"][1].as_f64() > Some(0.0), "{name}: {headline}");
            // PEEL's trees may have no link too many.
            let ours = headline["castnet"][1].as_f64();
            assert!(
                ours > Some(0.0) || paper == "peel" && ours == Some(0.0),
                "{name}: {headline}"
            );
        }
        let plot = folder.path().join(format!("all-{name}.svg"));
        let plot = std::fs::read_to_string(plot).expect("a plot");
        assert!(plot.starts_with("<svg"), "{name}");
    }
}

#[test]
fn a_plot_that_cannot_be_written_is_an_error_behind_the_table() {
    let run = sim(&["fig8", "--quick", "--svg", "/dev/full"]).code(1);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (table, error) = (text(&run.get_output().stdout), text(&run.get_output().stderr));
    assert!(table.contains("HEADLINE") && !table.contains("Drawn"), "{table}");
    assert!(error.starts_with("error: cannot write /dev/full: "), "{error}");
}

#[test]
fn a_plot_whose_file_cannot_be_written_is_found_before_the_simulation() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let [notes, all, of_fig9] = ["notes.svg", "all.svg", "all-fig9.svg"].map(at);
    for file in [&notes, &of_fig9] {
        std::fs::write(file, "precious").expect("written");
    }
    let two: &[&str] = &["fig8", "fig9"];
    for (paper, figures, svg, named) in [
        ("cepheus", &two[..1], "/nowhere/fig8.svg", "/nowhere/fig8.svg"),
        ("cepheus", &two[..1], notes.as_str(), notes.as_str()),
        ("cepheus", two, all.as_str(), of_fig9.as_str()),
        ("shufflecast", &["reach"], notes.as_str(), notes.as_str()),
    ] {
        let run = run(paper, &[figures, &["--quick", "--svg", svg]].concat()).code(2);
        let error = String::from_utf8_lossy(&run.get_output().stderr).into_owned();
        assert!(run.get_output().stdout.is_empty(), "{paper} {svg}");
        assert!(
            error.starts_with(&format!("error: cannot write --svg {named}: ")),
            "{error}"
        );
    }
    for file in [&notes, &of_fig9] {
        assert_eq!(std::fs::read(file).expect("a file"), b"precious");
    }
}

#[test]
fn a_plot_that_cannot_be_written_keeps_no_other_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::os::unix::fs::symlink("/dev/full", at("all-fig8.svg")).expect("a link");
    let svg = at("all.svg").display().to_string();
    sim(&["fig8", "fig9", "--quick", "--svg", &svg]).code(1);
    let drawn = std::fs::read_to_string(at("all-fig9.svg")).expect("a plot");
    assert!(drawn.starts_with("<svg"));
}

#[test]
fn a_plot_that_cannot_be_written_is_an_error_also_without_a_reader_of_the_table() {
    let (reader, closed) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("castnet-lab"));
    command.args(["sim", "cepheus", "fig8", "--quick", "--svg", "/dev/full"]);
    let status = command.stdout(closed).status().expect("it runs");
    assert_eq!(status.code(), Some(1));
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

#[test]
fn what_peel_draws_depends_on_the_seed_alone() {
    let table = |seed: &str| {
        let run = run("peel", &["prefixes", "--draws", "5", "--seed", seed]).success();
        String::from_utf8_lossy(&run.get_output().stdout).into_owned()
    };
    let first = table("3");
    for part in ["prefixes: ", "10 % gaps", "HEADLINE", "Means of 5 draws, seed 3"] {
        assert!(first.contains(part), "{part} is missing:\n{first}");
    }
    assert_eq!(first, table("3"));
    assert_ne!(first, table("4"));
    run("peel", &["fig99"]).code(2);
    run("peel", &["fig3", "--draws", "0"]).code(2);
}
