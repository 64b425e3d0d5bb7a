//! Flags that cannot be used: each is one clear line, before anything is opened.

use std::process::Command;

#[test]
fn wrong_flag_is_one_line_that_names_it() {
    let cases: &[(&[&str], &str)] = &[
        (&["--upstream=http://a/path"], "without a path"),
        (&["--upstream=https://a"], "TLS is not supported"),
        (&["--upstream=a:80"], "http://HOST:PORT"),
        (&["--upstream=http://user@a"], "http://HOST:PORT"),
        (&["--resource="], "--resource"),
        (
            &["--resource=a", "--resource-rule=/a=b"],
            "cannot be used with",
        ),
        (&["--resource-rule=/a"], "--resource-rule"),
        (&["--resource-rule=a=b"], "--resource-rule"),
        (&["--resource-rule=/a/{id}=b-{other}"], "--resource-rule"),
        (&["--open-method=get"], "--open-method"),
        (&["--open-method=G ET"], "--open-method"),
        (&["--authorize", "--settle=1"], "cannot be used with"),
        (&["--leader"], "cannot be used with"),
        (&["--max-requests=0"], "--max-requests"),
        (&["--max-connections=0"], "--max-connections"),
        (&["--max-resources=0"], "--max-resources"),
        (&["--settle=-1"], "--settle"),
        (&["--settle=10s"], "--settle"),
        (&["--upstream-timeout=0"], "--upstream-timeout"),
        (&["--client-idle=0"], "--client-idle"),
        (&["--url=ftp://a"], "--url"),
        (&["--access-log=some"], "--access-log"),
        (&["--listen=localhost"], "--listen"),
    ];
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    for (flags, expected) in cases {
        let mut wrong = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        wrong
            .args(["fence", "--trust-tokens", "--state-dir"])
            .arg(&state);
        // A flag overrides it.
        wrong.env("LEASEHOLD_FENCE_UPSTREAM", "http://127.0.0.1:9");
        wrong.env("LEASEHOLD_FENCE_LISTEN", "127.0.0.1:0");
        wrong.env("LEASEHOLD_FENCE_ADMIN_LISTEN", "none");
        let output = wrong.args(*flags).output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {printed}");
        let first = printed.lines().next().unwrap_or_default();
        assert!(
            first.starts_with("error: ") && first.contains(expected),
            "{flags:?}: {printed}"
        );
    }
    assert!(!state.exists());
}

/// For clap a variable is present with any value.
#[test]
fn variable_that_is_false_is_not_its_flag() {
    let cases = [
        (
            "LEASEHOLD_FENCE_LEADER",
            "--upstream=http://a",
            "--state-dir or --leader is missing",
        ),
        (
            "LEASEHOLD_FENCE_AUTHORIZE",
            "--leader",
            "--upstream or --authorize is missing",
        ),
    ];
    for (variable, flag, expected) in cases {
        let mut wrong = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        wrong
            .args(["fence", "--settle=1", flag])
            .env(variable, "false");
        let output = wrong.output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains(expected), "{variable}: {printed}");
    }
}
