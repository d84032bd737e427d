//! Links between pages lead somewhere: a file that is there, and a heading that it has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use castnet_house::commands::code_spans;

use crate::fences::root;

/// A page without its code blocks.
struct Page {
    /// By the name that a link gives them after `#`.
    anchors: BTreeSet<String>,
    /// Line and target, as written.
    links: Vec<(usize, String)>,
    /// Line and name of `[text][name]`.
    references: Vec<(usize, String)>,
    /// The names that targets are given elsewhere on the page.
    names: BTreeSet<String>,
}

#[test]
fn links_of_pages_lead_to_files_and_headings() {
    let root = root();
    let pages: BTreeMap<PathBuf, Page> = castnet_house::commands::pages()
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(root.join(&path)).expect("UTF-8");
            (path, Page::read(&text))
        })
        .collect();
    let (mut checked, mut faults) = (0, Vec::new());
    for (path, page) in &pages {
        for (line, target) in page.links.iter().filter(|(_, target)| is_relative(target)) {
            checked += 1;
            if let Err(fault) = follow(&root, &pages, path, target) {
                faults.push(format!("{}:{line}: {target}: {fault}", path.display()));
            }
        }
    }
    for (path, page) in &pages {
        for (line, name) in page
            .references
            .iter()
            .filter(|(_, name)| !page.names.contains(name))
        {
            faults.push(format!(
                "{}:{line}: [{name}]: has no target on this page",
                path.display()
            ));
        }
    }
    assert!(
        checked > 100,
        "only {checked} links: they are not recognized any more"
    );
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

fn is_relative(target: &str) -> bool {
    !target.contains("://") && !target.starts_with("mailto:")
}

