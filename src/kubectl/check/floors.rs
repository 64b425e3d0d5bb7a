//! Whether all that mint or bound fencing tokens have the same token floor. With a lower one in one place, a later
//! grant could have a smaller token.

use std::collections::BTreeMap;

use serde_json::Value;

use super::containers::{each, has_ended, name, operator, setting, sidecar};
use super::findings::Findings;
use super::{Check, CheckResult, some_of};
use crate::kubectl::world::Known;

const FLOORS: Check = Check::new(
    "installation",
    "token-floors",
    "runbooks/move-to-a-new-cluster.md",
);

/// The places by their floor, and the rights that are missing to see more.
#[derive(Default)]
struct Floors<'a> {
    places: BTreeMap<String, Vec<String>>,
    unknown: Vec<&'a str>,
}

impl<'a> Floors<'a> {
    fn add(&mut self, floor: &str, place: String) {
        let places = self.places.entry(floor.to_owned()).or_default();
        // The policies have one value of the chart.
        if !places.contains(&place) {
            places.push(place);
        }
    }

    /// Returns what was read.
    fn seen<T>(&mut self, known: &'a Known<T>) -> Option<&'a T> {
        match known {
            Known::Seen(value) => Some(value),
            Known::Unknown(right) => {
                self.unknown.push(right);
                None
            }
        }
    }
}

pub(super) fn check(findings: &Findings) -> CheckResult {
    let floors = floors(findings);
    if floors.places.len() > 1 {
        let places = floors.places.iter();
        let each = places.map(|(floor, places)| format!("{floor} in {}", some_of(places)));
        return FLOORS.failed(
            format!(
                "the token floors differ, so tokens of later grants could be smaller: {}",
                each.collect::<Vec<_>>().join("; ")
            ),
            format!(
                "{}  # the largest value; then recreate the pods that have another one. Never \
                 lower a floor",
                findings.upgrade("--set tokenFloor=FLOOR")
            ),
        );
    }
    match (floors.places.keys().next(), floors.unknown.first()) {
        (None, Some(right)) => FLOORS.without_right("the token floors", right),
        (None, None) => FLOORS.skipped("nothing that has a token floor is installed"),
        (Some(floor), None) => FLOORS.ok(format!("the token floor is {floor} everywhere")),
        (Some(floor), Some(right)) => FLOORS.ok(format!(
            "the token floor is {floor} where it was checked; elsewhere not, because {right}"
        )),
    }
}

fn floors(findings: &Findings) -> Floors<'_> {
    let mut floors = Floors::default();
    for container in floors.seen(&findings.operators).into_iter().flatten() {
        if let Some(container) = operator(container) {
            floors.add(of(container), "the operator".to_owned());
        }
    }
    if let Some(Some(file)) = floors.seen(&findings.injection) {
        let floor = file["tokenFloor"].as_u64().unwrap_or_default().to_string();
        floors.add(&floor, "the configuration of injected sidecars".to_owned());
    }
    for policy in floors.seen(&findings.policies).into_iter().flatten() {
        let variables = each(&policy["spec"]["variables"]);
        let ours = variables.filter(|one| one["name"] == "tokenFloor");
        for floor in ours.filter_map(|one| one["expression"].as_str()) {
            floors.add(floor, "the policies".to_owned());
        }
    }
    let pods = floors.seen(&findings.pods).into_iter().flatten();
    for pod in pods.filter(|pod| !has_ended(pod)) {
        if let Some(container) = sidecar(pod) {
            floors.add(of(container), format!("pod {}", name(pod)));
        }
    }
    floors
}

fn of(container: &Value) -> &str {
    setting(container, "--token-floor", "LEASEHOLD_TOKEN_FLOOR").unwrap_or("0")
}
