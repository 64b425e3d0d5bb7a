//! The errors of the plugin, in kubectl's words, with what to do about them.

use http::StatusCode;
use serde_json::Value;

use crate::crd::{GROUP, INSTALL_COMMAND};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The object does not exist. The text is the API server's.
    #[error("Error from server (NotFound): {0}")]
    NotFound(String),
    /// The definitions are not installed.
    #[error(
        "error: the API server does not know the kinds of {GROUP}: Leasehold is not installed, or this is another \
         cluster; install the chart, or only the definitions: `{INSTALL_COMMAND}`"
    )]
    NotInstalled,
    /// The user must not do it. The text is the API server's.
    #[error("Error from server (Forbidden): {message}{remedy}")]
    Forbidden {
        /// The API server's text.
        message: String,
        /// What to do; empty if the text says it.
        remedy: String,
    },
    /// The API server answered with another error.
    #[error("Error from server ({reason}): {message}")]
    Refused {
        /// The reason, in one word.
        reason: String,
        /// The API server's text.
        message: String,
    },
    /// No answer came.
    #[error("error: {0}")]
    Unreachable(String),
    /// A wrong command line or a wrong use, with what to do.
    #[error("error: {0}")]
    Usage(String),
    /// The command was carried out, and this is the bad result of it.
    #[error("error: {0}")]
    Unfulfilled(String),
    /// The reader of standard output has ended, as `head` does. It would not read an error either.
    #[error("standard output is closed")]
    OutputClosed,
    /// Standard output cannot be written.
    #[error("error: cannot write the output: {0}")]
    Output(std::io::Error),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::OutputClosed;
        }
        Self::Output(error)
    }
}

impl Failure {
    /// Returns the error that an answer reports.
    pub(super) fn of_answer(code: StatusCode, body: &[u8]) -> Self {
        let status: Value = serde_json::from_slice(body).unwrap_or_default();
        let message = status["message"].as_str().map_or_else(
            || {
                String::from_utf8_lossy(body)
                    .trim()
                    .chars()
                    .take(200)
                    .collect()
            },
            str::to_owned,
        );
        // Without a name the path was not found: the API server does not know the kind.
        let has_name = status["details"]["name"].is_string();
        match code {
            StatusCode::NOT_FOUND if has_name => Self::NotFound(message),
            StatusCode::NOT_FOUND => Self::NotInstalled,
            StatusCode::FORBIDDEN => Self::Forbidden {
                remedy: remedy(&message),
                message,
            },
            StatusCode::UNAUTHORIZED => Self::Refused {
                reason: "Unauthorized".to_owned(),
                message: "the credentials of the kubeconfig are not valid any more; log in to the cluster again"
                    .to_owned(),
            },
            _ => Self::Refused {
                reason: status["reason"].as_str().map_or_else(|| code.as_u16().to_string(), str::to_owned),
                message,
            },
        }
    }

    /// Returns the error in the words of a page, which shows that it is one.
    pub(super) fn words(&self) -> String {
        let text = self.to_string();
        text.strip_prefix("error: ").unwrap_or(&text).to_owned()
    }

    /// Returns the missing right in a few words, if that is the reason.
    pub(super) fn missing_right(&self) -> Option<String> {
        match self {
            Self::Forbidden { message, .. } => Some(missing(message).map_or_else(
                || "forbidden".to_owned(),
                |right| {
                    let role = role(message, &right);
                    let role = role.map(|role| format!(" (the ClusterRole {role} grants it)"));
                    format!("you cannot {right}{}", role.unwrap_or_default())
                },
            )),
            _ => None,
        }
    }
}

/// Returns the right that RBAC's text names: `… cannot get resource "pods" in API group "" in the namespace "x"`.
fn missing(message: &str) -> Option<String> {
    let (_, right) = message.split_once(" cannot ")?;
    let (verb, rest) = right.split_once(" resource \"")?;
    let (resource, rest) = rest.split_once('"')?;
    let place = match rest.rsplit_once("in the namespace ") {
        Some((_, namespace)) => format!(" in namespace {}", namespace.trim_matches('"')),
        // Such an object is in no namespace, as a node.
        None if verb == "get" => String::new(),
        None => " in all namespaces".to_owned(),
    };
    Some(format!("{verb} {resource}{place}"))
}

