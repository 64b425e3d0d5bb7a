//! A pod: the process of its agent, which crashes and is started again, its clock, and its state file.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::network::Watch;
use super::*;
use crate::agent::api::Acquired;
use crate::agent::core::acquiring::AcquireConfig;
use crate::agent::core::session::SessionConfig;
use crate::agent::journal::past::{self, Discarded};
use crate::agent::journal::record::Identity;
use crate::agent::journal::{Journal, Past, Recorder, Writer};
use crate::agent::state::State;
use crate::protocol::ids::{GrantId, LeaseId};

/// How often in a row a timer event may be followed by another at once: after a pause, one ends a claim's
/// call, and the next answers a caller whose time was up.
const AT_ONCE_MAX: u32 = 3;
/// What the clock of a pod shows when the world begins.
const BOOT: Duration = Duration::from_secs(1_000);

pub(super) struct Pod {
    /// How fast its clock is.
    pub(super) rate: f64,
    /// Counts its processes.
    pub(super) number: u64,
    pub(super) process: Option<Process>,
    /// `None` if it has no state file.
    disk: Option<Disk>,
    pub(super) watch: Option<Watch>,
    /// When its messages do not reach the store. Before that they are slow.
    pub(super) cut: Range<Duration>,
    /// Until when none of its processes runs.
    pub(super) paused_until: Duration,
}

pub(super) struct Process {
    pub(super) state: State,
    dice: Dice,
    /// When the next timer event comes.
    timer: Option<Duration>,
    /// How many timer events in a row were due at once.
    due_at_once: u32,
    /// The app of each request that was not answered.
    pub(super) asked: BTreeMap<CallId, usize>,
    /// The queue entries that it made, by their grants.
    pub(super) entries: BTreeSet<GrantId>,
}

/// A state file.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<Vec<Vec<u8>>>>);

impl Journal for Disk {
    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().push(record.to_vec());
        Ok(())
    }

    fn replace(
        &mut self,
        records: &mut dyn Iterator<Item = io::Result<Vec<u8>>>,
    ) -> io::Result<()> {
        let records = records.collect::<io::Result<_>>()?;
        *self.0.lock().unwrap() = records;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let records = self.0.lock().unwrap();
        records.iter().map(|record| record.len() as u64).sum()
    }

    fn void(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().clear();
        Ok(())
    }

    fn set_aside(&mut self) -> io::Result<PathBuf> {
        self.void()?;
        Ok(PathBuf::new())
    }
}

impl Pod {
    pub(super) fn new(rate: f64, has_file: bool) -> Self {
        Self {
            rate,
            number: 0,
            process: None,
            disk: has_file.then(Disk::default),
            watch: None,
            cut: Duration::ZERO..Duration::ZERO,
            paused_until: Duration::ZERO,
        }
    }

    pub(super) const fn has_file(&self) -> bool {
        self.disk.is_some()
    }

    /// Returns whether a lease is on file, if there is a file.
    fn has_on_file(&self, lease: &LeaseId) -> bool {
        let Some(disk) = &self.disk else { return true };
        let records = disk.0.lock().unwrap();
        let mut records = records.iter().map(|record| String::from_utf8_lossy(record));
        records.any(|record| record.contains(lease.as_str()))
    }

    /// Returns what its clock shows at a time.
    pub(super) fn local(&self, at: Duration) -> Moment {
        Moment::since_boot(BOOT + at.mul_f64(self.rate))
    }

    /// Returns when its clock has passed a moment.
    pub(super) fn passed(&self, local: Moment) -> Duration {
        let since = local.elapsed_since_boot().saturating_sub(BOOT);
        since.div_f64(self.rate) + Duration::from_nanos(2)
    }
}

