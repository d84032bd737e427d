//! One line a scenario, and all failures at the end.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};

use crate::GATE;

pub(crate) struct Report {
    words: Vec<String>,
    begun: Instant,
    run: usize,
    failures: Vec<String>,
}

impl Report {
    /// Of the scenarios whose names hold one of `words`, or of all with the word `all`; of those of the gate where there are none.
    pub(crate) fn new(words: Vec<String>) -> Self {
        Self {
            words,
            begun: Instant::now(),
            run: 0,
            failures: Vec::new(),
        }
    }

    /// Whether the scenarios of the gate run, and no others.
    pub(crate) fn is_gate(&self) -> bool {
        self.words.is_empty()
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        match &self.words[..] {
            [] => GATE.contains(&name),
            words => words
                .iter()
                .any(|word| word == "all" || name.contains(word.as_str())),
        }
    }

    pub(crate) fn note(&self, text: &str) {
        eprintln!("     {text}");
    }

    pub(crate) fn run(&mut self, name: &str, scenario: impl FnOnce() -> Result<String>) {
        if !self.wants(name) {
            return;
        }
        let start = Instant::now();
        match scenario() {
            Ok(said) => {
                self.run += 1;
                eprintln!("ok   {name:<32} {:6.1} s  {said}", start.elapsed().as_secs_f64());
            }
            Err(error) => self.failed(name, start.elapsed(), &error),
        }
    }

    pub(crate) fn failed(&mut self, name: &str, took: Duration, error: &Error) {
        eprintln!("FAIL {name:<32} {:6.1} s  {error:#}", took.as_secs_f64());
        self.run += 1;
        self.failures.push(format!("{name}: {error:#}"));
    }

    pub(crate) fn finish(self) -> ExitCode {
        let seconds = self.begun.elapsed().as_secs_f64();
        // A scenario with another name would be left out in silence.
        if self.words.is_empty() && self.failures.is_empty() {
            assert_eq!(self.run, GATE.len(), "names of the gate that no scenario has");
        }
        eprintln!(
            "\n{} scenarios, {} failed, {seconds:.0} s",
            self.run,
            self.failures.len()
        );
        for failure in &self.failures {
            eprintln!("failed: {failure}");
        }
        if self.failures.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
