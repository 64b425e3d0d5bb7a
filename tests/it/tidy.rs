//! The rules that the compiler does not check: imports, the clock, output, the length of files and
//! the names of tests.

mod clients;
mod modules;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LINES_MAX: usize = 500;
const TEST_NAME_MAX: usize = 60;

/// The parts of the crate that each part may import, and the crates that only some parts may use.
/// An unlisted part (`cli`) may import everything.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("protocol", &["protocol"]),
    ("clock", &["protocol"]),
    ("pause", &[]),
    ("random", &[]),
    ("store", &["protocol", "store"]),
    (
        "agent",
        &["agent", "clock", "pause", "protocol", "random", "store"],
    ),
    ("fence", &["clock", "fence", "protocol"]),
    ("http", &["agent", "http", "protocol", "store", "text"]),
    ("text", &[]),
    ("admin", &["agent"]),
    ("crd", &["crd", "protocol"]),
    ("k8s", &["crd", "k8s", "protocol", "store"]),
    ("kubectl", &["crd", "kubectl", "protocol", "text"]),
    (
        "operator",
        &["clock", "operator", "pause", "protocol", "random", "store"],
    ),
    ("shutdown", &[]),
    ("state_file", &["agent"]),
    ("telemetry", &[]),
    // It stores its certificates through ports of `store`, and their validity depends on the clock.
    (
        "webhook",
        &["clock", "crd", "protocol", "store", "telemetry", "webhook"],
    ),
];

/// A crate, and the parts of `src/` that may name it.
const SEEN_BY: &[(&str, &[&str])] = &[
    ("axum", &["http", "webhook", "admin", "cli/kubectl/ui"]),
    ("tower_http", &["http", "k8s"]),
    ("utoipa", &["http"]),
    ("kube", &["cli", "crd", "k8s", "operator", "webhook"]),
    ("k8s_openapi", &["crd", "k8s", "operator", "webhook"]),
    ("schemars", &["crd"]),
    ("clap", &["cli"]),
    ("anyhow", &["cli"]),
    ("prometheus", &["agent", "fence", "operator", "webhook"]),
    ("redb", &["fence", "store"]),
    // `http` terminates TLS, `webhook` has the certificate for it; `cli` and `k8s` use its types
    // for names.
    ("rustls", &["cli", "http", "k8s", "webhook"]),
    ("hyper_rustls", &["k8s"]),
    ("tokio_rustls", &["http"]),
    ("rcgen", &["webhook"]),
    ("x509_parser", &["webhook"]),
];

struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    /// Returns the part of the crate that it belongs to: `src/agent/hold.rs` and `src/agent.rs` are
    /// both `agent`.
    fn part(&self) -> String {
        let inside = self.path.strip_prefix(src()).unwrap();
        let first = inside.components().next().unwrap();
        let name = Path::new(first.as_os_str()).with_extension("");
        name.to_string_lossy().into_owned()
    }

    /// Returns the code without its comments, and without the unit tests at its end, which have
    /// fewer restrictions.
    fn code(&self) -> String {
        let shipped = self.text.split("#[cfg(test)]\nmod tests").next().unwrap();
        shipped
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn is_test(&self) -> bool {
        let inside = self.path.strip_prefix(src()).unwrap();
        self.path.ends_with("tests.rs") || inside.iter().any(|part| part == "tests")
    }
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn sources_under(root: &Path) -> Vec<Source> {
    let mut open = vec![root.to_owned()];
    let mut sources = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            sources.push(Source { path, text });
        }
    }
    assert!(!sources.is_empty(), "no sources under {}", root.display());
    sources
}

fn shipped() -> Vec<Source> {
    let mut sources = sources_under(&src());
    sources.retain(|source| !source.is_test());
    sources
}

