//! The API server's own count of requests (`apiserver_request_total`): for our kinds, and for the
//! other kinds that the operator reads or writes.
//!
//! It counts a request or a watch when it ends. Open ones are in another metric, and are counted
//! here as if they had ended.

use std::collections::BTreeMap;

use anyhow::Result;
use kube::Client;

const OURS: &str = "group=\"leasehold.dev\"";
/// Pods are in the core group, which has no name.
const OTHERS: [&str; 2] = ["resource=\"pods\"", "group=\"events.k8s.io\""];
const ENDED: &str = "apiserver_request_total{";
const OPEN: &str = "apiserver_longrunning_requests{";

/// Counts by request, like `PUT distributedlocks/status 409`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests(BTreeMap<String, u64>);

impl Requests {
    /// Returns the count as of now, from all clients. `admin` needs the right to read `/metrics`.
    pub(crate) async fn counted(admin: &Client) -> Result<Self> {
        let text = metrics(admin).await?;
        Ok(Self::read(&text, |line| line.contains(OURS)))
    }

    /// The same, including requests for pods and Events.
    pub(crate) async fn counted_with_others(admin: &Client) -> Result<Self> {
        let text = metrics(admin).await?;
        Ok(Self::read(&text, is_operators))
    }

    /// Returns the open watches over all namespaces, by kind.
    pub(crate) async fn open_watches(admin: &Client) -> Result<Self> {
        let text = metrics(admin).await?;
        Ok(Self::read(&text, |line| {
            line.starts_with(OPEN) && line.contains("scope=\"cluster\"") && is_operators(line)
        }))
    }

    fn read(text: &str, is_counted: impl Fn(&str) -> bool) -> Self {
        let mut counts = BTreeMap::new();
        let counted = text.lines().filter(|line| is_counted(line));
        for line in counted.filter(|line| line.starts_with(ENDED) || line.starts_with(OPEN)) {
            let count = line.rsplit(' ').next().and_then(|n| n.parse().ok());
            *counts.entry(what(line)).or_default() += count.unwrap_or(0);
        }
        Self(counts)
    }

    /// Returns the requests since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let came = self.0.iter().map(|(what, count)| {
            let then = before.0.get(what).copied().unwrap_or(0);
            (what.clone(), count.saturating_sub(then))
        });
        Self(came.filter(|(_, count)| *count > 0).collect())
    }

    /// Returns the number of all requests.
    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the number of writes, successful or refused.
    pub(crate) fn writes(&self) -> u64 {
        let writes = self.0.iter().filter(|(what, _)| {
            let verb = what.split(' ').next().unwrap_or_default();
            matches!(verb, "POST" | "PUT" | "PATCH" | "APPLY" | "DELETE")
        });
        writes.map(|(_, count)| count).sum()
    }
}

impl std::fmt::Display for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (what, count) in &self.0 {
            writeln!(f, "{count:>6} {what}")?;
        }
        Ok(())
    }
}

async fn metrics(admin: &Client) -> Result<String> {
    let request = http::Request::get("/metrics").body(vec![])?;
    Ok(admin.request_text(request).await?)
}

fn is_operators(line: &str) -> bool {
    line.contains(OURS) || OTHERS.iter().any(|other| line.contains(other))
}

/// Returns the key of a line. An ended watch and an open one have the same key.
fn what(line: &str) -> String {
    let label = |name: &str| {
        let after = line.split_once(&format!("{name}=\""));
        let value = after.and_then(|(_, rest)| rest.split('"').next());
        value.unwrap_or_default().to_owned()
    };
    let (verb, mut resource) = (label("verb"), label("resource"));
    if verb == "WATCH" {
        return format!("{verb} {resource}");
    }
    let subresource = label("subresource");
    if !subresource.is_empty() {
        resource = format!("{resource}/{subresource}");
    }
    format!("{verb} {resource} {}", label("code"))
}
