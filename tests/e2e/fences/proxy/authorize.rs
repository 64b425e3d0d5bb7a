//! `leasehold fence --authorize`, asked by nginx and Envoy with the configurations of docs/fencing-envoy-nginx.md.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::{Client, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::service::Service;
use super::{Fenced, answers, append, fence_command, stale_worker_is_refused};
use crate::fences::random::run;
use crate::fences::server::{Daemon, new_directory, unprivileged};
use crate::fences::store::{Append, Written};
use crate::harness::{PATIENCE, Process, eventually, own_port, target_directory};

const PAGE: &str = include_str!("../../../../docs/fencing-envoy-nginx.md");
/// The ports of the page: of clients, of nginx' second server, of the service and of the fence.
const PORTS: [u16; 4] = [80, 8081, 8080, 7375];

/// The proxies in front of the service.
#[derive(Clone, Copy, Debug)]
enum Front {
    Nginx,
    /// It asks when it has the head.
    HastyNginx,
    Envoy,
}

/// Returns the configuration of the page with other ports.
fn configuration(language: &str, ports: [u16; 4]) -> Result<String> {
    let (_, rest) = PAGE
        .split_once(&format!("```{language}\n"))
        .context("a configuration on the page")?;
    let (text, _) = rest.split_once("```").context("its end")?;
    let mut text = text.to_owned();
    for (old, new) in PORTS.into_iter().zip(ports) {
        for before in ["listen ", "127.0.0.1:", "port_value: "] {
            for after in [";", "}", "\"", "$"] {
                let there = format!("{before}{old}{after}");
                // Clients come from this machine only.
                let local = if before == "listen " && old == 80 {
                    "127.0.0.1:"
                } else {
                    ""
                };
                text = text.replace(&there, &format!("{before}{local}{new}{after}"));
            }
        }
    }
    Ok(text)
}

fn envoy() -> Result<PathBuf> {
    let libraries = target_directory().join("fences/envoy/venv/lib");
    let mut versions = std::fs::read_dir(libraries).context("make fences installs Envoy")?;
    let version = versions.next().context("a version of Python")??.path();
    Ok(version.join("site-packages/envoy/_bin/envoy"))
}

impl Front {
    /// Starts the proxy between a new port, which it returns, and a service.
    async fn start(self, service: u16, fence: u16) -> Result<(Process, String)> {
        let directory = new_directory("front")?;
        let port = own_port()?;
        let ports = [port, own_port()?, service, fence];
        let mut command = match self {
            Self::Nginx => nginx(&directory, &configuration("nginx", ports)?)?,
            Self::HastyNginx => {
                let servers = configuration("nginx", ports)?;
                let servers = servers.replace("buffering on;", "buffering off;");
                let limit = "proxy_connect_timeout 2s;";
                let hasty = format!("{limit} proxy_request_buffering off;");
                nginx(&directory, &servers.replace(limit, &hasty))?
            }
            Self::Envoy => {
                let file = directory.join("envoy.yaml");
                std::fs::write(&file, configuration("yaml", ports)?)?;
                let mut command = Command::new(envoy()?);
                command
                    .args([
                        "--disable-hot-restart",
                        "--concurrency",
                        "1",
                        "--log-level",
                        "warn",
                    ])
                    .arg("--config-path")
                    .arg(file);
                command
            }
        };
        let process = Process::spawn("front", &mut command, &directory.join("log"))?;
        let url = format!("http://127.0.0.1:{port}");
        eventually("the proxy", PATIENCE, async || {
            reqwest::get(format!("{url}/log")).await.ok()
        })
        .await?;
        Ok((process, url))
    }
}

fn nginx(directory: &Path, servers: &str) -> Result<Command> {
    let file = directory.join("nginx.conf");
    let at = directory.display();
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {at}/{kind};"))
        .concat();
    let text = format!(
        "daemon off; pid {at}/pid; error_log {at}/error.log; events {{}}\n\
         http {{ access_log off; {paths}\n{servers} }}"
    );
    std::fs::write(&file, text)?;
    let mut command = unprivileged("nginx");
    command.arg("-e").arg(directory.join("error.log"));
    command.arg("-c").arg(file);
    Ok(command)
}

fn port_of(url: &str) -> Result<u16> {
    let (_, port) = url.rsplit_once(':').context("a port")?;
    Ok(port.parse()?)
}

/// Returns the command of a fence that is only asked.
fn asked(directory: &Path, port: u16) -> Command {
    let mut command = fence_command(directory, port);
    command.arg("--authorize");
    command
}

/// Starts a service, the proxy in front of it, and the fence that the proxy asks.
async fn start(front: Front) -> Result<Fenced> {
    let service = Service::start().await?;
    let port = own_port()?;
    let fence = Daemon::new(new_directory("asked")?, move |directory| {
        let mut command = asked(directory, port);
        command.arg("--trust-tokens");
        Ok(command)
    });
    fence
        .start(async || answers(&format!("http://127.0.0.1:{port}")).await)
        .await?;
    let (process, url) = front.start(port_of(&service.url)?, port).await?;
    Ok(Fenced {
        service,
        fence,
        url,
        front: Some(process),
    })
}

