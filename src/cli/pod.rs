//! The flags that identify the pod of a process.

use crate::protocol::session::PodRef;

/// The flags.
#[derive(Debug, clap::Args)]
#[group(id = "pod")]
pub(super) struct Args {
    /// The name of this pod (downward API: metadata.name); default: HOSTNAME.
    #[arg(long, env = "LEASEHOLD_POD_NAME", value_name = "NAME", value_parser = name)]
    pod_name: Option<String>,
    /// The pod's uid (downward API: metadata.uid).
    #[arg(long, env = "LEASEHOLD_POD_UID", value_name = "UID", value_parser = name)]
    pod_uid: String,
    /// The pod's node (downward API: spec.nodeName).
    #[arg(long, env = "LEASEHOLD_NODE_NAME", value_name = "NAME", value_parser = name)]
    node_name: Option<String>,
}

impl Args {
    /// Returns the pod, or a usage error.
    pub(super) fn pod(&self) -> Result<PodRef, String> {
        Ok(PodRef {
            name: self.pod_name()?.into(),
            uid: self.pod_uid.as_str().into(),
            node: self.node_name.as_deref().map(Into::into),
        })
    }

    /// HOSTNAME is the pod's name, unless the pod sets another host name.
    fn pod_name(&self) -> Result<String, String> {
        match (&self.pod_name, std::env::var("HOSTNAME")) {
            (Some(given), _) => Ok(given.clone()),
            (None, Ok(host)) => name(&host).map_err(|error| format!("HOSTNAME: {error}")),
            (None, Err(_)) => {
                Err("the pod name is missing; give --pod-name, or set HOSTNAME".into())
            }
        }
    }
}

/// Checks the name of an object roughly; the API server validates it.
fn name(text: &str) -> Result<String, String> {
    let is_name_byte = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.');
    if (1..=253).contains(&text.len()) && text.bytes().all(is_name_byte) {
        return Ok(text.to_owned());
    }
    Err("use 1 to 253 letters, digits, dashes and dots".into())
}

/// Returns this machine's name as one of a pod, for an agent outside of a pod.
pub(super) fn host_name() -> String {
    let name = rustix::system::uname();
    pod_name_of(name.nodename().to_str().unwrap_or_default())
}

/// Sessions are named after it, so it must be valid for the name of an object (RFC 1123), and leave room for
/// a suffix. Other characters become dashes.
fn pod_name_of(host: &str) -> String {
    let valid = |c: char| {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_alphanumeric() || c == '.' {
            c
        } else {
            '-'
        }
    };
    let name: String = host.chars().take(63).map(valid).collect();
    // No part between two dots may begin or end with a dash, or be empty.
    let parts = name.split('.').map(|part| part.trim_matches('-'));
    let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return "host".to_owned();
    }
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::pod_name_of;

    #[test]
    fn host_name_becomes_the_name_of_an_object() {
        for (host, name) in [
            ("ci-runner-7", "ci-runner-7"),
            ("Annas-Laptop.local", "annas-laptop.local"),
            ("build_host", "build-host"),
            ("-a-.-b.", "a.b"),
            ("", "host"),
            ("...", "host"),
        ] {
            assert_eq!(pod_name_of(host), name);
        }
        assert_eq!(pod_name_of(&"x".repeat(200)).len(), 63);
    }
}
