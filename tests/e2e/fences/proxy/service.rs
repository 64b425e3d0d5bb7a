//! A service that cannot compare tokens: it appends each body to a log, also after its client has disconnected.

use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::HeaderMap;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::history::Entry;

type Log = Arc<Mutex<Vec<Entry>>>;

/// A running service.
pub(super) struct Service {
    pub(super) url: String,
    log: Log,
    _server: AbortOnDropHandle<()>,
}

impl Service {
    pub(super) async fn start() -> Result<Self> {
        let log = Log::default();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let router = Router::new()
            .route("/log", get(last).post(append))
            .with_state(log.clone());
        let server = tokio::spawn(async move {
            if axum::serve(listener, router).await.is_err() {
                pending::<()>().await;
            }
        });
        Ok(Self {
            url,
            log,
            _server: AbortOnDropHandle::new(server),
        })
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        entries(&self.log).clone()
    }
}

fn entries(log: &Log) -> std::sync::MutexGuard<'_, Vec<Entry>> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn last(State(log): State<Log>) -> String {
    let entries = entries(&log);
    entries
        .last()
        .map_or_else(String::new, |entry| entry.value.clone())
}

/// A repeated value has no second effect.
async fn append(State(log): State<Log>, headers: HeaderMap, value: String) {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.parse().ok();
    let token = number("x-fencing-token").unwrap_or_default();
    let pause = Duration::from_micros(number("x-pause-micros").unwrap_or_default());
    // A task, because the handler ends with the connection.
    let appended = tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        let mut entries = entries(&log);
        if entries.iter().all(|entry| entry.value != value) {
            entries.push(Entry { token, value });
        }
    });
    let _done = appended.await;
}
