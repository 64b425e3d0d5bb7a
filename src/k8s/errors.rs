//! Classifies the API server's answers and transport errors.
//!
//! For a write one question matters: is it known that it was *not* applied? After a 4xx, or if the
//! connection never opened, it is. After a 5xx, a timeout or a broken connection it is not: the
//! outcome is `Ambiguous`, and the caller re-reads. A failed read changed nothing in either case.

use http::StatusCode;
use kube::core::Status;

use super::causes::{chain, never_connected};
use crate::crd::INSTALL_COMMAND;
use crate::store::StoreError;

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A GET.
    Read,
    /// A GET of the next page of a list, with a continue token from the client.
    ReadNextPage,
    /// A POST of a new object.
    Create,
    /// A PUT or a DELETE with a resourceVersion, or a PATCH.
    Update,
}

impl Call {
    /// Returns the error for an unknown outcome.
    #[must_use]
    pub fn unknown_outcome(self, what: String) -> StoreError {
        match self {
            Self::Read | Self::ReadNextPage => StoreError::Unavailable(what),
            Self::Create | Self::Update => StoreError::Ambiguous(what),
        }
    }
}

/// Returns the error for a request without an answer.
#[must_use]
pub fn from_transport(call: Call, error: &kube::Error) -> StoreError {
    match error {
        kube::Error::Auth(_) => StoreError::Unavailable(format!(
            "the credentials for the API server cannot be read: {}",
            chain(error)
        )),
        kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => {
            StoreError::Invalid(chain(error))
        }
        _ if never_connected(error) => StoreError::Unavailable(format!(
            "cannot connect to the API server: {}",
            chain(error)
        )),
        _ => call.unknown_outcome(format!(
            "the connection to the API server was lost: {}",
            chain(error)
        )),
    }
}

/// Returns the error of a watch: the API server's `Status`, or a transport error.
#[must_use]
pub fn from_watch(error: &kube::Error) -> StoreError {
    match error {
        kube::Error::Api(status) => from_watch_status(status),
        _ => from_transport(Call::Read, error),
    }
}

/// Returns the error for a `Status` of a watch. Gone (410) means that its start is too old.
#[must_use]
pub fn from_watch_status(status: &Status) -> StoreError {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match code {
        StatusCode::GONE => StoreError::WatchExpired(one_line(&status.message)),
        // Converted to JSON, so that one function reads all refusals.
        _ => from_answer(
            Call::Read,
            code,
            &serde_json::to_vec(status).unwrap_or_default(),
        ),
    }
}

/// Returns the error for an answer that is a refusal or a failure. The HTTP status decides; the
/// body, which may be a proxy's, gives the message.
#[must_use]
pub fn from_answer(call: Call, code: StatusCode, body: &[u8]) -> StoreError {
    let status = serde_json::from_slice::<Status>(body).unwrap_or_default();
    let message = message(code, &status, body);
    match code {
        StatusCode::UNAUTHORIZED => StoreError::Unauthenticated(format!(
            "the API server does not accept the credentials (401): {message}; check that the token \
             is current and bound to a pod that still exists"
        )),
        StatusCode::FORBIDDEN if is_quota_error(&message) => StoreError::QuotaExceeded(message),
        // A policy without a reason of its own answers 422, like the schema.
        StatusCode::FORBIDDEN | StatusCode::UNPROCESSABLE_ENTITY
            if message.contains("ValidatingAdmissionPolicy") =>
        {
            StoreError::DeniedByPolicy(message)
        }
        StatusCode::FORBIDDEN => StoreError::Denied(message),
        StatusCode::NOT_FOUND => not_found(call, &status, message),
        StatusCode::CONFLICT => conflict(call, &status, message),
        // An invalid continue token, or one whose revision was compacted.
        StatusCode::BAD_REQUEST | StatusCode::GONE if call == Call::ReadNextPage => {
            StoreError::ContinueTokenExpired(message)
        }
        StatusCode::GONE => StoreError::Unavailable(format!("{message}; list again")),
        // Rejected before anything was done: too many requests.
        StatusCode::TOO_MANY_REQUESTS => StoreError::Unavailable(message),
        StatusCode::REQUEST_TIMEOUT => call.unknown_outcome(message),
        _ if code.is_server_error() => call.unknown_outcome(message),
        StatusCode::UNPROCESSABLE_ENTITY if is_queue_full(&status) => StoreError::QueueFull,
        _ => StoreError::Invalid(message),
    }
}

