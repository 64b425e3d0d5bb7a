//! The alerts and their runbooks. Each names existing metrics, has a firing and a silent case in
//! tests/alerts, and a page with the remedy. promtool checks whether the rules fire when they
//! should (`make alerts`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::agent::{AcquireRequest, Agent, Config, Life};
use leasehold::clock::ManualClock;
use leasehold::operator::metrics::Metrics;
use leasehold::protocol::ids::{OwnerId, Resource};
use leasehold::protocol::session::PodRef;
use leasehold::webhook::certs::{Pair, ServedCertificate, issue};
use leasehold::webhook::{Injection, Injector};
use serde_yaml::Value;

use crate::memory_store::MemoryStore;

const RULES: &str = "charts/leasehold/files/alerts.yaml";
const CASES: &str = "tests/alerts/alerts.test.yaml";
const RUNBOOKS: &str = "docs/runbooks";
const DASHBOARD: &str = "charts/leasehold/files/dashboard.json";

/// The only metric without a series until there is something to count. The operator's own test
/// (`src/operator/metrics.rs`) covers it.
const BY_VERSION: &str = "leasehold_operator_sessions_by_version{version=\"0.1.0\"} 0\n";

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn yaml(file: &str) -> Value {
    serde_yaml::from_str(&fs::read_to_string(repository().join(file)).unwrap()).unwrap()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_sequence().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn alerts() -> Vec<Value> {
    let groups = yaml(RULES)["groups"].clone();
    let rules = items(&groups).flat_map(|group| items(&group["rules"]));
    rules.cloned().collect()
}

/// Returns the metrics of a sidecar and an operator before any event. Call it within a runtime,
/// because an agent starts tasks.
fn metrics() -> String {
    metrics_of(&agent())
}

fn metrics_of(agent: &Agent) -> String {
    let webhook = Injector::new(Injection::from_yaml("image: i").unwrap()).metrics();
    agent.metrics().encode() + &Metrics::new().encode() + &webhook + BY_VERSION + &certificate()
}

/// Returns the metrics of an operator about the certificate that it serves.
fn certificate() -> String {
    let files = issue(&["a.svc".to_owned()], Duration::from_mins(1), 1_800_000_000).unwrap();
    let served = ServedCertificate::default();
    served.serve(Pair::read(&files).unwrap());
    served.metrics()
}

fn agent() -> Agent {
    let pod = PodRef {
        name: "pod".into(),
        uid: "uid".into(),
        node: None,
    };
    let store = MemoryStore::default().over_a_connection();
    Agent::new(
        Config::new(pod),
        Arc::new(store.clone()),
        Arc::new(store),
        Arc::new(ManualClock::default()),
    )
}

/// Acquires a free lock, with this limit for the wait.
async fn acquire(agent: &Agent, resource: &str, wait: Duration) {
    let request = AcquireRequest {
        resource: Resource::parse(resource).unwrap(),
        owner: OwnerId::from("app"),
        life: Life::Ttl(Duration::from_mins(1)),
        wait,
        keep: Duration::ZERO,
        metadata: BTreeMap::new(),
        preferred: false,
        request_id: None,
    };
    agent.acquire(request, agent.now()).await.unwrap();
}

/// A metric in a query.
#[derive(Debug)]
struct Named {
    metric: String,
    /// The pairs of its selector; `=~` yields several pairs for one label.
    labels: Vec<(String, String)>,
}

impl Named {
    /// Returns all metrics in a text.
    fn all_in(query: &str) -> Vec<Self> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let starts = query.match_indices("leasehold_").map(|(at, _)| at);
        let named = starts.filter(|at| !query[..*at].ends_with(is_part));
        named
            .map(|at| {
                let from_here = &query[at..];
                let end = from_here.find(|c| !is_part(c)).unwrap_or(from_here.len());
                let (metric, rest) = from_here.split_at(end);
                let selector = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
                Self {
                    metric: metric.to_owned(),
                    labels: selector.map_or_else(Vec::new, |(pairs, _)| labels(pairs)),
                }
            })
            .collect()
    }

    /// Returns whether these series are in the text: every value that the selector names, not only
    /// one.
    fn is_in(&self, metrics: &str) -> bool {
        let is_this = |line: &&str| {
            let rest = line.strip_prefix(self.metric.as_str());
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
        };
        let lines: Vec<_> = metrics.lines().filter(is_this).collect();
        let has = |(label, value): &(String, String)| {
            let pair = format!("{label}=\"{value}\"");
            lines.iter().any(|line| line.contains(&pair))
        };
        !lines.is_empty() && self.labels.iter().all(has)
    }
}

fn labels(pairs: &str) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    for pair in pairs.split(',') {
        let (label, values) = pair.split_once('=').unwrap();
        let values = values.trim_start_matches('~').trim_matches('"').split('|');
        labels.extend(values.map(|value| (label.trim().to_owned(), value.to_owned())));
    }
    labels
}

#[tokio::test]
async fn every_metric_of_an_alert_exists_from_the_start() {
    let metrics = metrics();
    for alert in alerts() {
        let named = Named::all_in(text(&alert["expr"]));
        assert!(!named.is_empty(), "{alert:?}");
        for named in named {
            assert!(named.is_in(&metrics), "{named:?} is not in\n{metrics}");
        }
    }
}