fn follow(root: &Path, pages: &BTreeMap<PathBuf, Page>, from: &Path, target: &str) -> Result<(), String> {
    let (file, anchor) = match target.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor)),
        None => (target, None),
    };
    let path = match file {
        "" => from.to_owned(),
        _ => beside(from, file).ok_or("leads out of the repository")?,
    };
    if !root.join(&path).exists() {
        return Err("no such file".to_owned());
    }
    match (anchor, pages.get(&path)) {
        (Some(anchor), Some(page)) if !page.anchors.contains(anchor) => {
            let near: Vec<&str> = page
                .anchors
                .iter()
                .filter(|known| known.contains(anchor) || anchor.contains(known.as_str()))
                .map(String::as_str)
                .collect();
            Err(format!("no such heading in {}; near: {near:?}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Where `file` is, from the root; `None` outside of it.
fn beside(from: &Path, file: &str) -> Option<PathBuf> {
    let mut path = from.parent()?.to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

impl Page {
    fn read(text: &str) -> Self {
        let mut page = Self {
            anchors: BTreeSet::new(),
            links: Vec::new(),
            references: Vec::new(),
            names: BTreeSet::new(),
        };
        let mut paragraph = (0, String::new());
        for (line, text) in outside_fences(text) {
            if let Some(heading) = heading(text) {
                page.add_anchor(heading);
            }
            if text.trim().is_empty() {
                page.add_links(&paragraph);
                paragraph.1.clear();
                continue;
            }
            if paragraph.1.is_empty() {
                paragraph.0 = line;
            }
            paragraph.1.push_str(text);
            paragraph.1.push('\n');
        }
        page.add_links(&paragraph);
        page
    }

    /// The second heading with the same words gets `-1`, the third `-2`.
    fn add_anchor(&mut self, heading: &str) {
        let plain = slug(heading);
        let mut anchor = plain.clone();
        let mut again = 0;
        while !self.anchors.insert(anchor) {
            again += 1;
            anchor = format!("{plain}-{again}");
        }
    }

    /// `](TARGET)`, `href="TARGET"`, `[NAME]: TARGET` and `][NAME]`, but not in code.
    fn add_links(&mut self, (first, paragraph): &(usize, String)) {
        let text = without_code(paragraph);
        let line_at = |at: usize| first + text[..at].matches('\n').count();
        let after = |begin: &str, ends: &[char]| -> Vec<(usize, String)> {
            let rest = text
                .match_indices(begin)
                .map(|(at, _)| (at, &text[at + begin.len()..]));
            rest.map(|(at, rest)| {
                (
                    line_at(at),
                    rest[..rest.find(ends).unwrap_or(rest.len())].to_owned(),
                )
            })
            .collect()
        };
        self.links.extend(after("](", &[')', ' ', '\n']));
        self.links.extend(after("href=\"", &['"']));
        self.references.extend(after("][", &[']']));
        for (number, line) in text.lines().enumerate() {
            let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
            if let Some((name, target)) = definition {
                self.names.insert(name.to_owned());
                self.links.push((first + number, target.trim().to_owned()));
            }
        }
    }
}

/// Lines with their numbers, from 1. A line in a fence, and the fence itself, is empty.
fn outside_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().map(move |(at, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (at + 1, if is_code || is_fence { "" } else { line })
    })
}

fn heading(line: &str) -> Option<&str> {
    let words = line.trim_start_matches('#');
    let level = line.len() - words.len();
    (1..=6)
        .contains(&level)
        .then(|| words.strip_prefix(' '))?
        .map(str::trim)
}

/// As GitHub makes it: lower case, a hyphen for each space, and of all other characters only letters, digits, `-` and `_`. The text of a
/// link without its target.
fn slug(heading: &str) -> String {
    let mut words = heading.to_owned();
    while let Some(start) = words.find("](") {
        let end = words[start..]
            .find(')')
            .map_or(words.len(), |end| start + end + 1);
        words.replace_range(start..end, "");
    }
    words
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ => c.is_alphanumeric().then_some(c),
        })
        .collect()
}

/// Code between backticks is blank. Bytes and lines keep their places.
fn without_code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for span in code_spans(text) {
        out.push_str(&text[at..span.start]);
        out.extend(
            text[span.clone()]
                .bytes()
                .map(|b| if b == b'\n' { '\n' } else { ' ' }),
        );
        at = span.end;
    }
    out.push_str(&text[at..]);
    out
}

#[test]
fn anchors_are_those_of_github() {
    for (heading, anchor) in [
        ("When members die or leave", "when-members-die-or-leave"),
        ("The way of a frame", "the-way-of-a-frame"),
        (
            "`sim`, `tests/model` and TigerBeetle's simulator",
            "sim-testsmodel-and-tigerbeetles-simulator",
        ),
        (
            "EPIC's emulation (appendix J, table 19)",
            "epics-emulation-appendix-j-table-19",
        ),
        ("C++ / ECN: p_max = 5 %", "c--ecn-p_max--5-"),
        ("See [decision 7](decisions/0007.md) too", "see-decision-7-too"),
    ] {
        assert_eq!(slug(heading), anchor);
    }
    let page = Page::read("# A\n\n## A\n\n```console\n# castnet switch\n```\n#no heading\n");
    let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
    assert_eq!(anchors, ["a", "a-1"]);
}

#[test]
fn links_in_code_are_none() {
    let page = Page::read(concat!(
        "One [link](a.md#x), `no](b.md)`, ``no ` ](c.md)`` and `code\nover](d.md) lines`, [another\none](e.md \"title\").\n",
        "\n[name]: f.md\n```\n[no](g.md)\n```\n- `a lone tick [link](h.md)\n",
    ));
    let links: Vec<(usize, &str)> = page.links.iter().map(|(l, t)| (*l, t.as_str())).collect();
    assert_eq!(links, [(1, "a.md#x"), (3, "e.md"), (5, "f.md"), (9, "h.md")]);
    let page = Page::read("An <a href=\"i.md\">old</a> one, [one][name] and\n[another][].\n\n[name]: f.md\n");
    assert_eq!(page.links, [(1, "i.md".to_owned()), (4, "f.md".to_owned())]);
    assert_eq!(page.references, [(1, "name".to_owned()), (2, String::new())]);
    assert!(page.names.contains("name"));
}
