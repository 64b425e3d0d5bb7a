//! The page of `kubectl leasehold ui` in a real Chromium, on the real control plane. `make page` runs this.

mod accessibility;
mod away;
mod browser;
mod entrance;
mod keyboard;
mod live;
mod many;
mod names;
mod pictures;
mod rights;
mod waits;
mod world;

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::harness::{Cluster, Namespace, PATIENCE, Process, eventually, target_directory};
use browser::Browser;

/// Returns our plugin. An optimized one says more about time and memory: it is beside the optimized `leasehold`.
fn plugin() -> Result<String> {
    let Ok(optimized) = std::env::var("LEASEHOLD_OPTIMIZED") else {
        return Ok(env!("CARGO_BIN_EXE_kubectl-leasehold").to_owned());
    };
    let plugin = PathBuf::from(optimized).with_file_name("kubectl-leasehold");
    Ok(plugin.to_str().context("a path")?.to_owned())
}

/// What `make page` has installed, and the pictures.
fn files() -> PathBuf {
    target_directory().join("page")
}

/// The plugin while it serves the page.
struct Served {
    plugin: Process,
    /// What it prints: `http://127.0.0.1:PORT/#secret=SECRET`.
    link: String,
}

impl Served {
    /// Starts it for a namespace, as a person.
    async fn start(namespace: &Namespace, person: Option<&str>) -> Result<Self> {
        let mut args = vec!["--namespace", namespace.name.as_str()];
        args.extend(person.iter().flat_map(|person| ["--as", person]));
        Self::start_with(&namespace.cluster, &args).await
    }

    /// Starts it with these flags.
    async fn start_with(cluster: &Cluster, flags: &[&str]) -> Result<Self> {
        let admin = cluster.control_plane().admin();
        let process = admin.start_plugin(&plugin()?, &[&["ui"], flags].concat())?;
        let link = eventually("the link to the page", PATIENCE, async || {
            let log = process.log();
            let link = log.lines().find(|line| line.starts_with("http://"));
            let ended = process.exited().ok().flatten().is_some();
            (link.is_some() || ended).then(|| link.map(str::to_owned))
        });
        let link = link.await?.with_context(|| process.log())?;
        Ok(Self {
            plugin: process,
            link,
        })
    }

    /// Returns its address without the secret.
    fn address(&self) -> &str {
        self.link.split('#').next().unwrap_or_default()
    }

    /// Opens the page in a new browser.
    async fn open(&self) -> Result<Browser> {
        let browser = Browser::start().await?;
        browser.open(&self.link).await?;
        Ok(browser)
    }
}

/// Starts the page for a namespace, and opens it, as a person.
async fn open(namespace: &Namespace, person: Option<&str>) -> Result<(Served, Browser)> {
    let served = Served::start(namespace, person).await?;
    let browser = served.open().await?;
    Ok((served, browser))
}

/// Waits until the table has a row with all these words.
async fn until_row(browser: &Browser, words: &[&str]) -> Result<()> {
    let words = serde_json::to_string(words)?;
    let script = format!(
        "return hooks('row').some((row) => {words}.every((word) => row.innerText.includes(word)))"
    );
    let what = format!("a row with {words}");
    browser.until(&what, &script).await.map(drop)
}
