//! Command lines in pages: each must be one that its program takes.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// A command line of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// File and line.
    pub place: String,
    /// The program first.
    pub words: Vec<String>,
    /// Something is left out: it ends with `...`, or stands in a sentence.
    pub is_part: bool,
}

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Pages under version control, from the root: what lies beside them does not matter.
///
/// # Panics
/// If git cannot list them.
#[must_use]
pub fn pages() -> Vec<PathBuf> {
    let git = ["ls-files", "-z", "--", "*.md"];
    let listed = Command::new("git").args(git).current_dir(root()).output();
    let listed = listed.expect("git");
    assert!(
        listed.status.success(),
        "{}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let names = String::from_utf8(listed.stdout).expect("UTF-8");
    let names = names.split_terminator('\0').map(PathBuf::from);
    names.filter(|path| root().join(path).exists()).collect()
}

/// What `parse` does not take of the command lines of `program` in all pages, and how many there are.
///
/// # Panics
/// If a page cannot be read.
pub fn faults(program: &str, parse: impl Fn(&[String]) -> Result<(), clap::Error>) -> (usize, Vec<String>) {
    let mut faults = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(root().join(&page)).expect("UTF-8");
        for line in lines(&page.display().to_string(), &text) {
            if line.words[0] != program {
                continue;
            }
            count += 1;
            if let Err(error) = parse(&line.words)
                && !is_allowed(&error, line.is_part)
            {
                let error = error.to_string();
                let first = error.lines().next().unwrap_or_default();
                faults.push(format!("{}: {}: {first}", line.place, line.words.join(" ")));
            }
        }
    }
    (count, faults)
}

/// Help is no fault, nor is a placeholder in capitals as a value, nor that something is missing where something is left out.
fn is_allowed(error: &clap::Error, is_part: bool) -> bool {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::TooFewValues
        | ErrorKind::WrongNumberOfValues => is_part,
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => match error.get(ContextKind::InvalidValue) {
            // A flag that is named without its value.
            Some(ContextValue::String(value)) if value.is_empty() => is_part,
            Some(ContextValue::String(value)) => is_placeholder(value),
            _ => false,
        },
        _ => false,
    }
}

/// `FILE`, `h1=IP`, `$NAME`, `N`.
fn is_placeholder(value: &str) -> bool {
    let word = value.rsplit(['=', ':', ',']).next().unwrap_or(value);
    value.contains('$')
        || !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_ascii_uppercase() || matches!(c, '_' | '-' | '/' | '[' | ']' | '|'))
}

/// All command lines of a page: in blocks of code, and between backticks.
#[must_use]
pub fn lines(page: &str, text: &str) -> Vec<Line> {
    let mut found = Vec::new();
    let place = |number: usize| format!("{page}:{}", number + 1);
    // The paragraph that is being read, and its first line. Code between backticks may go on over lines.
    let (mut first, mut paragraph) = (0, String::new());
    let end_paragraph = |first: usize, paragraph: &mut String, found: &mut Vec<Line>| {
        for span in code_spans(paragraph) {
            let number = first + paragraph[..span.start].matches('\n').count();
            let code = paragraph[span].trim_matches('`').replace('\n', " ");
            found.extend(command_line(&place(number), split_words(&code), true));
        }
        paragraph.clear();
    };
    let mut fence: Option<&str> = None;
    let mut all = text.lines().map(|line| line.trim_start_matches("> ")).enumerate();
    while let Some((number, line)) = all.next() {
        let marks = ["```", "~~~"]
            .into_iter()
            .find(|marks| line.trim_start().starts_with(marks));
        if marks.is_some() && (fence.is_none() || fence == marks) {
            end_paragraph(first, &mut paragraph, &mut found);
            fence = if fence.is_none() { marks } else { None };
        } else if fence.is_some() || line.starts_with("    ") || line.starts_with('\t') {
            let mut whole = line.to_owned();
            while let Some(begin) = whole.strip_suffix('\\') {
                let next = all.next().map_or("", |(_, next)| next.trim());
                whole = format!("{begin}{next}");
            }
            for command in simple_commands(&whole) {
                found.extend(command_line(&place(number), command, false));
            }
        } else if line.trim().is_empty() {
            end_paragraph(first, &mut paragraph, &mut found);
        } else {
            if paragraph.is_empty() {
                first = number;
            }
            paragraph.push_str(line);
            paragraph.push('\n');
        }
    }
    end_paragraph(first, &mut paragraph, &mut found);
    found
}

