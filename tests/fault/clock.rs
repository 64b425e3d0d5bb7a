//! Wrong clocks by libfaketime: one that runs fast or slow, a wall clock that jumps, and one that
//! jumps forward as after a suspend.
//!
//! libfaketime starts again in each process. So a restarted process forgets by how much its
//! predecessor was ahead. It must not get the predecessor's state file: no real clock behaves like
//! that.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::clock::{Clock as _, SystemClock};
use leasehold::protocol::time::Moment;

use crate::harness::eventually;
use crate::world::LIMIT;

/// The clock of a process.
pub(crate) struct Clock {
    kind: Kind,
    /// The file that libfaketime reads once a second, for clocks that can change.
    file: PathBuf,
    ahead: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All clocks run at this percentage of the true rate.
    Rate(u64),
    /// Only the wall clock may jump.
    Wall,
    /// All clocks may jump forward.
    All,
}

impl Clock {
    /// Returns a clock that runs at this percentage of the true rate.
    pub(crate) fn running(directory: &Path, percent: u64) -> Result<Self> {
        Self::new(directory, Kind::Rate(percent))
    }

    /// Returns a clock whose wall clock may jump.
    pub(crate) fn with_wall(directory: &Path) -> Result<Self> {
        Self::new(directory, Kind::Wall)
    }

    /// Returns a clock that may jump forward.
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

    /// Returns the command prefix that starts a process under this clock.
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

    /// Returns whether a restarted process sees the time that its predecessor would see now.
    pub(crate) const fn outlives_processes(&self) -> bool {
        !matches!(self.kind, Kind::Rate(_))
    }

    /// Returns the rate of this clock, in percent of the true rate.
    pub(crate) fn percent(&self) -> u64 {
        match self.kind {
            Kind::Rate(percent) => percent,
            Kind::Wall | Kind::All => 100,
        }
    }

    /// Whether it may jump forward.
    pub(crate) fn may_leap(&self) -> bool {
        self.kind == Kind::All
    }

    /// Jumps forward. This takes effect within two seconds: libfaketime needs whole seconds that
    /// differ by more than one.
    pub(crate) fn leap(&mut self, seconds: u64) -> Result<()> {
        self.ahead += i64::try_from(seconds)?;
        self.write()
    }

    /// Moves the wall clock, if only that can jump; returns a description.
    pub(crate) fn leap_wall(&mut self, seconds: i64) -> Result<Option<String>> {
        if self.kind != Kind::Wall {
            return Ok(None);
        }
        self.ahead += seconds;
        self.write()?;
        Ok(Some(format!("the wall clock leaps by {seconds} s")))
    }

    /// Writes the file completely or not at all: it may be read at any moment.
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

/// Returns the path where Debian installs it, on any architecture.
fn library() -> Result<PathBuf> {
    let mut places = Vec::new();
    for entry in Path::new("/usr/lib").read_dir()? {
        places.push(entry?.path().join("faketime/libfaketimeMT.so.1"));
    }
    let found = places.into_iter().find(|place| place.is_file());
    found.context("libfaketime is missing; run `scripts/need.sh fault`")
}

/// The readings of a process.
struct Readings {
    /// The process's rate, in percent of the true rate.
    percent: u64,
    /// The number of seconds by which its clock is ahead of the time that passed.
    ahead: u64,
    /// Its wall clock, in seconds.
    wall: i64,
}

/// The prefix of the line that reports both readings.
const READINGS: &str = "looks: ";
/// The time between the readings, in hundredths of a second: an error of one is a third of a percent.
const BETWEEN: u64 = 300;
/// The directory where the process reports its first reading, and waits before its second.
const RENDEZVOUS: &str = "LEASEHOLD_FAULT_MEETING";

/// Starts a process under a clock that reads it twice; `between` runs between the readings.
async fn readings_of(
    clock: Option<&mut Clock>,
    meanwhile: impl FnOnce(&mut Clock) -> Result<()>,
) -> Result<Readings> {
    let rendezvous = tempfile::tempdir()?;
    let through = clock.as_ref().map(|clock| clock.through());
    let mut words = through.transpose()?.unwrap_or_default();
    words.push(std::env::current_exe()?.display().to_string());
    let (first, others) = words.split_first().context("a command")?;
    let mut command = Command::new(first);
    command.args(others).env(RENDEZVOUS, rendezvous.path());
    command.args(["--exact", "clock::two_readings", "--ignored", "--nocapture"]);
    let looking = tokio::task::spawn_blocking(move || command.output());
    let mut done = Ok(());
    if let Some(clock) = clock {
        let looked = rendezvous.path().join("looked");
        let is_there = async || looked.exists().then_some(());
        done = eventually("the first look", LIMIT, is_there).await;
        done = done.and_then(|()| meanwhile(clock));
    }
    // Also after an error, so that the process does not wait forever.
    std::fs::write(rendezvous.path().join("go-on"), "")?;
    done?;
    let said = String::from_utf8(looking.await??.stdout)?;
    let line = said.lines().find_map(|line| line.strip_prefix(READINGS));
    let mut words = line.context(said.clone())?.split(' ');
    let mut next = || words.next().context("three numbers");
    Ok(Readings {
        percent: next()?.parse()?,
        ahead: next()?.parse()?,
        wall: next()?.parse()?,
    })
}

/// Reads the kernel's own counter, which is never faked: hundredths of a second since boot.
fn uptime() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let first = text.split(' ').next().context("a number")?;
    Ok(first.replace('.', "").parse()?)
}

