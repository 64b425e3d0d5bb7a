//! What the locks guard: a register and a log for each resource, behind HTTP, with a fence. It takes a write with a
//! token that is not below the highest that it has taken, and answers 412 to an older one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::history::Op;
use crate::journal::{Journal, now_ns};

/// A write, as an app sends it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Write {
    /// Where.
    pub(crate) register: String,
    /// With this token.
    pub(crate) token: u64,
    /// What; no two writes write the same.
    pub(crate) value: String,
    /// Who.
    pub(crate) process: String,
}

/// Whether a register looks at tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// As it should.
    Checks,
    /// It takes whatever comes: only to see that this is noticed.
    TakesAll,
}

/// The server. Dropping it ends it.
pub(crate) struct Register {
    /// Its port, on every address of this machine.
    pub(crate) port: u16,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

/// Who wrote last, and when.
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
    highest: BTreeMap<String, u64>,
    refused: usize,
    last: BTreeMap<String, LastWrite>,
    journal: Journal,
}

impl Register {
    /// Starts one, whose decisions become a history in this directory.
    pub(crate) async fn start(fence: Fence, histories: &Path) -> Result<Self> {
        let kept = Kept {
            highest: BTreeMap::new(),
            refused: 0,
            last: BTreeMap::new(),
            journal: Journal::begin(histories, "register")?,
        };
        let shared = Arc::new(Shared {
            fence,
            kept: Mutex::new(kept),
        });
        let router = Router::new()
            .route("/write", post(write))
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("0.0.0.0:0").await?;
        let port = listener.local_addr()?.port();
        let serving = tokio::spawn(async move {
            // It ends with the test.
            let _outcome = axum::serve(listener, router).await;
        });
        Ok(Self {
            port,
            shared,
            serving,
        })
    }

    /// How many stale writes it refused.
    pub(crate) fn refused(&self) -> usize {
        self.shared.with(|kept| kept.refused)
    }

    /// Who wrote last to each register.
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
    /// Decides and records in one step: the history has the decisions in their order.
    fn decide(&mut self, write: Write, fence: Fence) -> Result<bool> {
        let highest = self.highest.entry(write.register.clone()).or_default();
        let accepted = write.token >= *highest || fence == Fence::TakesAll;
        if accepted {
            *highest = write.token.max(*highest);
            let (process, at) = (write.process, now_ns());
            self.last
                .insert(write.register.clone(), LastWrite { process, at });
        } else {
            self.refused += 1;
        }
        let decided = Op::decided(&write.register, write.token, &write.value, accepted);
        self.journal.info(decided)?;
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
