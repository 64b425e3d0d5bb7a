//! The flags of the operator's webhook: the valid combinations, and the errors for invalid ones.

use std::fs;
use std::process::Output;

use super::run;

const LISTEN: &str = "--webhook-listen=127.0.0.1:0";
const INJECTION: &str = "--injection-config=/nonexistent/injection.yaml";
const DIRECTORY: &str = "--webhook-cert-dir=/nonexistent";
const SERVICE: &str = "--webhook-service=s";
const CONFIGURATION: &str = "--webhook-configuration=c";
const SECRET: &str = "--webhook-secret=t";

fn operator(flags: &[&str]) -> (Output, String) {
    let always = [
        "operator",
        "--pod-name=a",
        "--pod-uid=u",
        "--admin-listen=127.0.0.1:0",
        "--kubeconfig=/nonexistent",
    ];
    let output = run(&[&always, flags].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[test]
fn flags_that_do_not_go_together_are_usage_errors() {
    let own = [SERVICE, CONFIGURATION, SECRET];
    let cases: &[(&[&str], &str)] = &[
        (&[INJECTION], "--injection-config requires --webhook-listen"),
        (&[DIRECTORY], "--webhook-cert-dir requires --webhook-listen"),
        (&own, "--webhook-service requires --webhook-listen"),
        (&[LISTEN], "needs --injection-config"),
        (&[LISTEN, INJECTION], "give --webhook-cert-dir, or"),
        (
            &[LISTEN, INJECTION, DIRECTORY, SERVICE, CONFIGURATION, SECRET],
            "leave --webhook-service",
        ),
        (&[LISTEN, INJECTION, SERVICE], "--webhook-configuration"),
        (
            &[LISTEN, INJECTION, SERVICE, SECRET],
            "--webhook-configuration",
        ),
        (&[LISTEN, INJECTION, SECRET], "--webhook-service"),
        (
            &[LISTEN, INJECTION, DIRECTORY, "--webhook-name=a"],
            "--webhook-service",
        ),
        (&["--webhook-name=a:1"], "without a port"),
        (&["--webhook-listen=10250"], "--webhook-listen"),
        (&["--webhook-cert-seconds=5"], "--webhook-cert-seconds"),
    ];
    for (flags, words) in cases {
        let (output, said) = operator(flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(words), "{said:?} has no {words:?}");
    }
}

#[test]
fn unusable_settings_end_the_operator_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let cluster = "{apiVersion: v1, kind: Config, current-context: c, \
         clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: c, user: {}}], \
         contexts: [{name: c, context: {cluster: c, user: c}}]}";
    fs::write(&kubeconfig, cluster).unwrap();
    let file = directory.path().join("injection.yaml");
    fs::write(&file, "image: registry.example/leasehold\nport: 1\n").unwrap();
    let missing = (INJECTION.to_owned(), "cannot be read");
    let unknown = (
        format!("--injection-config={}", file.display()),
        "unknown field",
    );
    for (flag, words) in [missing, unknown] {
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let output = run(&[
            "operator",
            "--pod-name=a",
            "--pod-uid=u",
            "--admin-listen=127.0.0.1:0",
            &kubeconfig,
            LISTEN,
            DIRECTORY,
            &flag,
        ]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said:?} has no {words:?}");
    }
}
