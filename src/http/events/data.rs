//! The data of events as JSON, one type for each, camelCase.

use serde::Serialize;
use utoipa::ToSchema;

use super::super::dto::{AcquiredDto, PERSON_ASKED, time_text, whole_ms};
use super::super::explain::loss_detail;
use super::super::held::HeldDto;
use crate::agent::{LeaseEvent, LeaseView, Request};

/// The data of an event, by the event's name. The data of `error` is a Problem.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = EventData)]
pub(in crate::http) enum EventData {
    /// `waiting`
    Waiting(WaitingDto),
    /// `acquired`: the response of acquire
    Acquired(AcquiredDto),
    /// `heartbeat`
    Heartbeat(HeartbeatDto),
    /// `at-risk`
    AtRisk(AtRiskDto),
    /// `release-requested`
    ReleaseRequested(ReleaseRequestedDto),
    /// `lost`
    Lost(LostDto),
}

/// The lock is held by another holder.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WaitingEvent)]
pub(in crate::http) struct WaitingDto {
    /// The requested resource.
    resource: String,
    #[serde(flatten)]
    held: HeldDto,
}

/// The lease is still valid.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HeartbeatEvent)]
pub(in crate::http) struct HeartbeatDto {
    /// The lease.
    #[schema(example = "0f8a4c6e-5b1d-4c52-9d0a-7a3d9c1be0aa.0")]
    lease_id: String,
    /// Its fencing token.
    #[schema(example = 1_842_000)]
    fencing_token: u64,
    /// For how many milliseconds the app may act, counted from when it sent the request that opened
    /// this stream. It grows from event to event, so an event that is read late is still correct.
    #[schema(example = 614_250)]
    valid_for_ms: u64,
    /// The same as a wall-clock time, informational.
    #[schema(format = DateTime, example = "2026-04-01T00:10:14.25Z")]
    expires_at: String,
}

/// The lease may be lost soon. Sent once per outage.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AtRiskEvent)]
pub(in crate::http) struct AtRiskDto {
    #[serde(flatten)]
    lease: HeartbeatDto,
    /// `renewal_failed`: the agent cannot renew its session with the API server, and less than half
    /// of its validity is left. New reasons may be added.
    #[schema(example = "renewal_failed")]
    reason: &'static str,
}

/// The app should finish and release the lock.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ReleaseRequestedEvent)]
pub(in crate::http) struct ReleaseRequestedDto {
    #[serde(flatten)]
    lease: HeartbeatDto,
    /// `agent_stopping`: the agent is stopping, and `validForMs` does not grow any more. `max_hold`:
    /// `maxHoldSeconds` have nearly passed. `person_asked`: a person requested it, and the app decides.
    /// New reasons may be added.
    #[schema(example = "agent_stopping")]
    reason: &'static str,
    /// The person, for `person_asked`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "alice@example.com")]
    actor: Option<String>,
    /// The reason that the person gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "maintenance of the ledger")]
    message: Option<String>,
}

/// The lease has ended. The last event.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = LostEvent)]
pub(in crate::http) struct LostDto {
    /// The lease.
    #[schema(example = "0f8a4c6e-5b1d-4c52-9d0a-7a3d9c1be0aa.0")]
    lease_id: String,
    /// The reason, as in 410 `lease_lost`; `max_hold` if `maxHoldSeconds` have passed.
    #[schema(example = "session_expired")]
    reason: &'static str,
    /// The same as text.
    detail: &'static str,
}

impl EventData {
    /// Returns the event's name. An error has a name of its own, and is not an event of a lease.
    pub(in crate::http) const fn name(&self) -> &'static str {
        match self {
            Self::Waiting(_) => "waiting",
            Self::Acquired(_) => "acquired",
            Self::Heartbeat(_) => "heartbeat",
            Self::AtRisk(_) => "at-risk",
            Self::ReleaseRequested(_) => "release-requested",
            Self::Lost(_) => "lost",
        }
    }

    /// Returns the data; `None` for an error, whose data is a problem.
    pub(in crate::http) fn of(event: &LeaseEvent) -> Option<Self> {
        Some(match event {
            LeaseEvent::Waiting { resource, held, at } => Self::Waiting(WaitingDto {
                resource: resource.to_string(),
                held: held
                    .as_deref()
                    .map_or_else(HeldDto::default, |held| HeldDto::at(*at, held)),
            }),
            LeaseEvent::Acquired(lease) => Self::Acquired(AcquiredDto::new(lease, false)),
            LeaseEvent::Heartbeat(lease) => Self::Heartbeat(lease.into()),
            LeaseEvent::AtRisk(lease) => Self::AtRisk(AtRiskDto {
                lease: lease.into(),
                reason: "renewal_failed",
            }),
            LeaseEvent::ReleaseRequested(lease, request) => {
                Self::ReleaseRequested(ReleaseRequestedDto::new(lease, request))
            }
            LeaseEvent::Lost(lease, loss) => Self::Lost(LostDto {
                lease_id: lease.to_string(),
                reason: loss.as_str(),
                detail: loss_detail(*loss),
            }),
            LeaseEvent::Failed(_) => return None,
        })
    }
}

impl ReleaseRequestedDto {
    fn new(lease: &LeaseView, request: &Request) -> Self {
        let (reason, person) = match request {
            Request::AgentStopping => ("agent_stopping", None),
            Request::MaxHold => ("max_hold", None),
            Request::PersonAsked(person) => (PERSON_ASKED, Some(person)),
        };
        Self {
            lease: lease.into(),
            reason,
            actor: person.map(|person| person.actor.to_string()),
            message: person.map(|person| person.reason.to_string()),
        }
    }
}

impl From<&LeaseView> for HeartbeatDto {
    fn from(lease: &LeaseView) -> Self {
        Self {
            lease_id: lease.lease.to_string(),
            fencing_token: lease.token.get(),
            valid_for_ms: whole_ms(lease.valid_for),
            expires_at: time_text(lease.expires_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::examples;
    use super::super::super::held::Refusal;
    use super::*;
    use crate::agent::HeldView;
    use crate::protocol::ids::Resource;

    /// It has each field that can be absent.
    fn held() -> HeldView {
        HeldView {
            position: Some(2),
            hint: Some("more".into()),
            ..examples::held()
        }
    }

    #[test]
    fn waiting_has_the_fields_of_a_refusal() {
        let resource = Resource::parse("close").unwrap();
        let at = examples::NOW;
        let event = LeaseEvent::Waiting {
            resource: resource.clone(),
            held: Some(Box::new(held())),
            at,
        };
        let waiting = serde_json::to_value(EventData::of(&event)).unwrap();
        let refusal = Refusal {
            resource: &resource,
            held: &held(),
            waited: Duration::ZERO,
            now: at,
            namespace: None,
        };
        let refused = refusal.problem().document();
        let mut fields = waiting.as_object().unwrap().clone();
        assert_eq!(fields.remove("resource"), Some("close".into()));
        assert_eq!(fields.len(), 7, "{fields:?}");
        for (name, value) in fields {
            assert_eq!(refused[&name], value, "{name}");
        }
        assert_eq!(waiting["takeOverAfterMs"], 9_000);
    }

    #[test]
    fn waiting_for_an_unknown_holder_has_no_guesses() {
        let event = LeaseEvent::Waiting {
            resource: Resource::parse("close").unwrap(),
            held: None,
            at: examples::NOW,
        };
        let waiting = serde_json::to_value(EventData::of(&event)).unwrap();
        let expected = serde_json::json!({"resource": "close", "holder": null, "queueLength": 0,
            "ahead": []});
        assert_eq!(waiting, expected);
    }
}
