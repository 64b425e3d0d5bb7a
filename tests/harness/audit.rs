//! The API server's own record of the requests from service accounts.
//!
//! The server writes it before it serves a request, so a request that is missing here did not reach
//! it. Requests of administrators are left out; tests make many.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

/// One line per request, when it is received.
pub(crate) const POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [ResponseStarted, ResponseComplete, Panic]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts"]
- level: None
"#;

/// No lines.
pub(crate) const NOTHING: &str = r"apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
";

/// A request that the API server received.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// `get`, `create`, `update`, …
    pub(crate) verb: String,
    pub(crate) uri: String,
    /// The uid of the pod that the token was bound to; empty for an unbound one.
    pub(crate) pod_uid: String,
}

/// Returns all of them, in order.
pub(crate) fn read(log: &Path) -> Result<Vec<Served>> {
    let text = std::fs::read_to_string(log)?;
    // The last line may be incomplete.
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    Ok(lines.map(|event: Value| served(&event)).collect())
}

fn served(event: &Value) -> Served {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Served {
        verb: text(&event["verb"]),
        uri: text(&event["requestURI"]),
        pod_uid: text(&event["user"]["extra"]["authentication.kubernetes.io/pod-uid"][0]),
    }
}
