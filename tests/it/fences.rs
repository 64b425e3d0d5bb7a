//! The generated files of the fences are up to date; `make generate` rewrites them. What a page shows is what runs.

use std::path::Path;
use std::process::Command;

use super::drift::assert_committed;

const HEAD: &str = "#!lua name=leasehold
-- Generated from fence.lua (make generate). Load it once, and again after each change:
--
--   redis-cli -x FUNCTION LOAD REPLACE < leasehold.lua
--
-- FCALL leasehold_fence takes the keys and arguments of EVALSHA below, without the SHA.

redis.register_function('leasehold_fence', function(KEYS, ARGV)
";

#[test]
fn drift_redis_library_has_the_script() {
    let script = include_str!("../../fences/redis/fence.lua");
    assert_committed(
        "fences/redis/leasehold.lua",
        &format!("{HEAD}{script}end)\n"),
    );
}

/// `fences/generate.sh` writes what Flyway and Alembic take.
#[test]
fn drift_migrations_of_other_tools_are_up_to_date() {
    let fences = Path::new(env!("CARGO_MANIFEST_DIR")).join("fences");
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("fences");
    let run = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
    run(Command::new("cp").arg("-r").arg(&fences).arg(&copy));
    run(&mut Command::new(copy.join("generate.sh")));
    let mut diff = Command::new("diff");
    let differences = diff.arg("-r").arg(&fences).arg(&copy).output().unwrap();
    let text = String::from_utf8_lossy(&differences.stdout);
    assert!(differences.status.success(), "run `make generate`:\n{text}");
}

/// `make fences` runs the program.
#[test]
fn controllers_of_the_page_are_the_tested_ones() {
    let page = include_str!("../../docs/fencing-kubernetes.md");
    let (_, shown) = page.split_once("```rust\n").unwrap();
    let (shown, _) = shown.split_once("\n```").unwrap();
    let program = include_str!("../e2e/fences/kube_rs.rs");
    assert!(program.contains(shown), "{shown}");
    let program = include_str!("../fences/controller/main.go").replace("\n\t", "\n");
    let (_, shown) = page.split_once("```go\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    assert!(program.contains(shown), "{shown}");
}

/// `make fences` runs the services.
#[test]
fn services_of_the_page_are_the_tested_ones() {
    let page = include_str!("../../docs/fencing-http.md");
    let go = include_str!("../fences/middleware/go/main.go").replace("\n\t", "\n");
    let python = include_str!("../fences/middleware/python/service.py");
    let django = include_str!("../fences/middleware/python/django_service.py");
    let python = format!("{python}{django}");
    let express = include_str!("../fences/middleware/express/service.mjs").to_owned();
    let spring = include_str!("../fences/middleware/spring/src/main/java/example/Service.java");
    let spring = spring.replace("\n  ", "\n");
    for (language, program) in [
        ("go", go),
        ("python", python),
        ("js", express),
        ("java", spring),
    ] {
        let (_, blocks) = page.split_once(&format!("```{language}\n")).unwrap();
        for block in blocks.split(&format!("```{language}\n")) {
            let (shown, _) = block.split_once("```").unwrap();
            assert!(program.contains(shown), "{shown}");
        }
    }
}
