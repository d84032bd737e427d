//! The driver: mutates inputs that are known, and keeps those that reach something new. For stable toolchains and for CI.
//!
//! What libFuzzer takes from instrumentation comes from the targets here: each [reports](reached) the behaviours that an
//! input reaches (a drop reason, a state of a machine). Everything follows from the seed and the corpus.

use crate::Target;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{self, AssertUnwindSafe};

/// Inputs do not grow beyond so many records.
const RECORDS_MAX: usize = 96;
/// Nor beyond so many bytes, where records are bytes.
const BYTES_MAX: usize = 4096;
/// Runs that making an input smaller may take.
const MINIMISE_RUNS: usize = 4000;

thread_local! {
    static REACHED: RefCell<BTreeSet<u64>> = const { RefCell::new(BTreeSet::new()) };
    static TELLS: Cell<bool> = const { Cell::new(false) };
}

/// Reports that the input at hand has reached this behaviour. Few thousand different values at most per target, or the corpus
/// grows without end.
pub fn reached(behaviour: impl Hash) {
    let mut hasher = DefaultHasher::new();
    behaviour.hash(&mut hasher);
    REACHED.with_borrow_mut(|reached| reached.insert(hasher.finish()));
}

/// Prints what a target does, where one input is replayed for a person.
pub fn tell(what: impl FnOnce() -> String) {
    if TELLS.get() {
        println!("{}", what());
    }
}

/// Runs one input with its steps printed.
pub fn replay(target: &Target, input: &[u8]) {
    TELLS.set(true);
    (target.run)(input);
    TELLS.set(false);
}

/// splitmix64: small, and the same everywhere.
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

    /// A number below `n`; 0 where `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % n.max(1) as u64) as usize
    }
}

/// An input that broke a rule.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The run that made it, counted from 0; with the seed, the target and the corpus it can be had again.
    pub run: u64,
    /// The input, made as small as the driver could.
    pub input: Vec<u8>,
}

/// One target being fuzzed.
#[derive(Debug)]
pub struct Fuzzer<'t> {
    target: &'t Target,
    corpus: Vec<Vec<u8>>,
    reached: BTreeSet<u64>,
    random: Random,
    runs: u64,
}

impl<'t> Fuzzer<'t> {
    /// Begins with the committed corpus of `target`, which must pass.
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

    /// Mutations run so far.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Inputs kept, the committed ones among them, and behaviours that they reach.
    pub fn found(&self) -> (usize, usize) {
        (self.corpus.len(), self.reached.len())
    }

    /// One mutation more.
    ///
    /// # Errors
    /// It broke a rule.
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

    /// Keeps an input that has just run, if it reached something that none did before.
    fn keep_if_new(&mut self, input: Vec<u8>) {
        let before = self.reached.len();
        REACHED.with_borrow_mut(|reached| self.reached.append(reached));
        if self.reached.len() > before {
            self.corpus.push(input);
        }
    }

    fn mutation(&mut self) -> Vec<u8> {
        // What was found last leads on more often than what is known for long.
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
        // Headers are where the rules are: in frames most changes go there.
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

    /// Repeats, takes away, or takes over from another input, whole records.
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

    /// The input with everything taken away, or set to zero, without which it still fails. Says nothing meanwhile.
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
