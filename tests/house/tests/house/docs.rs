//! Pages that quote code quote what is there.

use std::fs;

use crate::fences::root;

/// A fence that names a file after its language, such as `rust rules/src/lib.rs`, quotes that file. Its lines must stand there one
/// after the other, whatever their indentation; a line `...` leaves some out.
#[test]
fn excerpts_in_docs_are_in_the_files_that_they_name() {
    let root = root();
    let (mut quoted, mut faults) = (0, Vec::new());
    for page in fs::read_dir(root.join("docs")).expect("docs") {
        let page = page.expect("an entry").path();
        if page.extension().is_none_or(|end| end != "md") {
            continue;
        }
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
