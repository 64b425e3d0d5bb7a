//! How long a plain write takes while a test runs: bounds of real time are compared with that.
//!
//! The administrator writes an object that no agent reads. So no bug of an agent makes these writes slow: if they
//! are, the machine has too little time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use leasehold::protocol::time::Moment;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::harness::{Namespace, now};

const NAME: &str = "plain-writes";
const BETWEEN: Duration = Duration::from_millis(50);

/// One write after the other, until it is dropped.
pub(crate) struct PlainWrites {
    noted: Arc<Mutex<Noted>>,
    writing: JoinHandle<()>,
}

#[derive(Default)]
struct Noted {
    /// From when to when each one was on its way.
    done: Vec<(Moment, Moment)>,
    /// When the one began that is on its way, or is due.
    under_way: Option<Moment>,
}

impl Noted {
    fn end_at(&mut self, at: Moment) {
        let began = self.under_way.take();
        self.done.extend(began.map(|began| (began, at)));
    }
}

impl PlainWrites {
    /// From now on.
    pub(crate) async fn start(namespace: &Namespace) -> Result<Self> {
        let api = Api::<ConfigMap>::namespaced(namespace.client.clone(), &namespace.name);
        let object = serde_json::from_value(json!({"metadata": {"name": NAME}}))?;
        api.create(&PostParams::default(), &object).await?;
        let noted = Arc::new(Mutex::new(Noted {
            under_way: Some(now()),
            ..Noted::default()
        }));
        let told = Arc::clone(&noted);
        let writing = tokio::spawn(async move {
            for count in 0_u64.. {
                let change = json!({"data": {"count": count.to_string()}});
                // While the API server is unavailable, the duration of the write shows that too.
                let _outcome = api
                    .patch(NAME, &PatchParams::default(), &Patch::Merge(&change))
                    .await;
                locked(&told).end_at(now());
                // It is due then, also if the machine stalls during this sleep.
                locked(&told).under_way = Some(now().after(BETWEEN));
                tokio::time::sleep(BETWEEN).await;
            }
        });
        Ok(Self { noted, writing })
    }

    /// The time between the two moments was shorter than this. If a plain write takes a tenth of it the machine is
    /// too slow, and ten of them are the bound.
    pub(crate) fn must_be_within(
        &self,
        bound: Duration,
        from: Moment,
        until: Moment,
    ) -> Result<()> {
        let (took, write) = (until.since(from), self.slowest_between(from, until));
        ensure!(
            took <= bound.max(write * 10),
            "it took {took:?}, and a write {write:?}"
        );
        Ok(())
    }

    /// The slowest of those that were on their way at some moment of this time.
    pub(crate) fn slowest_between(&self, from: Moment, until: Moment) -> Duration {
        let noted = locked(&self.noted);
        let under_way = noted.under_way.map(|began| (began, now()));
        let all = noted.done.iter().copied().chain(under_way);
        let then = all.filter(|(began, ended)| *began <= until && *ended >= from);
        let took = then.map(|(began, ended)| ended.since(began));
        took.max().unwrap_or_default()
    }
}

impl Drop for PlainWrites {
    fn drop(&mut self) {
        self.writing.abort();
    }
}

fn locked(noted: &Mutex<Noted>) -> MutexGuard<'_, Noted> {
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}
