//! Decides about one pod: what is added to it, or why it is refused.
//!
//! Pure. It reads the pod by Kubernetes' types and writes on the JSON as it came, so that fields that
//! these types do not know stay as they are. It only ever adds; a pod that has the sidecar keeps it
//! as it is, so that a second look (`reinvocationPolicy: IfNeeded`) changes what others added since
//! and nothing else.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::annotations::{self, Asked};
use super::patch::{Add, Draft};
use super::resources::Budget;
use super::settings::Injection;
use super::sidecar::{self, Chosen, Reach};
use super::{MESH, gate, is_native_sidecar, obstacles, shown};

/// Whether the pod wants a sidecar.
const INJECT_LABEL: &str = "leasehold.dev/inject";
/// What an injected pod can be selected by.
const INJECTED_LABEL: &str = "leasehold.dev/injected";
/// Which version it was given.
const VERSION_ANNOTATION: &str = "leasehold.dev/sidecar-version";
/// The kubelet runs such a pod from a file; the API server only shows it.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// What is decided about a pod, and what its owner is told beside.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What is decided.
    pub decision: Decision,
    /// What kubectl shows to whoever makes the pod.
    pub warnings: Vec<String>,
}

/// What becomes of a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The sidecar is added.
    Inject(Vec<Add>),
    /// It has the sidecar; containers that came since learn of it.
    Complete(Vec<Add>),
    /// It stays as it is, and that is right.
    LeaveAlone,
    /// It stays as it is, because it cannot have the sidecar that its namespace is to have.
    Skip,
    /// It is not made. The sentence says what to change.
    Deny(String),
}

/// Decides about a pod that is being made.
///
/// # Errors
/// When this is no pod.
pub fn decide(pod: &Value, installation: &Injection) -> Result<Verdict, serde_json::Error> {
    let read = Pod::deserialize(pod)?;
    let mut warnings = Vec::new();
    let decision = Subject::new(&read, pod).map_or(Decision::LeaveAlone, |subject| {
        subject.decide(installation, &mut warnings)
    });
    Ok(Verdict { decision, warnings })
}

/// A pod that may be given something.
struct Subject<'a> {
    pod: &'a Pod,
    json: &'a Value,
    spec: &'a PodSpec,
    /// Whether it asks itself; otherwise its namespace does.
    asks: bool,
}

impl<'a> Subject<'a> {
    /// None where the pod is to be left alone.
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
            asks: wish == Some("true"),
        })
    }

    fn decide(&self, installation: &Injection, warnings: &mut Vec<String>) -> Decision {
        if let Some(wish) = label(self.pod, INJECT_LABEL).filter(|_| !self.asks) {
            warnings.push(format!(
                "label {INJECT_LABEL} is {:?}, which is invalid: write \"true\" or \"false\"",
                shown(wish)
            ));
        }
        let annotations = self.pod.metadata.annotations.clone().unwrap_or_default();
        let asked = match annotations::read(&annotations, installation) {
            Ok(asked) => asked,
            Err(sentence) => return Decision::Deny(sentence),
        };
        let on_host_network = self.spec.host_network == Some(true);
        let budget = Budget::of(self.spec);
        let chosen = Chosen::new(installation, &asked, on_host_network, budget);
        if let Some(at) = obstacles::injected_at(self.spec) {
            return self.complete(at, chosen.reach);
        }
        if let Some(why) = obstacles::of(self.spec, chosen.reach) {
            return self.cannot(&why, warnings);
        }
        if let Some(why) = gate::refusal(&self.pod.metadata, &asked) {
            return Decision::Deny(why);
        }
        warnings.extend(obstacles::early_proxy(self.spec));
        if budget == Budget::Guaranteed && !chosen.resources.are_guaranteed() {
            warnings.push(
                "with config.leasehold.dev/resources the pod is no longer Guaranteed: requests and \
                 limits of cpu and memory would have to be equal"
                    .to_owned(),
            );
        }
        Decision::Inject(self.inject(&chosen, &asked, warnings))
    }

    fn cannot(&self, why: &str, warnings: &mut Vec<String>) -> Decision {
        if self.asks {
            return Decision::Deny(format!("the sidecar cannot be injected: {why}"));
        }
        warnings.push(format!(
            "the leasehold sidecar was not injected: {why}; to disable injection, label the pod {INJECT_LABEL}: \"false\""
        ));
        Decision::Skip
    }

    fn inject(&self, chosen: &Chosen<'_>, asked: &Asked, warnings: &mut Vec<String>) -> Vec<Add> {
        let mut draft = Draft::new(self.json.clone());
        let labels = [
            ("/metadata/labels", INJECTED_LABEL, "true"),
            (
                "/metadata/annotations",
                VERSION_ANNOTATION,
                chosen.version(),
            ),
        ];
        for (place, name, value) in labels {
            match draft.member(place, name, json!(value)) {
                Err(there) if there != value => warnings.push(format!(
                    "{name} was {} before the sidecar was added, which would say {value:?}; \
                     take it out of the pod's template",
                    shown(&there.to_string())
                )),
                _ => {}
            }
        }
        let at = self.place();
        self.connect_apps(&mut draft, at, chosen.reach);
        let inits = "/spec/initContainers";
        draft.insert(inits, at, sidecar::container(chosen));
        if let Some(gate) = &asked.gate {
            draft.insert(inits, at + 1, gate::container(chosen, gate));
        }
        for volume in sidecar::volumes(chosen.reach) {
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

    /// Behind the proxy of a mesh, through which the sidecar speaks: it starts after it and ends
    /// before it. Otherwise first, so that every init container may take locks.
    fn place(&self) -> usize {
        let inits: Vec<_> = self.spec.init_containers.iter().flatten().collect();
        let is_proxy =
            |init: &&Container| is_native_sidecar(init) && MESH.contains(&init.name.as_str());
        inits
            .iter()
            .rposition(is_proxy)
            .map_or(0, |proxy| proxy + 1)
    }

    /// Tells the apps, and the init containers from `first` on, where the sidecar is. Done before the
    /// sidecar is inserted, while places are those that the pod came with.
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

/// Adds what a container needs to find the sidecar, as far as it does not have it. At the front of
/// its variables, so that others may refer to it.
fn connect(draft: &mut Draft, place: &str, container: &Container, reach: Reach) {
    let has = |name: &str| {
        let mut env = container.env.iter().flatten();
        env.any(|variable| variable.name == name)
    };
    for (name, value) in sidecar::env_of_apps(reach).into_iter().rev() {
        if !has(name) {
            draft.insert(&format!("{place}/env"), 0, sidecar::set(name, &value));
        }
    }
    let mut mounts = container.volume_mounts.iter().flatten();
    if reach.has_socket() && !mounts.any(|mount| mount.name == sidecar::SOCKET_VOLUME) {
        draft.insert(
            &format!("{place}/volumeMounts"),
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
