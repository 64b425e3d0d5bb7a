//! The documentation: every relative link resolves, and a test runs every shell block. The blocks
//! that need no cluster run here, in bash with `leasehold dev`.

mod pages;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};

use crate::markdown::{ON_A_CLUSTER, Page, page, root, shape};
use crate::messages::retired_in;
use pages::{anchors, links, pages};

/// A page to run, and its sections (default: all).
const WITHOUT_A_CLUSTER: [(&str, &[&str]); 4] = [
    ("README.md", &["Quickstart without a cluster", "Use it"]),
    ("docs/tutorials/first-lock.md", &[]),
    ("docs/exec.md", &[]),
    ("docs/cron.md", &[]),
];
/// The maximum length of a page, in lines.
const LONGEST: [(&str, usize); 3] = [
    ("README.md", 200),
    ("ARCHITECTURE.md", 250),
    ("tests/README.md", 200),
];

#[test]
fn every_relative_link_resolves() {
    let pages = pages();
    let known: BTreeMap<_, _> = pages.iter().map(|p| (&p.name, anchors(p))).collect();
    let mut broken = Vec::new();
    for page in &pages {
        for link in links(page) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = target_of(&page.name, path);
            let has_anchor = |page: &Vec<String>| page.iter().any(|known| known == anchor);
            let is_there = root().join(&target).exists()
                && (anchor.is_empty() || known.get(&target).is_some_and(has_anchor));
            if !is_there {
                broken.push(format!("{}: {link}", page.name));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "links that do not resolve:\n{}",
        broken.join("\n")
    );
}

/// Returns the path of a link's target, relative to the root.
fn target_of(page: &str, path: &str) -> String {
    if path.is_empty() {
        return page.to_owned();
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            other => parts.push(other),
        }
    }
    parts.join("/")
}

#[test]
fn pages_stay_within_their_length() {
    for (name, longest) in LONGEST {
        let lines = page(name).text.lines().count();
        assert!(
            lines <= longest,
            "{name} has {lines} lines, at most {longest}"
        );
    }
}

