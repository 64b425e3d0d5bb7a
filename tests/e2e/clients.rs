//! Apps in other languages: each script of tests/clients, with an ordinary HTTP library, is queued at one sidecar
//! while an app of another one holds the lock, and hangs up while queued. Then the same on `leasehold dev`.
//!
//! A missing runtime is reported on a line that passing tests show too. An installed one must work: its failure never
//! counts as its absence.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::{Process, TakeOver, addresses, directory, eventually, target_directory};
use crate::support::{BINARY, Pair, tell};

/// A script takes 20 s, most of it waiting, and Java compiles its one first.
const LIMIT: Duration = Duration::from_secs(120);
/// How long the holder continues, between two sidecars and in `leasehold dev`.
const HELD_SECONDS: [&str; 2] = ["12", "2"];
/// How often a script's lock is granted: to A, to B after a wait, and to A again. Once more if B's release arrives
/// before the entry that A left is removed: that grant is released at once.
const GRANTS: std::ops::RangeInclusive<u64> = 3..=4;

#[tokio::test(flavor = "multi_thread")]
async fn python_requests_is_queued_and_hangs_up() -> Result<()> {
    run("python", "client.py", python()?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn java_http_client_is_queued_and_hangs_up() -> Result<()> {
    run("java", "Client.java", java()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn node_fetch_is_queued_and_hangs_up() -> Result<()> {
    run("node", "client.mjs", node()).await
}

/// The program that runs a script and its version, or the reason why it is missing.
type Runtime = Result<(PathBuf, String), String>;

async fn run(name: &str, script: &str, runtime: Runtime) -> Result<()> {
    let (program, version) = match runtime {
        Ok(found) => found,
        Err(missing) => return tell(&format!("tests/clients/{script} skipped: {missing}")),
    };
    tell(&format!("tests/clients/{script} runs on {version}"))?;
    let script = scripts().join(script);
    tokio::try_join!(
        between_two_sidecars(name, &program, &script),
        in_one_process(name, &program, &script),
    )?;
    Ok(())
}

async fn between_two_sidecars(name: &str, program: &Path, script: &Path) -> Result<()> {
    let Pair { namespace, a, b } = Pair::start(name, TakeOver::Peer, 15).await?;
    let mut command = Command::new(program);
    command.arg(script).args([&a.url, &b.url]);
    command.args(["--hold", HELD_SECONDS[0]]);
    to_the_end(&format!("client-{name}"), &mut command).await?;

    // The same as the API server has it: what the script says is not all that counts.
    let locks = namespace.all("distributedlocks").await?;
    ensure!(locks.len() == 1, "not one lock: {locks:?}");
    let status = &locks[0]["status"];
    let grants = status["transitions"].as_u64();
    ensure!(
        grants.is_some_and(|grants| GRANTS.contains(&grants)),
        "{status}"
    );
    ensure!(status.get("holder").is_none(), "{status}");
    let nobody = Value::Array(vec![]);
    ensure!(
        status
            .get("waiters")
            .is_none_or(|waiters| *waiters == nobody),
        "{status}"
    );
    Ok(())
}

async fn in_one_process(name: &str, program: &Path, script: &Path) -> Result<()> {
    let folder = directory()?;
    let mut command = Command::new(BINARY);
    command
        .args(["dev", "--log-format", "json"])
        .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .arg("--data-dir")
        .arg(folder.join(format!("dev-{name}")));
    let log = folder.join(format!("dev-{name}.log"));
    let dev = Process::spawn("leasehold dev", &mut command, &log)?;
    let listening = eventually("leasehold dev to listen", LIMIT, async || {
        let found = addresses(&dev.log());
        found.into_iter().find(|(role, _)| role == "locks")
    });
    let (_, address) = listening.await.with_context(|| dev.last_words())?;

    let mut command = Command::new(program);
    command.arg(script).arg(format!("http://{address}"));
    command.args(["--hold", HELD_SECONDS[1]]);
    to_the_end(&format!("client-{name}-dev"), &mut command).await
}

/// Runs a script, which prints `passed` on success.
async fn to_the_end(name: &str, command: &mut Command) -> Result<()> {
    // A proxy for the world outside is none for an app's own sidecar.
    command.env("NO_PROXY", "127.0.0.1");
    command.env("no_proxy", "127.0.0.1");
    let log = directory()?.join(format!("{name}.log"));
    let client = Process::spawn(name, command, &log)?;
    let status = client.wait(LIMIT).await;
    let status = status.with_context(|| client.log())?;
    let said = client.log();
    ensure!(
        status.success() && said.lines().last() == Some("passed"),
        "{name} ended with {status}:\n{said}"
    );
    Ok(())
}

/// Python, in an environment under target/ that has what `requirements.txt` says.
///
/// # Errors
/// When Python is there and the environment cannot be made.
fn python() -> Result<Runtime> {
    let check = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))";
    if output("python3", &["-c", "0"]).is_none() {
        return Ok(Err("no python3 on PATH".to_owned()));
    }
    if output("python3", &["-c", check]).is_none() {
        let missing = "python3 is older than 3.10, or has no venv with pip (Debian: python3-venv)";
        return Ok(Err(missing.to_owned()));
    }
    let folder = target_directory().join("clients").join("python");
    let python = folder.join("bin").join("python");
    let wanted = scripts().join("requirements.txt");
    let installed = folder.join("requirements.txt");
    let ask = "import platform, requests as r; print(platform.python_version(), r.__version__)";
    let asked = || output(&python, &["-c", ask]);
    let is_current = fs::read(&installed).is_ok_and(|text| Some(text) == fs::read(&wanted).ok());
    if !is_current || asked().is_none() {
        succeed(
            Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(&folder),
        )?;
        // It retries refused connections, but not broken ones.
        let install = || {
            succeed(
                Command::new(&python)
                    .args(["-m", "pip", "install", "--quiet"])
                    .args(["--timeout", "30", "--retries", "2", "--requirement"])
                    .arg(&wanted),
            )
        };
        install().or_else(|_| install()).or_else(|_| install())?;
        // Last: an environment without it is recreated.
        fs::copy(&wanted, &installed)?;
    }
    let versions = asked().context("requests must be there once it is installed")?;
    let (python_version, requests) = versions.trim().split_once(' ').context("two versions")?;
    let version = format!("Python {python_version} with requests {requests}");
    Ok(Ok((python, version)))
}

/// A JDK: the `java` of a mere JRE runs no source file.
fn java() -> Runtime {
    let modules = output("java", &["--list-modules"]);
    let modules = modules.ok_or("no java on PATH, or one that is older than 9")?;
    let compiler = modules
        .lines()
        .find_map(|line| line.strip_prefix("jdk.compiler@"));
    let version = compiler.ok_or("java is a JRE without a compiler")?;
    if major(version) < 17 {
        return Err(format!("java is {version}, older than 17"));
    }
    Ok(("java".into(), format!("Java {version}")))
}

fn node() -> Runtime {
    let version = output("node", &["--version"]).ok_or("no node on PATH")?;
    let version = version.trim().trim_start_matches('v');
    if major(version) < 20 {
        return Err(format!("node is {version}, older than 20"));
    }
    Ok(("node".into(), format!("Node {version}")))
}

fn major(version: &str) -> u32 {
    let first = version.split(|c: char| !c.is_ascii_digit()).next();
    first.and_then(|first| first.parse().ok()).unwrap_or(0)
}

/// What a program prints, if it is there and ends well.
fn output(program: impl AsRef<Path>, args: &[&str]) -> Option<String> {
    let output = Command::new(program.as_ref()).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then_some(text)
}

fn succeed(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed:\n{said}");
    Ok(())
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}
