//! Small handwritten histories. All times are milliseconds, and a lease is named after its token.

use std::collections::BTreeMap;
use std::ops::Range;

use super::history::{Entry, Event, History, Op, OverriddenBy, Process};

/// A history under construction.
#[derive(Default)]
pub(super) struct HistoryBuilder {
    processes: BTreeMap<String, Process>,
    events: Vec<Event>,
}

pub(super) const fn ms(at: u64) -> u64 {
    at * 1_000_000
}

/// The outcome of an operation.
#[derive(Clone, Copy)]
pub(super) enum End {
    Ok,
    Fail,
    Unknown,
    /// No outcome: the process is killed.
    Never,
}

impl HistoryBuilder {
    pub(super) fn history(&self) -> History {
        History::of(self.events.clone())
    }

    /// Returns the message of each violation.
    pub(super) fn violations(&self) -> Vec<String> {
        let violations = self.history().violations();
        violations
            .into_iter()
            .map(|violation| violation.what)
            .collect()
    }

    fn process(&mut self, name: &str) -> &mut Process {
        let process = || Process::new(name);
        self.processes
            .entry(name.to_owned())
            .or_insert_with(process)
    }

    fn operation(&mut self, app: &str, time: Range<u64>, begun: Op, ended: Op, end: End) {
        let process = self.process(app);
        let invoked = process.invoke(ms(time.start), begun);
        let (at, operation) = (ms(time.end), invoked.operation);
        let outcome = match end {
            End::Ok => Some(process.ok(at, operation, ended)),
            End::Fail => Some(process.fail(at, operation, ended)),
            End::Unknown => Some(process.unknown(at, operation, ended)),
            End::Never => None,
        };
        self.events.push(invoked);
        self.events.extend(outcome);
    }

    pub(super) fn info(&mut self, app: &str, at: u64, op: Op) -> &mut Self {
        let event = self.process(app).info(ms(at), op);
        self.events.push(event);
        self
    }

    pub(super) fn acquire(
        &mut self,
        app: &str,
        time: Range<u64>,
        token: u64,
        until: u64,
    ) -> &mut Self {
        self.acquire_lease(app, time, &token.to_string(), token, until)
    }

    pub(super) fn acquire_lease(
        &mut self,
        app: &str,
        time: Range<u64>,
        lease: &str,
        token: u64,
        until: u64,
    ) -> &mut Self {
        let granted = Op::granted("r", lease, token, ms(until));
        self.operation(app, time, Op::acquire("r"), granted, End::Ok);
        self
    }

    pub(super) fn acquire_not_granted(
        &mut self,
        app: &str,
        time: Range<u64>,
        end: End,
    ) -> &mut Self {
        self.operation(app, time, Op::acquire("r"), Op::acquire("r"), end);
        self
    }

    pub(super) fn renew(
        &mut self,
        app: &str,
        time: Range<u64>,
        token: u64,
        until: u64,
    ) -> &mut Self {
        let lease = token.to_string();
        let renewed = Op::renewed(&lease, ms(until));
        self.operation(app, time, Op::renew(&lease), renewed, End::Ok);
        self
    }

    pub(super) fn renew_not_granted(
        &mut self,
        app: &str,
        time: Range<u64>,
        token: u64,
        end: End,
    ) -> &mut Self {
        let renew = Op::renew(&token.to_string());
        self.operation(app, time, renew.clone(), renew, end);
        self
    }

    pub(super) fn release(&mut self, app: &str, time: Range<u64>, token: u64) -> &mut Self {
        let release = Op::release(&token.to_string());
        self.operation(app, time, release.clone(), release, End::Ok);
        self
    }

    pub(super) fn write(&mut self, app: &str, time: Range<u64>, token: u64, end: End) -> &mut Self {
        let value = format!("{app}-{}", time.start);
        let write = Op::write("r", &token.to_string(), token, &value);
        self.operation(app, time, write.clone(), write, end);
        self
    }

    /// Adds the register's record of the write that an app began at that time.
    pub(super) fn decided(
        &mut self,
        at: u64,
        token: u64,
        written: (&str, u64),
        accepted: bool,
    ) -> &mut Self {
        let value = format!("{}-{}", written.0, written.1);
        self.info("register", at, Op::decided("r", token, &value, accepted))
    }

    pub(super) fn read(&mut self, app: &str, time: Range<u64>, token: u64) -> &mut Self {
        let saw = Op::saw("r", token, "");
        self.operation(app, time, Op::read("r"), saw, End::Ok);
        self
    }

    /// Adds an entry named after its app and token.
    pub(super) fn append(
        &mut self,
        app: &str,
        time: Range<u64>,
        token: u64,
        end: End,
    ) -> &mut Self {
        let value = format!("{app}-{token}");
        let append = Op::append("r.log", &token.to_string(), token, &value);
        self.operation(app, time, append.clone(), append, end);
        self
    }

    /// Adds the log's content: apps and tokens.
    pub(super) fn log(&mut self, at: u64, entries: &[(&str, u64)]) -> &mut Self {
        let entry = |(app, token): &(&str, u64)| Entry {
            token: *token,
            value: format!("{app}-{token}"),
        };
        let log = Op::Log {
            log: "r.log".to_owned(),
            entries: entries.iter().map(entry).collect(),
        };
        self.info("register", at, log)
    }

    pub(super) fn lost(&mut self, app: &str, at: u64, token: u64) -> &mut Self {
        self.info(app, at, Op::lost(&token.to_string()))
    }

    pub(super) fn overridden(&mut self, at: u64, by: OverriddenBy) -> &mut Self {
        self.info("person", at, Op::overridden(Some("r"), by))
    }

    /// A person ends this grant, or tries to. A lease that is named after its token is a grant of
    /// its own.
    pub(super) fn ends(&mut self, time: Range<u64>, grant: &str, end: End) -> &mut Self {
        let by = OverriddenBy::Delete;
        let ended = Op::ended("r", vec![grant.to_owned()], by);
        self.operation("person", time, Op::overridden(Some("r"), by), ended, end);
        self
    }

    /// A process does not run.
    pub(super) fn stopped(&mut self, who: &str, time: Range<u64>, end: End) -> &mut Self {
        self.operation("person", time, Op::stop(who), Op::stop(who), end);
        self
    }

    pub(super) fn claims(
        &mut self,
        bound: u64,
        exclusion: bool,
        told_within: Option<u64>,
    ) -> &mut Self {
        let run = Op::Run {
            seed: 0,
            clock_bound_ns: ms(bound),
            clock_rate_ppm: 0,
            exclusion,
            loss_told_within_ns: told_within.map(ms),
        };
        self.info("run", 0, run)
    }
}