async fn try_append(fenced: &Fenced, token: u64, value: &str) -> Result<Written> {
    let one = Append {
        token,
        value: value.to_owned(),
        pause: Duration::ZERO,
    };
    append(&Client::new(), &fenced.url, &one).await
}

/// Appends, and repeats that while the fence has to wait.
async fn lands(fenced: &Fenced, token: u64, value: &str) -> Result<()> {
    let appended = async || try_append(fenced, token, value).await.ok();
    let written = eventually("an append that is allowed", PATIENCE, appended).await?;
    ensure!(written == Written::Accepted, "{value}: {written:?}");
    Ok(())
}

/// Sends the head of an append and half of its body.
async fn half(url: &str, token: u64) -> Result<TcpStream> {
    let mut client = TcpStream::connect(("127.0.0.1", port_of(url)?)).await?;
    let head = format!(
        "POST /log HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: {token}\r\nX-Fencing-Resource: log\r\n\
         Content-Length: 5\r\nConnection: close\r\n\r\nst"
    );
    client.write_all(head.as_bytes()).await?;
    Ok(client)
}

/// Plays a writer that is paused in the middle of a body. Returns what it is answered, and whether its write landed.
async fn stale_rest_of_a_body(asked: &Fenced) -> Result<(String, bool)> {
    lands(asked, 1000, "first").await?;
    let mut paused = half(&asked.url, 1000).await?;
    lands(asked, 1001, "new").await?;
    paused.write_all(b"ale").await?;
    let mut answer = String::new();
    paused.read_to_string(&mut answer).await?;
    let entries = asked.service.entries();
    Ok((answer, entries.iter().any(|entry| entry.value == "stale")))
}

/// The fence is asked when the body is complete.
async fn stale_rest_of_a_body_is_refused(front: Front) -> Result<()> {
    let asked = start(front).await?;
    let (answer, has_landed) = stale_rest_of_a_body(&asked).await?;
    ensure!(
        answer.starts_with("HTTP/1.1 412") && answer.contains("\"stale_token\""),
        "{answer}"
    );
    ensure!(!has_landed);
    // Envoy names an address of its own for a client on the same machine.
    eventually(
        "the refusal in the log, with the proxy's client",
        PATIENCE,
        async || {
            let log = std::fs::read_to_string(asked.fence.log()).ok()?;
            let mut lines = log.lines().filter(|line| line.contains("stale_token"));
            lines.find(|line| line.contains(" forwardedFor=\""))?;
            Some(())
        },
    )
    .await?;
    let disguised: &[_] = match front {
        Front::Envoy => &["x-http-method-override", "x-http.method-override"],
        // It removes names with a dot.
        Front::Nginx | Front::HastyNginx => &["x-http-method-override"],
    };
    refusals_are_told_apart(&asked, disguised).await
}

async fn refusals_are_told_apart(asked: &Fenced, disguised: &[&str]) -> Result<()> {
    let client = Client::new();
    let log = format!("{}/log", asked.url);
    let none = client.post(&log).body("x").send().await?;
    ensure!(
        none.status() == StatusCode::PRECONDITION_REQUIRED,
        "{none:?}"
    );
    let wrong = client
        .post(&log)
        .header("x-fencing-token", "7,8")
        .header("x-fencing-resource", "log");
    let wrong = wrong.body("x").send().await?;
    ensure!(wrong.status() == StatusCode::BAD_REQUEST, "{wrong:?}");
    for name in disguised {
        let disguised = client.get(&log).header(*name, "DELETE").send().await?;
        ensure!(
            disguised.status() == StatusCode::PRECONDITION_REQUIRED,
            "{name}: {disguised:?}"
        );
    }
    let before = asked.service.entries().len();
    asked.fence.kill()?;
    let refused = try_append(asked, 1001, "without-fence").await;
    ensure!(refused.is_err(), "{refused:?}");
    ensure!(asked.service.entries().len() == before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn nginx_asks_when_it_has_the_body() -> Result<()> {
    stale_rest_of_a_body_is_refused(Front::Nginx).await
}

/// The control.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_body_passes_an_nginx_that_asks_too_early() -> Result<()> {
    let asked = start(Front::HastyNginx).await?;
    let (answer, has_landed) = stale_rest_of_a_body(&asked).await?;
    ensure!(has_landed, "{answer}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn envoy_asks_when_it_has_the_body() -> Result<()> {
    stale_rest_of_a_body_is_refused(Front::Envoy).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn no_older_token_passes_while_nginx_asks() -> Result<()> {
    run(&start(Front::Nginx).await?, 2).await?;
    Ok(())
}

/// With real sidecars, by Envoy.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_worker_cannot_write_through_envoy() -> Result<()> {
    let service = Service::start().await?;
    let port = own_port()?;
    let (_front, url) = Front::Envoy.start(port_of(&service.url)?, port).await?;
    let fence = |directory: &Path| asked(directory, port);
    stale_worker_is_refused(&url, &service, port, fence).await
}
