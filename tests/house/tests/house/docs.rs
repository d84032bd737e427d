//! Pages that quote code or output quote what is there; the front page is short; the index of decisions is complete.

use std::fs;
use std::path::{Path, PathBuf};

use crate::fences::root;

/// Of README.md, as `wc -w` counts them.
const README_WORDS_MAX: usize = 900;

/// A fence that names a file after its language, such as `rust rules/src/lib.rs`, quotes that file. Its lines must stand there one
/// after the other, whatever their indentation; a line `...` leaves some out.
#[test]
fn excerpts_in_docs_are_in_the_files_that_they_name() {
    let root = root();
    let (mut quoted, mut faults) = (0, Vec::new());
    for page in pages(&root) {
        let text = fs::read_to_string(&page).expect("UTF-8");
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(info) = line.strip_prefix("```") else {
                continue;
            };
            let excerpt = lines.by_ref().take_while(|line| !line.starts_with("```"));
            let excerpt: Vec<&str> = excerpt.map(str::trim).collect();
            let Some((_, file)) = info.split_once(' ') else {
                continue;
            };
            let source = fs::read_to_string(root.join(file)).unwrap_or_default();
            let source: Vec<&str> = source.lines().map(str::trim).collect();
            for part in excerpt.split(|line| *line == "...") {
                quoted += 1;
                if part.is_empty() || !source.windows(part.len()).any(|lines| lines == part) {
                    faults.push(format!("{}: not in {file}:\n{}", page.display(), part.join("\n")));
                }
            }
        }
    }
    assert!(quoted > 0, "no page quotes code");
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// A fence after `<!-- sample: FILE -->` quotes output that `docs/samples/make` has written: its lines stand there in this order, and a
/// line `...` leaves some out.
#[test]
fn samples_in_pages_are_output_of_commands() {
    let root = root();
    let (mut quoted, mut faults) = (0, Vec::new());
    for page in pages(&root) {
        let text = fs::read_to_string(&page).expect("UTF-8");
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let file = line.strip_prefix("<!-- sample: ");
            let Some(file) = file.and_then(|rest| rest.strip_suffix(" -->")) else {
                continue;
            };
            quoted += 1;
            let mut fault = |what: String| faults.push(format!("{}: {file}: {what}", page.display()));
            let Ok(sample) = fs::read_to_string(root.join(file)) else {
                fault("no such file: docs/samples/make".to_owned());
                continue;
            };
            if !lines.next().is_some_and(|line| line.starts_with("```")) {
                fault("no code block after it".to_owned());
                continue;
            }
            let quote = lines.by_ref().take_while(|line| !line.starts_with("```"));
            if let Some(part) = missing(&quote.collect::<Vec<_>>(), &sample.lines().collect::<Vec<_>>()) {
                fault(format!(
                    "not there in this order (docs/samples/make writes it anew):\n{part}"
                ));
            }
        }
    }
    assert!(quoted > 0, "no page quotes a sample");
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// The first part of a quote that does not follow in the sample.
fn missing(quote: &[&str], mut sample: &[&str]) -> Option<String> {
    for part in quote
        .split(|line| line.trim() == "...")
        .filter(|part| !part.is_empty())
    {
        let is_next = |lines: &[&str]| lines.iter().zip(part).all(|(x, y)| x.trim_end() == y.trim_end());
        match sample.windows(part.len()).position(is_next) {
            Some(at) => sample = &sample[at + part.len()..],
            None => return Some(part.join("\n")),
        }
    }
    None
}

#[test]
fn quotes_of_samples_keep_the_order_of_their_parts() {
    let sample = ["a", "b ", "c", "d"];
    assert_eq!(missing(&["a", "b", "  ...", "d"], &sample), None);
    assert_eq!(missing(&["...", "c", "d", "..."], &sample), None);
    assert_eq!(missing(&["a", "c"], &sample), Some("a\nc".to_owned()));
    assert_eq!(missing(&["d", "...", "a"], &sample), Some("a".to_owned()));
}

#[test]
fn readme_is_short() {
    let text = fs::read_to_string(root().join("README.md")).expect("README.md");
    let words = text.split_whitespace().count();
    assert!(
        words <= README_WORDS_MAX,
        "README.md has {words} words, and may have {README_WORDS_MAX}: what is for one kind of reader belongs into docs/"
    );
}

#[test]
fn each_drop_reason_is_explained() {
    let root = root();
    let read = |file| fs::read_to_string(root.join(file)).expect(file);
    let (code, page) = (read("dataplane/wire/src/drop.rs"), read("docs/drops.md"));
    let names = code
        .split("=> \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next());
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(
            page.contains(&format!("| `{name}` |")),
            "docs/drops.md: no row for {name}"
        );
    }
}

/// A row for each decision: its number and link, what it decides, and its status.
#[test]
fn index_of_decisions_has_each_with_its_status() {
    let folder = root().join("docs/decisions");
    let index = fs::read_to_string(folder.join("README.md")).expect("docs/decisions/README.md");
    let mut faults = Vec::new();
    for entry in fs::read_dir(&folder).expect("docs/decisions") {
        let name = entry
            .expect("an entry")
            .file_name()
            .to_string_lossy()
            .into_owned();
        if name == "README.md" {
            continue;
        }
        let link = format!("]({name})");
        let rows: Vec<&str> = index
            .lines()
            .filter(|line| line.starts_with('|') && line.contains(&link))
            .collect();
        let status = match rows[..] {
            [row] => row.trim_end_matches('|').rsplit('|').next().unwrap_or_default(),
            _ => "",
        };
        if status.trim().is_empty() {
            faults.push(format!(
                "docs/decisions/README.md: {name} has {} rows; one with a status is wanted",
                rows.len()
            ));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// README.md and all pages in docs/.
fn pages(root: &Path) -> Vec<PathBuf> {
    let (mut folders, mut pages) = (vec![root.join("docs")], vec![root.join("README.md")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a readable folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}
