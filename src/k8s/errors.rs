//! What an answer of the API server, or the lack of one, says about the call.
//!
//! The one question that matters for a write: is it known that it was *not* applied? A 4xx and a
//! connection that never opened say so. A 5xx, a timeout and a broken connection do not: they are
//! `Ambiguous`, and the caller re-reads. A read that failed changed nothing either way.

use std::error::Error;

use http::StatusCode;
use hyper_util::client::legacy;
use kube::core::Status;

use crate::crd::INSTALL_COMMAND;
use crate::store::StoreError;

/// What was asked of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A GET.
    Read,
    /// A GET of a listing's next page, from a place that the client gave.
    ReadOn,
    /// A POST of a new object.
    Create,
    /// A PUT or a DELETE, decided on a resourceVersion, or a PATCH.
    Update,
}

impl Call {
    /// There is no clear answer.
    #[must_use]
    pub fn unclear(self, what: String) -> StoreError {
        match self {
            Self::Read | Self::ReadOn => StoreError::Unavailable(what),
            Self::Create | Self::Update => StoreError::Ambiguous(what),
        }
    }
}

/// No answer came at all.
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
        _ => call.unclear(format!(
            "the connection to the API server was lost: {}",
            chain(error)
        )),
    }
}

/// A watch was refused, or ended with an error. What kube answers with here is the API server's
/// `Status`, or trouble on the way.
#[must_use]
pub fn from_watch(error: &kube::Error) -> StoreError {
    match error {
        kube::Error::Api(status) => from_watch_status(status),
        _ => from_transport(Call::Read, error),
    }
}

/// The API server's words on a watch. Gone (410) means that it began too far back.
#[must_use]
pub fn from_watch_status(status: &Status) -> StoreError {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match code {
        StatusCode::GONE => StoreError::WatchExpired(in_short(&status.message)),
        // Kept as JSON so that there is one place that reads a refusal.
        _ => from_answer(
            Call::Read,
            code,
            &serde_json::to_vec(status).unwrap_or_default(),
        ),
    }
}

/// An answer came, and it is a refusal or a failure. The HTTP status decides; the body (which may
/// be a proxy's and no `Status`) gives the words.
#[must_use]
pub fn from_answer(call: Call, code: StatusCode, body: &[u8]) -> StoreError {
    let status = serde_json::from_slice::<Status>(body).unwrap_or_default();
    let words = words(code, &status, body);
    match code {
        StatusCode::UNAUTHORIZED => StoreError::Unauthenticated(format!(
            "the API server does not accept the credentials (401): {words}; check that the token \
             is current and bound to a pod that still exists"
        )),
        StatusCode::FORBIDDEN if is_about_quota(&words) => StoreError::QuotaExceeded(words),
        // A policy that names no reason of its own answers 422, like the schema.
        StatusCode::FORBIDDEN | StatusCode::UNPROCESSABLE_ENTITY
            if words.contains("ValidatingAdmissionPolicy") =>
        {
            StoreError::DeniedByPolicy(words)
        }
        StatusCode::FORBIDDEN => StoreError::Denied(words),
        StatusCode::NOT_FOUND => not_found(call, &status, words),
        StatusCode::CONFLICT => conflict(call, &status, words),
        // A place that is no place, or one whose revision was compacted away.
        StatusCode::BAD_REQUEST | StatusCode::GONE if call == Call::ReadOn => {
            StoreError::ListingOver(words)
        }
        StatusCode::GONE => StoreError::Unavailable(format!("{words}; list again")),
        // Refused before anything was done: too many requests.
        StatusCode::TOO_MANY_REQUESTS => StoreError::Unavailable(words),
        StatusCode::REQUEST_TIMEOUT => call.unclear(words),
        _ if code.is_server_error() => call.unclear(words),
        _ => StoreError::Invalid(words),
    }
}

/// Whether a 404 is about this very object, and not about its kind or namespace.
#[must_use]
pub fn is_object_missing(code: StatusCode, body: &[u8], name: &str) -> bool {
    code == StatusCode::NOT_FOUND
        && serde_json::from_slice::<Status>(body)
            .ok()
            .and_then(|status| status.details)
            .is_some_and(|details| details.name == name)
}

/// What keeps a namespace from taking a new object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceEnd {
    /// It is being deleted.
    Terminating,
    /// It is not there.
    Gone,
}

/// Whether a create was refused because its namespace is being deleted, or is gone already.
#[must_use]
pub fn namespace_end(code: StatusCode, body: &[u8]) -> Option<NamespaceEnd> {
    let status = serde_json::from_slice::<Status>(body).ok()?;
    let details = status.details?;
    let mut causes = details.causes.iter();
    let (end, is_it) = match code {
        StatusCode::FORBIDDEN => (
            NamespaceEnd::Terminating,
            causes.any(|cause| cause.reason == "NamespaceTerminating"),
        ),
        StatusCode::NOT_FOUND => (NamespaceEnd::Gone, details.kind == "namespaces"),
        _ => return None,
    };
    is_it.then_some(end)
}

