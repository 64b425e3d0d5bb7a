//! A task that one process runs at a time, in a program without a runtime. Others skip it.

use std::time::Duration;

use leasehold_client::{Client, Error};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let lock = Client::from_env()?
        .lock("nightly-report")
        .wait(Duration::ZERO);
    match lock.acquire_blocking() {
        Ok(lease) => {
            println!("reports with token {}", lease.token());
            lease.release_blocking()?;
        }
        Err(held @ Error::Held { .. }) => println!("skipped: {held}"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
