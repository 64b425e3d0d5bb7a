//! Decides about one pod: what is added to it, or why it is rejected.
//!
//! Pure. It reads the pod by Kubernetes' types and writes to the original JSON, so that unknown
//! fields stay. It only adds. A pod with a sidecar keeps it unchanged, so a second call
//! (`reinvocationPolicy: IfNeeded`) only completes what other webhooks have added since.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::annotations::{self, PodSettings};
use super::patch::{Add, Draft};
use super::resources::Budget;
use super::settings::Injection;
use super::sidecar::{self, Reach, SidecarSettings};
use super::{MESH, excerpt, fence, gate, is_native_sidecar, obstacles};

/// The label with which a pod requests or rejects a sidecar.
const INJECT_LABEL: &str = "leasehold.dev/inject";
/// The label of injected pods.
const INJECTED_LABEL: &str = "leasehold.dev/injected";
/// The annotation with the version of the injected sidecar.
const VERSION_ANNOTATION: &str = "leasehold.dev/sidecar-version";
/// Marks a static pod, which the kubelet runs from a file; the API server only has a mirror of it.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// The decision about a pod, and warnings for its author.
#[derive(Clone, Debug, PartialEq)]
pub struct Review {
    /// The decision.
    pub decision: Decision,
    /// Warnings that kubectl shows.
    pub warnings: Vec<String>,
}

/// The decision about a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The sidecar is added.
    Inject(Vec<Add>),
    /// It has the sidecar; newer containers are connected to it.
    Complete(Vec<Add>),
    /// It is not changed, as intended.
    LeaveAlone,
    /// It is not changed, because it cannot have the sidecar that its namespace requests.
    Skip,
    /// It is rejected. The sentence says what to change.
    Deny(String),
}

/// Decides about a new pod.
///
/// # Errors
/// If `pod` is not a pod.
pub fn decide(pod: &Value, installation: &Injection) -> Result<Review, serde_json::Error> {
    let read = Pod::deserialize(pod)?;
    let mut warnings = Vec::new();
    let decision = PodReview::new(&read, pod).map_or(Decision::LeaveAlone, |pod_review| {
        pod_review.decide(installation, &mut warnings)
    });
    Ok(Review { decision, warnings })
}

/// A pod that may be changed.
struct PodReview<'a> {
    pod: &'a Pod,
    json: &'a Value,
    spec: &'a PodSpec,
    /// Whether the pod requests a sidecar itself; otherwise its namespace does.
    is_requested: bool,
}

impl<'a> PodReview<'a> {
    /// Returns `None` for a pod that is not changed.
    fn new(pod: &'a Pod, json: &'a Value) -> Option<Self> {
        let is_mirror = annotation(pod, MIRROR_ANNOTATION).is_some();
        let wish = label(pod, INJECT_LABEL);
        if is_mirror || wish == Some("false") {
            return None;
        }
        Some(Self {
            pod,
            json,
            spec: pod.spec.as_ref()?,
            is_requested: wish == Some("true"),
        })
    }

    fn decide(&self, installation: &Injection, warnings: &mut Vec<String>) -> Decision {
        if let Some(wish) = label(self.pod, INJECT_LABEL).filter(|_| !self.is_requested) {
            warnings.push(format!(
                "label {INJECT_LABEL} is {:?}, which is invalid: write \"true\" or \"false\"",
                excerpt(wish)
            ));
        }
        let annotations = self.pod.metadata.annotations.clone().unwrap_or_default();
        let settings = match annotations::read(&annotations, installation) {
            Ok(settings) => settings,
            Err(sentence) => return Decision::Deny(sentence),
        };
        let on_host_network = self.spec.host_network == Some(true);
        let budget = Budget::of(self.spec);
        let sidecar_settings =
            SidecarSettings::new(installation, &settings, on_host_network, budget);
        if let Some(at) = obstacles::injected_at(self.spec) {
            return self.complete(at, sidecar_settings.reach);
        }
        if let Some(why) = obstacles::find(self.spec, sidecar_settings.reach) {
            return self.refuse_or_skip(&why, warnings);
        }
        let refusal = gate::refusal(&self.pod.metadata, &settings)
            .or_else(|| fence::refusal(self.spec, &settings, &sidecar_settings));
        if let Some(why) = refusal {
            return Decision::Deny(why);
        }
        warnings.extend(obstacles::early_proxy(self.spec));
        if budget == Budget::Guaranteed && !sidecar_settings.resources.are_guaranteed() {
            warnings.push(
                "with config.leasehold.dev/resources the pod is no longer Guaranteed: requests and \
                 limits of cpu and memory would have to be equal"
                    .to_owned(),
            );
        }
        Decision::Inject(self.inject(&sidecar_settings, &settings, warnings))
    }