/// Reads both clocks: the true time in hundredths of a second, and our clock.
fn read_clocks() -> Result<(u64, Moment)> {
    loop {
        let (passed, counted) = (uptime()?, SystemClock.now());
        if uptime()? == passed {
            return Ok((passed, counted));
        }
    }
}

#[test]
#[ignore = "it is a process that the next tests start"]
fn two_readings() -> Result<()> {
    let rendezvous = PathBuf::from(std::env::var_os(RENDEZVOUS).context(RENDEZVOUS)?);
    let (began, counted) = read_clocks()?;
    std::fs::write(rendezvous.join("looked"), "")?;
    while !rendezvous.join("go-on").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let go_on = uptime()?;
    while uptime()? < go_on + BETWEEN {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (ended, now) = read_clocks()?;
    let passed = ended - began;
    let counted = u64::try_from(now.since(counted).as_millis())?;
    let percent = (counted * 10 + passed / 2) / passed;
    let ahead = counted.saturating_sub(passed * 10) / 1_000;
    let wall = SystemClock.wall().0 / 1_000_000;
    writeln!(std::io::stdout(), "\n{READINGS}{percent} {ahead} {wall}")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_clocks_run_at_their_configured_rate() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let at = directory.path();
    let mut clocks = [
        (None, 100),
        (Some(Clock::running(at, 104)?), 104),
        (Some(Clock::running(at, 96)?), 96),
        (Some(Clock::leaping(at)?), 100),
    ];
    for (clock, percent) in &mut clocks {
        let seen = readings_of(clock.as_mut(), |_| Ok(())).await?.percent;
        ensure!(seen.abs_diff(*percent) < 2, "{seen}, not {percent}");
    }
    Ok(())
}

/// The clock jumps within a running process, as a sidecar's clock does.
#[tokio::test(flavor = "multi_thread")]
async fn fault_clocks_jump_within_a_running_process() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut leaping = Clock::leaping(directory.path())?;
    let seen = readings_of(Some(&mut leaping), |clock| clock.leap(50)).await?;
    ensure!((49..=51).contains(&seen.ahead), "{} s ahead", seen.ahead);
    let mut wall = Clock::with_wall(directory.path())?;
    let true_wall = SystemClock.wall().0 / 1_000_000;
    let leap = |clock: &mut Clock| clock.leap_wall(90_000).map(drop);
    let seen = readings_of(Some(&mut wall), leap).await?;
    ensure!(seen.ahead == 0, "{} s ahead", seen.ahead);
    let off = seen.wall - true_wall - 90_000;
    ensure!((0..120).contains(&off), "the wall clock is off by {off} s");
    Ok(())
}
