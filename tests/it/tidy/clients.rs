//! The clocks of the clients: a step of the wall clock must neither prolong nor end a lease, so no client
//! reads it. Only a client's clock module reads the clock of its deadlines.
//!
//! It searches the text, comments included: no test can step the wall clock of one process in each language.

use std::fs;
use std::path::{Path, PathBuf};

struct Language {
    directory: &'static str,
    extension: &'static str,
    /// The files that may read a clock.
    clock: &'static [&'static str],
    /// How a clock is read that never steps. Go's `time.Now` also has such a reading.
    steady: &'static [&'static str],
    /// How the wall clock is read.
    wall: &'static [&'static str],
}

const LANGUAGES: &[Language] = &[
    Language {
        directory: "go",
        extension: "go",
        clock: &["clock_linux.go", "clock_other.go"],
        steady: &["time.Now", "time.Since", "time.Until", "ClockGettime"],
        wall: &["CLOCK_REALTIME", "Gettimeofday", ".Unix"],
    },
    Language {
        directory: "java/src/main",
        extension: "java",
        clock: &["Clock.java"],
        steady: &["System.nanoTime()", "/proc/uptime"],
        wall: &[
            "currentTimeMillis",
            "java.util.Date",
            "java.time.Clock",
            "Instant",
            "DateTime",
        ],
    },
    Language {
        directory: "python/src",
        extension: "py",
        clock: &["_clock.py"],
        steady: &["import time", "from time", "clock_gettime", ".monotonic"],
        wall: &["time.time", "CLOCK_REALTIME", "datetime"],
    },
    Language {
        directory: "rust/src",
        extension: "rs",
        clock: &["clock.rs"],
        steady: &["Instant", "clock_gettime"],
        wall: &["SystemTime", "ClockId::Realtime"],
    },
    Language {
        directory: "typescript/src",
        extension: "ts",
        clock: &["clock.ts"],
        steady: &["hrtime", "readSync("],
        wall: &["Date.", "Date(", "timeOrigin"],
    },
];

/// The sidecar's wall clock, in its answers.
const OF_THE_SIDECAR: [&str; 2] = ["expiresAt", "expires_at"];

impl Language {
    /// Returns the files that are shipped.
    fn files(&self) -> Vec<PathBuf> {
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
        let mut open = vec![clients.join(self.directory)];
        let mut files = Vec::new();
        while let Some(path) = open.pop() {
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_app = ["conformance", "examples", "node_modules"].contains(&name);
            if path.is_dir() && !is_app {
                let entries = fs::read_dir(&path).unwrap();
                open.extend(entries.map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|e| e == self.extension)
                && !name.ends_with("_test.go")
            {
                files.push(path);
            }
        }
        files
    }

    fn is_clock(&self, path: &Path) -> bool {
        self.clock.iter().any(|name| path.ends_with(name))
    }
}

/// The generated types name every field.
fn is_generated(path: &Path) -> bool {
    let name = path.file_stem().unwrap().to_str().unwrap();
    name.trim_start_matches('_').eq_ignore_ascii_case("api")
}

fn first<'a>(words: &[&'a str], text: &str) -> Option<&'a str> {
    words.iter().copied().find(|word| text.contains(word))
}

#[test]
fn no_client_reads_the_wall_clock() {
    for language in LANGUAGES {
        let files = language.files();
        let clocks = files.iter().filter(|path| language.is_clock(path)).count();
        assert_eq!(clocks, language.clock.len(), "{}", language.directory);
        for path in &files {
            let text = fs::read_to_string(path).unwrap();
            let steady = first(language.steady, &text);
            assert_eq!(
                steady.is_some(),
                language.is_clock(path),
                "{} reads a clock, or is a clock that reads none: {steady:?}",
                path.display()
            );
            let mut wall = first(language.wall, &text);
            if !is_generated(path) {
                wall = wall.or(first(&OF_THE_SIDECAR, &text));
            }
            assert!(wall.is_none(), "{} has {wall:?}", path.display());
        }
    }
}
