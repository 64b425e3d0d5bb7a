//! The settings of an installation's sidecars: the file `injection.yaml`.
//!
//! A pod's annotations override some of them. An invalid file is rejected as a whole, with errors
//! that say what to write: pods without the requested sidecar would be noticed much later.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::quantity::Quantity;
use super::resources::{self, Resources};
use super::{annotations, ports};
use crate::protocol::time::SessionTtl;
use crate::protocol::token::MAX_BASE;

/// The settings of an installation's sidecars.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Injection {
    /// The sidecar's image, with the binary at `/leasehold`.
    pub image: String,
    /// When the image is pulled; default: Kubernetes decides.
    #[serde(default)]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// The log level of sidecars.
    #[serde(default = "info")]
    pub log_level: String,
    /// How long a sidecar may be silent before its locks can be taken over.
    #[serde(
        default = "fifteen_seconds",
        rename = "sessionTtlSeconds",
        deserialize_with = "session_ttl"
    )]
    pub session_ttl: SessionTtl,
    /// Added to every fencing token, in the whole installation.
    #[serde(default)]
    pub token_floor: u64,
    /// Which process takes over the locks of crashed holders, as the admission policies have it.
    #[serde(default)]
    pub take_over: TakeOver,
    /// The requests and limits of the sidecar.
    #[serde(default = "burstable")]
    pub resources: Resources,
    /// The resources of a sidecar in a Guaranteed pod. Requests and limits are equal, so each
    /// quantity is given once.
    #[serde(default = "guaranteed")]
    pub guaranteed_resources: BTreeMap<String, Quantity>,
    /// The ports of sidecars.
    #[serde(default)]
    pub ports: Ports,
}

/// Which process takes over the locks of crashed holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TakeOver {
    /// Each sidecar, if the policies allow it.
    #[default]
    Auto,
    /// Only the operator.
    Strict,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs, reason = "these are Kubernetes' own words")]
pub enum ImagePullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl ImagePullPolicy {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// The ports of a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ports {
    /// The API, on localhost.
    pub api: u16,
    /// Health and metrics, on the pod's addresses.
    pub admin: u16,
}

