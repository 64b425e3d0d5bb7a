//! Whether both definitions are installed, are served, and have all fields that this version writes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::containers::{each, name};
use super::findings::Findings;
use super::{Check, CheckResult, some_of};
use crate::crd::{INSTALL_COMMAND, VERSION};
use crate::kubectl::world::Known;

const SECTION: &str = "definitions";
const LOCKS: Check = Check::new(
    SECTION,
    "definition-distributedlocks",
    "runbooks/upgrade.md",
);
const SESSIONS: Check = Check::new(SECTION, "definition-locksessions", "runbooks/upgrade.md");

pub(super) fn check(findings: &Findings) -> Vec<CheckResult> {
    let own = findings.own.definitions.iter().zip(&findings.definitions);
    own.map(|(own, found)| one(own, found)).collect()
}

fn one(own: &Value, found: &Known<Option<Value>>) -> CheckResult {
    let name = name(own);
    let check = if name.starts_with("distributedlocks") {
        LOCKS
    } else {
        SESSIONS
    };
    let found = match found {
        Known::Unknown(right) => {
            return check.without_right(&format!("the definition {name}"), right);
        }
        Known::Seen(None) => {
            return check.failed(
                format!("the definition {name} is not installed"),
                format!("install the chart with crds.install=true, or: {INSTALL_COMMAND}"),
            );
        }
        Known::Seen(Some(found)) => found,
    };
    let conditions = || each(&found["status"]["conditions"]);
    if !conditions().any(|one| one["type"] == "Established" && one["status"] == "True") {
        let reasons = conditions().filter(|one| one["status"] == "False");
        let reasons: Vec<_> = reasons.filter_map(|one| one["message"].as_str()).collect();
        return check.failed(
            format!(
                "the definition {name} is not established ({})",
                some_of(&reasons)
            ),
            format!("kubectl describe customresourcedefinition {name}"),
        );
    }
    let (Some(installed), Some(own)) = (schema(found), schema(own)) else {
        return check.failed(
            format!("the definition {name} does not serve {VERSION}"),
            format!("upgrade the chart, or: {INSTALL_COMMAND}"),
        );
    };
    compare(check, name, &fields(own), &fields(installed))
}

fn compare(
    check: Check,
    name: &str,
    own: &BTreeSet<String>,
    installed: &BTreeSet<String>,
) -> CheckResult {
    let missing: Vec<_> = own.difference(installed).collect();
    let unknown: Vec<_> = installed.difference(own).collect();
    if !missing.is_empty() {
        return check.failed(
            format!(
                "the definition {name} is older than this plugin: it lacks {}",
                some_of(&missing)
            ),
            format!("upgrade the chart, or: {INSTALL_COMMAND}"),
        );
    }
    if unknown.is_empty() {
        return check.ok(format!("the definition {name} is served, with all fields"));
    }
    check.ok(format!(
        "the definition {name} is served, and is newer than this plugin: it also has {}",
        some_of(&unknown)
    ))
}

/// Returns the schema of our version, if it is served.
fn schema(definition: &Value) -> Option<&Value> {
    let versions = || each(&definition["spec"]["versions"]);
    let ours = versions().find(|one| one["name"] == VERSION && one["served"] == true)?;
    Some(&ours["schema"]["openAPIV3Schema"])
}

/// Returns the paths of all fields below `spec` and `status`. A field that the definition lacks is removed by the API
/// server from what is written.
fn fields(schema: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = Vec::new();
    for part in ["spec", "status"] {
        open.push((part.to_owned(), &schema["properties"][part]));
    }
    while let Some((path, schema)) = open.pop() {
        if schema.is_null() {
            continue;
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            open.push((format!("{path}.{name}"), property));
        }
        for inner in ["items", "additionalProperties"] {
            open.push((format!("{path}[]"), &schema[inner]));
        }
        found.insert(path);
    }
    found
}