/// Quotes of the program's output are checked where the program is.
#[test]
fn pages_for_users_have_no_retired_words() {
    let is_for_users = |page: &Page| page.name == "README.md" || page.name.starts_with("docs/");
    let mut faults = Vec::new();
    for page in pages().iter().filter(|page| is_for_users(page)) {
        for line in page.text.lines() {
            // Backticks contain names of the code, and "there is no X" is good English within a
            // sentence.
            let prose: String = line.split('`').step_by(2).collect();
            let retired = retired_in(&prose.to_lowercase().replace("there is no", ""));
            faults.extend(
                retired
                    .iter()
                    .map(|fault| format!("{}: {line}\n  {fault}", page.name)),
            );
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_shell_block_of_readme_and_tutorials_is_run() {
    let runs = |page: &Page, section: &str| {
        let all = WITHOUT_A_CLUSTER.iter().chain(&ON_A_CLUSTER);
        all.filter(|(name, sections)| {
            *name == page.name && (sections.is_empty() || sections.contains(&section))
        })
        .count()
    };
    let tutorials = pages()
        .into_iter()
        .filter(|page| page.name == "README.md" || page.name.starts_with("docs/tutorials/"));
    let mut blocks = 0;
    for page in tutorials {
        for block in page.blocks() {
            if block.language == "sh" {
                blocks += 1;
                let times = runs(&page, &block.section);
                assert_eq!(
                    times, 1,
                    "{}, {}: runs {times} times",
                    page.name, block.section
                );
            }
            let known = ["sh", "text", "console", "json", "yaml", "mermaid", "python"];
            let language = block.language.as_str();
            assert!(
                known.contains(&language),
                "{}: a block of {language:?}",
                page.name
            );
        }
    }
    assert!(blocks > 8, "only {blocks} blocks were found");
}

#[test]
fn shell_blocks_without_a_cluster_run_as_shown() {
    for (name, sections) in WITHOUT_A_CLUSTER {
        let script = page(name).script(sections);
        let dev = Dev::start();
        let output = dev.run(&script.commands);
        assert!(output.succeeded, "{name}:\n{}", output.both);
        assert!(!script.output.is_empty(), "{name} shows no output");
        let missing = script.missing(&output.printed);
        assert_eq!(
            missing, None,
            "{name} shows another output than:\n{}",
            output.both
        );
    }
}

/// A `leasehold dev` that is restarted whenever it ends, as its user does by hand.
struct Dev {
    supervisor: Child,
    home: tempfile::TempDir,
    port: u16,
}

struct Output {
    succeeded: bool,
    printed: String,
    both: String,
}

impl Dev {
    fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port must be free");
        let port = free.local_addr().expect("it must have an address").port();
        drop(free);
        let home = tempfile::tempdir().expect("a directory must be there");
        let log = fs::File::create(home.path().join("log")).expect("it must be writable");
        // Another binary, for example of a release: `qemu-aarch64-static
        // target/dist/leasehold-0.1.0-linux-arm64`.
        let command = std::env::var("LEASEHOLD_COMMAND");
        let command = command.unwrap_or_else(|_| env!("CARGO_BIN_EXE_leasehold").to_owned());
        let supervisor = Command::new("bash")
            .args([
                "-c",
                "trap 'kill $!; exit' TERM; while true; do \"$@\" & wait $!; done",
                "bash",
            ])
            .args(command.split_whitespace())
            .args(["dev", "--session-ttl=3", "--admin-listen=none"])
            .arg(format!("--listen=127.0.0.1:{port}"))
            .env("XDG_STATE_HOME", home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("bash must be there");
        let dev = Self {
            supervisor,
            home,
            port,
        };
        dev.wait_until_it_answers();
        dev
    }

    fn wait_until_it_answers(&self) {
        let until = SystemClock.now().after(Duration::from_secs(60));
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let log = fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
            assert!(
                SystemClock.now() < until,
                "leasehold dev did not start:\n{log}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn run(&self, commands: &str) -> Output {
        let commands = commands.replace("7373", &self.port.to_string());
        let binary = Path::new(env!("CARGO_BIN_EXE_leasehold"));
        let folder = binary.parent().expect("it must be in a folder").display();
        let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &commands])
            .current_dir(root())
            .env("XDG_STATE_HOME", self.home.path())
            .env("PATH", path)
            .env("NO_PROXY", "localhost,127.0.0.1")
            .stdin(Stdio::null())
            .output()
            .expect("bash must be there");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (printed, errors) = (text(&output.stdout), text(&output.stderr));
        Output {
            succeeded: output.status.success(),
            both: format!("{printed}{errors}{}", output.status),
            printed,
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let pid = self.supervisor.id().to_string();
        let _ended = Command::new("kill").arg(pid).status();
        let _status = self.supervisor.wait();
    }
}

#[test]
fn broken_links_and_changed_output_are_detected() {
    assert_eq!(
        target_of("docs/tutorials/a.md", "../../README.md"),
        "README.md"
    );
    let page = Page {
        name: "docs/x.md".into(),
        text: "# A `b` c: d?\n\n## Two\n\n[x](y.md#z)\n\n```sh\necho 12\n```\n\n```text\nid 3f-1\n```\n\n## Two\n".into(),
    };
    assert_eq!(anchors(&page), ["a-b-c-d", "two", "two-1"]);
    assert_eq!(links(&page), ["y.md#z"]);
    let script = page.script(&["Two"]);
    assert_eq!(script.commands, "echo 12\n");
    assert_eq!(script.output, [shape("id 97a5")]);
    assert_eq!(script.missing("a\nid 4\nb\n"), None);
    assert!(script.missing("id\n").is_some());
    assert_ne!(shape("lock_held"), shape("lease_lost"));
    assert_eq!(page.script(&["Other"]).commands, "");
    assert!(!root().join(target_of("docs/x.md", "y.md")).exists());
    assert!(Path::new(env!("CARGO_BIN_EXE_leasehold")).exists());
}

/// A page that names a test promises that the test exists.
#[test]
fn tests_that_failure_modes_name_exist() {
    let (mut file, mut named) = (None, 0);
    for line in page("docs/failure-modes.md").text.lines() {
        let mut code = line.split('`').skip(1).step_by(2);
        if line.starts_with("- `tests/") || line.starts_with("- `src/") {
            let path = code.next().expect("a line of tests must name their file");
            let text = fs::read_to_string(root().join(path));
            file = Some((path, text.unwrap_or_else(|error| panic!("{path}: {error}"))));
        } else if !line.starts_with("  ") {
            file = None;
        }
        let Some((path, text)) = &file else { continue };
        for name in code.filter(|name| name.contains('_')) {
            named += 1;
            assert!(
                text.contains(&format!("fn {name}(")),
                "{path} has no test {name}"
            );
        }
    }
    assert!(named > 50, "only {named} tests are named");
}