impl World {
    pub(super) fn start(&mut self, pod: usize) {
        if self.pods[pod].process.is_some() {
            return;
        }
        let ttl = SessionTtl::clamped(15);
        let identity = Identity {
            boot_id: "boot".into(),
            pod_uid: format!("uid-{pod}"),
            namespace: "world".into(),
            ttl_seconds: ttl.as_secs(),
        };
        let core = Core::new(CoreConfig {
            session: SessionConfig {
                pod: PodRef {
                    name: format!("pod-{pod}").into(),
                    uid: format!("uid-{pod}").into(),
                    node: None,
                },
                ttl,
                idle_after: if pod.is_multiple_of(2) {
                    Duration::from_secs(600)
                } else {
                    Duration::from_secs(3_600)
                },
            },
            token_floor: 0,
            acquire: AcquireConfig {
                takes_over: true,
                max_leases: 100,
                max_waiting: 10,
            },
        });
        let mut state = State::new(core);
        let now = self.pods[pod].local(self.now);
        let disk = self.pods[pod].disk.clone();
        let saved = disk.map(|disk| {
            let records = disk.0.lock().unwrap().clone();
            let past = if records.is_empty() {
                Past::Nothing
            } else {
                Past::Records(records)
            };
            let saved = past::read(&past, &identity, ttl, now);
            state.journal = Recorder::with(Writer::behind(Box::new(disk), identity));
            saved.unwrap_or_else(|Discarded { reason, .. }| panic!("{reason}"))
        });
        let seed = self.rng.u64(..);
        self.pods[pod].number += 1;
        self.pods[pod].process = Some(Process {
            state,
            dice: Dice(fastrand::Rng::with_seed(seed)),
            timer: None,
            due_at_once: 0,
            asked: BTreeMap::new(),
            entries: BTreeSet::new(),
        });
        self.trace(|| format!("pod {pod} starts"));
        if let Some(saved) = saved {
            self.step(pod, |core, cx| core.recall(cx, saved));
        }
    }

    pub(super) fn kill(&mut self, pod: usize) {
        let Some(process) = self.pods[pod].process.take() else {
            return;
        };
        self.trace(|| format!("pod {pod} crashes"));
        self.count("crash");
        self.pods[pod].watch = None;
        for app in process.asked.into_values() {
            self.unanswered(app);
        }
        let away = self.up_to(Duration::from_secs(20));
        self.schedule(away, Event::Start(pod));
    }

    pub(super) fn input(&mut self, pod: usize, process: u64, input: Input) {
        if self.pods[pod].number != process {
            return;
        }
        if let Input::Watch(id, WatchInput::Ended | WatchInput::Failed(_)) = &input {
            self.pods[pod].watch_ended(*id);
        }
        self.step(pod, |core, cx| core.handle(cx, input));
    }

    pub(super) fn timer(&mut self, pod: usize, number: u64) {
        if self.pods[pod].number != number {
            return;
        }
        let now = self.now;
        let is_due = self.pods[pod]
            .process
            .as_mut()
            .is_some_and(|process| process.timer.take_if(|at| *at <= now).is_some());
        if !is_due {
            return;
        }
        self.step(pod, |core, cx| core.handle(cx, Input::Timer));
        let local = self.pods[pod].local(now);
        let Some(process) = &mut self.pods[pod].process else {
            return;
        };
        let is_due = process.timeout().is_some_and(|timeout| timeout <= local);
        process.due_at_once = if is_due { process.due_at_once + 1 } else { 0 };
        if process.due_at_once > AT_ONCE_MAX {
            self.flaw(format!(
                "pod {pod} has something to do at once, again and again"
            ));
        }
    }

    /// Runs a step of a process, and executes its effects. `None` if it does not run.
    pub(super) fn step<T>(
        &mut self,
        pod: usize,
        step: impl FnOnce(&mut Core, &mut Cx) -> T,
    ) -> Option<T> {
        let now = self.pods[pod].local(self.now);
        let process = self.pods[pod].process.as_mut()?;
        let mut cx = Cx {
            now,
            wall: WallTime(0),
            rng: &mut process.dice,
        };
        let result = step(&mut process.state.core, &mut cx);
        process.state.core.settle(&mut cx);
        assert!(
            !process.state.core.out.has_second_call(),
            "a machine has two calls"
        );
        while let Some(effect) = self.next_effect(pod) {
            self.execute(pod, effect);
            // Not all effects of a step are executed.
            if self.is_faulty() && self.one_in(3_000) {
                self.kill(pod);
                return None;
            }
        }
        self.set_timer(pod);
        Some(result)
    }

