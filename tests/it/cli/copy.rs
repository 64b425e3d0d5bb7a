//! `leasehold copy`, which init containers run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::run;

#[test]
fn copy_replaces_an_older_one_and_runs() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leasehold");
    fs::write(&file, "older").unwrap();
    let copied = run(&["copy", directory.path().to_str().unwrap()]);
    assert!(copied.status.success(), "{copied:?}");
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o755
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    let version = Command::new(&file).arg("--version").output().unwrap();
    assert_eq!(version.stdout, run(&["--version"]).stdout);
}

#[test]
fn copy_without_a_directory_is_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "kept").unwrap();
    for wrong in [&file, &directory.path().join("missing")] {
        let refused = run(&["copy", wrong.to_str().unwrap()]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("give a directory"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}
