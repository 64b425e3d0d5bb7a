//! The meaning of a request to the API server in our protocol. It follows from the method, the
//! path, the body, and the object at the version that the write was decided on.

use std::cmp::Ordering;
use std::collections::HashMap;

use http::Method;
use serde_json::Value;

/// The meaning of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    CreateSession,
    /// Renewing a session.
    Renew,
    /// Revoking another agent's session.
    Revoke,
    /// Ending the agent's own session.
    EndSession,
    CreateLock,
    /// Acquiring a free lock.
    Acquire,
    /// Taking over a lock from an expired holder.
    TakeOver,
    /// Releasing a lock without waiters.
    Release,
    /// Releasing a lock to its first waiter.
    HandOver,
    /// Joining a queue by compare-and-swap: a preferred candidate, or the first waiter of a lock
    /// without a list.
    Enqueue,
    /// Joining a queue by a patch.
    Join,
    /// Leaving a lock's queue.
    Dequeue,
    /// Raising the token of a grant after a restored backup.
    Raise,
    GetLock,
    GetSession,
    List,
    Watch,
    Other,
}

impl Class {
    /// All classes.
    pub(crate) const ALL: [Self; 18] = [
        Self::CreateSession,
        Self::Renew,
        Self::Revoke,
        Self::EndSession,
        Self::CreateLock,
        Self::Acquire,
        Self::TakeOver,
        Self::Release,
        Self::HandOver,
        Self::Enqueue,
        Self::Join,
        Self::Dequeue,
        Self::Raise,
        Self::GetLock,
        Self::GetSession,
        Self::List,
        Self::Watch,
        Self::Other,
    ];

    /// Returns whether it changes one of our objects.
    pub(crate) const fn is_write(self) -> bool {
        let is_read = matches!(self, Self::GetLock | Self::GetSession | Self::List);
        !(is_read || matches!(self, Self::Watch | Self::Other))
    }
}

/// The parts of earlier messages that the meaning of the next request depends on.
#[derive(Default)]
pub(super) struct Memory {
    /// By lock and resourceVersion: the grant's id, and the numbers of waiters and incidents.
    locks: HashMap<(String, String), LockThen>,
}

#[derive(Clone, Default)]
struct LockThen {
    lease: Option<String>,
    waiters: usize,
    incidents: usize,
}

impl Memory {
    /// Records an object, or a list, from an answer to a client.
    pub(super) fn note(&mut self, answer: &Value) {
        if let Some(items) = answer["items"].as_array() {
            for item in items {
                self.note_lock(item);
            }
        }
        self.note_lock(answer);
    }

    /// Records the events in a chunk of a watch. `rest` is the remainder of the previous chunk.
    pub(super) fn note_events(&mut self, rest: &mut Vec<u8>, piece: &[u8]) {
        rest.extend_from_slice(piece);
        let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else {
            return;
        };
        for line in rest.drain(..=end).as_slice().split(|byte| *byte == b'\n') {
            if let Ok(event) = serde_json::from_slice::<Value>(line) {
                self.note_lock(&event["object"]);
            }
        }
    }

    fn note_lock(&mut self, object: &Value) {
        if object["spec"]["resource"].is_string() {
            self.locks.insert(identity(object), lock_then(object));
        }
    }

    /// Returns the meaning of a request.
    pub(super) fn classify(&self, method: &Method, uri: &http::Uri, body: &Value) -> Class {
        let query = uri.query().unwrap_or_default();
        // A watch of any kind, in one namespace or in all: its events must pass as they arrive.
        if method == Method::GET && query.contains("watch=") {
            return Class::Watch;
        }
        let Some(path) = uri.path().strip_prefix("/apis/leasehold.dev/v1alpha1/") else {
            return Class::Other;
        };
        let parts: Vec<_> = path.split('/').collect();
        match (method, parts.as_slice()) {
            (&Method::GET, [_] | [_, _, _]) => Class::List,
            (&Method::GET, [_, _, "distributedlocks", _]) => Class::GetLock,
            (&Method::GET, [_, _, "locksessions", _]) => Class::GetSession,
            (&Method::POST, [_, _, "distributedlocks"]) => Class::CreateLock,
            (&Method::POST, [_, _, "locksessions"]) => Class::CreateSession,
            (&Method::PUT, [_, _, "distributedlocks", _, "status"]) => self.classify_lock(body),
            (&Method::PATCH, [_, _, "distributedlocks", _, "status"]) => Class::Join,
            (&Method::PUT, [_, _, "locksessions", _, "status"]) => classify_session(body),
            _ => Class::Other,
        }
    }

    fn classify_lock(&self, body: &Value) -> Class {
        let before = self.locks.get(&identity(body)).cloned().unwrap_or_default();
        let after = lock_then(body);
        match (&before.lease, &after.lease) {
            (None, Some(_)) => Class::Acquire,
            (Some(then), Some(now)) if then == now => match after.waiters.cmp(&before.waiters) {
                Ordering::Greater => Class::Enqueue,
                Ordering::Less => Class::Dequeue,
                Ordering::Equal => Class::Raise,
            },
            (Some(_), _) if after.incidents > before.incidents => Class::TakeOver,
            (Some(_), Some(_)) => Class::HandOver,
            (Some(_), None) => Class::Release,
            (None, None) => Class::Other,
        }
    }
}

fn classify_session(body: &Value) -> Class {
    match body["status"]["revoked"]["reason"].as_str() {
        None => Class::Renew,
        Some("Ended") => Class::EndSession,
        Some(_) => Class::Revoke,
    }
}

fn identity(object: &Value) -> (String, String) {
    let text = |field: &str| {
        let value = &object["metadata"][field];
        value.as_str().unwrap_or_default().to_owned()
    };
    (text("name"), text("resourceVersion"))
}

fn lock_then(object: &Value) -> LockThen {
    let status = &object["status"];
    LockThen {
        lease: status["lease"]["id"].as_str().map(str::to_owned),
        waiters: status["waiters"].as_array().map_or(0, Vec::len),
        incidents: status["incidents"].as_array().map_or(0, Vec::len),
    }
}
