//! The feeds of the operator, and how each event updates the view.

use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt as _, StreamExt as _};
use tokio::task::{JoinError, JoinSet};

use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::time::Moment;
use crate::store::fleet::{Feed, FeedEvent, Object, PodReport};
use crate::store::namespaces::{Binding, UninjectedPod};

use super::errors::{ErrorTopic, FeedKind, with_advice};
use super::plan::Rules;
use super::state::State;
use super::{Operator, Ports, view};

/// An event of any feed.
pub(super) enum FeedItem {
    Lock(FeedEvent<Object<Lock>>),
    Session(FeedEvent<Object<Session>>),
    Pod(FeedEvent<PodReport>),
    Namespace(FeedEvent<Object<()>>),
    Account(FeedEvent<Object<()>>),
    Binding(FeedEvent<Object<Binding>>),
    UninjectedPod(FeedEvent<Object<UninjectedPod>>),
}

/// All open feeds.
pub(super) struct Feeds(SelectAll<BoxStream<'static, FeedItem>>);

impl Feeds {
    /// Opens the feeds that these rules need.
    pub(super) fn open(rules: &Rules, ports: &Ports) -> Self {
        let watched = FeedKind::ALL
            .into_iter()
            .filter(|kind| rules.watches(*kind));
        Self(watched.map(|kind| feed(kind, ports)).collect())
    }

    /// Returns the next finished task and the next event, one of each if both are ready. A large
    /// list must not delay finished tasks, and many tasks must not delay events: sessions would
    /// look expired.
    pub(super) async fn next_with<T: 'static>(
        &mut self,
        tasks: &mut JoinSet<T>,
    ) -> (Option<Result<T, JoinError>>, Option<FeedItem>) {
        tokio::select! {
            biased;
            Some(finished) = tasks.join_next() => {
                (Some(finished), self.0.next().now_or_never().flatten())
            }
            Some(item) = self.0.next() => (None, Some(item)),
            else => std::future::pending().await,
        }
    }
}

fn feed(kind: FeedKind, ports: &Ports) -> BoxStream<'static, FeedItem> {
    let (fleet, namespaces) = (&ports.fleet, &ports.namespaces);
    match kind {
        FeedKind::Lock => items(fleet.locks(), FeedItem::Lock),
        FeedKind::Session => items(fleet.sessions(), FeedItem::Session),
        FeedKind::Pod => items(fleet.ended_pods(), FeedItem::Pod),
        FeedKind::Namespace => items(namespaces.labelled(), FeedItem::Namespace),
        FeedKind::Account => items(namespaces.accounts(), FeedItem::Account),
        FeedKind::Binding => items(namespaces.bindings(), FeedItem::Binding),
        FeedKind::UninjectedPod => items(namespaces.uninjected_pods(), FeedItem::UninjectedPod),
    }
}

fn items<T: Send + 'static>(
    feed: Feed<T>,
    item: fn(FeedEvent<T>) -> FeedItem,
) -> BoxStream<'static, FeedItem> {
    feed.map(item).boxed()
}

impl Operator {
    pub(super) fn handle_feed_item(&self, item: FeedItem) {
        match item {
            FeedItem::Lock(event) => self.handle_lock(event),
            FeedItem::Session(event) => self.handle_session(event),
            FeedItem::Pod(event) => self.handle_pod(event),
            FeedItem::Namespace(event) => self.handle_namespace(event),
            FeedItem::Account(event) => self.handle_account(event),
            FeedItem::Binding(event) => self.handle_binding(event),
            FeedItem::UninjectedPod(event) => self.handle_uninjected_pod(event),
        }
    }

    fn handle_lock(&self, event: FeedEvent<Object<Lock>>) {
        let now = self.now();
        let mut state = self.state();
        self.observe_errors(&mut state, FeedKind::Lock, &event, now.moment);
        match &event {
            FeedEvent::Interrupted(_) | FeedEvent::ListStarted => {
                state.mark_store_unverified(now.moment);
            }
            FeedEvent::Applied(lock) => {
                state.record_ignored_request(lock, now.wall);
                let before = state.view.lock(&lock.object_ref);
                if lock.is_deleted && !before.is_some_and(view::LockObservation::is_deleted) {
                    tracing::info!(lock = %lock.object_ref, "lock deleted; finalizer remains");
                }
            }
            FeedEvent::Unreadable {
                object_ref, why, ..
            } => {
                state.log_unreadable(FeedKind::Lock, object_ref, why, now.moment);
            }
            FeedEvent::Deleted(_) | FeedEvent::ListDone => {}
        }
        let unreadable = match &event {
            FeedEvent::Unreadable { object_ref, .. } if state.leads => Some(object_ref.clone()),
            _ => None,
        };
        state.view.observe_lock(event, now);
        if let Some(object_ref) = unreadable {
            state.record_unreadable(&object_ref, now);
        }
        state.enqueue_changes(&self.0.rules, now);
    }