/// Code between backticks, with these: a span ends at as many as it begins with, and may go on over lines.
#[must_use]
pub fn code_spans(paragraph: &str) -> Vec<Range<usize>> {
    let ticks = |at: usize| paragraph[at..].bytes().take_while(|b| *b == b'`').count();
    let next = |from: usize| paragraph[from..].find('`').map(|found| from + found);
    let (mut spans, mut at) = (Vec::new(), 0);
    while let Some(open) = next(at) {
        let width = ticks(open);
        at = open + width;
        let mut close = at;
        while let Some(found) = next(close) {
            close = found + ticks(found);
            if ticks(found) == width {
                spans.push(open..close);
                at = close;
                break;
            }
        }
    }
    spans
}

/// The commands of a line of a shell, without prompts, comments and redirections.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let line = line.trim_start();
    let line = line
        .strip_prefix("$ ")
        .or(line.strip_prefix("# "))
        .unwrap_or(line)
        .replace("$(", " ; ");
    let mut commands = vec![Vec::new()];
    let mut skips = false;
    for word in split_words(&line) {
        match &*word {
            "#" => break,
            ";" | "|" | "&" | "&&" | "||" | "(" | ")" => {
                commands.push(Vec::new());
                skips = false;
            }
            ">" | "<" | ">>" | "2>" => skips = true,
            _ if skips => skips = false,
            _ => commands.last_mut().expect("one").push(word),
        }
    }
    commands
}

/// Words of a line, with quotes. Operators of the shell are words.
fn split_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut is_word = false;
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                is_word = true;
            }
            (None, ' ' | '\t' | ';' | '|') => {
                if is_word {
                    words.push(std::mem::take(&mut word));
                    is_word = false;
                }
                if matches!(c, ';' | '|') {
                    words.push(c.to_string());
                }
            }
            (None, c) => {
                word.push(c);
                is_word = true;
            }
        }
    }
    if is_word {
        words.push(word);
    }
    words
}

/// The name of a program of ours, without its folder and the bracket of a subshell.
fn program(word: &str) -> Option<&'static str> {
    let name = word.trim_start_matches('(').rsplit('/').next()?;
    ["castnet", "castnet-lab"]
        .into_iter()
        .find(|program| *program == name)
}

