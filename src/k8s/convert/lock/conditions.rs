//! Converts the conditions of a lock. Those of other types stay as they were read.

use serde_json::Value;

use super::super::{Fields, overlay, time_text, truncate, wall_time};
use crate::crd::REASON_MAX;
use crate::crd::lock::ConditionRecord;
use crate::protocol::lock::Lock;
use crate::protocol::time::WallTime;
use crate::store::StoreError;

/// The type of the condition.
const LONG_HELD: &str = "LongHeld";

/// Returns since when the grant counts as long-held.
pub(super) fn long_held(status: &Fields) -> Option<WallTime> {
    let conditions = status.get("conditions").and_then(Value::as_array)?;
    let condition = conditions.iter().find(|c| c["type"] == LONG_HELD)?;
    let since = condition["lastTransitionTime"].as_str().unwrap_or_default();
    (condition["status"] == "True").then(|| wall_time(since))
}

/// Adds or removes the condition; others stay as they were read.
pub(super) fn write_long_held(
    status: &mut Fields,
    before: &Lock,
    next: &Lock,
) -> Result<(), StoreError> {
    if before.long_held == next.long_held {
        return Ok(());
    }
    let mut conditions = match status.remove("conditions") {
        Some(Value::Array(conditions)) => conditions,
        _ => Vec::new(),
    };
    conditions.retain(|condition| condition["type"] != LONG_HELD);
    if let (Some(since), Some(grant)) = (next.long_held, &next.grant) {
        let message = format!(
            "{} in pod {} has held the lock since {}; nothing is taken from it. Where it should \
             not: stop that app, delete its pod, or ask for the release with spec.releaseRequest",
            grant.holder.owner,
            grant.holder.pod.name,
            time_text(grant.acquired_at),
        );
        let condition = ConditionRecord {
            r#type: LONG_HELD.to_owned(),
            status: "True".to_owned(),
            reason: "HeldTooLong".to_owned(),
            message: truncate(&message, REASON_MAX),
            last_transition_time: time_text(since),
        };
        conditions.push(overlay(None, CONDITION, &condition)?);
    }
    if !conditions.is_empty() {
        status.insert("conditions".to_owned(), conditions.into());
    }
    Ok(())
}

const CONDITION: &[&str] = &["type", "status", "reason", "message", "lastTransitionTime"];
