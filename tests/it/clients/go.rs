//! Go's client: the suite with guarded functions, and its controls.

use std::process::Command;

use super::{
    TTL, built, changed_copy, conformance, drivers, examples_run, source, wrong_deadline_is_noticed,
};

conformance!(by_connection: drivers::go, None, [unix_socket_serves_as_well]);
conformance!(by_renewal: drivers::go, Some(TTL), [unix_socket_serves_as_well]);

#[test]
#[ignore = "needs the clients' languages: make clients"]
fn examples() {
    let expected = [
        ("block", "charges c with map[X-Fencing-Token:["),
        ("task", "reports with token "),
        ("leader", "does the second piece with token "),
    ];
    examples_run(&source("go").join("examples"), &expected, |directory| {
        let name = directory.file_name().unwrap();
        Command::new(built("go").join("examples").join(name))
    });
}

#[tokio::test]
#[ignore = "needs the clients' languages: make clients"]
async fn wrong_deadline() {
    let forever = ("now() >= l.deadline", "l.deadline < 0", 1);
    let from_answer = (
        "return sent + time.Duration",
        "return now() + time.Duration",
        1,
    );
    let drivers = [forever, from_answer].map(driver_with);
    for ttl in [None, Some(TTL)] {
        let [forever, from_answer] = drivers.each_ref().map(|copy| {
            let driver = copy.path().join("driver");
            move || Command::new(&driver)
        });
        wrong_deadline_is_noticed(forever, from_answer, ttl).await;
    }
}

/// Builds a driver whose module has other code.
fn driver_with(change: (&str, &str, usize)) -> tempfile::TempDir {
    let copy = changed_copy(&source("go"), change);
    for file in ["conformance/main.go", "internal/api/api.go"] {
        let to = copy.path().join(file);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(source("go").join(file), to).unwrap();
    }
    let built = Command::new("go")
        .args(["build", "-o", "driver", "./conformance"])
        .current_dir(copy.path())
        .env("GOWORK", "off")
        .status();
    assert!(built.unwrap().success());
    copy
}
