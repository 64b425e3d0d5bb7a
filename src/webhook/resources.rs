//! The requests and limits of the sidecar, chosen to keep the pod's quality of service.
//!
//! Kubernetes calls a pod Guaranteed if every container, sidecars included, has limits for CPU and
//! memory with equal requests. One container without them would make it Burstable, and so more
//! likely to be evicted.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::quantity::Quantity;

/// The resources that decide the quality of service.
const DECISIVE: [&str; 2] = ["cpu", "memory"];

/// Quantities by resource.
pub(super) type Amounts = BTreeMap<String, Quantity>;

/// A container's `resources`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// The requests.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
    /// The limits.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
}

impl<'de> Deserialize<'de> for Resources {
    /// A derived implementation would also accept a list without names.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut lists = BTreeMap::<String, Option<Amounts>>::deserialize(deserializer)?;
        let mut take = |name| lists.remove(name).flatten().unwrap_or_default();
        let (requests, limits) = (take("requests"), take("limits"));
        match lists.keys().next() {
            None => Ok(Self { requests, limits }),
            Some(other) => Err(D::Error::custom(format_args!(
                "unknown field {other:?}, use requests and limits"
            ))),
        }
    }
}

/// Why a container cannot have these resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InvalidResources {
    /// The resource does not exist.
    Unknown(String),
    /// A request is above its limit.
    AboveLimit(String),
}

impl fmt::Display for InvalidResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "unknown resource {name:?}, use cpu and memory"),
            Self::AboveLimit(name) => write!(f, "the request of {name} is above its limit"),
        }
    }
}

impl Resources {
    /// Returns equal requests and limits.
    pub(super) fn exactly(amounts: &Amounts) -> Self {
        Self {
            requests: amounts.clone(),
            limits: amounts.clone(),
        }
    }

    /// Returns the same with a larger limit of memory, if there is one and it is smaller. A request that was equal to it
    /// stays equal.
    pub(super) fn with_memory(mut self, at_least: &Quantity) -> Self {
        let Some(limit) = self.limits.get("memory").filter(|limit| *limit < at_least) else {
            return self;
        };
        if self.requests.get("memory") == Some(limit) {
            self.requests.insert("memory".to_owned(), at_least.clone());
        }
        self.limits.insert("memory".to_owned(), at_least.clone());
        self
    }

    /// Checks what the API server would reject, with an error that names the sidecar and not its
    /// index in the pod.
    pub(super) fn check(&self) -> Result<(), InvalidResources> {
        check_names(self.requests.keys().chain(self.limits.keys()))?;
        for (name, limit) in &self.limits {
            if self.requests.get(name).is_some_and(|asked| asked > limit) {
                return Err(InvalidResources::AboveLimit(name.clone()));
            }
        }
        Ok(())
    }

    /// Returns whether a container with these resources leaves its pod Guaranteed.
    pub(super) fn are_guaranteed(&self) -> bool {
        DECISIVE.iter().all(|name| {
            let limit = self.limits.get(*name);
            // A resource with a limit and no request requests the limit.
            let asked = self.requests.get(*name).or(limit);
            limit.is_some_and(|limit| !limit.is_zero()) && asked == limit
        })
    }

    pub(super) fn of(container: &Container) -> Self {
        container
            .resources
            .as_ref()
            .map_or_else(Self::default, read)
    }
}

pub(super) fn check_names<'a>(
    names: impl IntoIterator<Item = &'a String>,
) -> Result<(), InvalidResources> {
    for name in names {
        let is_native = [&DECISIVE[..], &["ephemeral-storage"]]
            .concat()
            .contains(&name.as_str());
        if !is_native && !name.starts_with("hugepages-") && !name.contains('/') {
            return Err(InvalidResources::Unknown(name.clone()));
        }
    }
    Ok(())
}

fn read(resources: &ResourceRequirements) -> Resources {
    let amounts = |map: &Option<BTreeMap<String, _>>| {
        let entries = map.iter().flatten();
        let read = entries.filter_map(
            |(name, amount): (
                &String,
                &k8s_openapi::apimachinery::pkg::api::resource::Quantity,
            )| { Some((name.clone(), Quantity::parse(&amount.0)?)) },
        );
        read.collect()
    };
    Resources {
        requests: amounts(&resources.requests),
        limits: amounts(&resources.limits),
    }
}

/// How a pod declares its resources, as far as it matters for the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Budget {
    /// The pod as a whole has resources, which would include those of the sidecar.
    OfThePod,
    /// Every container has equal requests and limits.
    Guaranteed,
    /// Anything else.
    OfEachContainer,
}

impl Budget {
    /// Returns how a pod declares its resources.
    pub(super) fn of(spec: &PodSpec) -> Self {
        let whole = spec.resources.as_ref().map(read).unwrap_or_default();
        if whole != Resources::default() {
            return Self::OfThePod;
        }
        let inits = spec.init_containers.iter().flatten();
        let mut all = spec.containers.iter().chain(inits);
        if all.all(|container| Resources::of(container).are_guaranteed()) {
            Self::Guaranteed
        } else {
            Self::OfEachContainer
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(json: &str) -> Resources {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn guaranteed_means_requests_equal_limits() {
        for (json, guaranteed) in [
            (
                r#"{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1000m","memory":"1024Mi"}}"#,
                true,
            ),
            (r#"{"limits":{"cpu":1,"memory":"1Gi"}}"#, true),
            (
                r#"{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"500m"}}"#,
                false,
            ),
            (
                r#"{"limits":{"memory":"1Gi"},"requests":{"memory":"1Gi"}}"#,
                false,
            ),
            (r#"{"limits":{"cpu":"0","memory":"1Gi"}}"#, false),
            (r#"{"requests":{"cpu":"1","memory":"1Gi"}}"#, false),
            ("{}", false),
        ] {
            assert_eq!(resources(json).are_guaranteed(), guaranteed, "{json}");
        }
    }

    #[test]
    fn smaller_limit_of_memory_is_raised() {
        let at_least = Quantity::parse("256Mi").unwrap();
        for (before, after) in [
            (
                r#"{"requests":{"memory":"32Mi"},"limits":{"memory":"64Mi"}}"#,
                r#"{"requests":{"memory":"32Mi"},"limits":{"memory":"256Mi"}}"#,
            ),
            (
                r#"{"requests":{"cpu":"1","memory":"64Mi"},"limits":{"cpu":"1","memory":"64Mi"}}"#,
                r#"{"requests":{"cpu":"1","memory":"256Mi"},"limits":{"cpu":"1","memory":"256Mi"}}"#,
            ),
            (
                r#"{"limits":{"memory":"1Gi"}}"#,
                r#"{"limits":{"memory":"1Gi"}}"#,
            ),
            (
                r#"{"requests":{"memory":"32Mi"}}"#,
                r#"{"requests":{"memory":"32Mi"}}"#,
            ),
        ] {
            assert_eq!(resources(before).with_memory(&at_least), resources(after));
        }
    }

    #[test]
    fn resources_the_api_server_would_refuse_are_named() {
        let above = resources(r#"{"requests":{"memory":"65Mi"},"limits":{"memory":"64Mi"}}"#);
        assert_eq!(
            above.check(),
            Err(InvalidResources::AboveLimit("memory".into()))
        );
        let unknown = resources(r#"{"requests":{"ram":"65Mi"}}"#);
        assert_eq!(
            unknown.check(),
            Err(InvalidResources::Unknown("ram".into()))
        );
        let good = resources(r#"{"requests":{"cpu":"1"},"limits":{"example.com/gpu":"1"}}"#);
        assert_eq!(good.check(), Ok(()));
    }
}
