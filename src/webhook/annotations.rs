//! The annotations `config.leasehold.dev/…`, with which a pod configures its sidecar.
//!
//! Each is validated before anything is added. A sidecar that cannot start because of an annotation
//! would keep the whole pod from starting, long after its author has checked it.

use std::collections::BTreeMap;

use super::ports;
use super::resources::Resources;
use super::settings::{Injection, Ports};
use super::{REASON_MAX_CHARS, excerpt, fence, truncate};
use crate::protocol::election::ElectionName;
use crate::protocol::ids::Resource;
use crate::protocol::time::SessionTtl;
use crate::telemetry;

/// The prefix of all annotations.
const PREFIX: &str = "config.leasehold.dev/";
/// The maximum number of errors in a message: one more than there are valid annotations.
const PROBLEMS_MAX: usize = ANNOTATIONS.len() + 1;
/// Above the maximum length of an image reference.
const IMAGE_MAX_BYTES: usize = 512;

/// An annotation of pods, for documentation and error messages.
#[derive(Clone, Copy, Debug)]
pub struct Annotation {
    /// Its name after `config.leasehold.dev/`.
    pub name: &'static str,
    /// The values that it accepts.
    pub values: &'static str,
    /// Its effect.
    pub effect: &'static str,
}

/// All annotations.
pub const ANNOTATIONS: [Annotation; 13] = [
    Annotation {
        name: "image",
        values: "an image, like `registry.example/leasehold:0.1.0`",
        effect: "Runs another sidecar than the installation's.",
    },
    Annotation {
        name: "log-level",
        values: "`off`, `error`, `warn`, `info`, `debug`, `trace`, or `MODULE=LEVEL`",
        effect: "What the sidecar logs.",
    },
    Annotation {
        name: "ports",
        values: "`api=7373,admin=7374`, or one of them",
        effect: "Other ports, where an app has one of these.",
    },
    Annotation {
        name: "unix-socket",
        values: "`true` or `false`",
        effect: "The API also on a Unix socket, `LEASEHOLD_SOCKET`; with `hostNetwork` only there.",
    },
    Annotation {
        name: "resources",
        values: "`{\"requests\":{\"cpu\":\"10m\"},\"limits\":{\"memory\":\"64Mi\"}}`",
        effect: "The sidecar's requests and limits, instead of all of the defaults.",
    },
    Annotation {
        name: "session-ttl",
        values: "seconds, `3` to `3600`",
        effect: "For how long the sidecar may be silent before its locks can be taken over.",
    },
    Annotation {
        name: "elect",
        values: "names of elections, like `jobs,billing-worker`",
        effect: "Elections that the pod runs for while its app asks about them.",
    },
    Annotation {
        name: "elect-always",
        values: "names of elections, like `web`",
        effect: "Elections that the pod runs for from its start on, whether its app asks or not.",
    },
    Annotation {
        name: "elect-preferred",
        values: "`true` or `false`",
        effect: "The lead is handed to this pod before others that wait.",
    },
    Annotation {
        name: "gate-lock",
        values: "the name of an election, like `migration`",
        effect: "The app starts when the pod leads this election, and the pod leads until it ends.",
    },
    Annotation {
        name: "gate-rollout",
        values: "`accept`",
        effect: "Says that `gate-lock` is meant in a pod of a Deployment.",
    },
    Annotation {
        name: "fence-port",
        values: "the port of the app, like `8080`",
        effect: "Adds a fence on port 7375: a reverse proxy that refuses writes with stale fencing tokens.",
    },
    Annotation {
        name: "fence-lock",
        values: "the name of a lock, like `report`",
        effect: "The lock of all writes through the fence. Otherwise each request names it.",
    },
];

/// The settings in the annotations of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodSettings {
    pub(super) image: Option<String>,
    pub(super) log_level: Option<String>,
    pub(super) ports: Option<Ports>,
    pub(super) unix_socket: bool,
    pub(super) resources: Option<Resources>,
    pub(super) session_ttl: Option<SessionTtl>,
    /// All elections that the pod runs for.
    pub(super) elect: Vec<ElectionName>,
    /// The elections that it runs for even if its app does not poll. The gate's is one of them: an
    /// app that has passed the gate need not poll.
    pub(super) elect_always: Vec<ElectionName>,
    pub(super) elect_preferred: bool,
    pub(super) gate: Option<ElectionName>,
    pub(super) gate_rollout: bool,
    /// The port of the app behind a fence.
    pub(super) fence_port: Option<u16>,
    pub(super) fence_lock: Option<Resource>,
}

