//! What the fence needs of conditional writes, and why the token is in the content.

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;

use super::Guarded;
use super::server::{Server, etag};

const CONCURRENT: usize = 16;
const ROUNDS: usize = 100;

/// Sends concurrent writes with one condition, and returns the `ETag` of the only one that succeeds.
async fn race(server: &Server, object: &str, condition: (&'static str, &str)) -> Result<String> {
    // Content that is there already would keep the ETag, and let a second write pass.
    let write = |number| server.put(object, condition, format!("{number} if {}", condition.1));
    let answers = try_join_all((0..CONCURRENT).map(write)).await?;
    let statuses: Vec<_> = answers.iter().map(|it| it.status().as_u16()).collect();
    let refused = statuses.iter().filter(|status| **status == 412).count();
    let winner = answers.iter().find(|it| it.status() == 200);
    ensure!(refused == CONCURRENT - 1, "{condition:?}: {statuses:?}");
    etag(winner.context("a write that succeeds")?)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn one_of_concurrent_writes_succeeds() -> Result<()> {
    let server = Server::start().await?;
    for round in 0..ROUNDS {
        let object = format!("object-{round}");
        let created = race(&server, &object, ("if-none-match", "*")).await?;
        race(&server, &object, ("if-match", &created)).await?;
    }
    Ok(())
}

/// An `ETag` does not cover metadata. If the token is there, a writer cannot see that others have written in between.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn token_in_metadata_misses_equal_content() -> Result<()> {
    const TOKEN: &str = "x-amz-meta-token";
    let server = Server::start().await?;
    let read = etag(&server.put("object", (TOKEN, "1000"), "on").await?)?;
    server.put("object", (TOKEN, "2000"), "off").await?;
    server.put("object", (TOKEN, "3000"), "on").await?;
    let stale = server.put("object", ("if-match", &read), "stale").await?;
    assert_eq!(stale.status(), 200, "the ETag covers metadata");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn token_in_content_changes_etag() -> Result<()> {
    let server = Server::start().await?;
    let content = |token: u64, value: &str| format!(r#"{{"token": {token}, "value": "{value}"}}"#);
    let json = ("content-type", "application/json");
    let read = etag(&server.put("object", json, content(1000, "on")).await?)?;
    server.put("object", json, content(2000, "off")).await?;
    server.put("object", json, content(3000, "on")).await?;
    let write = server.put("object", ("if-match", &read), content(1000, "stale"));
    assert_eq!(write.await?.status(), 412);
    let object = server.get("object").await?.expect("the object");
    let object: Guarded<String> = object.json().await?;
    assert_eq!((object.token, object.value.as_str()), (3000, "on"));
    Ok(())
}