/// Whether a patch that names a uid met an object with another one: to the API server the patch
/// would change the uid, and nothing else in it is looked at.
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

/// The API server marks these by their words alone. The second is said while a quota is so new
/// that nobody has counted yet.
fn is_about_quota(words: &str) -> bool {
    words.contains("exceeded quota") || words.contains("status unknown for quota")
}

/// A quota that another create is just changing answers 409 too; then nothing was made. To a read it is
/// no answer: nothing came before what writes nothing.
fn conflict(call: Call, status: &Status, words: String) -> StoreError {
    match call {
        Call::Read | Call::ReadOn => StoreError::Unavailable(words),
        Call::Create if status.reason != "AlreadyExists" => StoreError::Unavailable(words),
        Call::Create | Call::Update => StoreError::Conflict,
    }
}

/// A create names the namespace that is missing. A kind that is not known has no name, or the API
/// server answers as any Go program does. Only a read concludes that from so little: a write that
/// meets some proxy's 404 is followed by one.
fn not_found(call: Call, status: &Status, words: String) -> StoreError {
    let details = status.details.as_ref();
    if let Some(namespace) = details.filter(|details| details.kind == "namespaces") {
        let name = &namespace.name;
        return StoreError::NotInstalled(in_short(&format!(
            "the namespace {name} does not exist; create it (`kubectl create namespace {name}`), or \
             start the sidecar with the --namespace that is meant"
        )));
    }
    let is_nameless = details.is_some_and(|details| details.name.is_empty());
    if call == Call::Read && (is_nameless || words.ends_with("404 page not found")) {
        return StoreError::NotInstalled(format!(
            "the API server does not know Leasehold's kinds ({words}); install the CRDs: \
             `{INSTALL_COMMAND}`"
        ));
    }
    StoreError::NotFound(words)
}

/// The server's own words, or what there is in their place.
fn words(code: StatusCode, status: &Status, body: &[u8]) -> String {
    if status.message.is_empty() {
        let text = String::from_utf8_lossy(body);
        in_short(&format!("HTTP {code}: {}", text.trim()))
    } else {
        in_short(&status.message)
    }
}

/// What others wrote as people are told of it: in one line of a log or a terminal, and no more than they read.
pub(in crate::k8s) fn in_short(text: &str) -> String {
    const LONGEST: usize = 1000;

    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(LONGEST).map(plain).collect();
    if text.chars().nth(LONGEST).is_some() {
        short.push('…');
    }
    short
}

fn never_connected(error: &kube::Error) -> bool {
    causes(error).any(|cause| {
        cause
            .downcast_ref::<legacy::Error>()
            .is_some_and(legacy::Error::is_connect)
    })
}

/// The error and its causes in one line. kube repeats a cause in its own words, so a cause that
/// was said is not said again.
fn chain(error: &kube::Error) -> String {
    let mut line = String::new();
    for cause in causes(error) {
        let said = cause.to_string();
        if line.ends_with(&said) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&said);
    }
    in_short(&line)
}

fn causes(error: &kube::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let first: &(dyn Error + 'static) = error;
    std::iter::successors(Some(first), |cause| Error::source(*cause))
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
            let words = "etcdserver: request timed out".to_owned();
            for call in [Call::Update, Call::Create] {
                assert_eq!(
                    answer(call, code, "Timeout", &words),
                    StoreError::Ambiguous(words.clone())
                );
            }
            assert_eq!(
                answer(Call::Read, code, "Timeout", &words),
                StoreError::Unavailable(words.clone())
            );
        }
    }

    #[test]
    fn expired_continue_token_is_its_own_error() {
        let words = "The provided continue parameter is too old";
        for (code, reason) in [(400, "BadRequest"), (410, "Expired")] {
            let over = StoreError::ListingOver(words.to_owned());
            assert_eq!(answer(Call::ReadOn, code, reason, words), over);
            // Who gave no place is not told of one.
            assert_ne!(answer(Call::Read, code, reason, words), over);
        }
    }

    #[test]
    fn too_many_requests_means_nothing_was_written() {
        for call in [Call::Read, Call::ReadOn, Call::Create, Call::Update] {
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
            StoreError::Unauthenticated(words) if words.contains("bound to a pod")
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
        for call in [Call::Read, Call::ReadOn] {
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
            StoreError::NotInstalled(words) if words.contains("kubectl create namespace team-a")
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
            StoreError::NotInstalled(words) if words.contains(INSTALL_COMMAND)
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
            StoreError::NotInstalled(words) if words.contains(INSTALL_COMMAND)
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
