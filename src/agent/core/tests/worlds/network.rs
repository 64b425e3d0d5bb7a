//! The store as the pods reach it: calls and answers that are late or lost, and watches that end.

use super::*;

/// The longest delay of a message without a fault.
const QUICK: Duration = Duration::from_millis(20);
/// The longest delay of a message in a slow network: many calls are not answered within their limit.
const SLOW: Duration = Duration::from_millis(3500);
/// The longest delay of a late one.
const LATE: Duration = Duration::from_secs(6);

/// A watch of a process.
pub(super) struct Watch {
    id: WatchId,
    session: SessionId,
    /// Its place in the store's log.
    place: usize,
    /// When its last event arrives.
    last: Duration,
    /// It reports nothing.
    is_silent: bool,
}

impl World {
    /// Returns how long a message of a pod takes.
    pub(super) fn delay(&mut self, pod: usize) -> Duration {
        let bound = if self.is_faulty() && self.one_in(6) {
            LATE
        } else if self.now < self.pods[pod].cut.start {
            SLOW
        } else {
            QUICK
        };
        self.up_to(bound)
    }

    /// A process makes a call, within a time limit.
    pub(super) fn send(&mut self, pod: usize, op: OpId, call: StoreCall, limit: Duration) {
        let number = self.pods[pod].number;
        if let Some(process) = &mut self.pods[pod].process {
            process.record_entries(&call);
        }
        if self.pods[pod].cut.contains(&self.now) {
            // Refused at once, or without any sign.
            let (answer, delay) = if self.rng.bool() {
                (unavailable(), self.up_to(QUICK))
            } else {
                (unclear(), limit)
            };
            return self.schedule(delay, Event::Input(pod, number, Input::Answer(op, answer)));
        }
        let is_lost = self.is_faulty() && self.one_in(40);
        let (mut there, back) = (self.delay(pod), self.delay(pod));
        if is_lost {
            // A proxy may still send it.
            there += self.up_to(LATE * 10);
        }
        let answer_after = (there + back <= limit && !is_lost).then_some(back);
        if answer_after.is_none() {
            let unclear = Input::Answer(op, unclear());
            self.schedule(limit, Event::Input(pod, number, unclear));
        }
        if !is_lost || self.rng.bool() {
            self.schedule(there, Event::Call(pod, number, op, call, answer_after));
        }
    }

    /// A call arrives at the store.
    pub(super) fn call(
        &mut self,
        pod: usize,
        process: u64,
        op: OpId,
        call: StoreCall,
        answer_after: Option<Duration>,
    ) {
        self.trace(|| format!("pod {pod} {}", short(&call)));
        let locks = match &call {
            StoreCall::UpdateLock(_, next) => self.store.lock(&next.resource).cloned(),
            _ => None,
        };
        let answer = self.store.call(call);
        match &answer {
            Answer::Failed(error) => {
                let words = error.to_string();
                self.trace(|| format!("pod {pod} is refused: {words}"));
                if matches!(error, StoreError::Invalid(_)) {
                    self.flaw(format!("pod {pod} breaks a rule: {words}"));
                }
            }
            Answer::Lock(Some(after)) => {
                if let Some(before) = locks {
                    self.check_end(&before, &after.value);
                }
            }
            _ => {}
        }
        self.deliver_events();
        if let Some(after) = answer_after {
            let answer = Input::Answer(op, answer);
            self.schedule(after, Event::Input(pod, process, answer));
        }
    }

    /// A process opens a watch, or closes it.
    pub(super) fn watch(&mut self, pod: usize, command: WatchCommand) {
        let process = self.pods[pod].number;
        let WatchCommand::Open(id, session, after) = command else {
            self.pods[pod].watch = None;
            return;
        };
        self.pods[pod].watch = None;
        let delay = self.delay(pod);
        let is_cut = self.pods[pod].cut.contains(&self.now);
        let place = if is_cut {
            Err(StoreError::Unavailable("cut off".into()))
        } else {
            self.store.place_after(after)
        };
        let place = match place {
            Ok(place) => place,
            Err(error) => {
                let failed = Input::Watch(id, WatchInput::Failed(error));
                return self.schedule(delay, Event::Input(pod, process, failed));
            }
        };
        let opened = Input::Watch(id, WatchInput::Opened);
        self.schedule(delay, Event::Input(pod, process, opened));
        self.pods[pod].watch = Some(Watch {
            id,
            session,
            place,
            last: self.now + delay,
            is_silent: self.is_faulty() && self.one_in(8),
        });
        if self.is_faulty() && self.one_in(3) {
            let ends = self.up_to(LATE * 4);
            let error = StoreError::Unavailable("the watch broke".into());
            let expired = StoreError::WatchExpired("too old".into());
            let end = [
                WatchInput::Ended,
                WatchInput::Failed(error),
                WatchInput::Failed(expired),
            ];
            let end = end[self.rng.usize(..3)].clone();
            self.schedule(
                delay + ends,
                Event::Input(pod, process, Input::Watch(id, end)),
            );
        }
        self.deliver_events();
    }

    /// Sends what the watches have to report, in its order.
    pub(super) fn deliver_events(&mut self) {
        for pod in 0..self.pods.len() {
            let number = self.pods[pod].number;
            while let Some(watch) = &mut self.pods[pod].watch
                && let Some(event) = self.store.next_event(&watch.session, &mut watch.place)
            {
                let (id, is_silent, last) = (watch.id, watch.is_silent, watch.last);
                let cut = &self.pods[pod].cut;
                let sent = if cut.contains(&self.now) {
                    cut.end
                } else {
                    self.now
                };
                let arrives = last.max(sent + self.delay(pod));
                if let Some(watch) = &mut self.pods[pod].watch {
                    watch.last = arrives;
                }
                if !is_silent {
                    let input = Input::Watch(id, WatchInput::Event(event));
                    self.schedule_at(arrives, Event::Input(pod, number, input));
                }
            }
        }
    }
}

impl Pod {
    /// Drops a watch that has ended.
    pub(super) fn watch_ended(&mut self, ended: WatchId) {
        self.watch.take_if(|watch| watch.id == ended);
    }
}

/// Returns a call in a few words.
fn short(call: &StoreCall) -> String {
    let lock = |lock: &Lock| {
        let holder = lock
            .grant
            .as_ref()
            .map(|grant| format!("{} by {}", grant.holder.session, grant.id));
        let waiters = lock.waiters.entries().len();
        format!(
            "{} {holder:?}, token {}, {waiters} wait",
            lock.resource, lock.token
        )
    };
    match call {
        StoreCall::UpdateLock(_, next) => format!("writes {}", lock(next)),
        StoreCall::JoinLock(_, waiter) => format!("joins as {}", waiter.grant),
        StoreCall::UpdateSession(_, next) => {
            format!("writes {}, revoked {}", next.id, next.revoked.is_some())
        }
        StoreCall::CreateSession(new) => format!("creates {}", new.id),
        StoreCall::GetLock(resource) | StoreCall::GetLockWithRevision(resource) => {
            format!("reads {resource}")
        }
        StoreCall::CreateLock(resource) => format!("creates {resource}"),
        StoreCall::GetSession(id) => format!("reads {id}"),
        StoreCall::ListHeld(id) => format!("lists what {id} holds"),
        StoreCall::ListOne => "lists one".into(),
    }
}
