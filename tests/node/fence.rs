//! A pod with an injected fence, in front of an app that cannot compare tokens.

use anyhow::{Result, ensure};
use rustix::process::Signal;

use crate::app::{Answer, App, Wanted};
use crate::harness::eventually;
use crate::install::Leasehold;
use crate::pods::{LIMIT, container};

/// Serves POST on the address that only the pod reaches: each request replaces the report.
const SERVICE: &str = r#"mkdir -p /tmp/www/cgi-bin
printf '#!/bin/sh\ncat >/tmp/report\nprintf "Content-Type: text/plain\\n\\n"\n' >/tmp/www/cgi-bin/report
chmod 755 /tmp/www/cgi-bin/report
exec httpd -f -p 127.0.0.1:8080 -h /tmp/www"#;

async fn run(app: &App, command: &[&str]) -> Result<String> {
    let machine = Leasehold::installed().await?.machine;
    machine.exec(&container(&app.pod, "app")?, command).await
}

/// Sends a write through the fence, with a token if there is one.
async fn write(app: &App, token: &str, body: &str) -> Result<Answer> {
    let script = "exec curl --silent --show-error --max-time 60 --write-out '\n%{http_code}' \
        ${0:+-H} ${0:+\"x-fencing-token: $0\"} --data-binary \"$1\" http://\"$2\":7375/cgi-bin/report";
    let address = app.pod["status"]["podIP"].as_str().unwrap_or_default();
    let command = ["sh", "-c", script, token, body, address];
    Answer::of_curl(&run(app, &command).await?)
}

/// Writes with a lease, and releases it. Returns the token.
async fn write_as_holder(app: &App, body: &str) -> Result<String> {
    let lease = app.take("report").await?;
    let token = lease["fencingToken"].to_string();
    write(app, &token, body).await?.with(200)?;
    app.let_go(&lease).await?;
    Ok(token)
}

#[tokio::test]
async fn injected_fence_refuses_a_stale_write_also_after_a_kill() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let namespace = leasehold.namespace("fence").await?;
    let wanted = Wanted {
        config: vec![("fence-port", "8080"), ("fence-lock", "report")],
        ..Wanted::default()
    };
    let app = leasehold
        .machine
        .app(&namespace, "a", SERVICE, &wanted)
        .await?;

    let old = write_as_holder(&app, "old").await?;
    let new = write_as_holder(&app, "new").await?;
    let stale = write(&app, &old, "stale").await?.with(412)?;
    ensure!(stale["code"] == "stale_token", "{stale}");
    let missing = write(&app, "", "without a token").await?.with(428)?;
    ensure!(missing["code"] == "token_required", "{missing}");

    app.signal("leasehold-fence", Signal::KILL)?;
    // Its lease has ended, so the lock would not confirm this token: the fence has it from its disk.
    let known = async || {
        let answer = write(&app, &new, "again").await.ok()?;
        (answer.status == 200).then_some(())
    };
    eventually("a write through the next fence", LIMIT, known).await?;
    let stale = write(&app, &old, "stale").await?.with(412)?;
    ensure!(stale["code"] == "stale_token", "{stale}");
    let report = run(&app, &["cat", "/tmp/report"]).await?;
    ensure!(report == "again", "{report}");
    Ok(())
}
