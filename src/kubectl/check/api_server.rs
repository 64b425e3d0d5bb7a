//! Whether the API server answers, and is new enough.

use serde_json::Value;

use super::{Check, CheckResult};

const SECTION: &str = "kubernetes-api";
const REACHABLE: Check = Check::new(SECTION, "api-reachable", "install.md");
const VERSION: Check = Check::new(SECTION, "api-version", "install.md");

/// The oldest version that is supported: 1.33. The chart's `kubeVersion` says the same.
pub(super) const OLDEST: (u32, u32) = (1, 33);

pub(super) fn check(server: &Value) -> Vec<CheckResult> {
    vec![REACHABLE.ok("the API server answers"), version(server)]
}

pub(super) fn unreachable(why: &str) -> CheckResult {
    REACHABLE.failed(
        why,
        "check the context of the kubeconfig, the network and your login",
    )
}

fn version(server: &Value) -> CheckResult {
    let (major, minor) = OLDEST;
    let needed = format!("{major}.{minor}");
    let shown = server["gitVersion"]
        .as_str()
        .unwrap_or("an unknown version");
    match (number(&server["major"]), number(&server["minor"])) {
        (Some(major), Some(minor)) if (major, minor) >= OLDEST => {
            VERSION.ok(format!("Kubernetes is {shown}, {needed} or newer"))
        }
        (Some(_), Some(_)) => VERSION.failed(
            format!("Kubernetes is {shown}, older than {needed}"),
            format!("upgrade the cluster to Kubernetes {needed} or newer"),
        ),
        _ => VERSION.skipped("the API server does not say which version it is"),
    }
}

/// Reads the number that a version begins with: some distributions write `33+`.
fn number(part: &Value) -> Option<u32> {
    let text = part.as_str()?;
    let digits = text.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}
