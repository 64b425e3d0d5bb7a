//! The JSON of calls about fencing tokens.

use serde::{Deserialize, Serialize};
use serde_json::Number;
use utoipa::ToSchema;

/// A fencing token to check.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = VerifyRequest)]
pub(in crate::http) struct VerifyBody {
    /// The resource that it was granted for.
    #[schema(
        min_length = 1,
        max_length = 512,
        example = "tenant_123:billing-close:2026-04"
    )]
    pub(in crate::http) resource: String,
    /// The token.
    #[schema(value_type = u64, minimum = 0, example = 1_842_000)]
    pub(in crate::http) fencing_token: Number,
}

/// Fencing tokens to check.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = VerifyBatchRequest)]
pub(in crate::http) struct VerifyBatchBody {
    /// The tokens, each with the resource that it was granted for.
    #[schema(min_items = 1, max_items = 100)]
    pub(in crate::http) tokens: Vec<VerifyBody>,
}

/// A write that a guarded resource refused, because its fencing token is stale.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = RefusalRequest)]
pub(in crate::http) struct RefusalBody {
    /// The resource that the token was granted for.
    #[schema(
        min_length = 1,
        max_length = 512,
        example = "tenant_123:billing-close:2026-04"
    )]
    pub(in crate::http) resource: String,
    /// The token of the refused write.
    #[schema(value_type = u64, minimum = 0, example = 1_842_000)]
    pub(in crate::http) fencing_token: Number,
    /// The newest token that the guarded resource has seen. It is needed only if both tokens are of leases of one
    /// grant, which the lock cannot tell apart.
    #[schema(value_type = Option<u64>, minimum = 0, example = 1_843_000)]
    pub(in crate::http) latest_fencing_token: Option<Number>,
    /// The guarded resource, in words: printable text of at most 128 bytes.
    #[schema(min_length = 1, max_length = 128, example = "orders database")]
    pub(in crate::http) guard: Option<String>,
}

/// A token that is current.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Verified)]
pub(in crate::http) struct VerifiedDto {
    /// Always true.
    pub(in crate::http) current: bool,
    /// Whether it is known to be the current lease's token: only the agent that granted it knows. If
    /// false, it may belong to an earlier lease of the same grant in the same pod. A guarded resource
    /// that rejects tokens smaller than the largest one it has accepted can tell them apart.
    pub(in crate::http) exact: bool,
}

/// A report that was accepted and counted.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Reported)]
pub(in crate::http) struct ReportedDto {
    /// The newest known token: of the report, or the first one of the current or last grant.
    #[schema(example = 1_843_000)]
    pub(in crate::http) latest_fencing_token: u64,
    /// Whether the lock has an Event `StaleWriteRefused` for the token of the refused write.
    pub(in crate::http) has_event: bool,
    /// Only without an Event: why, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) detail: Option<String>,
}

/// What is known about tokens.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VerifiedBatch)]
pub(in crate::http) struct VerifiedBatchDto {
    /// One for each token, in the order of the request.
    pub(in crate::http) results: Vec<VerifiedTokenDto>,
}

/// What is known about a token of a batch.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = VerifiedToken)]
pub(in crate::http) struct VerifiedTokenDto {
    /// The resource of the request.
    pub(in crate::http) resource: String,
    /// The token of the request.
    pub(in crate::http) fencing_token: u64,
    /// Whether the token belongs to the current grant.
    pub(in crate::http) current: bool,
    /// Only if it is current: whether it is known to be the current lease's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) exact: Option<bool>,
    /// Only if it is not current: `stale_token` or `unknown_token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) code: Option<&'static str>,
    /// Only if it is not current: the first token of the newest grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) latest_fencing_token: Option<u64>,
}
