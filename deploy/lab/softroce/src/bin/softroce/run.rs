//! `softroce run`.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use castnet_softroce::{Job, LabError, Output};

use crate::{Run, find_host, signals};

const LOOK_EVERY: Duration = Duration::from_millis(50);
/// As of timeout(1).
const TOO_LONG: u8 = 124;

pub(crate) fn run(ask: &Run) -> Result<ExitCode, LabError> {
    let end = signals::ends()?;
    let host = find_host(&ask.which)?;
    let mut job = host.spawn(&script(&ask.command))?;
    let deadline = ask.timeout.map(|s| Instant::now() + Duration::from_secs(s));
    let mut shown = (0, 0);
    loop {
        let waited = job.wait(LOOK_EVERY);
        show(&job, &mut shown);
        match waited {
            Ok(output) => return Ok(code(&output)),
            Err(LabError::Timeout { .. }) => {}
            Err(e) => return Err(e),
        }
        let late = deadline.is_some_and(|at| Instant::now() >= at);
        if late || end.try_recv().is_ok() {
            job.kill()?;
            let output = job.wait(Duration::from_secs(10))?;
            show(&job, &mut shown);
            return Ok(if late {
                ExitCode::from(TOO_LONG)
            } else {
                code(&output)
            });
        }
    }
}

fn code(output: &Output) -> ExitCode {
    ExitCode::from(u8::try_from(output.code).unwrap_or(u8::MAX))
}

fn show(job: &Job, shown: &mut (usize, usize)) {
    let now = job.output_so_far();
    let (out, err) = (now.stdout.as_bytes(), now.stderr.as_bytes());
    let _ = std::io::stdout().write_all(&out[shown.0.min(out.len())..]);
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().write_all(&err[shown.1.min(err.len())..]);
    *shown = (out.len(), err.len());
}

fn script(words: &[String]) -> String {
    match words {
        [script] => script.clone(),
        _ => words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_apart_and_a_script_stays_whole() {
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        assert_eq!(script(&words(&["a | b"])), "a | b");
        assert_eq!(script(&words(&["echo", "it's", "$x"])), r"'echo' 'it'\''s' '$x'");
    }
}
