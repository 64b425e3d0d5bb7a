//! The requests about one lock: its page, and its release.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::live::Live;
use super::routes::{Answer, Problem, answer};
use crate::cli::kubectl::release;
use crate::crd::lock::ReleaseMode;
use crate::kubectl::describe::describe as describe_lock;
use crate::kubectl::page::lock::LockPage;
use crate::kubectl::release::{Outcome, requested};
use crate::kubectl::world::LockSeen;
use crate::kubectl::{timeline, why};

/// Returns the page of a lock.
pub(super) async fn show(
    State(live): State<Arc<Live>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Json<Answer<LockPage>>, Problem> {
    let (lock, pods) = {
        let seen = live.seen();
        let lock = seen.lock(&namespace, &name);
        let lock = lock.ok_or_else(|| not_found(&namespace, &name))?;
        (lock.clone(), why::pods_of(&seen.world, lock))
    };
    let details = live.details(&lock, &pods).await;
    let mut seen = live.seen();
    seen.world.pods.clone_from(&details.pods);
    seen.world.nodes.clone_from(&details.nodes);
    seen.world.operator.clone_from(&details.operator);
    let lock = seen.lock(&namespace, &name);
    let lock = lock.ok_or_else(|| not_found(&namespace, &name))?;
    let events = details.events.seen().map_or(&[][..], Vec::as_slice);
    let entries = timeline::entries(lock, events);
    let description = describe_lock(&seen.world, lock, &entries, details.events.unknown());
    Ok(Json(Answer {
        body: LockPage::new(&seen.world, lock, &description, details.missing.as_deref()),
        cluster: live.cluster(&seen),
    }))
}

fn not_found(namespace: &str, name: &str) -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        format!(
            "the lock {name} does not exist in namespace {namespace}; it was deleted, or is not listed yet"
        ),
    )
}

/// A request to release a lock.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Request {
    lease_id: String,
    mode: ReleaseMode,
    reason: String,
}

/// Requests the release of the grant that the user has seen. One that has ended meanwhile is not released.
pub(super) async fn release(
    State(live): State<Arc<Live>>,
    Path((namespace, name)): Path<(String, String)>,
    Json(request): Json<Request>,
) -> Result<Json<Value>, Problem> {
    let reason = release::reason(&request.reason)
        .map_err(|why| Problem::new(StatusCode::BAD_REQUEST, why))?;
    let lock = live.seen().lock(&namespace, &name).cloned();
    let lock = lock.ok_or_else(|| not_found(&namespace, &name))?;
    if grant(&lock) != Some(request.lease_id.as_str()) {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "this grant has ended meanwhile; nothing was requested",
        ));
    }
    let change = release::change(&request.lease_id, request.mode, &reason, &live.user);
    release::request(&live.api, &lock, &change).await?;
    let note = requested(&live.seen().world, &lock, request.mode);
    live.requested(&request.lease_id, lock);
    Ok(Json(json!({"note": note})))
}

/// Returns what has become of a request.
pub(super) async fn released(
    State(live): State<Arc<Live>>,
    Path((namespace, name, lease)): Path<(String, String, String)>,
) -> Result<Json<Answer<Value>>, Problem> {
    let before = live.request(&lease).ok_or_else(|| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "this page has not requested the end of that grant",
        )
    })?;
    let lock = live.seen().lock(&namespace, &name).cloned();
    let outcome = Outcome::of(&before, &lease, lock.as_ref());
    Ok(answer(
        &live,
        json!({"text": outcome.map(|one| one.text())}),
    ))
}

fn grant(lock: &LockSeen) -> Option<&str> {
    let lease = lock.status.as_ref().ok()?.lease.as_ref()?;
    Some(&lease.id)
}
