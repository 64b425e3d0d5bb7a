//! The client for TypeScript and JavaScript.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{
    TTL, changed_copy, conformance, drivers, examples_run, source, wrong_deadline_is_noticed,
};

fn app() -> PathBuf {
    super::built("typescript").join("app")
}

fn node(file: &Path) -> Command {
    let mut command = Command::new("node");
    command.arg(file);
    command
}

fn module() -> Command {
    drivers::typescript(&app(), "import")
}

fn common() -> Command {
    drivers::typescript(&app(), "require")
}

conformance!(by_connection: module, None, [unix_socket_serves_as_well]);
conformance!(by_renewal: common, Some(TTL), [unix_socket_serves_as_well]);

#[test]
#[ignore = "needs the clients' languages: make clients"]
fn examples() {
    let words = "charges c with { 'X-Fencing-Token': ";
    let leader = "does the second piece with ";
    let expected = [
        ("block.mjs", words),
        ("dispose.mts", words),
        ("leader.mjs", leader),
        ("task.cjs", "reports"),
    ];
    let run = |file: &Path| {
        // What check.sh has made of the one in TypeScript.
        let name = file.file_name().unwrap().to_str().unwrap();
        node(&app().join("examples").join(name.replace(".mts", ".mjs")))
    };
    examples_run(&source("typescript").join("examples"), &expected, run);
    let bundled = [("leader.mjs", leader), ("leader.cjs", leader)];
    examples_run(&app().join("bundled"), &bundled, node);
}

#[tokio::test]
#[ignore = "needs the clients' languages: make clients"]
async fn wrong_deadline() {
    let forever = ("BigInt(Math.floor(deadline))", "10n ** 15n", 1);
    let from_answer = ("return this.sent +", "return this.context.clock.now() +", 1);
    let copies = [forever, from_answer].map(changed_package);
    for ttl in [None, Some(TTL)] {
        let [forever, from_answer] = copies.each_ref().map(|copy| {
            let path = copy.path().to_owned();
            move || drivers::typescript(&path, "import")
        });
        wrong_deadline_is_noticed(forever, from_answer, ttl).await;
    }
}

/// Returns an app with the driver, and with a package of changed code.
fn changed_package(change: (&str, &str, usize)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let sources = changed_copy(&source("typescript").join("src"), change);
    let package = super::built("typescript").join("package");
    let installed = copy.path().join("node_modules/leasehold");
    fs::create_dir_all(&installed).unwrap();
    let driver = "driver.mjs";
    fs::copy(app().join(driver), copy.path().join(driver)).unwrap();
    let manifest = "package.json";
    fs::copy(package.join(manifest), installed.join(manifest)).unwrap();
    let mut build = node(&package.join("build.mjs"));
    build.arg(sources.path()).arg(installed.join("dist"));
    assert!(build.status().unwrap().success());
    copy
}
