//! How a role connects to the API server: by flags, a kubeconfig, or the pod's service account.

mod kubeconfig;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use kube::{Client, Config};

use crate::agent::{self, Agent, Memory};
use crate::clock::SystemClock;
use crate::k8s::{K8sLockStore, K8sRefusals, K8sSessionStore, causes};

/// Where the kubelet mounts a pod's token, CA and namespace.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Which API server, and which namespace of it.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "cluster")]
pub(super) struct Args {
    /// A kubeconfig file; default: KUBECONFIG, then the service account that the kubelet mounts, then
    /// `~/.kube/config`. An http:// `proxy-url` in it is used; proxy variables are ignored.
    #[arg(long, env = "LEASEHOLD_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; default: the current context.
    #[arg(long, env = "LEASEHOLD_CONTEXT", value_name = "NAME")]
    context: Option<String>,
    /// The namespace of the locks; default: the pod's namespace, or the context's.
    #[arg(long, env = "LEASEHOLD_NAMESPACE", value_name = "NAME", value_parser = namespace)]
    namespace: Option<String>,
}

/// The connections, and their namespace.
pub(super) struct Cluster {
    pub(super) client: Client,
    /// A connection of its own for sessions, so that a renewal waits behind no other call.
    pub(super) session_client: Client,
    pub(super) namespace: String,
    /// The API server's host and port, for logs. The URL may have a password.
    pub(super) server: String,
}

impl Args {
    /// Returns the arguments of a command with kubectl's flags, which no variable of ours changes.
    pub(super) const fn of_files(kubeconfig: Option<PathBuf>, context: Option<String>) -> Self {
        Self {
            kubeconfig,
            context,
            namespace: None,
        }
    }

    /// Returns whether the user named a cluster, or this is a pod: whether more than the file that kubectl
    /// uses by default selects the locks.
    pub(super) fn names_a_cluster(&self) -> bool {
        let chosen = self.kubeconfig.is_some() || self.context.is_some();
        chosen || self.namespace.is_some() || has_kubeconfig_variable() || is_in_a_pod()
    }

    /// Reads the configuration and creates the clients. Sends no request yet.
    pub(super) async fn connect(&self) -> anyhow::Result<Cluster> {
        self.connect_to(&self.config().await?)
    }

    /// Creates the clients. A credential plugin runs meanwhile.
    pub(super) fn connect_to(&self, config: &Config) -> anyhow::Result<Cluster> {
        let server = server_of(&config.cluster_url);
        let connect = || {
            crate::k8s::connect(config)
                .map_err(|error| anyhow::anyhow!(causes::chain(&error)))
                .with_context(|| format!("cannot use the credentials for {server}"))
        };
        let namespace = self.namespace.as_ref();
        Ok(Cluster {
            client: connect()?,
            session_client: connect()?,
            namespace: namespace.unwrap_or(&config.default_namespace).clone(),
            server,
        })
    }

    /// A session is owned by its pod. An owner in another namespace counts as deleted, so the
    /// garbage collector would delete the session.
    fn check_namespace(&self, config: &Config) -> anyhow::Result<()> {
        match &self.namespace {
            Some(asked) if *asked != config.default_namespace => {
                anyhow::bail!(
                    "--namespace {asked} is not this pod's namespace, {}; a pod's locks live in \
                     its own namespace: leave --namespace out, or run the app there",
                    config.default_namespace
                )
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the pod's service account is used.
    fn uses_service_account(&self) -> bool {
        let chosen = self.kubeconfig.is_some() || self.context.is_some();
        !chosen && !has_kubeconfig_variable() && is_in_a_pod()
    }

    /// Reads the configuration.
    pub(super) async fn config(&self) -> anyhow::Result<Config> {
        if self.uses_service_account() {
            let config = Config::incluster().context("cannot use the pod's own ServiceAccount")?;
            self.check_namespace(&config)?;
            return Ok(config);
        }
        kubeconfig::load(self.kubeconfig.as_deref(), self.context.as_ref()).await
    }
}

impl Cluster {
    /// Returns an agent for the locks of the namespace.
    pub(super) fn agent(self, config: agent::Config, memory: Option<Memory>) -> Agent {
        let pod = config.pod.name.clone();
        let refusals = K8sRefusals::new(self.client.clone(), &self.namespace, &pod);
        let locks = Arc::new(K8sLockStore::new(self.client, &self.namespace));
        let sessions = Arc::new(K8sSessionStore::new(self.session_client, &self.namespace));
        let clock = Arc::new(SystemClock);
        let agent = match memory {
            Some(memory) => Agent::with_memory(config, locks, sessions, clock, memory),
            None => Agent::new(config, locks, sessions, clock),
        };
        agent.with_refusal_events(Arc::new(refusals))
    }
}

pub(super) fn server_of(url: &http::Uri) -> String {
    let host = url.host().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn has_kubeconfig_variable() -> bool {
    std::env::var_os("KUBECONFIG").is_some_and(|files| !files.is_empty())
}

fn is_in_a_pod() -> bool {
    Path::new(SERVICE_ACCOUNT).join("token").exists()
}

/// A namespace's name is a DNS label (RFC 1123).
pub(super) fn namespace(text: &str) -> Result<String, String> {
    let valid = (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-');
    if valid {
        return Ok(text.to_owned());
    }
    Err("use 1 to 63 lower-case letters, digits and inner dashes".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_the_url_is_not_shown() {
        let url = "https://me:secret@api.example:6443/path".parse().unwrap();
        assert_eq!(server_of(&url), "api.example:6443");
    }

    #[test]
    fn a_namespace_is_a_dns_label() {
        assert!(namespace("team-a1").is_ok());
        for bad in ["", "Team", "a_b", "-a", "a-", "a.b"] {
            assert!(namespace(bad).is_err(), "{bad}");
        }
        assert!(namespace(&"a".repeat(64)).is_err());
    }
}
