//! How long a plain write takes while a test goes on: what a bound of real time is compared with.
//!
//! The writes are the administrator's, of an object that nobody else looks at. So no fault of an agent
//! makes them slow: where they are, the machine has no time for anybody.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
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
    /// When the one began that is on its way.
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
        let noted = Arc::<Mutex<Noted>>::default();
        let told = Arc::clone(&noted);
        let writing = tokio::spawn(async move {
            for count in 0_u64.. {
                let change = json!({"data": {"count": count.to_string()}});
                locked(&told).under_way = Some(now());
                // Where the API server is away the time that this takes says so too.
                let _outcome = api
                    .patch(NAME, &PatchParams::default(), &Patch::Merge(&change))
                    .await;
                locked(&told).end_at(now());
                tokio::time::sleep(BETWEEN).await;
            }
        });
        Ok(Self { noted, writing })
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
