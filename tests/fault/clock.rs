//! Clocks that lie, by libfaketime: one that runs fast or slow, a wall clock that leaps, and one that leaps
//! forth as after a sleep.
//!
//! libfaketime begins anew with each process that it is loaded into. So a process with a rate of its own forgets,
//! when it is started again, by how much the one before was ahead; it must not be given that one's state file,
//! which no real clock would do to it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// What a process is told about the time.
pub(crate) struct Clock {
    kind: Kind,
    /// What libfaketime reads once a second, where something can change.
    file: PathBuf,
    ahead: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All clocks count so many seconds while a hundred pass.
    Rate(u64),
    /// The wall clock alone may leap.
    Wall,
    /// All clocks may leap forth.
    All,
}

impl Clock {
    /// One that counts so many seconds while a hundred pass.
    pub(crate) fn running(directory: &Path, percent: u64) -> Result<Self> {
        Self::new(directory, Kind::Rate(percent))
    }

    /// One whose wall clock may leap.
    pub(crate) fn with_wall(directory: &Path) -> Result<Self> {
        Self::new(directory, Kind::Wall)
    }

    /// One that may leap forth.
    pub(crate) fn leaping(directory: &Path) -> Result<Self> {
        Self::new(directory, Kind::All)
    }

    fn new(directory: &Path, kind: Kind) -> Result<Self> {
        let file = directory.join(format!("clock-{}", name_of(kind)));
        let clock = Self {
            kind,
            file,
            ahead: 0,
        };
        clock.write()?;
        Ok(clock)
    }

    /// What starts a process under this clock.
    pub(crate) fn through(&self) -> Result<Vec<String>> {
        let mut command = vec![
            "env".to_owned(),
            format!("LD_PRELOAD={}", library()?.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()),
            "FAKETIME_CACHE_DURATION=1".to_owned(),
        ];
        if self.kind == Kind::Wall {
            command.push("FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned());
        }
        Ok(command)
    }

    /// Whether a process that is started again sees the time that the one before would see now.
    pub(crate) const fn outlives_processes(&self) -> bool {
        !matches!(self.kind, Kind::Rate(_))
    }

    /// How much time it counts while a hundred seconds pass.
    pub(crate) fn percent(&self) -> u64 {
        match self.kind {
            Kind::Rate(percent) => percent,
            Kind::Wall | Kind::All => 100,
        }
    }

    /// Leaps forth, if it can; it is seen within a second.
    pub(crate) fn leap(&mut self, seconds: u64) -> Result<()> {
        if self.kind == Kind::All {
            self.ahead += i64::try_from(seconds)?;
            self.write()?;
        }
        Ok(())
    }

    /// The wall clock leaps, if it can by itself; says so.
    pub(crate) fn leap_wall(&mut self, seconds: i64) -> Result<Option<String>> {
        if self.kind != Kind::Wall {
            return Ok(None);
        }
        self.ahead += seconds;
        self.write()?;
        Ok(Some(format!("the wall clock leaps by {seconds} s")))
    }

    /// Whole or not at all: it is read at any moment.
    fn write(&self) -> Result<()> {
        let says = match self.kind {
            Kind::Rate(percent) => format!("+0 x{}.{:02}\n", percent / 100, percent % 100),
            Kind::Wall | Kind::All => format!("{:+}\n", self.ahead),
        };
        let new = self.file.with_extension("new");
        std::fs::write(&new, says)?;
        Ok(std::fs::rename(new, &self.file)?)
    }
}

fn name_of(kind: Kind) -> String {
    match kind {
        Kind::Rate(percent) => format!("at-{percent}"),
        Kind::Wall => "wall".to_owned(),
        Kind::All => "leaping".to_owned(),
    }
}

/// Where Debian has it, on any architecture.
fn library() -> Result<PathBuf> {
    let mut places = Vec::new();
    for entry in Path::new("/usr/lib").read_dir()? {
        places.push(entry?.path().join("faketime/libfaketimeMT.so.1"));
    }
    let found = places.into_iter().find(|place| place.is_file());
    found.context("libfaketime is missing; run `scripts/need.sh fault`")
}
