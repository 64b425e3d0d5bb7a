//! A history by leases and writes: invocations joined with their outcomes.
//!
//! Only the form of the history is checked here. An outcome without an invocation, or an incomplete
//! `ok`, is a bug of the recorder.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::event::{Entry, Event, Op, OverriddenBy, Phase};
use super::file::History;
use super::violation::Violation;

/// An answer that gave an app a deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    /// The event of the request.
    pub(super) invoked: usize,
    /// The event of the answer.
    pub(super) answered: usize,
    pub(super) until: u64,
    pub(super) asks_less: bool,
}

/// Everything about one lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Lease {
    /// The app that holds it.
    pub(super) process: String,
    pub(super) resource: String,
    pub(super) token: Option<u64>,
    /// In the order of the answers. Empty only if the history is wrong.
    pub(super) told: Vec<Told>,
    /// The events where the app stopped believing for its own reasons.
    pub(super) stopped: Vec<usize>,
    /// The first event of a release by the app.
    pub(super) released: Option<usize>,
    /// The first confirmation of a release.
    pub(super) release_confirmed: Option<usize>,
    /// The first event that notified the app of its loss.
    pub(super) lost: Option<usize>,
    /// The first end of the app's event stream.
    pub(super) stream_end: Option<usize>,
}

/// A fenced write, and what its app knows about it: without an answer, nothing.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) register: String,
    pub(super) lease: String,
    pub(super) token: u64,
    pub(super) value: String,
    pub(super) invoked: usize,
    pub(super) answered: Option<usize>,
    /// Whether it was accepted, if the answer contains that.
    pub(super) accepted: Option<bool>,
    /// An entry in a log, which `register` names in this case.
    pub(super) is_append: bool,
}

/// A decision of a register: observed by an app's read, or recorded by the register for a write.
#[derive(Clone, Debug)]
pub(super) struct Read {
    pub(super) register: String,
    pub(super) token: Option<u64>,
    pub(super) invoked: usize,
    pub(super) answered: usize,
}

/// A register's own record of a write.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub(super) token: u64,
    pub(super) value: String,
    pub(super) accepted: bool,
    pub(super) at: usize,
}

/// The scope of an override, and its time on the history's clock.
#[derive(Clone, Debug)]
pub(super) struct Overridden {
    pub(super) resource: Option<String>,
    pub(super) grants: Option<Vec<String>>,
    pub(super) sidecar: Option<String>,
    pub(super) from: u64,
    pub(super) until: u64,
    /// It had no effect.
    pub(super) is_void: bool,
}

/// The claims of the whole run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claims {
    pub(super) clock_bound_ns: u64,
    pub(super) clock_rate_ppm: u64,
    pub(super) exclusion: bool,
    pub(super) loss_told_within_ns: Option<u64>,
}

/// The history, joined.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) claims: Claims,
    pub(super) leases: BTreeMap<String, Lease>,
    pub(super) writes: Vec<Write>,
    pub(super) reads: Vec<Read>,
    /// The contents of logs, with their events.
    pub(super) logs: Vec<(String, Vec<Entry>, usize)>,
    /// By register, in the order of its decisions.
    pub(super) decisions: BTreeMap<String, Vec<Decision>>,
    pub(super) overridden: Vec<Overridden>,
    /// The sidecar of each process.
    pub(super) served_by: BTreeMap<String, String>,
    /// The intervals in which a process did not run: from, until.
    pub(super) stops: BTreeMap<String, Vec<(u64, u64)>>,
    /// The errors of form.
    pub(super) malformed: Vec<Violation>,
}

/// Processes the events once.
struct Joining<'h> {
    history: &'h History,
    joined: Joined,
    /// Operations without an outcome so far: their invocation, and their write, override or stop.
    open: BTreeMap<(&'h str, u64), (usize, Option<usize>)>,
}

impl Joined {
    /// Joins the events before the first restore without a bump, after which nothing is claimed.
    pub(super) fn of(history: &History) -> Self {
        let mut joining = Joining {
            history,
            joined: Self {
                claims: Claims {
                    clock_bound_ns: 0,
                    clock_rate_ppm: 0,
                    exclusion: true,
                    loss_told_within_ns: None,
                },
                leases: BTreeMap::new(),
                writes: Vec::new(),
                reads: Vec::new(),
                logs: Vec::new(),
                decisions: BTreeMap::new(),
                overridden: Vec::new(),
                served_by: BTreeMap::new(),
                stops: BTreeMap::new(),
                malformed: Vec::new(),
            },
            open: BTreeMap::new(),
        };
        for (index, event) in history.events.iter().enumerate() {
            if ends_all_claims(event) {
                break;
            }
            joining.take(index, event);
        }
        joining.joined
    }

