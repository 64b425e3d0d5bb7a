//! Rust's client: the suite with guarded blocks and with leases, and its controls.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{
    TTL, built, changed_copy, conformance, drivers, examples_run, source, wrong_deadline_is_noticed,
};

fn blocks() -> Command {
    drivers::rust("blocks")
}

fn leases() -> Command {
    drivers::rust("leases")
}

conformance!(blocks_by_connection: blocks, None, [unix_socket_serves_as_well]);
conformance!(leases_by_renewal: leases, Some(TTL), [unix_socket_serves_as_well]);

#[test]
#[ignore = "needs the clients' languages: make clients"]
fn examples() {
    let expected = [
        ("block.rs", "charges c with X-Fencing-Token: "),
        ("task.rs", "reports with token "),
        ("leader.rs", "does the second piece with token "),
    ];
    examples_run(&source("rust").join("examples"), &expected, |file| {
        let name = file.file_stem().unwrap();
        Command::new(built("rust").join(name))
    });
}

#[tokio::test]
#[ignore = "needs the clients' languages: make clients"]
async fn wrong_deadline() {
    let forever = ("now() >= state.deadline", "state.deadline.is_zero()", 1);
    let from_answer = (
        "sent + Duration::from_millis",
        "sent * 0 + now() + Duration::from_millis",
        1,
    );
    let drivers = [forever, from_answer].map(driver_with);
    for ttl in [None, Some(TTL)] {
        let [forever, from_answer] = drivers.each_ref().map(|copy| {
            let driver = copy.path().join("driver");
            move || {
                let mut command = Command::new(&driver);
                command.arg("leases");
                command
            }
        });
        wrong_deadline_is_noticed(forever, from_answer, ttl).await;
    }
}

/// Builds a driver whose crate has other code.
fn driver_with(change: (&str, &str, usize)) -> tempfile::TempDir {
    let package = tempfile::tempdir().unwrap();
    let into = |name: &str| package.path().join(name);
    fs::rename(
        changed_copy(&source("rust").join("src"), change).keep(),
        into("src"),
    )
    .unwrap();
    for name in ["Cargo.toml", "README.md", "conformance/main.rs"] {
        fs::create_dir_all(into(name).parent().unwrap()).unwrap();
        fs::copy(source("rust").join(name), into(name)).unwrap();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::copy(root.join("Cargo.lock"), into("Cargo.lock")).unwrap();
    // The dependencies are built there.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let cargo = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--offline", "--example", "conformance"])
        .arg("--target-dir")
        .arg(target)
        // As in this workspace, so that they are not built again.
        .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
        .current_dir(package.path())
        .status();
    assert!(cargo.unwrap().success());
    fs::copy(target.join("debug/examples/conformance"), into("driver")).unwrap();
    package
}