/// Returns whether a 404 is about this object, and not about its kind or namespace.
#[must_use]
pub fn is_object_missing(code: StatusCode, body: &[u8], name: &str) -> bool {
    code == StatusCode::NOT_FOUND
        && serde_json::from_slice::<Status>(body)
            .ok()
            .and_then(|status| status.details)
            .is_some_and(|details| details.name == name)
}

/// Why a namespace accepts no new objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceUnavailable {
    /// It is being deleted.
    Terminating,
    /// It does not exist.
    Missing,
}

/// Returns whether a create was rejected because its namespace is being deleted or does not exist.
#[must_use]
pub fn namespace_unavailable(code: StatusCode, body: &[u8]) -> Option<NamespaceUnavailable> {
    let status = serde_json::from_slice::<Status>(body).ok()?;
    let details = status.details?;
    let mut causes = details.causes.iter();
    let (end, is_match) = match code {
        StatusCode::FORBIDDEN => (
            NamespaceUnavailable::Terminating,
            causes.any(|cause| cause.reason == "NamespaceTerminating"),
        ),
        StatusCode::NOT_FOUND => (NamespaceUnavailable::Missing, details.kind == "namespaces"),
        _ => return None,
    };
    is_match.then_some(end)
}

/// Returns whether a JSON patch was rejected because the object is not as the patch expects it. The
/// API server then gives neither the kind nor a cause, unlike for a rule that is broken.
#[must_use]
pub fn does_not_apply(code: StatusCode, body: &[u8]) -> bool {
    let status = serde_json::from_slice::<Status>(body).ok();
    let details = status.and_then(|status| status.details);
    code == StatusCode::UNPROCESSABLE_ENTITY
        && details.is_some_and(|details| details.kind.is_empty() && details.causes.is_empty())
}

/// Returns whether a patch with a uid was rejected because the object has another uid. The API
/// server rejects it as a change of the uid, before anything else in it.
#[must_use]
pub fn is_another_object(code: StatusCode, body: &[u8]) -> bool {
    let status = serde_json::from_slice::<Status>(body).ok();
    let details = status.and_then(|status| status.details);
    code == StatusCode::UNPROCESSABLE_ENTITY
        && details.is_some_and(|details| {
            let mut causes = details.causes.iter();
            causes.any(|cause| cause.field == "metadata.uid")
        })
}

/// The schema limits a lock's queue, and the API server says so by the cause of its 422.
fn is_queue_full(status: &Status) -> bool {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "FieldValueTooMany" && cause.field == "status.waiters")
}

/// The API server marks these errors only by their message. The second one is returned while a new
/// quota is not counted yet.
fn is_quota_error(message: &str) -> bool {
    message.contains("exceeded quota") || message.contains("status unknown for quota")
}

/// Returns the error for a 409. A quota that another create changes at the same time also answers
/// 409, and nothing was created. A read cannot conflict.
fn conflict(call: Call, status: &Status, message: String) -> StoreError {
    match call {
        Call::Read | Call::ReadNextPage => StoreError::Unavailable(message),
        Call::Create if status.reason != "AlreadyExists" => StoreError::Unavailable(message),
        Call::Create | Call::Update => StoreError::Conflict,
    }
}

