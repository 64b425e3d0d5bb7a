//! Reports stale writes that the fence refused, so that the lock shows them. No answer waits for a report.
//!
//! A sidecar limits how often it writes Events, so there is a pause after each report. Meanwhile the last refusal of
//! each other resource waits. A report that fails is lost: all refusals are in the fence's log and metrics.

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

/// Reports refused writes to the lock.
#[async_trait]
pub trait Report: Send + Sync + 'static {
    /// Reports one.
    ///
    /// # Errors
    /// Why it was not accepted, or may not have been.
    async fn report(&self, refused: &Refused) -> Result<(), String>;
}

/// The reports to send.
#[derive(Default)]
pub(super) struct Reports {
    waiting: Mutex<VecDeque<Refused>>,
    added: Notify,
}

impl Reports {
    /// Adds a refusal. It replaces the one that waits of the same resource.
    pub(super) fn add(&self, refused: Refused) {
        let mut waiting = self.waiting();
        let same = |other: &&mut Refused| other.resource == refused.resource;
        if let Some(other) = waiting.iter_mut().find(same) {
            *other = refused;
        } else if waiting.len() < WAITING_MAX {
            waiting.push_back(refused);
            self.added.notify_one();
        }
    }

    /// Sends reports forever.
    pub(super) async fn run(self: Arc<Self>, to: Arc<dyn Report>) {
        loop {
            let next = self.waiting().pop_front();
            let Some(refused) = next else {
                self.added.notified().await;
                continue;
            };
            if let Err(error) = to.report(&refused).await {
                tracing::warn!(resource = %refused.resource, fencingToken = refused.token.get(), %error, "reporting a refused write failed");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Refused>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
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
        let waiting: Vec<_> = reports.waiting().drain(..).collect();
        let expected: Vec<_> = (0..WAITING_MAX)
            .map(|r| refused(&format!("r-{r}"), 2))
            .collect();
        assert_eq!(waiting, expected);
    }

    #[derive(Default)]
    struct Sink(Mutex<Vec<String>>);

    #[async_trait]
    impl Report for Sink {
        async fn report(&self, refused: &Refused) -> Result<(), String> {
            self.0.lock().unwrap().push(refused.resource.to_string());
            Err("the sidecar is away".to_owned())
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
            assert_eq!(sink.0.lock().unwrap().len() as u64, round + 1);
            tokio::time::sleep(PAUSE / 2).await;
        }
        task.abort();
        assert_eq!(
            sink.0.lock().unwrap()[..4],
            ["loop", "loop", "other", "loop"]
        );
    }
}
