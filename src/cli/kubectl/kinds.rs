//! Finds the kind that a user names, as kubectl does: by its kind, plural, singular or short name, and perhaps its group.

use kube::core::discovery::v2::{APIGroupDiscoveryList, APIResourceDiscovery};

use super::api::{Api, encoded};
use super::failure::Failure;
use crate::text::escape;

/// A kind of objects that the API server has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// The API group; empty for the core.
    pub(super) group: String,
    version: String,
    pub(super) plural: String,
    singular: String,
    pub(super) is_namespaced: bool,
}

impl Kind {
    /// Returns the path of an object.
    pub(super) fn path(&self, namespace: &str, name: &str) -> String {
        let (version, plural) = (&self.version, &self.plural);
        let root = match self.group.as_str() {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        };
        format!("{root}/namespaces/{namespace}/{plural}/{}", encoded(name))
    }

    /// Returns the plural with the group, as `deployments.apps`.
    pub(super) fn full_plural(&self) -> String {
        with_group(&self.plural, &self.group)
    }

    /// Returns the name of an object as kubectl prints it, as `deployment.apps/NAME`.
    pub(super) fn object(&self, name: &str) -> String {
        format!("{}/{name}", with_group(&self.singular, &self.group))
    }
}

fn with_group(name: &str, group: &str) -> String {
    if group.is_empty() {
        return name.to_owned();
    }
    format!("{name}.{group}")
}

/// Finds a kind. Of several with the same name, the one of the core or of the API server's first group counts, as for
/// kubectl.
///
/// # Errors
/// `Usage` if the API server has no such kind.
pub(super) async fn find(api: &Api, text: &str) -> Result<Kind, Failure> {
    for path in ["/api", "/apis"] {
        let groups: APIGroupDiscoveryList = api.discover(path).await?;
        if let Some(kind) = named(&groups, text) {
            return Ok(kind);
        }
    }
    Err(Failure::Usage(format!(
        "the API server has no kind {:?}; `kubectl api-resources` lists them",
        escape(text)
    )))
}

fn named(groups: &APIGroupDiscoveryList, text: &str) -> Option<Kind> {
    let text = text.to_lowercase();
    let (name, wanted) = match text.split_once('.') {
        Some((name, group)) => (name, Some(group)),
        None => (text.as_str(), None),
    };
    for item in &groups.items {
        let group = item.metadata.as_ref().and_then(|one| one.name.clone());
        let group = group.unwrap_or_default();
        if wanted.is_some_and(|wanted| wanted != group) {
            continue;
        }
        // The preferred version is the first one.
        for version in &item.versions {
            if let Some(found) = version.resources.iter().find(|one| is_named(one, name)) {
                let plural = found.resource.clone().unwrap_or_default();
                let singular = found.singular_resource.clone();
                return Some(Kind {
                    version: version.version.clone().unwrap_or_default(),
                    singular: singular
                        .filter(|one| !one.is_empty())
                        .unwrap_or_else(|| plural.clone()),
                    is_namespaced: found.scope.as_deref() == Some("Namespaced"),
                    plural,
                    group,
                });
            }
        }
    }
    None
}

fn is_named(resource: &APIResourceDiscovery, name: &str) -> bool {
    let is = |one: &Option<String>| one.as_deref() == Some(name);
    let kind = resource.response_kind.as_ref();
    let kind = kind.and_then(|kind| kind.kind.as_deref());
    is(&resource.resource)
        || is(&resource.singular_resource)
        || resource.short_names.iter().any(|one| one == name)
        || kind.is_some_and(|kind| kind.to_lowercase() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kind_has_the_names_that_kubectl_accepts() {
        let deployments = json!({"resource": "deployments", "singularResource": "deployment", "scope": "Namespaced",
            "shortNames": ["deploy"], "responseKind": {"group": "apps", "version": "v1", "kind": "Deployment"}});
        let other = json!({"resource": "deployments", "scope": "Cluster"});
        let group = |name: &str, version: &str, resource: &serde_json::Value| json!({"metadata": {"name": name}, "versions": [{"version": version, "resources": [resource]}]});
        let items = [
            group("apps", "v1", &deployments),
            group("x.io", "v2", &other),
        ];
        let groups = serde_json::from_value(json!({"items": items})).unwrap();
        for name in [
            "deployments",
            "deployment",
            "deploy",
            "Deployment",
            "deploy.apps",
        ] {
            let kind = named(&groups, name).unwrap();
            assert!(kind.is_namespaced, "{name}");
            assert_eq!(kind.object("web"), "deployment.apps/web");
            assert_eq!(
                kind.path("team", "web"),
                "/apis/apps/v1/namespaces/team/deployments/web"
            );
        }
        let other = named(&groups, "deployments.x.io").unwrap();
        assert_eq!(other.object("web"), "deployments.x.io/web");
        assert!(!other.is_namespaced);
        for unknown in ["deploy.x.io", "deployments.extensions", "d", ""] {
            assert_eq!(named(&groups, unknown), None, "{unknown}");
        }
    }
}