/// Returns the error for a 404. A create names the missing namespace. An unknown kind has no name,
/// or the API server answers with Go's default text. Only a read concludes a missing kind from
/// that: a write may have met the 404 of a proxy, and is followed by a read.
fn not_found(call: Call, status: &Status, message: String) -> StoreError {
    let details = status.details.as_ref();
    if let Some(namespace) = details.filter(|details| details.kind == "namespaces") {
        let name = &namespace.name;
        return StoreError::NotInstalled(one_line(&format!(
            "the namespace {name} does not exist; create it (`kubectl create namespace {name}`), or \
             give the --namespace of the locks"
        )));
    }
    let is_nameless = details.is_some_and(|details| details.name.is_empty());
    if call == Call::Read && (is_nameless || message.ends_with("404 page not found")) {
        return StoreError::NotInstalled(format!(
            "the API server does not know Leasehold's kinds ({message}); install the CRDs: \
             `{INSTALL_COMMAND}`"
        ));
    }
    StoreError::NotFound(message)
}

/// Returns the server's message, or the body if it has none.
fn message(code: StatusCode, status: &Status, body: &[u8]) -> String {
    if status.message.is_empty() {
        let text = String::from_utf8_lossy(body);
        one_line(&format!("HTTP {code}: {}", text.trim()))
    } else {
        one_line(&status.message)
    }
}

