//! Mutates known inputs and keeps those that reach something new. For stable toolchains and for CI.
//!
//! libFuzzer gets coverage from instrumentation. Here the targets provide it: each [reports](reached) the behaviours
//! that an input reaches (a drop reason, a state of a machine). The seed and the corpus determine everything.

use crate::Target;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{self, AssertUnwindSafe};

/// Most records of an input.
const RECORDS_MAX: usize = 96;
/// Most bytes of an input without fixed records.
const BYTES_MAX: usize = 4096;
/// Most runs for the minimisation of an input.
const MINIMISE_RUNS: usize = 4000;

thread_local! {
    static REACHED: RefCell<BTreeSet<u64>> = const { RefCell::new(BTreeSet::new()) };
    static PRINTS_STEPS: Cell<bool> = const { Cell::new(false) };
}

/// Reports a behaviour that the current input has reached. A target should have at most a few thousand different
/// values, otherwise the corpus grows without end.
pub fn reached(behaviour: impl Hash) {
    let mut hasher = DefaultHasher::new();
    behaviour.hash(&mut hasher);
    REACHED.with_borrow_mut(|reached| reached.insert(hasher.finish()));
}

/// Prints a step of the target during a replay.
pub fn print_step(what: impl FnOnce() -> String) {
    if PRINTS_STEPS.get() {
        println!("{}", what());
    }
}

/// Runs one input and prints its steps.
pub fn replay(target: &Target, input: &[u8]) {
    PRINTS_STEPS.set(true);
    (target.run)(input);
    PRINTS_STEPS.set(false);
}

/// splitmix64: small, and equal on all platforms.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % n.max(1) as u64) as usize
    }
}

/// An input that violates a rule.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Number of the run that found it, from 0. Seed, target, corpus and this number reproduce it.
    pub run: u64,
    /// The minimised input.
    pub input: Vec<u8>,
}

/// A target that is being fuzzed.
#[derive(Debug)]
pub struct Fuzzer<'t> {
    target: &'t Target,
    corpus: Vec<Vec<u8>>,
    reached: BTreeSet<u64>,
    random: Random,
    runs: u64,
}

impl<'t> Fuzzer<'t> {
    /// Runs the committed corpus of `target`, which must pass.
    pub fn new(target: &'t Target, seed: u64) -> Self {
        let mut fuzzer = Self {
            target,
            corpus: Vec::new(),
            reached: BTreeSet::new(),
            random: Random(seed),
            runs: 0,
        };
        for (name, input) in target.corpus() {
            assert!(fuzzer.passes(&input), "{}: corpus file {name} fails", target.name);
            fuzzer.keep_if_new(input);
        }
        if fuzzer.corpus.is_empty() {
            fuzzer.corpus.push(Vec::new());
        }
        fuzzer
    }

    /// Number of mutations so far.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Number of inputs in the corpus, including the committed ones, and of behaviours that they reach.
    pub fn found(&self) -> (usize, usize) {
        (self.corpus.len(), self.reached.len())
    }

    /// Runs one mutation.
    ///
    /// # Errors
    /// The mutation violates a rule.
    pub fn step(&mut self) -> Result<(), Failure> {
        let input = self.mutation();
        self.runs += 1;
        if self.passes(&input) {
            self.keep_if_new(input);
            return Ok(());
        }
        Err(Failure {
            run: self.runs - 1,
            input: self.minimised(input),
        })
    }

    fn passes(&self, input: &[u8]) -> bool {
        REACHED.with_borrow_mut(BTreeSet::clear);
        panic::catch_unwind(AssertUnwindSafe(|| (self.target.run)(input))).is_ok()
    }

    /// Keeps the input of the last run if it reached a new behaviour.
    fn keep_if_new(&mut self, input: Vec<u8>) {
        let before = self.reached.len();
        REACHED.with_borrow_mut(|reached| self.reached.append(reached));
        if self.reached.len() > before {
            self.corpus.push(input);
        }
    }