    fn next_effect(&mut self, pod: usize) -> Option<Effect> {
        self.pods[pod].process.as_mut()?.state.core.poll_effect()
    }

    fn execute(&mut self, pod: usize, effect: Effect) {
        let now = self.pods[pod].local(self.now);
        match effect {
            Effect::Call {
                op,
                call,
                limit,
                not_after,
            } => {
                if not_after.is_some_and(|moment| now >= moment) {
                    let late = Input::Answer(op, unavailable());
                    let process = self.pods[pod].number;
                    self.schedule(Duration::ZERO, Event::Input(pod, process, late));
                } else {
                    self.send(pod, op, call, limit);
                }
            }
            Effect::Persist(record) => {
                if let Some(process) = &mut self.pods[pod].process {
                    let state = &mut process.state;
                    state.journal.persist(&state.core, record);
                }
            }
            Effect::Watch(command) => self.watch(pod, command),
            Effect::Reply(call, reply) => self.reply(pod, call, reply),
            Effect::Report(report) => {
                self.trace(|| format!("pod {pod}: {report:?}"));
                let name = format!("{report:?}");
                let end = name.find(|c: char| !c.is_alphanumeric() && c != '(');
                self.count(&name[..end.unwrap_or(name.len())]);
            }
            Effect::WakeStreams
            | Effect::SomethingEnded
            | Effect::OutlookChanged
            | Effect::LeaseOver(_)
            | Effect::LockRead(..)
            | Effect::LeadChanged(..) => {}
        }
    }

    /// A request is answered: once, and with a lease only if that is on file.
    fn reply(&mut self, pod: usize, call: CallId, reply: Reply) {
        let process = self.pods[pod].process.as_mut();
        let app = process.and_then(|process| process.asked.remove(&call));
        if let Reply::Acquired(outcome) = &reply {
            if app.is_none() {
                self.flaw(format!("pod {pod} answers twice: {outcome:?}"));
            }
            if let Ok(Acquired::Granted { lease, .. }) = &**outcome
                && !self.pods[pod].has_on_file(&lease.lease)
            {
                self.flaw(format!("{} is told before it is on file", lease.lease));
            }
        }
        if let Some(app) = app {
            let (delay, number) = (self.delay(pod), self.pods[pod].number);
            self.schedule(delay, Event::Reply(app, number, call, reply));
        }
    }

    fn set_timer(&mut self, pod: usize) {
        let (now, number) = (self.now, self.pods[pod].number);
        let timeout = self.pods[pod].process.as_ref().and_then(Process::timeout);
        let Some(timeout) = timeout else { return };
        let at = self.pods[pod].passed(timeout).max(now);
        let process = self.pods[pod].process.as_mut();
        let Some(process) = process.filter(|process| process.timer.is_none_or(|timer| at < timer))
        else {
            return;
        };
        process.timer = Some(at);
        self.schedule_at(at, Event::Timer(pod, number));
    }
}

impl Process {
    /// Records the queue entries that a call makes.
    pub(super) fn record_entries(&mut self, call: &StoreCall) {
        match call {
            StoreCall::JoinLock(_, waiter) => {
                self.entries.insert(waiter.grant.clone());
            }
            StoreCall::UpdateLock(current, next) => {
                let before = current.value.waiters.entries();
                let entries = next.waiters.entries().iter();
                let made = entries.filter(|entry| !before.contains(entry));
                self.entries.extend(made.map(|entry| entry.grant.clone()));
            }
            _ => {}
        }
    }

    fn timeout(&self) -> Option<Moment> {
        self.state.core.poll_timeout()
    }
}