/// The command line of a program of ours, if it is one. What runs it is left out: `sudo`, variables, `cargo run`, `ssh`, a prompt.
fn command_line(place: &str, words: Vec<String>, mut is_part: bool) -> Option<Line> {
    let mut words = &words[..];
    loop {
        let rest = &words.get(1..)?;
        words = match &*words[0] {
            "ip" if words.len() > 4 && words[1] == "netns" && words[2] == "exec" => &words[4..],
            "ssh" => words.get(2..)?,
            "sudo" | "env" | "exec" | "time" | "nohup" | "watch" | "nice" | "timeout" => {
                // Their own options, and a number or a duration.
                let is_own =
                    |word: &String| word.starts_with('-') || word.starts_with(|c: char| c.is_ascii_digit());
                &rest[rest.iter().take_while(|word| is_own(word)).count()..]
            }
            "if" | "then" | "else" | "while" | "until" | "do" | "!" => rest,
            word if word.contains('=') && !word.starts_with('-') => rest,
            // Prompts: `h1$ castnet`, `h2, h3: castnet`.
            word if word.ends_with(['$', ':', ',']) => rest,
            "cargo" => break,
            // softroce run h2 -- castnet; docker run IMAGE castnet
            word if program(word).is_none() => {
                let is_container = matches!(word, "docker" | "podman");
                let at = (1..words.len())
                    .find(|at| program(&words[*at]).is_some() && (is_container || words[at - 1] == "--"))?;
                &words[at..]
            }
            _ => break,
        };
    }
    let program = match &*words[0] {
        "cargo" if words.get(1).is_some_and(|word| word == "run") => {
            let end = words.iter().position(|word| word == "--")?;
            let package = words[..end]
                .iter()
                .position(|word| word == "-p" || word == "--package");
            let name = package.map_or("castnet", |at| &*words[at + 1]);
            words = &words[end..];
            program(name)?
        }
        word => program(word)?,
    };
    let mut line = vec![program.to_owned()];
    for word in &words[1..] {
        // The end of a subshell.
        let word = word
            .strip_suffix(')')
            .filter(|rest| !rest.contains('('))
            .unwrap_or(word);
        if word.contains("...") {
            is_part = true;
            // A list that goes on, or the rest.
            if word == "..." {
                break;
            }
        }
        line.push(word.to_owned());
    }
    // `castnet` alone is the name of the program.
    (line.len() > 1).then_some(Line {
        place: place.to_owned(),
        words: line,
        is_part,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(String, bool)> {
        let lines = lines("page", text).into_iter();
        lines.map(|line| (line.words.join(" "), line.is_part)).collect()
    }

    #[test]
    fn command_lines_are_found_in_blocks_and_sentences() {
        let text = "Say `castnet port` or `castnet group create --lanes`, in `castnet`.\n\
                    ```console\n\
                    $ sudo A=b castnet send FILE   # a remark\n\
                    # castnet switch --name a \\\n\
                    \x20   --port b=c; castnet drops | castnet-lab sim ...\n\
                    $ cargo run --release -p castnet-lab -- sim epic > file\n\
                    $ cargo run -- demo\n\
                    $ cargo run -p castnet-fuzz -- engine\n\
                    output of castnet port\n\
                    ```\n";
        let expected = [
            ("castnet port", true),
            ("castnet group create --lanes", true),
            ("castnet send FILE", false),
            ("castnet switch --name a --port b=c", false),
            ("castnet drops", false),
            ("castnet-lab sim", true),
            ("castnet-lab sim epic", false),
            ("castnet demo", false),
        ];
        assert_eq!(
            found(text),
            expected.map(|(line, is_part)| (line.to_owned(), is_part))
        );
    }

    #[test]
    fn command_lines_are_found_behind_what_runs_them() {
        for line in [
            "sudo -E castnet port",
            "env A=b castnet port",
            "watch -n 2 castnet port",
            "timeout 5s nice -n 5 castnet port",
            "for h in h1 h2; do castnet port; done",
            "if ! castnet port; then",
            "(castnet port)",
            "rates=$(castnet port)",
            "h1$ castnet port",
            "h2, h3: castnet port",
            "ssh h1 castnet port",
            "softroce run h2 -- castnet port",
            "docker run --rm image castnet port",
            "cargo run --package castnet -- port",
        ] {
            for block in [
                format!("```\n{line}\n```\n"),
                format!("~~~\n{line}\n~~~\n"),
                format!("> ```\n> {line}\n> ```\n"),
                format!("\t{line}\n"),
            ] {
                assert_eq!(found(&block), [("castnet port".to_owned(), false)], "{block}");
            }
        }
        let sentence =
            "A lone `` tick. See `castnet\nport` and\n`castnet drops`.\n\nAnd `` castnet events ``.\n";
        let expected = ["castnet port", "castnet drops", "castnet events"];
        assert_eq!(found(sentence), expected.map(|line| (line.to_owned(), true)));
    }

    #[test]
    fn a_placeholder_is_in_capitals() {
        for good in ["FILE", "h1=IP", "unix:PATH", "$NAME", "IP[/BITS]", "N"] {
            assert!(is_placeholder(good), "{good}");
        }
        for bad in ["", "file", "h1=", "7", "10G"] {
            assert!(!is_placeholder(bad), "{bad}");
        }
    }
}
