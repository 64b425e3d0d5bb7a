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
