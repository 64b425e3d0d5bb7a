//! One run of a target: the corpus first, then mutations of it. An input with a new outcome is
//! mutated further.
//!
//! A panic counts wherever it happens, even if it is caught: in a task, or behind the layer that
//! turns it into an answer.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Once;

use super::mutate::Mutator;
use super::targets::{Outcome, Target};

/// The maximum number of attempts to shrink a failing input. It is lower where a try takes long.
const SHRINKS_MAX: usize = 400;

/// A target with its initial inputs.
pub(crate) struct Hunt<'a> {
    target: &'a Target,
    seed: u64,
    corpus: Vec<Vec<u8>>,
}

/// The statistics of a run.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) tried: usize,
    pub(crate) taken: usize,
    pub(crate) refused: usize,
    /// Outcomes that no input of the corpus had.
    pub(crate) new_by_mutation: usize,
    outcomes: BTreeMap<String, usize>,
}

/// An input that a target failed on.
pub(crate) struct Found {
    /// The number of the try; the corpus comes first.
    tried: usize,
    input: Vec<u8>,
    /// The messages of the panics.
    pub(crate) words: String,
    kept_at: Option<PathBuf>,
}

impl<'a> Hunt<'a> {
    pub(crate) fn of(target: &'a Target, seed: u64) -> Self {
        let mut corpus = corpus(target.name);
        assert!(!corpus.is_empty(), "{} has no corpus", target.name);
        corpus.extend((target.seeds)());
        Self {
            target,
            seed,
            corpus,
        }
    }

    /// Runs the target.
    ///
    /// # Errors
    /// Returns the first input that it fails on, shrunk.
    pub(crate) fn run(&self, run: fn(&[u8]) -> Outcome) -> Result<Tally, Found> {
        let mut tally = Tally::default();
        for input in &self.corpus {
            let outcome = self.attempt(run, input, &tally)?;
            tally.note(&outcome);
        }
        let of_the_corpus = tally.outcomes.len();
        let mut mutator = Mutator::new(self.seed, self.target.words, self.corpus.clone());
        for _ in 0..self.target.tries {
            let input = mutator.next();
            let outcome = self.attempt(run, &input, &tally)?;
            if tally.note(&outcome) {
                mutator.add(input, matches!(outcome, Outcome::Taken(_)));
            }
        }
        tally.new_by_mutation = tally.outcomes.len() - of_the_corpus;
        Ok(tally)
    }

    fn attempt(
        &self,
        run: fn(&[u8]) -> Outcome,
        input: &[u8],
        tally: &Tally,
    ) -> Result<Outcome, Found> {
        watched(run, input).map_err(|words| {
            let mut found = Found {
                tried: tally.tried,
                input: input.to_vec(),
                words,
                kept_at: None,
            };
            found.shrink(run, SHRINKS_MAX.min(self.target.tries / 4));
            found.keep(self.target.name);
            found
        })
    }
}

impl Tally {
    /// Counts an outcome. Returns whether it is new.
    fn note(&mut self, outcome: &Outcome) -> bool {
        self.tried += 1;
        let name = match outcome {
            Outcome::Taken(what) => {
                self.taken += 1;
                format!("taken: {what}")
            }
            Outcome::Refused(why) => {
                self.refused += 1;
                format!("refused: {why}")
            }
        };
        let count = self.outcomes.entry(name).or_default();
        *count += 1;
        *count == 1
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tried,
            taken,
            refused,
            new_by_mutation,
            outcomes,
        } = self;
        write!(
            f,
            "{tried} inputs, {taken} taken, {refused} refused; {} outcomes, {new_by_mutation} of them by mutation",
            outcomes.len()
        )
    }
}

impl Found {
    /// Removes parts of the input while it still fails.
    fn shrink(&mut self, run: fn(&[u8]) -> Outcome, most: usize) {
        let mut shrinks = 0;
        let mut size = self.input.len() / 2;
        while size > 0 {
            let mut at = 0;
            while at < self.input.len() && shrinks < most {
                shrinks += 1;
                let mut smaller = self.input.clone();
                smaller.drain(at..(at + size).min(smaller.len()));
                match watched(run, &smaller) {
                    Err(words) => (self.input, self.words) = (smaller, words),
                    Ok(_) => at += size,
                }
            }
            size /= 2;
        }
    }

    fn keep(&mut self, target: &str) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
        let path = folder.join(format!("{target}-{}", self.tried));
        let kept =
            std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, &self.input));
        self.kept_at = kept.is_ok().then_some(path);
    }

    /// Returns the number of the try and the size of the input.
    pub(crate) fn place(&self) -> String {
        format!("try {} ({} bytes in the end)", self.tried, self.input.len())
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.words)?;
        writeln!(f, "on {}:\n{}", self.place(), self.input.escape_ascii())?;
        match &self.kept_at {
            Some(path) => write!(
                f,
                "it is in {}; in tests/fuzz/corpus it is tried first each time",
                path.display()
            ),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the files of a target's corpus, sorted by name.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let folder =
        std::fs::read_dir(root.join(target)).unwrap_or_else(|error| panic!("{target}: {error}"));
    let mut paths: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

thread_local! {
    /// The messages of this thread's panics while a target runs.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs a target on an input. The error contains the messages of its panics.
fn watched(run: fn(&[u8]) -> Outcome, input: &[u8]) -> Result<Outcome, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let is_noted = PANICS.with_borrow_mut(|panics| {
                let Some(panics) = panics else { return false };
                panics.push(info.to_string());
                true
            });
            if !is_noted {
                usual(info);
            }
        }));
    });
    PANICS.set(Some(Vec::new()));
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| run(input)));
    let panics = PANICS.take().unwrap_or_default();
    match outcome {
        Ok(outcome) if panics.is_empty() => Ok(outcome),
        _ => Err(panics.join("\n")),
    }
}