/// Returns whether `name` is in `code` as a path's first segment, such as `kube::`.
fn names(code: &str, name: &str) -> bool {
    code.match_indices(&format!("{name}::")).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

/// Returns the parts of this crate that the code names after `crate::`, including those in braces.
fn imports(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let list = match rest.strip_prefix('{') {
            Some(inside) => inside.split('}').next().unwrap().split(',').collect(),
            None => vec![rest],
        };
        for item in list {
            let end = |c: char| !(c.is_alphanumeric() || c == '_');
            let name = item.trim().split(end).next().unwrap();
            found.push(name.to_owned());
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

#[test]
fn each_part_imports_only_what_it_may() {
    let allowed: BTreeMap<_, _> = MAY_IMPORT.iter().copied().collect();
    for source in shipped() {
        let part = source.part();
        let Some(allowed) = allowed.get(part.as_str()) else {
            assert!(
                ["bin", "cli", "lib", "main"].contains(&part.as_str()),
                "{part} is new: add its imports to MAY_IMPORT"
            );
            continue;
        };
        for import in imports(&source.code()) {
            assert!(
                allowed.contains(&import.as_str()),
                "{} imports crate::{import}",
                source.path.display()
            );
        }
    }
}

/// Returns the names of the crates that shipped code may use.
fn dependencies() -> Vec<String> {
    let others = fs::read_to_string(src().join("../Cargo.toml")).unwrap();
    let others = others
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| {
            line.split_once(" = ")
                .map(|(name, _)| name.replace('-', "_"))
        })
        .collect::<Vec<_>>();
    assert!(others.contains(&"tokio".to_owned()));
    others
}

/// Checks that a source names no other crate, and has no async code.
fn check_pure(source: &Source, dependencies: &[String]) {
    let path = source.path.display();
    for other in dependencies {
        assert!(!names(&source.code(), other), "{path} names {other}");
    }
    assert!(!source.code().contains("async "), "{path} is async");
}

#[test]
fn the_protocol_knows_only_the_standard_library() {
    let dependencies = dependencies();
    let sources = shipped();
    let protocol = sources.iter().filter(|source| source.part() == "protocol");
    protocol.for_each(|source| check_pure(source, &dependencies));
}

/// The agent's core also names the requests and answers that callers see.
#[test]
fn agents_core_knows_only_the_protocol() {
    const MAY_NAME: [&str; 2] = ["api", "core"];
    let dependencies = dependencies();
    let root = src().join("agent/core");
    let sources = shipped();
    let sources = sources
        .iter()
        .filter(|source| source.path.with_extension("").starts_with(&root));
    let mut number = 0;
    for source in sources {
        number += 1;
        check_pure(source, &dependencies);
        let (code, path) = (source.code(), source.path.display());
        for part in imports(&code) {
            assert!(
                ["agent", "protocol"].contains(&part.as_str()),
                "{path}: {part}"
            );
        }
        let named = modules::named_paths(&modules::module_of(source), &code);
        let of_agent = named.iter().filter(|named| named[0] == "agent");
        for name in of_agent.map(|named| named.get(1).map_or("", String::as_str)) {
            assert!(MAY_NAME.contains(&name), "{path} names agent::{name}");
        }
    }
    assert!(number > 10, "{number} files are no core");
}

#[test]
fn restricted_crates_are_used_only_by_their_modules() {
    for source in shipped() {
        let module = source.path.strip_prefix(src()).unwrap().with_extension("");
        for (name, parts) in SEEN_BY {
            assert!(
                parts.iter().any(|part| module.starts_with(part)) || !names(&source.code(), name),
                "{} names {name}",
                source.path.display()
            );
        }
    }
}

#[test]
fn only_the_clock_module_reads_the_time() {
    for source in shipped().iter().filter(|source| source.part() != "clock") {
        for call in [
            "Instant::now",
            "SystemTime::now",
            "Timestamp::now",
            "clock_gettime",
        ] {
            let path = source.path.display();
            assert!(!source.code().contains(call), "{path} calls {call}");
        }
    }
}

/// Returns the parts that are deterministic in a simulation: they depend only on the order of their
/// inputs and on the seed.
fn deterministic() -> Vec<Source> {
    let mut sources = shipped();
    sources.retain(|source| ["agent", "operator"].contains(&source.part().as_str()));
    sources
}

#[test]
fn agent_and_operator_use_no_hash_maps_and_no_own_randomness() {
    for source in deterministic() {
        // `Random` is their port for randomness. The order of a hash map differs between processes.
        for word in ["HashMap", "HashSet", "fastrand::", "uuid::Uuid", "new_v4"] {
            let path = source.path.display();
            assert!(!source.code().contains(word), "{path} names {word}");
        }
    }
}

#[test]
fn agent_and_operator_spawn_tasks_in_one_place() {
    for source in deterministic() {
        let path = source.path.display();
        for word in ["tokio::spawn", "spawn_blocking", "spawn_local", "thread::"] {
            assert!(!source.code().contains(word), "{path} names {word}");
        }
        // Each of the two starts tasks in one function, with and without a pause.
        let begun = source.code().matches("tasks.spawn(").count();
        let is_home = ["agent/driver.rs", "src/operator.rs"]
            .iter()
            .any(|home| source.path.ends_with(home));
        let expected = if is_home { 2 } else { 0 };
        assert_eq!(begun, expected, "{path} starts tasks outside that function");
    }
}

/// Returns the code after each `select!` that is not biased.
fn unordered_selects(code: &str) -> Vec<&str> {
    let after = code.split("select!").skip(1);
    after
        .filter(|rest| {
            !rest
                .trim_start()
                .trim_start_matches('{')
                .trim_start()
                .starts_with("biased;")
        })
        .collect()
}

#[test]
fn every_select_of_agent_and_operator_is_biased() {
    for source in deterministic() {
        let code = source.code();
        let unordered = unordered_selects(&code);
        let path = source.path.display();
        assert!(
            unordered.is_empty(),
            "a select! in {path} is not biased: {}",
            unordered[0].lines().nth(1).unwrap_or_default()
        );
    }
}

#[test]
fn seeded_bugs_are_in_their_patch_alone() {
    for source in sources_under(&src()) {
        let path = source.path.display();
        assert!(!source.text.contains("seeded"), "{path} names `seeded`");
    }
    let check = Command::new(src().join("../scripts/seeded.sh"))
        .arg("check")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success(), "{stderr}");
}

#[test]
fn only_the_output_prints() {
    for source in shipped() {
        // The second is the one of the kubectl plugin, which is a program of its own.
        let outputs = ["cli/output.rs", "cli/kubectl/terminal.rs"];
        if outputs.iter().any(|output| source.path.ends_with(output)) {
            continue;
        }
        for call in ["println!", "print!", "io::stdout()", "io::stderr()"] {
            let path = source.path.display();
            assert!(!source.code().contains(call), "{path} prints with {call}");
        }
    }
}

#[test]
fn every_file_has_a_header_and_at_most_500_lines() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for source in sources_under(&src())
        .into_iter()
        .chain(sources_under(&tests))
    {
        let path = source.path.display();
        assert!(
            source.text.starts_with("//! "),
            "{path} does not begin with `//!`"
        );
        let lines = source.text.lines().count();
        assert!(
            lines <= LINES_MAX,
            "{path} has {lines} lines, more than {LINES_MAX}"
        );
    }
}