#[tokio::test]
async fn every_metric_of_the_dashboard_exists() {
    // The duration of an acquire has its outcome as a label, so there must be at least one acquire.
    let agent = agent();
    acquire(&agent, "tried", Duration::ZERO).await;
    acquire(&agent, "waited-for", Duration::from_secs(1)).await;
    let metrics = metrics_of(&agent);
    let dashboard = fs::read_to_string(repository().join(DASHBOARD)).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let mut shown = 0;
    for target in targets.flatten() {
        // The dashboard selects the namespaces.
        let query = target["expr"].as_str().unwrap();
        let query = query.replace("namespace=~\"$namespace\"", "");
        for named in Named::all_in(&query.replace("{}", "")) {
            shown += 1;
            assert!(named.is_in(&metrics), "{named:?} is not in\n{metrics}");
        }
    }
    assert!(shown > 20, "only {shown} metrics were checked");
}

#[tokio::test]
async fn missing_metric_or_label_value_is_detected() {
    let metrics = metrics();
    let query = r#"rate(leasehold_leases{pod="a"}[5m]) > leasehold_lease or leasehold_leases_lost_total{reason=~"app_silent|bored"}"#;
    let named = Named::all_in(query);
    assert_eq!(named.len(), 3);
    for named in named {
        assert!(!named.is_in(&metrics), "{named:?}");
    }
}

#[tokio::test]
async fn a_quantile_can_pass_its_threshold() {
    let metrics = metrics();
    for alert in alerts() {
        let query = text(&alert["expr"]);
        if !query.starts_with("histogram_quantile(") {
            continue;
        }
        let threshold: f64 = query.rsplit('>').next().unwrap().trim().parse().unwrap();
        let name = &Named::all_in(query)[0].metric;
        // A quantile never exceeds the largest finite bound.
        let bounds = metrics
            .lines()
            .filter(|line| line.starts_with(name.as_str()))
            .filter_map(|line| line.split("le=\"").nth(1)?.split('"').next()?.parse().ok());
        let largest = bounds.filter(|le: &f64| le.is_finite()).fold(0.0, f64::max);
        assert!(largest > threshold, "{name}: {largest} and {threshold}");
    }
}

#[test]
fn every_alert_has_a_firing_and_a_silent_case() {
    let cases = yaml(CASES);
    let mut fires = BTreeSet::new();
    let mut is_silent = BTreeSet::new();
    for case in items(&cases["tests"]) {
        for tried in items(&case["alert_rule_test"]) {
            let alert = text(&tried["alertname"]);
            // For a name that no rule has, promtool reports a silent alert.
            assert!(text(&case["name"]).starts_with(&format!("{alert}: ")));
            let goes_off = items(&tried["exp_alerts"]).count() > 0;
            let among = if goes_off { &mut fires } else { &mut is_silent };
            among.insert(alert.to_owned());
        }
    }
    let alerts = alerts();
    let names: BTreeSet<_> = alerts
        .iter()
        .map(|alert| text(&alert["alert"]).to_owned())
        .collect();
    assert_eq!(names.len(), alerts.len(), "a duplicate name");
    assert_eq!(fires, names);
    assert_eq!(is_silent, names);
}

/// Returns the runbooks, with their names.
fn runbooks() -> Vec<(String, String)> {
    let pages = fs::read_dir(repository().join(RUNBOOKS)).unwrap();
    let pages = pages.map(|page| page.unwrap().path());
    let named = pages.map(|page| {
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(&page).unwrap())
    });
    named.collect()
}

#[test]
fn every_alert_has_a_severity_and_its_own_runbook() {
    for alert in alerts() {
        let name = text(&alert["alert"]);
        let severity = text(&alert["labels"]["severity"]);
        assert!(
            ["critical", "warning", "info"].contains(&severity),
            "{name}"
        );
        let annotations = &alert["annotations"];
        assert!(!text(&annotations["summary"]).is_empty(), "{name}");
        assert!(!text(&annotations["description"]).is_empty(), "{name}");
        let url = text(&annotations["runbook_url"]);
        let (_, page) = url.split_once("/blob/main/").unwrap();
        assert!(page.starts_with(RUNBOOKS), "{name}: {page}");
        let page = fs::read_to_string(repository().join(page)).expect(url);
        assert!(page.starts_with(&format!("# {name}\n")), "{url}");
        for part in [
            "**Means:**",
            "**At risk:**",
            "## Look",
            "## Do",
            "## Over when",
        ] {
            assert!(page.contains(part), "{url} has no {part}");
        }
    }
}

#[test]
fn every_runbook_is_in_the_index_and_its_links_resolve() {
    let runbooks = runbooks();
    let (_, index) = runbooks
        .iter()
        .find(|(name, _)| name == "README.md")
        .unwrap();
    for (name, page) in &runbooks {
        let is_listed = index.contains(&format!("({name})"));
        assert!(is_listed || name == "README.md", "{name}");
        for link in page.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            let path = repository().join(RUNBOOKS).join(target);
            assert!(path.exists(), "{name} links to {target}");
        }
    }
}

#[tokio::test]
async fn every_metric_and_file_named_in_a_runbook_exists() {
    let metrics = metrics();
    for (name, page) in runbooks() {
        // Only whole names in code: an alternation in a grep is not a name.
        let code = page.split('`').skip(1).step_by(2);
        let words = code.flat_map(|code| code.split_whitespace());
        for word in words.filter(|word| word.starts_with("leasehold_")) {
            let named = Named::all_in(word);
            assert!(named[0].is_in(&metrics), "{name}: {word}");
        }
        for word in page.split_whitespace() {
            let word = word.trim_matches(['`', ',', '.', '(', ')', ';']);
            let is_file = word.starts_with("charts/") && !word.contains(['*', '$']);
            assert!(
                !is_file || repository().join(word).exists(),
                "{name}: {word}"
            );
        }
    }
}
