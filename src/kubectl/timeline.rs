//! What happened to a lock: its incidents and its Events, the oldest first.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::format::human::human;
use super::format::table::{Column, Table};
use super::session_health::since;
use super::world::LockSeen;

/// Something that happened to a lock.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// When, by the clock of the one who wrote it. An entry with an unreadable time is the oldest.
    pub at: Option<Timestamp>,
    /// `incident` (the lock's own record), `event` (an Event, kept for about an hour) or `completed`.
    pub source: &'static str,
    /// The kind of the incident, or the reason of the Event.
    pub kind: String,
    /// The pod that held the lock, or that the Event names.
    pub pod: String,
    /// The first fencing token of the grant; absent if it is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<i64>,
    /// Who did it.
    pub actor: String,
    /// The words of the record.
    pub message: String,
}

/// Returns what happened to a lock, by its own record and these Events.
#[must_use]
pub fn entries(lock: &LockSeen, events: &[Value]) -> Vec<Entry> {
    let mut entries: Vec<_> = events.iter().map(of_event).collect();
    if let Ok(status) = &lock.status {
        entries.extend(status.incidents.iter().map(|incident| Entry {
            at: incident.at.parse().ok(),
            source: "incident",
            kind: incident.kind.clone(),
            pod: incident.pod.clone(),
            fencing_token: Some(incident.token),
            actor: incident.actor.clone(),
            message: incident.reason.clone(),
        }));
        entries.extend(status.completed.iter().map(|done| Entry {
            at: done.completed_at.parse().ok(),
            source: "completed",
            kind: done.key.clone(),
            pod: String::new(),
            fencing_token: Some(done.token),
            actor: done.owner_id.clone(),
            message: "the work of this key has succeeded".to_owned(),
        }));
    }
    entries.sort_by(|a, b| a.at.cmp(&b.at).then_with(|| a.source.cmp(b.source)));
    entries
}

/// Reads an Event of either API group.
fn of_event(event: &Value) -> Entry {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let times = ["eventTime", "lastTimestamp", "firstTimestamp"].map(|field| &event[field]);
    let created = &event["metadata"]["creationTimestamp"];
    let time = times.into_iter().chain([created]).find_map(Value::as_str);
    let message = if event["message"].is_string() {
        &event["message"]
    } else {
        &event["note"]
    };
    let actor = if event["reportingComponent"].is_string() {
        &event["reportingComponent"]
    } else {
        &event["reportingController"]
    };
    Entry {
        at: time.and_then(|time| time.parse().ok()),
        source: "event",
        kind: text(&event["reason"]),
        pod: text(&event["related"]["name"]),
        fencing_token: None,
        actor: text(actor),
        message: text(message),
    }
}

/// Returns the table of these entries.
#[must_use]
pub fn table(entries: &[Entry], now: Timestamp) -> Table {
    let columns = vec![
        Column::new("AGE"),
        Column::new("TIME").wide_only(),
        Column::new("SOURCE").priority(4),
        Column::new("KIND"),
        Column::new("POD").flexible().priority(2),
        Column::new("TOKEN").priority(5),
        Column::new("ACTOR").flexible().priority(3),
        Column::new("MESSAGE").flexible(),
    ];
    let rows = entries.iter().map(|entry| {
        let age = entry.at.map(|at| format!("~{}", human(since(at, now))));
        let time = entry.at.map(|at| at.to_string());
        vec![
            age.unwrap_or_default(),
            time.unwrap_or_default(),
            entry.source.to_owned(),
            entry.kind.clone(),
            entry.pod.clone(),
            entry
                .fencing_token
                .map_or_else(String::new, |token| token.to_string()),
            entry.actor.clone(),
            entry.message.clone(),
        ]
    });
    Table {
        columns,
        rows: rows.collect(),
    }
}
