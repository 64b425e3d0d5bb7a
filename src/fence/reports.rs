//! Reports stale writes that the fence refused, so that the lock shows them. No answer waits for a report.
//!
//! A sidecar limits how often it writes Events, so there is a pause after each report. Meanwhile the last refusal of
//! each other resource waits, also one whose report had no answer. What waits when the fence ends is lost, but all
//! refusals are in its log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::protocol::ids::Resource;
use crate::protocol::token::Token;

/// The pause after a report: the sidecar's own.
const PAUSE: Duration = Duration::from_secs(10);
/// The maximum number of resources that wait. Refusals of others are not reported.
const WAITING_MAX: usize = 100;

/// A stale write that the fence refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The resource of the token.
    pub resource: Resource,
    /// The token of the write.
    pub token: Token,
    /// The newest token.
    pub latest: Token,
}

/// Why a report was not accepted, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportError {
    /// In words.
    pub detail: String,
    /// Whether the same report may be accepted later.
    pub is_transient: bool,
}

/// Reports refused writes to the lock.
#[async_trait]
pub trait Report: Send + Sync + 'static {
    /// Reports one.
    ///
    /// # Errors
    /// [`ReportError`].
    async fn report(&self, refused: &Refused) -> Result<(), ReportError>;
}

/// The reports to send.
#[derive(Default)]
pub(super) struct Reports {
    waiting: Mutex<Waiting>,
    added: Notify,
}

#[derive(Default)]
struct Waiting {
    refused: VecDeque<Refused>,
    /// Whether one found no room since the last report.
    has_dropped: bool,
}

impl Reports {
    /// Adds a refusal. It replaces the one that waits of the same resource.
    pub(super) fn add(&self, refused: Refused) {
        let mut waiting = self.waiting();
        if let Some(other) = waiting.of(&refused.resource) {
            *other = refused;
        } else {
            self.push(&mut waiting, refused);
        }
    }

    /// Sends reports forever.
    pub(super) async fn run(self: Arc<Self>, to: Arc<dyn Report>) {
        loop {
            let Some(refused) = self.next() else {
                self.added.notified().await;
                continue;
            };
            if let Err(error) = to.report(&refused).await {
                tracing::warn!(
                    resource = %refused.resource, fencingToken = refused.token.get(), error = error.detail,
                    retrying = error.is_transient, "reporting a refused write failed"
                );
                if error.is_transient {
                    self.add_again(refused);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A later refusal of the same resource takes its place.
    fn add_again(&self, refused: Refused) {
        let mut waiting = self.waiting();
        if waiting.of(&refused.resource).is_none() {
            self.push(&mut waiting, refused);
        }
    }

    fn push(&self, waiting: &mut Waiting, refused: Refused) {
        if waiting.refused.len() < WAITING_MAX {
            waiting.refused.push_back(refused);
            self.added.notify_one();
        } else if !waiting.has_dropped {
            waiting.has_dropped = true;
            tracing::warn!(resource = %refused.resource, waiting = WAITING_MAX, "too many reports wait; some are dropped");
        }
    }

    fn next(&self) -> Option<Refused> {
        let mut waiting = self.waiting();
        waiting.has_dropped = false;
        waiting.refused.pop_front()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn of(&mut self, resource: &Resource) -> Option<&mut Refused> {
        self.refused
            .iter_mut()
            .find(|other| other.resource == *resource)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn refused(resource: &str, token: u64) -> Refused {
        Refused {
            resource: Resource::parse(resource).unwrap(),
            token: Token::from_raw(token),
            latest: Token::from_raw(1_000),
        }
    }

    #[test]
    fn the_last_refusal_of_a_bounded_number_of_resources_waits() {
        let reports = Reports::default();
        for token in 0..3 {
            for resource in 0..=WAITING_MAX {
                reports.add(refused(&format!("r-{resource}"), token));
            }
        }
        let waiting: Vec<_> = reports.waiting().refused.drain(..).collect();
        let expected: Vec<_> = (0..WAITING_MAX)
            .map(|r| refused(&format!("r-{r}"), 2))
            .collect();
        assert_eq!(waiting, expected);
    }

    #[derive(Default)]
    struct Sink {
        received: Mutex<Vec<Refused>>,
        is_away: AtomicBool,
    }

    #[async_trait]
    impl Report for Sink {
        async fn report(&self, refused: &Refused) -> Result<(), ReportError> {
            self.received.lock().unwrap().push(refused.clone());
            Err(ReportError {
                detail: "no answer".to_owned(),
                is_transient: self.is_away.load(Ordering::Relaxed),
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reports_of_one_writer_do_not_displace_those_of_others() {
        let (reports, sink) = (Arc::new(Reports::default()), Arc::new(Sink::default()));
        let task = tokio::spawn(reports.clone().run(sink.clone()));
        for round in 0..4 {
            reports.add(refused("loop", round));
            if round == 1 {
                reports.add(refused("other", 5));
            }
            tokio::time::sleep(PAUSE / 2).await;
            assert_eq!(sink.received.lock().unwrap().len() as u64, round + 1);
            tokio::time::sleep(PAUSE / 2).await;
        }
        task.abort();
        let expected = [("loop", 0), ("loop", 1), ("other", 5), ("loop", 3)];
        let expected = expected.map(|(resource, token)| refused(resource, token));
        assert_eq!(sink.received.lock().unwrap()[..4], expected);
    }

    #[tokio::test(start_paused = true)]
    async fn report_without_an_answer_is_repeated() {
        let (reports, sink) = (Arc::new(Reports::default()), Arc::new(Sink::default()));
        sink.is_away.store(true, Ordering::Relaxed);
        let task = tokio::spawn(reports.clone().run(sink.clone()));
        reports.add(refused("a", 1));
        tokio::time::sleep(PAUSE / 2).await;
        reports.add(refused("b", 1));
        tokio::time::sleep(PAUSE).await;
        // Waits behind the other one.
        sink.is_away.store(false, Ordering::Relaxed);
        tokio::time::sleep(PAUSE * 4).await;
        task.abort();
        let expected = ["a", "a", "b", "a"].map(|resource| refused(resource, 1));
        assert_eq!(sink.received.lock().unwrap()[..], expected);
    }
}
