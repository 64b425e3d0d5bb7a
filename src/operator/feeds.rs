//! What the operator hears: the feeds that its rules need, and what each thing told does to what is
//! known.

use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt as _, StreamExt as _};
use tokio::task::{JoinError, JoinSet};

use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::time::Moment;
use crate::store::fleet::{Feed, Placed, PodReport, Told};
use crate::store::namespaces::{AskingPod, Binding};

use super::plan::Rules;
use super::state::State;
use super::trouble::{About, Kind, with_advice};
use super::{Operator, Ports, view};

/// What a feed told, by what it is about.
pub(super) enum Heard {
    Lock(Told<Placed<Lock>>),
    Session(Told<Placed<Session>>),
    Pod(Told<PodReport>),
    Namespace(Told<Placed<()>>),
    Account(Told<Placed<()>>),
    Binding(Told<Placed<Binding>>),
    AskingPod(Told<Placed<AskingPod>>),
}

/// All feeds.
pub(super) struct Feeds(SelectAll<BoxStream<'static, Heard>>);

impl Feeds {
    /// Those that these rules need.
    pub(super) fn open(rules: &Rules, ports: &Ports) -> Self {
        let watched = Kind::ALL.into_iter().filter(|kind| rules.watches(*kind));
        Self(watched.map(|kind| feed(kind, ports)).collect())
    }

    /// The next of what is finished and of what is told; of each one, where there is both. A listing of
    /// everything must not keep what is under way from being finished, nor a long backlog the feeds from
    /// being heard: who renews meanwhile would look dead.
    pub(super) async fn next_beside<T: 'static>(
        &mut self,
        tasks: &mut JoinSet<T>,
    ) -> (Option<Result<T, JoinError>>, Option<Heard>) {
        tokio::select! {
            biased;
            Some(finished) = tasks.join_next() => {
                (Some(finished), self.0.next().now_or_never().flatten())
            }
            Some(heard) = self.0.next() => (None, Some(heard)),
            else => std::future::pending().await,
        }
    }
}

fn feed(kind: Kind, ports: &Ports) -> BoxStream<'static, Heard> {
    let (fleet, namespaces) = (&ports.fleet, &ports.namespaces);
    match kind {
        Kind::Lock => heard(fleet.locks(), Heard::Lock),
        Kind::Session => heard(fleet.sessions(), Heard::Session),
        Kind::Pod => heard(fleet.ended_pods(), Heard::Pod),
        Kind::Namespace => heard(namespaces.labelled(), Heard::Namespace),
        Kind::Account => heard(namespaces.accounts(), Heard::Account),
        Kind::Binding => heard(namespaces.bindings(), Heard::Binding),
        Kind::AskingPod => heard(namespaces.asking_pods(), Heard::AskingPod),
    }
}

fn heard<T: Send + 'static>(
    feed: Feed<T>,
    heard: fn(Told<T>) -> Heard,
) -> BoxStream<'static, Heard> {
    feed.map(heard).boxed()
}

impl Operator {
    pub(super) fn note_heard(&self, heard: Heard) {
        match heard {
            Heard::Lock(told) => self.note_lock(told),
            Heard::Session(told) => self.note_session(told),
            Heard::Pod(told) => self.note_pod(told),
            Heard::Namespace(told) => self.note_namespace(told),
            Heard::Account(told) => self.note_account(told),
            Heard::Binding(told) => self.note_binding(told),
            Heard::AskingPod(told) => self.note_asking_pod(told),
        }
    }

    fn note_lock(&self, told: Told<Placed<Lock>>) {
        let now = self.now();
        let mut state = self.state();
        self.note_trouble(&mut state, Kind::Lock, &told, now.moment);
        match &told {
            Told::Interrupted(_) | Told::Anew => state.doubt(now.moment),
            Told::There(lock) => {
                state.note_ignored_request(lock, now.wall);
                let before = state.view.lock(&lock.place);
                if lock.is_deleted && !before.is_some_and(view::KeptLock::is_deleted) {
                    tracing::info!(lock = %lock.place, "lock deleted; finalizer remains");
                }
            }
            Told::Unreadable { place, why, .. } => {
                state.log_unreadable(Kind::Lock, place, why, now.moment);
            }
            Told::Gone(_) | Told::Complete => {}
        }
        let unreadable = match &told {
            Told::Unreadable { place, .. } if state.leads => Some(place.clone()),
            _ => None,
        };
        state.view.note_lock(told, now);
        if let Some(place) = unreadable {
            state.tell_of_unreadable(&place, now);
        }
        state.look_at_changes(&self.0.rules, now);
    }