    fn refuse_or_skip(&self, why: &str, warnings: &mut Vec<String>) -> Decision {
        if self.is_requested {
            return Decision::Deny(format!("the sidecar cannot be injected: {why}"));
        }
        warnings.push(format!(
            "the leasehold sidecar was not injected: {why}; to disable injection, label the pod {INJECT_LABEL}: \"false\""
        ));
        Decision::Skip
    }

    fn inject(
        &self,
        sidecar_settings: &SidecarSettings<'_>,
        settings: &PodSettings,
        warnings: &mut Vec<String>,
    ) -> Vec<Add> {
        let mut draft = Draft::new(self.json.clone());
        let labels = [
            ("/metadata/labels", INJECTED_LABEL, "true"),
            (
                "/metadata/annotations",
                VERSION_ANNOTATION,
                sidecar_settings.version(),
            ),
        ];
        for (path, name, value) in labels {
            match draft.member(path, name, json!(value)) {
                Err(there) if there != value => warnings.push(format!(
                    "{name} was {} before the sidecar was added, which would say {value:?}; \
                     take it out of the pod's template",
                    excerpt(&there.to_string())
                )),
                _ => {}
            }
        }
        let at = self.sidecar_index();
        self.connect_apps(&mut draft, at, sidecar_settings.reach);
        let inits = "/spec/initContainers";
        draft.insert(inits, at, sidecar::container(sidecar_settings));
        if let Some(gate) = &settings.gate {
            draft.insert(inits, at + 1, gate::container(sidecar_settings, gate));
        }
        if let Some(app) = settings.fence_port {
            let behind = at + 1 + usize::from(settings.gate.is_some());
            let lock = settings.fence_lock.as_ref();
            let fence = fence::container(sidecar_settings, app, lock);
            draft.insert(inits, behind, fence);
            draft.insert("/spec/volumes", usize::MAX, fence::volume());
        }
        for volume in sidecar::volumes(sidecar_settings.reach) {
            draft.insert("/spec/volumes", usize::MAX, volume);
        }
        draft.into_patch()
    }

    fn complete(&self, at: usize, reach: Reach) -> Decision {
        let mut draft = Draft::new(self.json.clone());
        self.connect_apps(&mut draft, at + 1, reach);
        let patch = draft.into_patch();
        if patch.is_empty() {
            return Decision::LeaveAlone;
        }
        Decision::Complete(patch)
    }

    /// Returns the index of the sidecar: behind the proxy of a mesh, whose connections it uses, so
    /// it starts later and ends earlier. Without a proxy it is first, so that every init container
    /// can use locks.
    fn sidecar_index(&self) -> usize {
        let inits: Vec<_> = self.spec.init_containers.iter().flatten().collect();
        let is_proxy =
            |init: &&Container| is_native_sidecar(init) && MESH.contains(&init.name.as_str());
        inits
            .iter()
            .rposition(is_proxy)
            .map_or(0, |proxy| proxy + 1)
    }

    /// Connects the apps, and the init containers from `first` on, to the sidecar. Called before
    /// the sidecar is inserted, while the indexes are those of the original pod.
    fn connect_apps(&self, draft: &mut Draft, first: usize, reach: Reach) {
        for (index, app) in self.spec.containers.iter().enumerate() {
            connect(draft, &format!("/spec/containers/{index}"), app, reach);
        }
        let inits = self.spec.init_containers.iter().flatten().enumerate();
        for (index, init) in inits
            .skip(first)
            .filter(|(_, init)| !is_native_sidecar(init))
        {
            connect(draft, &format!("/spec/initContainers/{index}"), init, reach);
        }
    }
}

/// Adds what a container needs to reach the sidecar, unless it has it. Variables are inserted at
/// the front, so that others can refer to them.
fn connect(draft: &mut Draft, path: &str, container: &Container, reach: Reach) {
    let has = |name: &str| {
        let mut env = container.env.iter().flatten();
        env.any(|variable| variable.name == name)
    };
    for (name, value) in sidecar::env_of_apps(reach).into_iter().rev() {
        if !has(name) {
            draft.insert(&format!("{path}/env"), 0, sidecar::set(name, &value));
        }
    }
    let mut mounts = container.volume_mounts.iter().flatten();
    if reach.has_socket() && !mounts.any(|mount| mount.name == sidecar::SOCKET_VOLUME) {
        draft.insert(
            &format!("{path}/volumeMounts"),
            usize::MAX,
            sidecar::socket_mount(),
        );
    }
}

fn label<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(name).map(String::as_str)
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata
        .annotations
        .as_ref()?
        .get(name)
        .map(String::as_str)
}