/// Returns the names of the test functions in a source. A macro turns those of the store's contract
/// into tests.
fn test_names(text: &str) -> Vec<&str> {
    let is_test = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let facts = text.lines().filter_map(|line| {
        let (name, arguments) = line.strip_prefix("pub(crate) async fn ")?.split_once('(')?;
        (arguments.is_empty() || arguments.starts_with("adapter:")).then_some(name)
    });
    let mut lines = text.lines().map(str::trim_start);
    let mut names: Vec<_> = facts.collect();
    while lines.find(is_test).is_some() {
        let name = lines.find_map(|line| {
            let after = line.strip_prefix("async ").unwrap_or(line);
            let (name, _) = after.strip_prefix("fn ")?.split_once('(')?;
            Some(name)
        });
        names.extend(name);
    }
    names
}

/// Returns whether a test's name states a fact that fits on a line, and is not a question.
fn is_test_name(name: &str) -> bool {
    let is_question = name.starts_with("what_") || name.starts_with("who_");
    name.len() <= TEST_NAME_MAX && !is_question
}

#[test]
fn test_names_are_short_facts() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let (ours, others) = (sources_under(&src()), sources_under(&tests));
    let mut count = 0;
    for source in ours.iter().chain(&others) {
        let path = source.path.display();
        for name in test_names(&source.text) {
            count += 1;
            let length = name.len();
            assert!(
                is_test_name(name),
                "{path}: {name} has {length} characters or asks a question"
            );
        }
    }
    assert!(count > 1_000, "only {count} tests were found");
}

#[test]
fn the_binaries_are_thin() {
    for main in ["main.rs", "bin/kubectl-leasehold.rs"] {
        let text = fs::read_to_string(src().join(main)).unwrap();
        assert!(text.lines().count() <= 30, "{main}");
    }
}

#[test]
fn tidy_rules_detect_violations() {
    assert!(names("use kube::Client;", "kube"));
    assert!(!names("use crate::not_kube::Client;", "kube"));
    assert!(!names("use crate::kube::Client;", "kube"));
    let code = "use crate::{admin, store::LockStore};\nuse crate::k8s::connect;";
    assert_eq!(imports(code), ["admin", "store", "k8s"]);
    let tests = "#[test]\n#[ignore]\nfn one() {\n    fn two() {}\n}\n/// It waits.\n#[tokio::test(x)]\nasync fn three() {}\npub(crate) async fn fact(adapter: &impl Adapter) {}";
    assert_eq!(test_names(tests), ["fact", "one", "three"]);
    assert!(is_test_name(&"a".repeat(TEST_NAME_MAX)));
    assert!(!is_test_name(&"a".repeat(TEST_NAME_MAX + 1)));
    assert!(!is_test_name("what_is_read") && !is_test_name("who_waits"));
    let code = "select! {\n    biased;\n    a => {}\n}\nselect! {\n    b => {}\n}";
    assert_eq!(unordered_selects(code), [" {\n    b => {}\n}"]);
}
