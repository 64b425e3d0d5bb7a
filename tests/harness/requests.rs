//! How many requests for our kinds the API server has counted itself: `apiserver_request_total`.
//!
//! It counts a request when that ends, a watch too. Those that are still open are in another
//! metric, and are counted here as if they had ended.

use std::collections::BTreeMap;

use anyhow::Result;
use kube::Client;

const GROUP: &str = "group=\"leasehold.dev\"";
const ENDED: &str = "apiserver_request_total{";
const OPEN: &str = "apiserver_longrunning_requests{";

/// Counts by what was asked for, like `PUT distributedlocks/status 409`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests(BTreeMap<String, u64>);

impl Requests {
    /// As of now, of whoever made them. `admin` needs the right to read `/metrics`.
    pub(crate) async fn counted(admin: &Client) -> Result<Self> {
        let request = http::Request::get("/metrics").body(vec![])?;
        let text = admin.request_text(request).await?;
        Ok(Self::read(&text))
    }

    fn read(text: &str) -> Self {
        let mut counts = BTreeMap::new();
        let ours = text.lines().filter(|line| line.contains(GROUP));
        for line in ours.filter(|line| line.starts_with(ENDED) || line.starts_with(OPEN)) {
            let count = line.rsplit(' ').next().and_then(|n| n.parse().ok());
            *counts.entry(what(line)).or_default() += count.unwrap_or(0);
        }
        Self(counts)
    }

    /// What came since.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let came = self.0.iter().map(|(what, count)| {
            let then = before.0.get(what).copied().unwrap_or(0);
            (what.clone(), count.saturating_sub(then))
        });
        Self(came.filter(|(_, count)| *count > 0).collect())
    }

    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
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

/// An ended watch and an open one are the same to us.
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
