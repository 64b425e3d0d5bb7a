//! The webhook in the operator: its flags and wiring.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::builder::RangedU64ValueParser;
use rustls::pki_types::ServerName;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cli::cluster::Cluster;
use crate::cli::listen;
use crate::clock::SystemClock;
use crate::http::serve::{Bounds, TlsListener, serve};
use crate::k8s::{K8sCertificates, K8sTrust};
use crate::webhook::certs::plan::Timing;
use crate::webhook::certs::{Rotator, RotatorPorts, ServedCertificate, follow};
use crate::webhook::{self, Injection, Injector};

/// How long the webhook keeps answering after the signal: endpoints and API servers still send
/// requests for a moment.
const DRAIN: Duration = Duration::from_secs(5);
/// 90 days.
const LIFE_SECONDS: u64 = 7_776_000;

/// The flags.
#[derive(Debug, clap::Args)]
#[group(id = "webhook")]
pub(in crate::cli) struct Args {
    /// Address of the webhook that injects sidecars, with TLS, as ADDRESS:PORT. Default: no webhook.
    #[arg(long, env = "LEASEHOLD_WEBHOOK_LISTEN", value_name = "ADDRESS")]
    webhook_listen: Option<SocketAddr>,
    /// The settings of injected sidecars, as YAML.
    #[arg(long, env = "LEASEHOLD_INJECTION_CONFIG", value_name = "FILE")]
    injection_config: Option<PathBuf>,
    /// A directory with the webhook's certificate, as tls.crt and tls.key, that another tool maintains;
    /// it is re-read when they change.
    #[arg(long, env = "LEASEHOLD_WEBHOOK_CERT_DIR", value_name = "DIRECTORY")]
    webhook_cert_dir: Option<PathBuf>,
    /// The Service of the webhook, in the operator's namespace: the operator issues the certificate for
    /// its name. Requires the next two flags.
    #[arg(
        long, env = "LEASEHOLD_WEBHOOK_SERVICE", value_name = "NAME",
        requires_all = ["webhook_configuration", "webhook_secret"],
    )]
    webhook_service: Option<String>,
    /// The MutatingWebhookConfiguration that the operator writes its CA into.
    #[arg(
        long,
        env = "LEASEHOLD_WEBHOOK_CONFIGURATION",
        value_name = "NAME",
        requires = "webhook_service"
    )]
    webhook_configuration: Option<String>,
    /// The Secret of the certificate, in the operator's namespace.
    #[arg(
        long,
        env = "LEASEHOLD_WEBHOOK_SECRET",
        value_name = "NAME",
        requires = "webhook_service"
    )]
    webhook_secret: Option<String>,
    /// Another DNS name or address of the certificate, for API servers that reach the webhook by a URL;
    /// can be repeated or comma-separated.
    #[arg(
        long, env = "LEASEHOLD_WEBHOOK_NAME", value_name = "NAME", value_delimiter = ',',
        requires = "webhook_service", value_parser = server_name,
    )]
    webhook_name: Vec<String>,
    /// For how many seconds an issued certificate is valid; it is renewed when a third is left. For
    /// tests; default: 90 days.
    #[arg(
        long, env = "LEASEHOLD_WEBHOOK_CERT_SECONDS", value_name = "SECONDS", hide = true,
        default_value_t = LIFE_SECONDS,
        value_parser = RangedU64ValueParser::<u64>::new().range(10..=315_360_000),
    )]
    webhook_cert_seconds: u64,
}

/// The source of the certificate.
#[derive(Debug)]
enum Source {
    Directory(PathBuf),
    Own {
        service: String,
        configuration: String,
        secret: String,
        names: Vec<String>,
        timing: Timing,
    },
}

/// The resolved flags.
#[derive(Debug)]
pub(in crate::cli) struct Settings {
    listen: SocketAddr,
    injection: PathBuf,
    source: Source,
}

impl Args {
    /// Returns whether the webhook is served.
    pub(super) const fn is_served(&self) -> bool {
        self.webhook_listen.is_some()
    }

    /// Returns the settings; `None` without a webhook. Fails with a usage error.
    pub(super) fn settings(&self) -> Result<Option<Settings>, String> {
        let Some(listen) = self.webhook_listen else {
            let first = [
                (self.injection_config.is_some(), "--injection-config"),
                (self.webhook_cert_dir.is_some(), "--webhook-cert-dir"),
                (self.webhook_service.is_some(), "--webhook-service"),
            ]
            .into_iter()
            .find_map(|(is_set, flag)| is_set.then_some(flag));
            return match first {
                Some(flag) => Err(format!("{flag} requires --webhook-listen")),
                None => Ok(None),
            };
        };
        let injection = self.injection_config.clone().ok_or(
            "--webhook-listen needs --injection-config: what the sidecars are like (docs/injection.md)",
        )?;
        Ok(Some(Settings {
            listen,
            injection,
            source: self.source()?,
        }))
    }