    /// Returns whether the clock of an app's sidecar jumped in this time.
    pub(super) fn clock_leapt(&self, app: &str, time: RangeInclusive<u64>) -> bool {
        let sidecar = self.served_by.get(app);
        self.overridden.iter().any(|it| {
            let is_its = it.sidecar.is_some() && it.sidecar.as_ref() == sidecar;
            is_its && !it.is_void && it.from <= *time.end() && *time.start() <= it.until
        })
    }
}

fn ends_all_claims(event: &Event) -> bool {
    let by = OverriddenBy::RestoreWithoutBump;
    matches!(&event.op, Op::Override { by: it, .. } if *it == by)
}

impl<'h> Joining<'h> {
    fn take(&mut self, index: usize, event: &'h Event) {
        match event.phase {
            Phase::Invoke => self.begin(index, event),
            Phase::Info => self.note(index, event),
            Phase::Ok | Phase::Fail | Phase::Unknown => self.end(index, event),
        }
    }

    fn malformed(&mut self, what: &str, index: usize) {
        let violation = Violation::of(self.history, what.to_owned(), &[index]);
        self.joined.malformed.push(violation);
    }

    fn begin(&mut self, index: usize, event: &'h Event) {
        let made = match &event.op {
            Op::Write { .. } | Op::Append { .. } => self.begin_write(index, &event.op),
            // Until its outcome, or forever if its outcome is unknown.
            Op::Override { .. } => Some(self.override_grants(&event.op, event.at, u64::MAX)),
            Op::Stop { who } => {
                let stops = self.joined.stops.entry(who.clone()).or_default();
                stops.push((event.at, u64::MAX));
                Some(stops.len() - 1)
            }
            Op::Release { lease } => {
                let lease = self.joined.leases.entry(lease.clone()).or_default();
                lease.released.get_or_insert(index);
                None
            }
            _ => None,
        };
        let operation = (event.process.as_str(), event.operation);
        if self.open.insert(operation, (index, made)).is_some() {
            self.malformed("an operation begins twice", index);
        }
    }

    fn begin_write(&mut self, invoked: usize, op: &Op) -> Option<usize> {
        let (Op::Write {
            register,
            lease,
            token,
            value,
        }
        | Op::Append {
            log: register,
            lease,
            token,
            value,
        }) = op
        else {
            return None;
        };
        self.joined.writes.push(Write {
            register: register.clone(),
            lease: lease.clone(),
            token: *token,
            value: value.clone(),
            invoked,
            answered: None,
            accepted: None,
            is_append: matches!(op, Op::Append { .. }),
        });
        Some(self.joined.writes.len() - 1)
    }

    fn override_grants(&mut self, op: &Op, from: u64, until: u64) -> usize {
        if let Op::Override {
            resource,
            grants,
            sidecar,
            ..
        } = op
        {
            self.joined.overridden.push(Overridden {
                resource: resource.clone(),
                grants: grants.clone(),
                sidecar: sidecar.clone(),
                from,
                until,
                is_void: false,
            });
        }
        self.joined.overridden.len().saturating_sub(1)
    }

    fn note(&mut self, index: usize, event: &Event) {
        match &event.op {
            Op::Run { .. } => self.claim(&event.op),
            Op::Lost { lease } => {
                let lease = self.joined.leases.entry(lease.clone()).or_default();
                lease.lost.get_or_insert(index);
            }
            Op::BelievesEnd { lease } => {
                let lease = self.joined.leases.entry(lease.clone()).or_default();
                lease.stopped.push(index);
            }
            Op::Accepted {
                register,
                token,
                value,
            } => self.decide(register, *token, value, true, index),
            Op::Refused {
                register,
                token,
                value,
            } => self.decide(register, *token, value, false, index),
            Op::Override { .. } => {
                self.override_grants(&event.op, event.at, event.at);
            }
            Op::StreamEnd { lease } => {
                let lease = self.joined.leases.entry(lease.clone()).or_default();
                lease.stream_end.get_or_insert(index);
            }
            Op::Log { log, entries } => {
                let logs = &mut self.joined.logs;
                logs.push((log.clone(), entries.clone(), index));
            }
            Op::ServedBy { sidecar } => {
                let served_by = &mut self.joined.served_by;
                served_by.insert(event.process.clone(), sidecar.clone());
            }
            // A stream reports an extension without a request.
            Op::Renew { .. } => self.tell(index, index, &event.op),
            _ => self.malformed("an operation cannot be `info`", index),
        }
    }

