//! Command lines in pages: each must be one that its program takes.

use std::fs;
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

/// All command lines of a page.
#[must_use]
pub fn lines(page: &str, text: &str) -> Vec<Line> {
    let mut found = Vec::new();
    let mut fence = false;
    let mut all = text.lines().enumerate().peekable();
    while let Some((number, line)) = all.next() {
        let place = format!("{page}:{}", number + 1);
        if line.trim_start().starts_with("```") {
            fence = !fence;
        } else if fence || line.starts_with("    ") {
            let mut whole = line.to_owned();
            while let Some(begin) = whole.strip_suffix('\\') {
                let next = all.next().map_or("", |(_, next)| next.trim());
                whole = format!("{begin}{next}");
            }
            for command in simple_commands(&whole) {
                found.extend(command_line(&place, command, false));
            }
        } else {
            for span in line.split('`').skip(1).step_by(2) {
                found.extend(command_line(&place, split_words(span), true));
            }
        }
    }
    found
}

/// The commands of a line of a shell, without prompts, comments and redirections.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let line = line.trim_start();
    let line = line
        .strip_prefix("$ ")
        .or(line.strip_prefix("# "))
        .unwrap_or(line);
    let mut commands = vec![Vec::new()];
    let mut skips = false;
    for word in split_words(line) {
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

/// The command line of a program of ours, if it is one. What runs it is left out: `sudo`, variables, `cargo run`.
fn command_line(place: &str, words: Vec<String>, mut is_part: bool) -> Option<Line> {
    let mut words = &words[..];
    loop {
        let rest = &words.get(1..)?;
        words = match &*words[0] {
            "sudo" | "exec" | "time" | "nohup" => rest,
            "ip" if words.len() > 4 && words[1] == "netns" && words[2] == "exec" => &words[4..],
            word if word.contains('=') && !word.starts_with('-') => rest,
            _ => break,
        };
    }
    let program = match words[0].rsplit('/').next()? {
        "castnet" => "castnet",
        "castnet-lab" => "castnet-lab",
        "cargo" if words.get(1).is_some_and(|word| word == "run") => {
            let end = words.iter().position(|word| word == "--")?;
            let package = words[..end].iter().position(|word| word == "-p");
            let program = package.map_or("castnet", |at| &*words[at + 1]);
            words = &words[end..];
            match program {
                "castnet" => "castnet",
                "castnet-lab" => "castnet-lab",
                _ => return None,
            }
        }
        _ => return None,
    };
    let mut line = vec![program.to_owned()];
    for word in &words[1..] {
        if word.contains("...") {
            is_part = true;
            // A list that goes on, or the rest.
            if word == "..." {
                break;
            }
        }
        line.push(word.clone());
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
        let text = "Say `castnet port` or `castnet group create --tree`, in `castnet`.\n\
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
            ("castnet group create --tree", true),
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
    fn a_placeholder_is_in_capitals() {
        for good in ["FILE", "h1=IP", "unix:PATH", "$NAME", "IP[/BITS]", "N"] {
            assert!(is_placeholder(good), "{good}");
        }
        for bad in ["", "file", "h1=", "7", "10G"] {
            assert!(!is_placeholder(bad), "{bad}");
        }
    }
}
