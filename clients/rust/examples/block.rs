//! A guarded block: the work stops when the lock is lost.

use std::time::Duration;

use leasehold_client::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let lock = Client::from_env()?
        .lock("billing")
        .wait(Duration::from_secs(60));
    lock.run(async |lease| {
        for invoice in ["a", "b", "c"] {
            let (name, token) = lease.header()?;
            println!("charges {invoice} with {name}: {token}");
        }
        Ok(())
    })
    .await
}