    fn source(&self) -> Result<Source, String> {
        let own = [
            &self.webhook_service,
            &self.webhook_configuration,
            &self.webhook_secret,
        ];
        match (&self.webhook_cert_dir, own.map(Clone::clone)) {
            (Some(directory), [None, None, None]) => Ok(Source::Directory(directory.clone())),
            (None, [Some(service), Some(configuration), Some(secret)]) => Ok(Source::Own {
                service,
                configuration,
                secret,
                names: self.webhook_name.clone(),
                timing: Timing::new(Duration::from_secs(self.webhook_cert_seconds)),
            }),
            (Some(_), _) => Err(
                "--webhook-cert-dir is for a certificate from another source; leave \
                 --webhook-service, --webhook-configuration and --webhook-secret out"
                    .to_owned(),
            ),
            (None, _) => Err(
                "--webhook-listen needs a certificate: give --webhook-cert-dir, or \
                 --webhook-service, --webhook-configuration and --webhook-secret"
                    .to_owned(),
            ),
        }
    }
}

fn server_name(text: &str) -> Result<String, String> {
    match ServerName::try_from(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("give a DNS name, or an address without a port".to_owned()),
    }
}

/// The webhook of this replica, bound and not served yet.
pub(super) struct Webhook {
    tls: TlsListener,
    injector: Injector,
    served: ServedCertificate,
    source: Source,
}

/// A handle to the served webhook.
#[derive(Clone)]
pub(super) struct Handle {
    injector: Injector,
    served: ServedCertificate,
}

impl Webhook {
    pub(super) async fn bind(settings: Settings) -> anyhow::Result<Self> {
        let file = settings.injection.display();
        let text = fs::read_to_string(&settings.injection)
            .with_context(|| format!("--injection-config {file} cannot be read"))?;
        let installation =
            Injection::from_yaml(&text).with_context(|| format!("--injection-config {file}"))?;
        let tcp = listen::bind_any(settings.listen, "--webhook-listen").await?;
        listen::announce(&tcp, "webhook")?;
        let served = ServedCertificate::default();
        Ok(Self {
            tls: TlsListener::new(tcp, Arc::new(served.clone())).context("TLS cannot be served")?,
            injector: Injector::new(installation),
            served,
            source: settings.source,
        })
    }

    /// Serves the webhook until `stop`, and maintains its certificate.
    pub(super) fn start(
        self,
        cluster: &Cluster,
        servers: &mut JoinSet<()>,
        stop: CancellationToken,
    ) -> Handle {
        let router = webhook::router(self.injector.clone());
        servers.spawn(serve(self.tls, router, Bounds::WEBHOOK, stop.clone()));
        let served = self.served.clone();
        match self.source {
            Source::Directory(directory) => {
                let followed = async move { follow(&directory, &served, &SystemClock).await };
                servers.spawn(until_stopped(stop, followed));
            }
            Source::Own {
                service,
                configuration,
                secret,
                mut names,
                timing,
            } => {
                let (client, namespace) = (&cluster.client, &cluster.namespace);
                names.insert(0, format!("{service}.{namespace}.svc"));
                let ports = RotatorPorts {
                    certificates: Arc::new(K8sCertificates::new(
                        client.clone(),
                        namespace.clone(),
                        secret,
                    )),
                    trust: Arc::new(K8sTrust::new(client.clone(), configuration)),
                    clock: Arc::new(SystemClock),
                };
                let kept = Rotator::new(ports, names, timing, served).run();
                servers.spawn(until_stopped(stop, kept));
            }
        }
        Handle {
            injector: self.injector,
            served: self.served,
        }
    }
}

impl Handle {
    pub(super) fn ready(&self) -> Result<(), String> {
        self.served.ready()
    }

    pub(super) fn metrics(&self) -> String {
        self.injector.metrics() + &self.served.metrics()
    }

    /// Completes some seconds after the signal. Meanwhile each answer closes its connection.
    pub(super) async fn drained(&self, signalled: &CancellationToken) {
        signalled.cancelled().await;
        self.injector.drain();
        tokio::time::sleep(DRAIN).await;
    }
}

async fn until_stopped(stop: CancellationToken, endless: impl Future<Output = ()>) {
    let _stopped = stop.run_until_cancelled(endless).await;
}