/// Reads a pod's annotations.
///
/// # Errors
/// One sentence that says what to write for each invalid annotation.
pub(super) fn read(
    annotations: &BTreeMap<String, String>,
    defaults: &Injection,
) -> Result<PodSettings, String> {
    let mut settings = PodSettings::default();
    let mut problems = Vec::new();
    for (key, text) in annotations {
        let Some(name) = key.strip_prefix(PREFIX) else {
            continue;
        };
        if let Err(why) = settings.set(name, text.trim(), defaults) {
            // The API server has not validated the names yet: they may be long, and have any
            // characters.
            let (key, text) = (excerpt(key), excerpt(text));
            let (key, why) = (key.escape_debug(), truncate(&why, REASON_MAX_CHARS));
            problems.push(format!("annotation {key} is {text:?}: {why}"));
        }
    }
    settings.elect_always.extend(settings.gate.clone());
    for name in &settings.elect_always {
        if !settings.elect.contains(name) {
            settings.elect.push(name.clone());
        }
    }
    if settings.elect_preferred && settings.elect.is_empty() {
        problems.push(format!(
            "annotation {PREFIX}elect-preferred requires {PREFIX}elect, {PREFIX}elect-always or \
             {PREFIX}gate-lock: write one of them, too"
        ));
    }
    if settings.fence_lock.is_some() && settings.fence_port.is_none() {
        problems.push(format!(
            "annotation {PREFIX}fence-lock requires {PREFIX}fence-port: write it, too"
        ));
    }
    if !problems.is_empty() {
        let more = problems.len().saturating_sub(PROBLEMS_MAX);
        problems.truncate(PROBLEMS_MAX);
        if more > 0 {
            problems.push(format!("and {more} more invalid annotations"));
        }
        return Err(problems.join("; "));
    }
    Ok(settings)
}