    fn handle_session(&self, event: FeedEvent<Object<Session>>) {
        let now = self.now();
        let mut state = self.state();
        self.observe_errors(&mut state, FeedKind::Session, &event, now.moment);
        if let FeedEvent::Unreadable {
            object_ref, why, ..
        } = &event
        {
            state.log_unreadable(FeedKind::Session, object_ref, why, now.moment);
        }
        state.view.observe_session(event, now.moment);
        state.enqueue_changes(&self.0.rules, now);
    }

    fn handle_pod(&self, event: FeedEvent<PodReport>) {
        let now = self.now();
        let mut state = self.state();
        self.observe_errors(&mut state, FeedKind::Pod, &event, now.moment);
        state.view.observe_pod(event);
        state.enqueue_changes(&self.0.rules, now);
    }

    fn handle_namespace(&self, event: FeedEvent<Object<()>>) {
        let now = self.now();
        let mut state = self.state();
        self.observe_errors(&mut state, FeedKind::Namespace, &event, now.moment);
        state.view.observe_namespace(event);
        state.enqueue_changes(&self.0.rules, now);
    }

    fn handle_account(&self, event: FeedEvent<Object<()>>) {
        let now = self.now();
        let mut state = self.state();
        self.observe_errors(&mut state, FeedKind::Account, &event, now.moment);
        state.view.observe_account(event);
        state.enqueue_changes(&self.0.rules, now);
    }

    fn handle_binding(&self, event: FeedEvent<Object<Binding>>) {
        let now = self.now();
        let mut state = self.state();
        self.observe_errors(&mut state, FeedKind::Binding, &event, now.moment);
        state.view.observe_binding(event);
        state.enqueue_changes(&self.0.rules, now);
    }

    fn handle_uninjected_pod(&self, event: FeedEvent<Object<UninjectedPod>>) {
        let now = self.now();
        let mut state = self.state();
        self.observe_errors(&mut state, FeedKind::UninjectedPod, &event, now.moment);
        state.view.observe_uninjected_pod(event);
        state.enqueue_changes(&self.0.rules, now);
    }

    /// Logs and counts an interruption.
    fn observe_errors<T>(
        &self,
        state: &mut State,
        kind: FeedKind,
        event: &FeedEvent<T>,
        now: Moment,
    ) {
        let about = state.errors.observe(kind, event, now);
        let FeedEvent::Interrupted(error) = event else {
            return;
        };
        self.0.metrics.record_interruption(kind.name());
        let (kind, error) = (kind.name(), with_advice(kind, error));
        match about {
            Some(ErrorTopic::Refused(_)) => {
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

    fn feeds(event: usize) -> Feeds {
        let event = stream::repeat_with(|| FeedItem::Pod(FeedEvent::ListDone)).take(event);
        Feeds(
            [event.chain(stream::pending()).boxed()]
                .into_iter()
                .collect(),
        )
    }

    /// Spawns this many tasks, each of which has finished.
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
            let (finished, item) = feeds.next_with(&mut tasks).await;
            assert!(finished.is_some() && item.is_some(), "turn {turn}");
        }
        let (finished, item) = feeds.next_with(&mut tasks).await;
        assert!(finished.is_none() && item.is_some(), "the backlog is done");
    }

    #[tokio::test]
    async fn finished_tasks_do_not_wait_for_feed_events() {
        let (mut feeds, mut tasks) = (feeds(0), backlog(50).await);
        for turn in 0..50 {
            let (finished, item) = feeds.next_with(&mut tasks).await;
            assert!(finished.is_some() && item.is_none(), "turn {turn}");
        }
        let next = feeds.next_with(&mut tasks).now_or_never();
        assert!(next.is_none(), "no task or event is left");
    }
}
