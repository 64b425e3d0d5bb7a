//! Who gets in: the first browser with the link, and no other program.

use anyhow::{Context, Result, ensure};

use super::{accessibility, open, until_row};
use crate::harness::TakeOver;
use crate::support::Pair;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser: make page"]
async fn link_works_once_and_others_get_no_data() -> Result<()> {
    let Pair { namespace, a, .. } = Pair::start("page-door", TakeOver::Peer, 60).await?;
    a.acquire_for_long("nightly-report").await?.granted()?;
    let (served, first) = open(&namespace, None).await?;
    until_row(&first, &["nightly-report"]).await?;
    let address = first.run("return location.href + document.cookie").await?;
    let secret = served.link.split_once("secret=").context("a secret")?.1;
    ensure!(!address.as_str().context("a text")?.contains(secret));

    let second = served.open().await?;
    let ended = second.until("the end", "return text('ended')").await?;
    let ended = ended.as_str().context("a text")?;
    ensure!(ended.contains("kubectl leasehold ui"), "{ended}");
    ensure!(second.run("return hooks('row').length").await? == 0);
    accessibility::check(&second, "the ended page").await?;
    first.reload().await?;
    until_row(&first, &["nightly-report"]).await?;

    let locks = format!("{}api/locks", served.address());
    let http = reqwest::Client::new();
    let status = async |request: reqwest::RequestBuilder| -> Result<u16> {
        let answer = request.send().await?;
        let policy = answer.headers().get("content-security-policy");
        let policy = policy.context("a policy")?.to_str()?;
        ensure!(policy.starts_with("default-src 'none'"), "{policy}");
        Ok(answer.status().as_u16())
    };
    ensure!(status(http.get(&locks)).await? == 401);
    ensure!(status(http.get(&locks).bearer_auth(secret)).await? == 401);
    let token = first.run("return sessionStorage.getItem('token')").await?;
    let token = token.as_str().context("a token")?;
    ensure!(status(http.get(&locks).bearer_auth(token)).await? == 200);
    for (name, value) in [
        ("host", "leasehold.example"),
        ("origin", "http://leasehold.example"),
    ] {
        let foreign = http.get(&locks).bearer_auth(token).header(name, value);
        ensure!(status(foreign).await? == 403, "{name}");
        let page = http.get(served.address()).header(name, value);
        ensure!(status(page).await? == 403, "{name}");
    }
    Ok(())
}
