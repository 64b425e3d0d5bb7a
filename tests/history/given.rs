//! Checks any history: `HISTORY=DIRECTORY cargo test --test history given -- --ignored --nocapture`.

use std::path::Path;

use anyhow::{Context, Result};

use super::history::History;

#[test]
#[ignore = "it needs a history: HISTORY=DIRECTORY"]
fn a_given_history_is_right() -> Result<()> {
    let directory = std::env::var_os("HISTORY").context("HISTORY=DIRECTORY")?;
    let history = History::read_directory(Path::new(&directory))?;
    println!("{:#?}", history.kinds());
    println!("{:?}", history.check()?);
    Ok(())
}