    fn claim(&mut self, run: &Op) {
        if let Op::Run {
            clock_bound_ns,
            clock_rate_ppm,
            exclusion,
            loss_told_within_ns,
            ..
        } = run
        {
            let claims = &mut self.joined.claims;
            claims.clock_bound_ns = claims.clock_bound_ns.max(*clock_bound_ns);
            claims.clock_rate_ppm = claims.clock_rate_ppm.max(*clock_rate_ppm);
            claims.exclusion &= *exclusion;
            claims.loss_told_within_ns = loss_told_within_ns.or(claims.loss_told_within_ns);
        }
    }

    fn decide(&mut self, register: &str, token: u64, value: &str, accepted: bool, at: usize) {
        let decisions = self.joined.decisions.entry(register.to_owned());
        decisions.or_default().push(Decision {
            token,
            value: value.to_owned(),
            accepted,
            at,
        });
    }

    fn end(&mut self, index: usize, event: &'h Event) {
        let operation = (event.process.as_str(), event.operation);
        let Some((invoked, made)) = self.open.remove(&operation) else {
            self.malformed("an outcome of nothing that began", index);
            return;
        };
        let happened = event.phase == Phase::Ok;
        match (&event.op, made) {
            (Op::Acquire { .. } | Op::Renew { .. }, _) if happened => {
                self.tell(invoked, index, &event.op);
            }
            (Op::Release { lease }, _) if happened => {
                let lease = self.joined.leases.entry(lease.clone()).or_default();
                lease.release_confirmed.get_or_insert(index);
            }
            (Op::Renew { lease, .. }, _) if event.phase == Phase::Fail => {
                let lease = self.joined.leases.entry(lease.clone()).or_default();
                lease.lost.get_or_insert(index);
            }
            (Op::Write { .. } | Op::Append { .. }, Some(write))
                if event.phase != Phase::Unknown =>
            {
                let write = &mut self.joined.writes[write];
                write.answered = Some(index);
                write.accepted = Some(happened);
            }
            (
                Op::Read {
                    register, token, ..
                },
                _,
            ) if happened => self.joined.reads.push(Read {
                register: register.clone(),
                token: *token,
                invoked,
                answered: index,
            }),
            (Op::Override { grants, .. }, Some(overridden)) if event.phase != Phase::Unknown => {
                let overridden = &mut self.joined.overridden[overridden];
                overridden.until = event.at;
                overridden.is_void = !happened;
                if grants.is_some() {
                    overridden.grants.clone_from(grants);
                }
            }
            (Op::Stop { who }, Some(stop)) => {
                if let Some(stops) = self.joined.stops.get_mut(who) {
                    stops[stop].1 = event.at;
                }
            }
            _ => {}
        }
    }

    fn tell(&mut self, invoked: usize, answered: usize, op: &Op) {
        let (id, until, asks_less) = match op {
            Op::Acquire {
                lease: Some(lease),
                believes_until: Some(until),
                ..
            } => (lease, *until, false),
            Op::Renew {
                lease,
                believes_until: Some(until),
                asks_less,
            } => (lease, *until, *asks_less),
            _ => return self.malformed("an `ok` that does not say of what, until when", answered),
        };
        let lease = self.joined.leases.entry(id.clone()).or_default();
        lease.told.push(Told {
            invoked,
            answered,
            until,
            asks_less,
        });
        if let Op::Acquire {
            resource, token, ..
        } = op
        {
            let is_new = lease.resource.is_empty();
            if is_new {
                let process = &self.history.events[answered].process;
                lease.process.clone_from(process);
                lease.resource.clone_from(resource);
                lease.token = *token;
            } else if lease.resource != *resource || lease.token != *token {
                let first = lease.told[0].answered;
                let what = format!("lease {id} changed its resource or its token");
                let violation = Violation::of(self.history, what, &[first, answered]);
                self.joined.malformed.push(violation);
            }
        }
    }
}
