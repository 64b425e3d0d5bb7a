//! Kills an app that holds a lock by its connection, and measures how long it takes until a waiter
//! in another pod gets the answer to its long poll.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::harness::{Namespace, Sidecar};
use crate::transfer::{Before, PAUSE, Queue, handed_over, wait};

const RESOURCE: &str = "bench:app-death";
/// The number of apps that are killed. Each is a curl process.
const DEATHS: usize = 30;
/// The aim, in milliseconds.
const AIM: f64 = 50.0;

/// Measures and prints the result.
#[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
pub(crate) async fn measure(binary: &str, namespace: &Namespace) -> Result<()> {
    let pods = [
        namespace.pod("mourned").await?,
        namespace.pod("heir").await?,
    ];
    let [of_the_dead, of_the_heir] = &pods;
    let of_the_dead = Sidecar::launch(binary, of_the_dead).default_log();
    let of_the_heir = Sidecar::launch(binary, of_the_heir).default_log();
    let (of_the_dead, of_the_heir) = (of_the_dead.start().await?, of_the_heir.start().await?);
    let mut took = Vec::new();
    for round in 0..DEATHS {
        // Each round has its own lock, so that earlier rounds have no effect on it.
        let resource = format!("{RESOURCE}:{round}");
        let body = json!({"resource": resource, "ownerId": "app"});
        let app = of_the_dead.curl_hold(&body)?;
        app.until("acquired").await?;
        let queue = Queue::new(namespace, &resource).await?;
        let waiting = wait(&of_the_heir, &resource);
        let dying = async { app.kill9() };
        let before = (Before::Reads, PAUSE);
        let (lease, after) = handed_over(&queue, before, waiting, dying).await?;
        of_the_heir.release(&lease).await?.expect(204)?;
        took.push(after);
    }
    took.sort_unstable();
    let ms = |duration: Duration| duration.as_secs_f64() * 1_000.0;
    println!(
        "kill -9 of an app that holds, to the answer in another pod: median {:.1} ms, {:.1} at most \
         of {DEATHS} (aim {AIM})",
        ms(took[DEATHS / 2]),
        ms(took[DEATHS - 1]),
    );
    Ok(())
}
