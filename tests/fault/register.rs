//! The guarded resources: a register and a log per resource, behind HTTP, with a fence. The fence
//! accepts a write whose token is not below the highest accepted one, and answers 412 to an older
//! token.
//!
//! An app reads the length of a log, with its token, before it appends. Two concurrent apps would
//! use the same index, and the first entry would be lost.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use axum::extract::{Path as Named, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::history::{Entry, Op};
use crate::recorder::{Recorder, now_ns};

/// A write, as an app sends it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Write {
    /// The register's name.
    pub(crate) register: String,
    /// The token of the write.
    pub(crate) token: u64,
    /// The value; each write has a different one.
    pub(crate) value: String,
    /// The writing process.
    pub(crate) process: String,
}

/// An entry for a log, as an app sends it. A request without an entry returns the length of the
/// log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Put {
    /// The log's name.
    pub(crate) log: String,
    /// The token of the request.
    pub(crate) token: u64,
    /// The index and the entry.
    pub(crate) entry: Option<(usize, String)>,
}

/// The content of a register.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Content {
    /// The token of the last write; 0 if there was none.
    pub(crate) token: u64,
    /// The written value.
    pub(crate) value: String,
}

/// Whether a register checks tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// It checks them.
    Checks,
    /// It accepts every write: shows that this is detected.
    TakesAll,
}

/// The server. Dropping it stops it.
pub(crate) struct Register {
    /// Its port, on every address of this machine.
    pub(crate) port: u16,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

/// The last writer, and when it wrote.
#[derive(Clone, Debug)]
pub(crate) struct LastWrite {
    pub(crate) process: String,
    pub(crate) at: u64,
}

struct Shared {
    fence: Fence,
    kept: Mutex<Kept>,
}

struct Kept {
    /// The highest token, by register or log.
    highest: BTreeMap<String, u64>,
    contents: BTreeMap<String, Content>,
    logs: BTreeMap<String, Vec<Entry>>,
    /// The number of writes that registers refused.
    refused: usize,
    last: BTreeMap<String, LastWrite>,
    recorder: Recorder,
}

impl Register {
    /// Starts a server, with a history of its decisions in this directory.
    pub(crate) async fn start(fence: Fence, histories: &Path) -> Result<Self> {
        let kept = Kept {
            highest: BTreeMap::new(),
            contents: BTreeMap::new(),
            logs: BTreeMap::new(),
            refused: 0,
            last: BTreeMap::new(),
            recorder: Recorder::begin(histories, "register")?,
        };
        let shared = Arc::new(Shared {
            fence,
            kept: Mutex::new(kept),
        });
        let router = Router::new()
            .route("/write", post(write))
            .route("/read/{register}", get(read))
            .route("/log", post(put))
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("0.0.0.0:0").await?;
        let port = listener.local_addr()?.port();
        let serving = tokio::spawn(async move {
            // The task ends with the test.
            let _outcome = axum::serve(listener, router).await;
        });
        Ok(Self {
            port,
            shared,
            serving,
        })
    }

    /// Records the content of the logs in the history.
    pub(crate) fn tell_logs(&self) -> Result<()> {
        self.shared.with(|kept| {
            for (log, entries) in &kept.logs {
                let (log, entries) = (log.clone(), entries.clone());
                kept.recorder.info(Op::Log { log, entries })?;
            }
            Ok(())
        })
    }

    /// Returns the number of stale writes that the registers refused.
    pub(crate) fn refused(&self) -> usize {
        self.shared.with(|kept| kept.refused)
    }

    /// Returns the last write to each register.
    pub(crate) fn last_writes(&self) -> Vec<LastWrite> {
        self.shared
            .with(|kept| kept.last.values().cloned().collect())
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Shared {
    fn with<T>(&self, look: impl FnOnce(&mut Kept) -> T) -> T {
        look(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Kept {
    /// Returns whether the token is accepted. From then on, tokens older than an accepted one are
    /// refused.
    fn pass(&mut self, what: &str, token: u64, fence: Fence) -> bool {
        let highest = self.highest.entry(what.to_owned()).or_default();
        let passes = token >= *highest || fence == Fence::TakesAll;
        *highest = token.max(*highest);
        passes
    }

    /// Puts an entry at its index, removing any entries from there on, and returns the log's
    /// length.
    fn put(&mut self, put: Put, fence: Fence) -> Option<usize> {
        if !self.pass(&put.log, put.token, fence) {
            return None;
        }
        let entries = self.logs.entry(put.log).or_default();
        if let Some((place, value)) = put.entry {
            let token = put.token;
            entries.truncate(place);
            entries.push(Entry { token, value });
        }
        Some(entries.len())
    }

    /// Decides and records in one step, so that the history has the decisions in order.
    fn decide(&mut self, write: Write, fence: Fence) -> Result<bool> {
        let accepted = self.pass(&write.register, write.token, fence);
        if accepted {
            let (token, value) = (write.token, write.value.clone());
            let (register, process) = (write.register.clone(), write.process);
            self.contents
                .insert(register.clone(), Content { token, value });
            let at = now_ns();
            self.last.insert(register, LastWrite { process, at });
        } else {
            self.refused += 1;
        }
        let decided = Op::decided(&write.register, write.token, &write.value, accepted);
        self.recorder.info(decided)?;
        Ok(accepted)
    }
}

async fn write(State(shared): State<Arc<Shared>>, Json(write): Json<Write>) -> StatusCode {
    match shared.with(|kept| kept.decide(write, shared.fence)) {
        Ok(true) => StatusCode::OK,
        Ok(false) => StatusCode::PRECONDITION_FAILED,
        Err(_no_history) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

async fn read(State(shared): State<Arc<Shared>>, Named(register): Named<String>) -> Json<Content> {
    let content = shared.with(|kept| kept.contents.get(&register).cloned());
    Json(content.unwrap_or_default())
}

async fn put(
    State(shared): State<Arc<Shared>>,
    Json(put): Json<Put>,
) -> Result<Json<usize>, StatusCode> {
    let length = shared.with(|kept| kept.put(put, shared.fence));
    length.map(Json).ok_or(StatusCode::PRECONDITION_FAILED)
}
