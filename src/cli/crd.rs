//! `leasehold crd`: prints the custom resource definitions.

use anyhow::Context;

use super::output;

pub(super) fn run() -> anyhow::Result<()> {
    let yaml = crate::crd::all_as_yaml().context("the definitions cannot be written as YAML")?;
    output::print(&yaml).context("standard output cannot be written")
}
