//! `kubectl leasehold` on the real control plane: what a stub of the API server cannot show. The texts themselves are
//! the goldens' (tests/it/kubectl).

mod completion;
mod fence_object;
pub(crate) mod health;
mod hold;
mod installation;
mod release;
mod rights;
mod waiting;
mod why;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::{Namespace, Output};

/// Our plugin.
const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-leasehold");

/// Runs the plugin as the administrator, in the namespace of a test.
pub(crate) async fn run(namespace: &Namespace, args: &[&str]) -> Result<Output> {
    let args = [args, &["--namespace", &namespace.name]].concat();
    let admin = namespace.cluster.control_plane().admin();
    admin.plugin(PLUGIN, &args).await
}

/// Runs the plugin as another person, by kubectl.
async fn run_as(namespace: &Namespace, person: &str, args: &[&str]) -> Result<Output> {
    let args = [args, &["--namespace", &namespace.name, "--as", person]].concat();
    let admin = namespace.cluster.control_plane().admin();
    admin.kubectl_leasehold(PLUGIN, &args).await
}

/// Returns the explanation of `why` as a document.
async fn why(namespace: &Namespace, lock: &str) -> Result<Value> {
    let why = run(namespace, &["why", lock, "-o", "json"]).await?;
    why.json()
}

/// Fails unless a text contains all of these.
fn contains(text: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(text.contains(word), "{word:?} is not in:\n{text}");
    }
    Ok(())
}

/// Returns the cells of a table's first row that contains `word`, by the names of its columns.
fn row(table: &str, word: &str) -> Result<Value> {
    let mut lines = table.lines();
    let header = lines.next().context("a table must have headers")?;
    let row = lines.find(|line| line.contains(word));
    let row = row.with_context(|| format!("no row with {word}:\n{table}"))?;
    let names: Vec<_> = header.split_whitespace().collect();
    let begin = |name: &str| header.find(name).unwrap_or_default();
    let mut cells = serde_json::Map::new();
    for (index, name) in names.iter().enumerate() {
        let end = names.get(index + 1).map_or(row.len(), |next| begin(next));
        let cell = row.get(begin(name)..end.min(row.len()));
        let cell = cell.unwrap_or_default().trim();
        cells.insert((*name).to_owned(), Value::from(cell));
    }
    Ok(cells.into())
}
