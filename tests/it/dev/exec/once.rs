//! `--once` beside `leasehold dev`: which runs count as a success, and what is said if the record fails.

use super::*;

/// The flags of a run under one key.
const ONCE: &[&str] = &["--once", "2026-04-01"];
const COUNTED: &str = "echo ran >>runs";

#[tokio::test]
async fn failed_or_interrupted_command_is_run_again() {
    let server = Server::start().await;
    let (code, said) = server.run(ONCE, "echo failed >>runs; exit 3");
    assert_eq!(code, Some(3), "{said}");
    assert!(!said.contains("completion"), "{said}");

    // As programs do that end in good order when their node is drained.
    let exec = server.spawn(
        ONCE,
        r#"trap "exit 0" TERM; echo $$ >pid; while :; do sleep 0.05; done"#,
    );
    exec.pid("pid").await;
    kill_process(exec.front(), Signal::TERM).unwrap();
    assert_eq!(exec.ended(), Some(0));

    let (code, said) = server.run(ONCE, COUNTED);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("completion recorded"), "{said}");
    let (code, said) = server.run(ONCE, COUNTED);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("already completed; command skipped"),
        "{said}"
    );
    assert_eq!(lines_of(server.folder.path(), "runs"), ["failed", "ran"]);
}

#[tokio::test]
async fn success_without_a_record_is_said() {
    let server = Server::start().await;
    let kill = format!("kill -9 {}", server.dev.process.id());
    let (code, said) = server.run(ONCE, &kill);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("completion not confirmed; lease over"),
        "{said}"
    );
}
