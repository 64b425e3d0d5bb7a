//! What axe-core finds in a view. It is put into the page by the browser's driver, which no policy of the page forbids.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::browser::{Browser, Scheme};
use super::files;
use crate::support::tell;

/// What fails a test.
const SERIOUS: [&str; 2] = ["serious", "critical"];

const FINDINGS: &str = r"
    return axe.run(document, { resultTypes: ['violations'] }).then(({ violations, passes }) => [
      passes.length,
      violations.map(({ id, impact, help, nodes }) => ({
        id, impact, help, nodes: nodes.map(({ html, failureSummary }) => `${html}: ${failureSummary}`),
      })),
    ]);
";

/// Fails with what axe-core finds serious or critical in what the page shows, light or dark.
pub(super) async fn check(browser: &Browser, view: &str) -> Result<()> {
    for scheme in [Scheme::Dark, Scheme::Light] {
        browser.prefer(scheme).await?;
        let answer = findings(browser).await?;
        let passes = answer[0].as_u64().unwrap_or_default();
        let found = answer[1].as_array().context("a list")?;
        ensure!(
            passes > 5,
            "axe-core has checked nothing of {view}: {answer}"
        );
        let is_serious =
            |one: &&Value| SERIOUS.contains(&one["impact"].as_str().unwrap_or_default());
        let (serious, minor): (Vec<_>, Vec<_>) = found.iter().partition(is_serious);
        ensure!(
            serious.is_empty(),
            "axe-core on {view}, {}: {}",
            scheme.name(),
            serde_json::to_string_pretty(&serious)?
        );
        for one in minor {
            tell(&format!("axe-core on {view}, {}: {one}", scheme.name()))?;
        }
    }
    Ok(())
}

async fn findings(browser: &Browser) -> Result<Value> {
    if browser.run("return !window.axe").await? == true {
        let file = files().join("node_modules/axe-core/axe.min.js");
        let axe = std::fs::read_to_string(&file);
        let axe = axe.with_context(|| format!("{}; run `make page`", file.display()))?;
        browser.run(&axe).await?;
    }
    browser.run(FINDINGS).await
}