impl Default for Ports {
    /// The defaults of the binary.
    fn default() -> Self {
        Self {
            api: ports::API,
            admin: ports::ADMIN,
        }
    }
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidInjection {
    /// It is not YAML, has unknown fields, or required fields are missing.
    #[error("the injection settings cannot be read; docs/injection.md has the fields")]
    Unreadable(#[from] serde_yaml::Error),
    /// A value is invalid.
    #[error("invalid injection settings: {field}: {why}")]
    Wrong {
        /// The field.
        field: &'static str,
        /// The error, and what to write.
        why: String,
    },
}

impl Injection {
    /// Reads the file.
    ///
    /// # Errors
    /// [`InvalidInjection`], which says what to write.
    pub fn from_yaml(text: &str) -> Result<Self, InvalidInjection> {
        // serde would accept a list and fill the fields in order.
        let _fields: serde_yaml::Mapping = serde_yaml::from_str(text)?;
        let read: Self = serde_yaml::from_str(text)?;
        read.check()?;
        Ok(read)
    }

    fn check(&self) -> Result<(), InvalidInjection> {
        let wrong = |field, why| InvalidInjection::Wrong { field, why };
        annotations::check_image(&self.image).map_err(|why| wrong("image", why))?;
        annotations::check_log_level(&self.log_level).map_err(|why| wrong("logLevel", why))?;
        ports::check(self.ports).map_err(|why| wrong("ports", why))?;
        if self.token_floor > MAX_BASE {
            let why = format!("use 0 to {MAX_BASE}");
            return Err(wrong("tokenFloor", why));
        }
        let unusable = |error: resources::InvalidResources| error.to_string();
        let checked = self.resources.check();
        checked.map_err(|error| wrong("resources", unusable(error)))?;
        let guaranteed = Resources::exactly(&self.guaranteed_resources);
        let checked = guaranteed.check();
        checked.map_err(|error| wrong("guaranteedResources", unusable(error)))?;
        if !guaranteed.are_guaranteed() {
            let why =
                "a pod is Guaranteed only with cpu and memory, like {cpu: 100m, memory: 64Mi}";
            return Err(wrong("guaranteedResources", why.to_owned()));
        }
        Ok(())
    }
}

/// The default of the binary.
fn fifteen_seconds() -> SessionTtl {
    SessionTtl::clamped(15)
}

fn info() -> String {
    "info".to_owned()
}

fn amounts<const N: usize>(amounts: [(&str, &str); N]) -> BTreeMap<String, Quantity> {
    let read = amounts.into_iter().filter_map(|(name, amount)| {
        let amount = Quantity::parse(amount)?;
        Some((name.to_owned(), amount))
    });
    read.collect()
}

fn burstable() -> Resources {
    Resources {
        requests: amounts([("cpu", "10m"), ("memory", "32Mi")]),
        limits: amounts([("memory", "64Mi")]),
    }
}

fn guaranteed() -> BTreeMap<String, Quantity> {
    amounts([("cpu", "100m"), ("memory", "64Mi")])
}

fn session_ttl<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SessionTtl, D::Error> {
    let seconds = u64::deserialize(deserializer)?;
    SessionTtl::from_secs(seconds).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_is_the_only_required_setting() {
        let read = Injection::from_yaml("image: registry/leasehold:1").unwrap();
        assert_eq!(read.session_ttl.as_secs(), 15);
        assert_eq!((read.ports.api, read.ports.admin), (7373, 7374));
        assert_eq!(read.resources.limits["memory"].to_string(), "64Mi");
        assert!(Resources::exactly(&read.guaranteed_resources).are_guaranteed());
    }

    #[test]
    fn invalid_settings_file_is_refused_with_valid_values() {
        for (yaml, words) in [
            ("", "docs/injection.md"),
            ("[a]", "invalid type: sequence"),
            (
                "{image: a, resources: []}",
                "resources: invalid type: sequence",
            ),
            ("logLevel: info", "image"),
            (
                "{image: a, imgaePullPolicy: Always}",
                "unknown field `imgaePullPolicy`",
            ),
            (
                "{image: a, imagePullPolicy: Sometimes}",
                "`Always`, `IfNotPresent`, `Never`",
            ),
            ("{image: a b}", "settings: image: "),
            ("{image: ''}", "settings: image: "),
            (
                "{image: a, logLevel: loud}",
                "logLevel: \"loud\" is not a log level",
            ),
            ("{image: a, sessionTtlSeconds: 2}", "use 3 to 3600 seconds"),
            ("{image: a, sessionTtlSeconds: 15s}", "sessionTtlSeconds"),
            (
                "{image: a, tokenFloor: 9007199254740992}",
                "tokenFloor: use 0 to",
            ),
            ("{image: a, takeOver: peer}", "`auto` or `strict`"),
            (
                "{image: a, ports: {api: 7373, admin: 7373}}",
                "settings: ports: ",
            ),
            ("{image: a, ports: {metrics: 1}}", "unknown field `metrics`"),
            (
                "{image: a, resources: {requests: {cpu: much}}}",
                "is not a quantity",
            ),
            (
                "{image: a, resources: {request: {cpu: 1}}}",
                "unknown field \"request\"",
            ),
            (
                "{image: a, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}",
                "above its limit",
            ),
            (
                "{image: a, guaranteedResources: {cpu: 1}}",
                "cpu and memory",
            ),
        ] {
            let refused = Injection::from_yaml(yaml).unwrap_err();
            let refused = match &refused {
                InvalidInjection::Unreadable(why) => format!("{refused}: {why}"),
                InvalidInjection::Wrong { .. } => refused.to_string(),
            };
            assert!(refused.contains(words), "{yaml}: {refused}");
        }
    }
}