/// Returns external text for logs and terminals: one line, of bounded length.
pub(in crate::k8s) fn one_line(text: &str) -> String {
    const LONGEST: usize = 1000;

    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(LONGEST).map(plain).collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(call: Call, code: u16, reason: &str, message: &str) -> StoreError {
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": reason, "message": message, "details": {"name": "l"},
        });
        let code = StatusCode::from_u16(code).unwrap();
        from_answer(call, code, body.to_string().as_bytes())
    }

    #[test]
    fn an_update_that_lost_the_race_is_a_conflict() {
        assert_eq!(
            answer(Call::Update, 409, "Conflict", "modified"),
            StoreError::Conflict
        );
        assert_eq!(
            answer(Call::Create, 409, "AlreadyExists", "there"),
            StoreError::Conflict
        );
    }

    #[test]
    fn create_that_met_a_changing_quota_is_unavailable() {
        assert_eq!(
            answer(
                Call::Create,
                409,
                "Conflict",
                "resourcequotas \"q\" was modified"
            ),
            StoreError::Unavailable("resourcequotas \"q\" was modified".to_owned())
        );
    }

    #[test]
    fn server_error_makes_a_write_ambiguous_and_a_read_unavailable() {
        for code in [500, 502, 503, 504, 408] {
            let message = "etcdserver: request timed out".to_owned();
            for call in [Call::Update, Call::Create] {
                assert_eq!(
                    answer(call, code, "Timeout", &message),
                    StoreError::Ambiguous(message.clone())
                );
            }
            assert_eq!(
                answer(Call::Read, code, "Timeout", &message),
                StoreError::Unavailable(message.clone())
            );
        }
    }

    #[test]
    fn expired_continue_token_is_its_own_error() {
        let message = "The provided continue parameter is too old";
        for (code, reason) in [(400, "BadRequest"), (410, "Expired")] {
            let over = StoreError::ContinueTokenExpired(message.to_owned());
            assert_eq!(answer(Call::ReadNextPage, code, reason, message), over);
            // A call that sent no continue token gets no such error.
            assert_ne!(answer(Call::Read, code, reason, message), over);
        }
    }

    #[test]
    fn too_many_requests_means_nothing_was_written() {
        for call in [Call::Read, Call::ReadNextPage, Call::Create, Call::Update] {
            assert!(matches!(
                answer(call, 429, "TooManyRequests", "slow down"),
                StoreError::Unavailable(_)
            ));
        }
    }

    #[test]
    fn refusals_carry_the_servers_words() {
        let rbac = "distributedlocks.leasehold.dev is forbidden: User \"u\" cannot create resource";
        assert_eq!(
            answer(Call::Create, 403, "Forbidden", rbac),
            StoreError::Denied(rbac.to_owned())
        );
        let quota =
            "locks \"l\" is forbidden: exceeded quota: q, requested: 1, used: 1, limited: 1";
        assert_eq!(
            answer(Call::Create, 403, "Forbidden", quota),
            StoreError::QuotaExceeded(quota.to_owned())
        );
        let policy = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no";
        assert_eq!(
            answer(Call::Update, 422, "Invalid", policy),
            StoreError::DeniedByPolicy(policy.to_owned())
        );
        let schema = "DistributedLock \"l\" is invalid: status.token can never be made smaller";
        assert_eq!(
            answer(Call::Update, 422, "Invalid", schema),
            StoreError::Invalid(schema.to_owned())
        );
        assert!(matches!(
            answer(Call::Read, 401, "Unauthorized", "Unauthorized"),
            StoreError::Unauthenticated(message) if message.contains("bound to a pod")
        ));
    }

    #[test]
    fn foreign_response_body_is_reported_in_one_short_line() {
        let body = "<html>\r\n\u{1b}[2J<p>no</p>\n".repeat(1_000);
        for call in [Call::Read, Call::Update] {
            let told = from_answer(call, StatusCode::BAD_GATEWAY, body.as_bytes()).to_string();
            assert!(told.contains("502 Bad Gateway: <html>  "), "{told}");
            assert!(!told.contains(char::is_control), "{told:?}");
            assert!(
                told.chars().count() < 1_100 && told.ends_with('…'),
                "{told}"
            );
        }
    }

    #[test]
    fn read_never_fails_with_a_conflict() {
        for call in [Call::Read, Call::ReadNextPage] {
            let told = answer(call, 409, "Conflict", "modified");
            assert_eq!(told, StoreError::Unavailable("modified".to_owned()));
        }
    }

    #[test]
    fn a_proxys_answer_is_judged_by_its_status_line() {
        for body in [
            "<html>Bad Gateway</html>",
            "{\"error\": \"no upstream\"}",
            "",
        ] {
            let error = from_answer(Call::Update, StatusCode::BAD_GATEWAY, body.as_bytes());
            assert_eq!(
                error,
                StoreError::Ambiguous(format!("HTTP 502 Bad Gateway: {body}"))
            );
        }
    }

    #[test]
    fn missing_namespace_error_names_the_command_to_run() {
        let body = json!({"message": "namespaces \"team-a\" not found", "reason": "NotFound",
            "details": {"name": "team-a", "kind": "namespaces"}})
        .to_string();
        assert!(matches!(
            from_answer(Call::Create, StatusCode::NOT_FOUND, body.as_bytes()),
            StoreError::NotInstalled(message) if message.contains("kubectl create namespace team-a")
        ));
    }

    #[test]
    fn proxys_404_does_not_count_as_a_missing_kind() {
        for (call, body) in [
            (Call::Update, "404 page not found"),
            (Call::Update, "{\"details\": {}}"),
            (Call::Read, "<html>Not Found</html>"),
            (Call::Read, "{}"),
            (Call::Read, ""),
        ] {
            assert!(matches!(
                from_answer(call, StatusCode::NOT_FOUND, body.as_bytes()),
                StoreError::NotFound(_)
            ));
        }
    }

    #[test]
    fn missing_kinds_error_names_the_install_command() {
        let body = b"404 page not found\n";
        assert!(matches!(
            from_answer(Call::Read, StatusCode::NOT_FOUND, body),
            StoreError::NotInstalled(message) if message.contains(INSTALL_COMMAND)
        ));
    }

    #[test]
    fn a_missing_kind_is_not_a_missing_object() {
        let body = json!({"message": "the server could not find the requested resource",
            "reason": "NotFound", "details": {}})
        .to_string();
        assert!(!is_object_missing(
            StatusCode::NOT_FOUND,
            body.as_bytes(),
            "l"
        ));
        assert!(matches!(
            from_answer(Call::Read, StatusCode::NOT_FOUND, body.as_bytes()),
            StoreError::NotInstalled(message) if message.contains(INSTALL_COMMAND)
        ));
        let body = json!({"reason": "NotFound", "details": {"name": "l"}}).to_string();
        assert!(is_object_missing(
            StatusCode::NOT_FOUND,
            body.as_bytes(),
            "l"
        ));
        assert!(!is_object_missing(
            StatusCode::NOT_FOUND,
            body.as_bytes(),
            "m"
        ));
    }
}