    fn note_session(&self, told: Told<Placed<Session>>) {
        let now = self.now();
        let mut state = self.state();
        self.note_trouble(&mut state, Kind::Session, &told, now.moment);
        if let Told::Unreadable { place, why, .. } = &told {
            state.log_unreadable(Kind::Session, place, why, now.moment);
        }
        state.view.note_session(told, now.moment);
        state.look_at_changes(&self.0.rules, now);
    }

    fn note_pod(&self, told: Told<PodReport>) {
        let now = self.now();
        let mut state = self.state();
        self.note_trouble(&mut state, Kind::Pod, &told, now.moment);
        state.view.note_pod(told);
        state.look_at_changes(&self.0.rules, now);
    }

    fn note_namespace(&self, told: Told<Placed<()>>) {
        let now = self.now();
        let mut state = self.state();
        self.note_trouble(&mut state, Kind::Namespace, &told, now.moment);
        state.view.note_namespace(told);
        state.look_at_changes(&self.0.rules, now);
    }

    fn note_account(&self, told: Told<Placed<()>>) {
        let now = self.now();
        let mut state = self.state();
        self.note_trouble(&mut state, Kind::Account, &told, now.moment);
        state.view.note_account(told);
        state.look_at_changes(&self.0.rules, now);
    }

    fn note_binding(&self, told: Told<Placed<Binding>>) {
        let now = self.now();
        let mut state = self.state();
        self.note_trouble(&mut state, Kind::Binding, &told, now.moment);
        state.view.note_binding(told);
        state.look_at_changes(&self.0.rules, now);
    }

    fn note_asking_pod(&self, told: Told<Placed<AskingPod>>) {
        let now = self.now();
        let mut state = self.state();
        self.note_trouble(&mut state, Kind::AskingPod, &told, now.moment);
        state.view.note_asking_pod(told);
        state.look_at_changes(&self.0.rules, now);
    }

    /// What a feed cannot do, if it says so.
    fn note_trouble<T>(&self, state: &mut State, kind: Kind, told: &Told<T>, now: Moment) {
        let about = state.troubles.note_told(kind, told, now);
        let Told::Interrupted(error) = told else {
            return;
        };
        self.0.metrics.note_interrupted(kind.name());
        let (kind, error) = (kind.name(), with_advice(kind, error));
        match about {
            Some(About::Refused(_)) => {
                tracing::error!(kind, error, "list/watch forbidden; retrying");
            }
            Some(_) => tracing::warn!(kind, error, "watch interrupted; retrying"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;

    fn feeds(told: usize) -> Feeds {
        let told = stream::repeat_with(|| Heard::Pod(Told::Complete)).take(told);
        Feeds(
            [told.chain(stream::pending()).boxed()]
                .into_iter()
                .collect(),
        )
    }

    /// So many tasks, each of which has finished.
    async fn backlog(tasks: usize) -> JoinSet<()> {
        let mut backlog = JoinSet::new();
        for _ in 0..tasks {
            backlog.spawn(async {});
        }
        tokio::task::yield_now().await;
        backlog
    }

    #[tokio::test]
    async fn each_turn_takes_a_finished_task_and_a_feed_event() {
        let (mut feeds, mut tasks) = (feeds(100), backlog(50).await);
        for turn in 0..50 {
            let (finished, heard) = feeds.next_beside(&mut tasks).await;
            assert!(finished.is_some() && heard.is_some(), "turn {turn}");
        }
        let (finished, heard) = feeds.next_beside(&mut tasks).await;
        assert!(finished.is_none() && heard.is_some(), "the backlog is done");
    }

    #[tokio::test]
    async fn finished_tasks_do_not_wait_for_feed_events() {
        let (mut feeds, mut tasks) = (feeds(0), backlog(50).await);
        for turn in 0..50 {
            let (finished, heard) = feeds.next_beside(&mut tasks).await;
            assert!(finished.is_some() && heard.is_none(), "turn {turn}");
        }
        let next = feeds.next_beside(&mut tasks).now_or_never();
        assert!(next.is_none(), "there is nothing");
    }
}