    fn mutation(&mut self) -> Vec<u8> {
        // Newer inputs are chosen more often than old ones.
        let all = self.corpus.len();
        let from = match self.random.below(3) {
            0 => all - 1 - self.random.below(all.div_ceil(8)),
            _ => self.random.below(all),
        };
        let mut input = self.corpus[from].clone();
        for _ in 0..=self.random.below(4) {
            if self.random.below(3) == 0 {
                self.change_records(&mut input);
            } else {
                self.change_byte(&mut input);
            }
        }
        let record = self.target.record;
        input.truncate(if record == 1 {
            BYTES_MAX
        } else {
            RECORDS_MAX * record
        });
        input
    }

    fn change_byte(&mut self, input: &mut Vec<u8>) {
        let random = &mut self.random;
        if input.is_empty() {
            return input.push(random.draw() as u8);
        }
        // Most rules concern headers, so most changes of a frame affect its headers.
        let reach = match self.target.record == 1 && random.below(4) > 0 {
            true => input.len().min(80),
            false => input.len(),
        };
        let (at, byte) = (random.below(reach), random.draw() as u8);
        match random.below(7) {
            0 => input[at] ^= 1 << (byte % 8),
            1 | 2 => input[at] = byte,
            3 => input[at] = input[at].wrapping_add(byte % 9).wrapping_sub(4),
            4 => input[at] = [0, 1, 0x7F, 0x80, 0xFF][usize::from(byte) % 5],
            5 if self.target.record == 1 => input.insert(at, byte),
            6 if self.target.record == 1 => drop(input.remove(at)),
            _ => input[at] = input[random.below(reach)],
        }
    }

    /// Repeats, removes, or copies from another input, whole records.
    fn change_records(&mut self, input: &mut Vec<u8>) {
        let record = self.target.record;
        let at = self.random.below(input.len() / record + 1) * record;
        match self.random.below(5) {
            0 => {
                let length = (1 + self.random.below(6)) * record;
                input.drain(at..(at + length).min(input.len()));
            }
            1 | 2 => {
                let piece = self.piece(input, 6);
                input.splice(at..at, piece);
            }
            3 => {
                let other = self.random.below(self.corpus.len());
                let other = self.corpus[other].clone();
                let piece = self.piece(&other, 24);
                input.splice(at..at, piece);
            }
            _ => {
                let fresh: Vec<u8> = (0..record).map(|_| self.random.draw() as u8).collect();
                input.splice(at..at, fresh);
            }
        }
    }

    /// Up to `most` records of an input.
    fn piece(&mut self, of: &[u8], most: usize) -> Vec<u8> {
        let record = self.target.record;
        let count = of.len() / record;
        let from = self.random.below(count);
        let to = count.min(from + 1 + self.random.below(most));
        of[from * record..to * record].to_vec()
    }

    /// The input without the parts that are not needed for the failure: removed, or set to zero. Prints nothing.
    fn minimised(&self, mut input: Vec<u8>) -> Vec<u8> {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        let (record, mut left) = (self.target.record, MINIMISE_RUNS);
        let mut fails = |input: &[u8]| {
            left = left.saturating_sub(1);
            left > 0 && !self.passes(input)
        };
        let mut piece = (input.len() / record / 2).max(1) * record;
        loop {
            let (mut at, before) = (0, input.len());
            while at < input.len() {
                let mut shorter = input.clone();
                shorter.drain(at..(at + piece).min(input.len()));
                if fails(&shorter) {
                    input = shorter;
                } else {
                    at += piece;
                }
            }
            if piece > record {
                piece = (piece / record / 2).max(1) * record;
            } else if input.len() == before {
                break;
            }
        }
        for at in 0..input.len() {
            let was = std::mem::take(&mut input[at]);
            if was != 0 && !fails(&input) {
                input[at] = was;
            }
        }
        panic::set_hook(hook);
        input
    }
}
