//! An election as JSON, in responses and events.

use serde::Serialize;
use utoipa::ToSchema;

use super::super::dto::{HolderDto, token_number, whole_ms};
use crate::agent::ElectionView;

/// The leader of an election.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Election)]
pub(super) struct ElectionDto {
    /// The election.
    #[schema(example = "billing-worker")]
    name: String,
    /// The resource of the leader's lock: check tokens against it.
    #[schema(example = "election:billing-worker")]
    resource: String,
    /// Whether this pod leads, now and for `validForMs`.
    leader: bool,
    /// The leader; null if the election has no leader, or it is not known.
    holder: Option<HolderDto>,
    /// The token to send with every write as the leader. If this pod does not lead: the first token of
    /// the current or last term. Null before the first term.
    #[schema(example = 1_842_000)]
    fencing_token: Option<u64>,
    /// The lease of this pod's lead; to step down, release it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "0f8a4c6e-5b1d-4c52-9d0a-7a3d9c1be0aa.0")]
    lease_id: Option<String>,
    /// For how many milliseconds the app may act as the leader, counted from when it sent the
    /// request. Absent where this pod does not lead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 14_250)]
    valid_for_ms: Option<u64>,
    /// How many milliseconds ago the leader was read from the API server. Absent if this pod leads, or
    /// if nothing was read yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 240)]
    age_ms: Option<u64>,
}

impl From<&ElectionView> for ElectionDto {
    fn from(view: &ElectionView) -> Self {
        let lead = view.lead.as_ref();
        Self {
            name: view.election.to_string(),
            resource: view.election.resource().to_string(),
            leader: lead.is_some(),
            holder: view.holder.as_ref().map(HolderDto::from),
            fencing_token: token_number(view.token),
            lease_id: lead.map(|lead| lead.lease.to_string()),
            valid_for_ms: lead.map(|lead| whole_ms(lead.valid_for)),
            age_ms: view.age.map(whole_ms),
        }
    }
}

impl ElectionDto {
    /// Encodes the election as an event. JSON has no line breaks, so its data is one line.
    pub(super) fn frame(&self) -> String {
        let event = if self.leader { "leader" } else { "follower" };
        // Strings and numbers with constant field names are always valid JSON.
        let text = serde_json::to_string(self).unwrap_or_default();
        format!("event: {event}\ndata: {text}\n\n")
    }
}
