//! The bugs that are seeded on purpose stay out of what is shipped.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const FEATURE: &str = "seeded-bugs";

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether a build of these lines, one of which says `--release`, has the feature.
fn builds_it_in(text: &str) -> bool {
    let lines = text.replace("\\\n", " ");
    let mut releases = lines.lines().filter(|line| line.contains("--release"));
    releases.any(|line| line.contains(FEATURE) || line.contains("all-features"))
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
fn no_release_build_asks_for_them() {
    assert!(!is_default(&file("Cargo.toml")));
    for name in ["Makefile", "Dockerfile", "scripts/image.sh", ".ci/run"] {
        assert!(!builds_it_in(&file(name)), "{name}");
    }
    let image = file("scripts/image.sh");
    assert!(
        image.contains("LEASEHOLD_SEEDED_BUG"),
        "the binary of the image is looked into before it is packed"
    );
}

#[test]
fn what_would_let_them_in_is_noticed() {
    assert!(builds_it_in(
        "cargo build --release \\\n  --features seeded-bugs"
    ));
    assert!(builds_it_in("cargo build --all-features --release"));
    assert!(!builds_it_in(
        "cargo test --features seeded-bugs\ncargo build --release"
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
