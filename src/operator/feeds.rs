//! The feeds of the operator, as one stream of observations.

use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt as _, StreamExt as _};
use tokio::task::{JoinError, JoinSet};

use super::observation::{FeedKind, Observation};
use super::ports::Ports;
use super::rules::Rules;

/// All open feeds.
pub(super) struct Feeds(SelectAll<BoxStream<'static, Observation>>);

impl Feeds {
    /// Opens the feeds that these rules need.
    pub(super) fn open(rules: &Rules, ports: &Ports) -> Self {
        Self(rules.watched().map(|kind| feed(kind, ports)).collect())
    }

    /// Returns the next finished task and the next event, one of each if both are ready. A large
    /// list must not delay finished tasks, and many tasks must not delay events: sessions would
    /// look expired.
    pub(super) async fn next_with<T: 'static>(
        &mut self,
        tasks: &mut JoinSet<T>,
    ) -> (Option<Result<T, JoinError>>, Option<Observation>) {
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

fn feed(kind: FeedKind, ports: &Ports) -> BoxStream<'static, Observation> {
    let (fleet, namespaces) = (&ports.fleet, &ports.namespaces);
    match kind {
        FeedKind::Lock => fleet.locks().map(Observation::Lock).boxed(),
        FeedKind::Session => fleet.sessions().map(Observation::Session).boxed(),
        FeedKind::Pod => fleet.ended_pods().map(Observation::Pod).boxed(),
        FeedKind::Node => fleet.nodes().map(Observation::Node).boxed(),
        FeedKind::Namespace => namespaces.labelled().map(Observation::Namespace).boxed(),
        FeedKind::Account => namespaces.accounts().map(Observation::Account).boxed(),
        FeedKind::Binding => namespaces.bindings().map(Observation::Binding).boxed(),
        FeedKind::UninjectedPod => {
            let pods = namespaces.uninjected_pods();
            pods.map(Observation::UninjectedPod).boxed()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fleet::FeedEvent;
    use futures::stream;

    fn feeds(event: usize) -> Feeds {
        let event = stream::repeat_with(|| Observation::Pod(FeedEvent::ListDone)).take(event);
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