impl PodSettings {
    fn set(&mut self, name: &str, text: &str, defaults: &Injection) -> Result<(), String> {
        match name {
            "image" => self.image = Some(check_image(text)?.to_owned()),
            "log-level" => self.log_level = Some(check_log_level(text)?.to_owned()),
            "ports" => self.ports = Some(ports::parse(text, defaults.ports)?),
            "unix-socket" => self.unix_socket = yes_or_no(text)?,
            "resources" => self.resources = Some(resources(text)?),
            "session-ttl" => self.session_ttl = Some(session_ttl(text)?),
            "elect" => self.elect = elections(text)?,
            "elect-always" => self.elect_always = elections(text)?,
            "elect-preferred" => self.elect_preferred = yes_or_no(text)?,
            "gate-lock" => self.gate = Some(election(text)?),
            "gate-rollout" if text == "accept" => self.gate_rollout = true,
            "gate-rollout" => return Err("write accept, or omit it".to_owned()),
            "fence-port" => self.fence_port = Some(fence::port(text)?),
            "fence-lock" => self.fence_lock = Some(fence::lock(text)?),
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

fn unknown() -> String {
    let known = ANNOTATIONS.map(|annotation| annotation.name).join(", ");
    format!("unknown annotation; after {PREFIX} these are known: {known}")
}

pub(super) fn check_image(text: &str) -> Result<&str, String> {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b"._:/@-".contains(&b);
    let is_image = (1..=IMAGE_MAX_BYTES).contains(&text.len())
        && text.bytes().all(is_part)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric());
    if is_image {
        return Ok(text);
    }
    Err("write an image, like registry.example/leasehold:0.1.0".to_owned())
}

pub(super) fn check_log_level(text: &str) -> Result<&str, String> {
    // It becomes the value of a variable, in which Kubernetes expands `$(NAME)`.
    if text.contains("$(") {
        return Err("a filter must not contain $(; write a level, or MODULE=LEVEL".to_owned());
    }
    let read = telemetry::filter(text);
    read.map(|_filter| text).map_err(|error| error.to_string())
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

fn resources(text: &str) -> Result<Resources, String> {
    const WRITE: &str =
        r#"write JSON like {"requests":{"cpu":"10m","memory":"32Mi"},"limits":{"memory":"64Mi"}}"#;
    let read: Resources = serde_json::from_str(text).map_err(|error| {
        let said = error.to_string();
        // The position says little about one line.
        let why = said
            .rsplit_once(" at line ")
            .map_or(said.as_str(), |(why, _)| why);
        format!("{why}; {WRITE}")
    })?;
    let checked = read.check();
    checked.map_err(|error| format!("{error}; {WRITE}"))?;
    Ok(read)
}

fn session_ttl(text: &str) -> Result<SessionTtl, String> {
    let seconds = text
        .parse()
        .map_err(|_| "write a whole number of seconds, 3 to 3600, without a unit".to_owned())?;
    SessionTtl::from_secs(seconds).map_err(|error| error.to_string())
}

fn election(text: &str) -> Result<ElectionName, String> {
    ElectionName::parse(text).map_err(|error| error.to_string())
}

fn elections(text: &str) -> Result<Vec<ElectionName>, String> {
    let mut names = Vec::new();
    for part in text.split(',') {
        let name = election(part.trim())?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(pairs: &[(&str, &str)]) -> Result<PodSettings, String> {
        let pairs = pairs.iter().map(|(name, text)| {
            let key = format!("{PREFIX}{name}");
            (key, (*text).to_owned())
        });
        let defaults = Injection::from_yaml("image: i").unwrap();
        read(&pairs.collect(), &defaults)
    }

    #[test]
    fn foreign_annotations_are_ignored() {
        let others = [
            ("config.leasehold.devil/image", "a b"),
            ("leasehold.dev/sidecar-version", "0"),
        ];
        let others = others.map(|(key, text)| (key.to_owned(), text.to_owned()));
        let defaults = Injection::from_yaml("image: i").unwrap();
        assert_eq!(read(&others.into(), &defaults), Ok(PodSettings::default()));
    }

    #[test]
    fn each_known_annotation_is_read() {
        for Annotation { name, .. } in ANNOTATIONS {
            let refused = read_all(&[(name, "?")]).unwrap_err();
            assert!(!refused.contains("unknown annotation"), "{refused}");
        }
        let refused = read_all(&[("imgae", "x")]).unwrap_err();
        assert!(refused.contains("unknown annotation"), "{refused}");
        for Annotation { name, .. } in ANNOTATIONS {
            assert!(refused.contains(name), "{refused}");
        }
    }

    #[test]
    fn gate_election_is_always_run_for_and_duplicates_are_merged() {
        let names = |list: &[ElectionName]| -> Vec<String> {
            list.iter().map(|name| name.as_str().to_owned()).collect()
        };
        let settings = read_all(&[("elect", "a, b ,a"), ("gate-lock", "b")]).unwrap();
        assert_eq!(names(&settings.elect), ["a", "b"]);
        assert_eq!(names(&settings.elect_always), ["b"]);
        let settings = read_all(&[("elect", "a"), ("elect-always", "a,c")]).unwrap();
        assert_eq!(names(&settings.elect), ["a", "c"]);
        assert_eq!(names(&settings.elect_always), ["a", "c"]);
        let settings = read_all(&[("elect-preferred", "true"), ("gate-lock", "c")]).unwrap();
        assert_eq!(settings.elect, [settings.gate.unwrap()]);
    }

    #[test]
    fn all_bad_annotations_are_reported_together_in_short() {
        let long = "x".repeat(5_000);
        let refused = read_all(&[("ports", "80"), ("unix-socket", &long)]).unwrap_err();
        assert!(refused.contains("/ports is") && refused.contains("/unix-socket is"));
        assert!(refused.len() < 500, "{refused}");
    }

    #[test]
    fn annotations_may_have_any_name_and_be_many() {
        let refused = read_all(&[("\u{1b}[2J\n", "x"), (&"y".repeat(5_000), "z")]).unwrap_err();
        assert!(
            refused.contains("config.leasehold.dev/\\u{1b}[2J\\n is"),
            "{refused}"
        );
        assert!(
            !refused.contains(char::is_control) && refused.len() < 1_000,
            "{refused}"
        );
        let refused = read_all(&[("log-level", &"z".repeat(5_000))]).unwrap_err();
        assert!(refused.len() < 600, "{refused}");
        let many: Vec<_> = (0..1_000).map(|n| n.to_string()).collect();
        let many: Vec<_> = many.iter().map(|name| (&**name, "x")).collect();
        let refused = read_all(&many).unwrap_err();
        assert!(
            refused.ends_with("; and 986 more invalid annotations"),
            "{refused}"
        );
    }
}
