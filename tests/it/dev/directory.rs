//! The data directory: a full disk does not count as damage, a restored copy repeats no token, and a clean stop
//! leaves no process id.

use std::fs;
use std::path::Path;
use std::process::Command;

use reqwest::Method;

use super::{Dev, command, path_of, refused, token};

/// Runs a command with files limited to `kilobytes`, as on a full disk. A write beyond the limit
/// returns an error and raises no signal.
fn with_full_disk(data: &Path, kilobytes: u32) -> Command {
    let whole = command(data, &[]);
    let mut limited = Command::new("bash");
    let script = format!("trap '' XFSZ; ulimit -f {kilobytes}; exec \"$@\"");
    limited.args(["-c", &script, "bash"]);
    limited.arg(whole.get_program()).args(whole.get_args());
    let set = whole.get_envs();
    limited.envs(set.filter_map(|(name, value)| Some((name, value?))));
    limited
}

fn is_no_damage(said: &str) {
    assert!(said.contains("cannot be used"), "{said}");
    assert!(said.contains("File too large"), "{said}");
    assert!(!said.contains("damage") && !said.contains("move"), "{said}");
}

#[tokio::test]
async fn full_disk_is_reported_and_leaves_the_file_valid() {
    let data = tempfile::tempdir().unwrap();
    is_no_damage(&refused(with_full_disk(data.path(), 8)));

    let dev = Dev::start(data.path(), &[]).await;
    let lease = dev.acquire("r").await;
    let (status, _) = dev.call(Method::DELETE, &path_of(&lease), None).await;
    assert_eq!(status, 204);
    dev.end_by("KILL");
    // The next start would remove its session, which the full disk prevents.
    let dev = Dev::spawn(with_full_disk(data.path(), 8)).await;
    assert!(
        dev.said("stderr")
            .contains("cleaning up after earlier processes failed")
    );
    let (status, found) = dev.get("/v1/locks").await;
    assert!(status == 200 && found["locks"][0]["fencingToken"] == lease["fencingToken"]);
    assert_eq!(dev.try_acquire("r").await.0, 503);
    dev.end_by("KILL");

    let dev = Dev::start(data.path(), &[]).await;
    assert!(
        !dev.said("stderr")
            .contains("cleaning up after earlier processes failed")
    );
    assert!(token(&dev.acquire("r").await) > token(&lease));
}

/// Returns the two revisions in the refusal of an older copy.
fn revisions(said: &str) -> (u64, u64) {
    let numbers: Vec<u64> = said
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .filter(|number| *number > 1_000_000_000_000)
        .collect();
    assert_eq!(numbers.len(), 2, "{said}");
    (numbers[0], numbers[1])
}

#[tokio::test]
async fn restored_copy_with_the_guides_floor_repeats_no_token() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("leasehold.redb");
    let mut floor = 0;
    let mut last = 0;
    // More rounds than floors of a token's size would fit below the largest token.
    for _ in 0..7 {
        let flag = format!("--token-floor={floor}");
        let dev = Dev::start(data.path(), &[&flag, "--on-term=apps-ended"]).await;
        let lease = dev.acquire("r").await;
        assert!(token(&lease) > last);
        assert!(dev.end_by("TERM").success());
        let copy = fs::read(&file).unwrap();

        let dev = Dev::start(data.path(), &[&flag, "--on-term=apps-ended"]).await;
        for _ in 0..3 {
            let lease = dev.acquire("r").await;
            last = token(&lease);
            let path = path_of(&lease);
            let (status, _) = dev.call(Method::DELETE, &path, None).await;
            assert_eq!(status, 204);
        }
        assert!(dev.end_by("TERM").success());

        fs::write(&file, copy).unwrap();
        let (at, acknowledged) = revisions(&refused(command(data.path(), &[&flag])));
        fs::remove_file(data.path().join("acknowledged")).unwrap();
        floor += 1_000 * (acknowledged - at);
    }
    let dev = Dev::start(data.path(), &[&format!("--token-floor={floor}")]).await;
    assert!(token(&dev.acquire("r").await) > last);
}

#[tokio::test]
async fn clean_stop_removes_the_process_id() {
    let data = tempfile::tempdir().unwrap();
    let id = || fs::read_to_string(data.path().join("lock")).unwrap();
    for signal in ["TERM", "INT"] {
        let dev = Dev::start(data.path(), &["--on-term=apps-ended"]).await;
        assert_eq!(id(), format!("{}\n", dev.process.id()));
        dev.acquire("r").await;
        assert!(dev.end_by(signal).success());
        assert_eq!(id(), "");
    }
}

#[tokio::test]
async fn missing_or_unreadable_files_are_logged() {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &[]).await;
    let lease = dev.acquire("r").await;
    assert!(!dev.said("stderr").contains("WARN"), "all is well");
    dev.end_by("KILL");

    fs::remove_file(data.path().join("leasehold.redb")).unwrap();
    let dev = Dev::start(data.path(), &[]).await;
    assert!(
        dev.said("stderr")
            .contains("created without its former locks")
    );
    assert!(token(&dev.acquire("r").await) > token(&lease));
    dev.end_by("KILL");

    fs::write(data.path().join("acknowledged"), "nonsense").unwrap();
    let dev = Dev::start(data.path(), &[]).await;
    assert!(
        dev.said("stderr")
            .contains("reading the recorded revision failed")
    );
}