/// Returns which `ClusterRole` grants a right; `None` if neither the chart nor Kubernetes has one for users.
fn role(message: &str, right: &str) -> Option<&'static str> {
    let is_read = ["get ", "list ", "watch "]
        .iter()
        .any(|verb| right.starts_with(verb));
    let is_about = |kinds: &[&str]| kinds.iter().any(|kind| right.contains(kind));
    // The group of a definition is another one, although its name ends with ours.
    let is_ours = message.contains(&format!("API group \"{GROUP}\""));
    match (is_ours, is_read) {
        (true, true) => Some("leasehold-view"),
        (true, false) => ["patch ", "update "]
            .iter()
            .any(|verb| right.starts_with(verb))
            .then_some("leasehold-lock-admin"),
        (false, true) => is_about(&[" pods ", " events "]).then_some("view"),
        (false, false) => None,
    }
}

/// Returns what to do about a missing right.
fn remedy(message: &str) -> String {
    // By the policy about release requests: RBAC itself knows nothing of this verb.
    let by_policy = message.contains("the verb `force-release`");
    let by_policy = by_policy.then_some("leasehold-lock-admin");
    let role = missing(message).and_then(|right| role(message, &right));
    role.or(by_policy).map_or_else(String::new, |role| {
        format!("; ask an administrator to bind you to the ClusterRole {role}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(code: u16, status: &Value) -> Failure {
        Failure::of_answer(
            StatusCode::from_u16(code).unwrap(),
            status.to_string().as_bytes(),
        )
    }

    #[test]
    fn missing_right_is_named_with_its_role() {
        let words = "distributedlocks.leasehold.dev is forbidden: User \"u\" cannot list resource \
                     \"distributedlocks\" in API group \"leasehold.dev\" in the namespace \"team-a\"";
        let failure = of(403, &json!({"message": words}));
        let right = failure.missing_right();
        assert_eq!(
            right.as_deref(),
            Some(
                "you cannot list distributedlocks in namespace team-a (the ClusterRole leasehold-view grants it)"
            )
        );
        assert!(failure.to_string().contains("leasehold-view"), "{failure}");
        let words = words.replace("cannot list", "cannot patch");
        assert!(
            of(403, &json!({"message": words}))
                .to_string()
                .contains("leasehold-lock-admin")
        );
        let everywhere = "pods is forbidden: User \"u\" cannot list resource \"pods\" in API group \"\" at the cluster scope";
        let right = of(403, &json!({"message": everywhere})).missing_right();
        assert_eq!(
            right.as_deref(),
            Some("you cannot list pods in all namespaces (the ClusterRole view grants it)")
        );
        let node = "nodes \"n\" is forbidden: User \"u\" cannot get resource \"nodes\" in API group \"\" at the cluster scope";
        let right = of(403, &json!({"message": node})).missing_right();
        assert_eq!(right.as_deref(), Some("you cannot get nodes"));
    }

    #[test]
    fn refusal_of_a_policy_is_passed_on_unchanged() {
        let words = "ValidatingAdmissionPolicy 'x' denied request: a reason is missing";
        let said = of(403, &json!({"message": words})).to_string();
        assert_eq!(said, format!("Error from server (Forbidden): {words}"));
    }

    #[test]
    fn missing_verb_of_a_policy_is_named_with_its_role() {
        let words = "ValidatingAdmissionPolicy 'x' denied request: u may not end grants here: this requires the verb \
                     `force-release` on distributedlocks.leasehold.dev in namespace team-a";
        let failure = of(403, &json!({"message": words}));
        assert!(
            failure
                .to_string()
                .ends_with("to the ClusterRole leasehold-lock-admin"),
            "{failure}"
        );
        assert_eq!(failure.missing_right().as_deref(), Some("forbidden"));
    }

    #[test]
    fn missing_object_is_not_a_missing_definition() {
        let object = json!({"message": "distributedlocks.leasehold.dev \"x\" not found", "details": {"name": "x"}});
        assert!(matches!(of(404, &object), Failure::NotFound(_)));
        let kind =
            json!({"message": "the server could not find the requested resource", "details": {}});
        assert!(matches!(of(404, &kind), Failure::NotInstalled));
        assert!(matches!(
            Failure::of_answer(StatusCode::NOT_FOUND, b"404 page not found\n"),
            Failure::NotInstalled
        ));
    }

    #[test]
    fn answer_that_is_no_status_is_shown_shortened() {
        let page = "<html>".repeat(1000);
        let said = Failure::of_answer(StatusCode::BAD_GATEWAY, page.as_bytes()).to_string();
        assert!(said.starts_with("Error from server (502): <html>") && said.len() < 300);
    }
}
