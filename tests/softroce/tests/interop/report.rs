//! One line a scenario, and all failures at the end.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};

pub(crate) struct Report {
    words: Vec<String>,
    begun: Instant,
    run: usize,
    failures: Vec<String>,
}

impl Report {
    /// Of the scenarios whose names hold one of `words`; of all where there are none.
    pub(crate) fn new(words: Vec<String>) -> Self {
        Self {
            words,
            begun: Instant::now(),
            run: 0,
            failures: Vec::new(),
        }
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word.as_str()))
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
