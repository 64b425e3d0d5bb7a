//! Histories in files, one per process. Each line is written at once, so that a killed process
//! leaves complete lines, except possibly the last one.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::event::{Event, Phase};

/// A history that is being written.
#[derive(Debug)]
pub(crate) struct HistoryFile {
    file: File,
}

impl HistoryFile {
    /// Opens a file for appending, and creates it if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let file = opened.with_context(|| format!("history {}", path.display()))?;
        Ok(Self { file })
    }

    /// Writes one line with one write(2): if the process is killed afterwards, the event is in the
    /// file.
    pub(crate) fn append(&self, event: &Event) -> Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        (&self.file).write_all(&line).context("history")
    }
}

/// All events of a run, in the order in which they happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// The events by time. Events of the same moment keep the order in which they were recorded.
    pub(crate) events: Vec<Event>,
    /// The position of each event: `FILE:LINE`, or its index in a history without files.
    places: Vec<(usize, usize)>,
    files: Vec<PathBuf>,
    /// The number of files that end in an incomplete line, because the process was killed. The
    /// event of such a line is unknown: the request had not begun, or the outcome was never used.
    pub(crate) torn: usize,
}

impl History {
    /// Returns a history without files, in the order in which it was recorded.
    pub(crate) fn of(events: Vec<Event>) -> Self {
        let places = (1..=events.len()).map(|line| (0, line)).collect();
        let mut history = Self {
            events,
            places,
            ..Self::default()
        };
        history.sort();
        history
    }

    /// Reads the files of a run.
    ///
    /// # Errors Returns the file and number of a line that is not an event. Only the last line of a
    /// file may be incomplete.
    pub(crate) fn read(paths: &[PathBuf]) -> Result<Self> {
        let mut history = Self::default();
        for path in paths {
            let text = std::fs::read(path).with_context(|| path.display().to_string())?;
            history.add(path, &text)?;
        }
        history.sort();
        Ok(history)
    }

    /// Reads all files of a directory whose names end in `.jsonl`.
    pub(crate) fn read_directory(directory: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        for entry in directory
            .read_dir()
            .with_context(|| directory.display().to_string())?
        {
            paths.push(entry?.path());
        }
        paths.retain(|path| path.extension().is_some_and(|it| it == "jsonl"));
        paths.sort();
        if paths.is_empty() {
            bail!("{} has no history (*.jsonl)", directory.display());
        }
        Self::read(&paths)
    }

    fn add(&mut self, path: &Path, text: &[u8]) -> Result<()> {
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        if whole < text.len() {
            self.torn += 1;
        }
        self.files.push(path.to_owned());
        for (number, line) in text[..whole].split(|byte| *byte == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            let event = serde_json::from_slice(line)
                .with_context(|| format!("{}:{} is no event", path.display(), number + 1))?;
            self.events.push(event);
            self.places.push((self.files.len() - 1, number + 1));
        }
        Ok(())
    }

    /// Sorts by time. Of two events of the same moment in two files, the invocation comes first. So
    /// neither operation counts as ended before the other began. Events of one file keep their
    /// order.
    fn sort(&mut self) {
        let several = self.files.len() > 1;
        let mut order: Vec<usize> = (0..self.events.len()).collect();
        order.sort_by_key(|&index| {
            let event = &self.events[index];
            (event.at, several && event.phase != Phase::Invoke)
        });
        self.events = order
            .iter()
            .map(|&index| self.events[index].clone())
            .collect();
        self.places = order.iter().map(|&index| self.places[index]).collect();
    }

    /// Returns the events until then.
    pub(crate) fn up_to(mut self, at: u64) -> Self {
        let known = self.events.partition_point(|event| event.at <= at);
        self.events.truncate(known);
        self.places.truncate(known);
        self
    }

    /// Returns the position of an event, for messages.
    pub(crate) fn place(&self, index: usize) -> String {
        let (file, line) = self.places[index];
        match self.files.get(file).and_then(|path| path.file_name()) {
            Some(name) => format!("{}:{line}", name.to_string_lossy()),
            None => format!("#{line}"),
        }
    }

    /// Writes it as one file, in order.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let mut text = Vec::new();
        for event in &self.events {
            serde_json::to_writer(&mut text, event)?;
            text.push(b'\n');
        }
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}
