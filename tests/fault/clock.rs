//! Clocks that lie, by libfaketime: one that runs fast or slow, a wall clock that leaps, and one that leaps
//! forth as after a sleep.
//!
//! libfaketime begins anew with each process that it is loaded into. So a process with a rate of its own forgets,
//! when it is started again, by how much the one before was ahead; it must not be given that one's state file,
//! which no real clock would do to it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::clock::{Clock as _, SystemClock};

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

    /// Whether it may leap forth.
    pub(crate) fn may_leap(&self) -> bool {
        self.kind == Kind::All
    }

    /// Leaps forth; it is seen within a second.
    pub(crate) fn leap(&mut self, seconds: u64) -> Result<()> {
        self.ahead += i64::try_from(seconds)?;
        self.write()
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

/// What a process counts while a second passes, in hundredths, and its wall clock in seconds.
async fn looks_of(clock: Option<&Clock>) -> Result<(u64, i64)> {
    let through = clock.map(Clock::through).transpose()?.unwrap_or_default();
    let us = std::env::current_exe()?;
    let mut command = match through.split_first() {
        Some((first, others)) => {
            let mut command = Command::new(first);
            command.args(others).arg(us);
            command
        }
        None => Command::new(us),
    };
    command.args(["--exact", "clock::two_looks", "--ignored", "--nocapture"]);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let said = String::from_utf8(output.stdout)?;
    let line = said.lines().find_map(|line| line.strip_prefix(LOOKS));
    let mut words = line.context(said.clone())?.split(' ');
    let mut next = || words.next().context("two numbers");
    Ok((next()?.parse()?, next()?.parse()?))
}

/// What the line begins with that tells two looks at the clock.
const LOOKS: &str = "looks: ";

/// By the kernel's own count, which nobody fakes: hundredths of a second since the start.
fn uptime() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let first = text.split(' ').next().context("a number")?;
    Ok(first.replace('.', "").parse()?)
}

#[test]
#[ignore = "it is a process that the next test starts"]
fn two_looks() -> Result<()> {
    let (began, counted) = (uptime()?, SystemClock.now());
    while uptime()? < began + 100 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let passed = uptime()? - began;
    let counted = u64::try_from(SystemClock.now().since(counted).as_millis())?;
    let wall = SystemClock.wall().0 / 1_000_000;
    println!("\n{LOOKS}{} {wall}", counted * 10 / passed);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn our_clock_believes_what_it_is_told() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let true_wall = SystemClock.wall().0 / 1_000_000;
    let mut wall = Clock::with_wall(directory.path())?;
    wall.leap_wall(90_000)?;
    let fast = Clock::running(directory.path(), 150)?;
    for (clock, percent, ahead) in [
        (None, 100, 0),
        (Some(&fast), 150, 0),
        (Some(&wall), 100, 90_000),
    ] {
        let (counted, at) = looks_of(clock).await?;
        ensure!(counted.abs_diff(percent) < 10, "{counted}, not {percent}");
        let off = at - true_wall - ahead;
        ensure!((0..60).contains(&off), "the wall clock is off by {off} s");
    }
    Ok(())
}
