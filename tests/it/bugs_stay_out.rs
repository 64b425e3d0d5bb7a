//! Seeded bugs are excluded from shipped builds.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const FEATURE: &str = "seeded-bugs";

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Profiles with debug assertions: their builds are never shipped.
const FOR_TESTS: [&str; 3] = ["dev", "test", "model"];

/// Whether a release build in these lines has the feature.
fn builds_it_in(text: &str) -> bool {
    let lines = text.replace("\\\n", " ");
    let mut releases = lines.lines().filter(|line| is_release(line));
    releases.any(|line| line.contains(FEATURE) || line.contains("all-features"))
}

fn is_release(line: &str) -> bool {
    let mut words = line.split([' ', '\t', '=']);
    while let Some(word) = words.next() {
        match word {
            "--release" | "-r" => return true,
            "--profile" => return words.next().is_none_or(|name| !FOR_TESTS.contains(&name)),
            _ => {}
        }
    }
    false
}

/// Whether the text sets debug assertions: with them a release build could have the feature.
fn moves_the_guard(text: &str) -> bool {
    let text = text.to_ascii_lowercase().replace('_', "-");
    text.contains("debug-assertions")
}

/// The files that build releases.
fn builders() -> Vec<String> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let scripts = fs::read_dir(scripts).unwrap().map(|entry| {
        let name = entry.unwrap().file_name();
        format!("scripts/{}", name.to_string_lossy())
    });
    let others = ["Makefile", "Dockerfile", ".ci/run"].map(str::to_owned);
    scripts.chain(others).collect()
}

/// Whether the feature is there without being asked for.
fn is_default(manifest: &str) -> bool {
    let features = manifest.split("[features]").nth(1).unwrap();
    let features = features.split("\n[").next().unwrap();
    let mut lines = features.lines();
    let own = format!("{FEATURE} =");
    lines.any(|line| line.contains(FEATURE) && !line.starts_with(&own))
}

#[test]
fn no_release_build_enables_them() {
    let manifest = file("Cargo.toml");
    assert!(!is_default(&manifest));
    assert!(!moves_the_guard(&manifest));
    for name in builders() {
        let text = file(&name);
        assert!(!builds_it_in(&text) && !moves_the_guard(&text), "{name}");
    }
    let image = file("scripts/image.sh");
    assert!(
        image.contains("LEASEHOLD_SEEDED_BUG"),
        "the binary of the image is looked into before it is packed"
    );
}

#[test]
fn every_way_to_enable_them_is_detected() {
    assert!(builds_it_in(
        "cargo build --release \\\n  --features seeded-bugs"
    ));
    assert!(builds_it_in("cargo build --all-features --release"));
    assert!(builds_it_in("cargo build -r --features seeded-bugs"));
    for profile in ["--profile release", "--profile=release", "--profile small"] {
        let build = format!("cargo build {profile} --features seeded-bugs");
        assert!(builds_it_in(&build), "{profile}");
    }
    assert!(!builds_it_in(
        "cargo test --profile model --features seeded-bugs\ncargo build --release"
    ));
    assert!(moves_the_guard(
        "[profile.release]\ndebug-assertions = true"
    ));
    assert!(moves_the_guard(
        "CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true cargo build -r"
    ));
    assert!(is_default(
        "[features]\ndefault = [\"seeded-bugs\"]\nseeded-bugs = []\n"
    ));
    assert!(!is_default(
        "[features]\nseeded-bugs = []\n[dependencies]\n"
    ));
}

/// The module alone, as the compiler takes it.
fn compiled(debug_assertions: &str) -> Output {
    let out = tempfile::tempdir().unwrap();
    Command::new("rustc")
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "lib",
            "--emit",
            "metadata",
        ])
        .arg(format!("-Cdebug-assertions={debug_assertions}"))
        .args(["--cfg", "feature=\"seeded-bugs\"", "--out-dir"])
        .arg(out.path())
        .arg("src/seeded.rs")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

#[test]
fn without_debug_assertions_they_do_not_compile() {
    let refused = compiled("no");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(
        said.contains("what is shipped has no bugs on purpose"),
        "{said}"
    );
    let taken = compiled("yes");
    let said = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(taken.status.success(), "{said}");
}
