//! One etcd and one kube-apiserver, and the faults that can affect them.
//! tests/controlplane/README.md lists the flags and the reasons for them.
//!
//! An instance is deleted as a whole, so nothing in it is ever cleaned up.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tokio::sync::Mutex;

use super::audit::{self, Served};
use super::binaries::{Binaries, KubeVersion};
use super::etcd::Etcd;
use super::kubectl::{Access, Kubeconfig};
use super::ports::own_port;
use super::process::{Process, directory};
use super::wait::{PATIENCE, now};

/// How long the API server may take to start or stop. It takes 2 s on an idle machine.
const LIMIT: Duration = PATIENCE;
/// The checks that a restarted server with existing data need not wait for.
const SLOW_HOOKS: &str = "?exclude=poststarthook/rbac/bootstrap-roles\
     &exclude=poststarthook/scheduling/bootstrap-system-priority-classes";
/// The administrator's password. It is valid only on this machine, while the instance runs.
const ADMIN_TOKEN: &str = "admin-of-the-test";

/// The address of the node that `tests/node/enter.sh` sets up on this machine.
pub(crate) const NODE_ADDRESS: &str = "10.99.0.1";
/// The users of a cluster, with the groups that they need. Each user's password is its name.
const COMPONENTS: [(&str, &str); 4] = [
    ("system:node:node-1", "system:nodes"),
    ("system:kube-proxy", ""),
    ("system:kube-scheduler", ""),
    ("system:kube-controller-manager", ""),
];

/// The purpose of a control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Many tests. Their writes need not reach the disk.
    ManyTests,
    /// One test, which may be about backups: a write is on the disk before it is acknowledged.
    OneTest,
    /// Measurements. Durable, and no request is audited: the tests' audit policy covers only
    /// service accounts, so its cost would fall on the sidecars alone.
    Measuring,
    /// A node on this machine. Its kubelet and its pods, too, reach the API server at
    /// [`NODE_ADDRESS`].
    Node,
}

impl Purpose {
    const fn address(self) -> &'static str {
        match self {
            Self::ManyTests | Self::OneTest | Self::Measuring => "127.0.0.1",
            Self::Node => NODE_ADDRESS,
        }
    }

    /// Returns the flags that the kubelet and pods depend on: an address in the endpoints of
    /// `kubernetes`, a kubelet that may write its own objects, and a way to run commands in
    /// containers.
    const fn flags(self) -> &'static [&'static str] {
        match self {
            Self::ManyTests | Self::OneTest | Self::Measuring => &[
                "--endpoint-reconciler-type=none",
                "--authorization-mode=RBAC",
            ],
            Self::Node => &[
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--kubelet-preferred-address-types=InternalIP",
                "--allow-privileged=true",
            ],
        }
    }
}

/// A running control plane. Dropping it kills it.
pub(crate) struct ControlPlane {
    directory: PathBuf,
    purpose: Purpose,
    binaries: Binaries,
    port: AtomicU16,
    admin: Kubeconfig,
    etcd: Etcd,
    // The drop order: an API server without its etcd would log many errors.
    api_server: Mutex<Option<Process>>,
    etcd_process: Mutex<Option<Process>>,
}

/// The result of a start.
enum Started {
    Ready(Process),
    PortTaken,
}

impl ControlPlane {
    /// Starts a control plane.
    pub(crate) async fn start(version: KubeVersion, purpose: Purpose) -> Result<Self> {
        static INSTANCES: AtomicU32 = AtomicU32::new(0);

        let binaries = Binaries::find(version)?;
        let instance = INSTANCES.fetch_add(1, Ordering::Relaxed);
        let directory = directory()?.join(instance.to_string());
        std::fs::create_dir(&directory)?;
        write_files(&directory, purpose)?;
        let etcd = Etcd::new(&directory, &binaries, purpose != Purpose::ManyTests);
        let admin = Kubeconfig {
            path: directory.join("admin.kubeconfig"),
            kubectl: binaries.kubectl.clone(),
        };
        let control_plane = Self {
            directory,
            purpose,
            binaries,
            port: AtomicU16::new(0),
            admin,
            etcd_process: Mutex::new(Some(etcd.start().await?)),
            etcd,
            api_server: Mutex::new(None),
        };
        control_plane.first_start().await?;
        Ok(control_plane)
    }

    /// Returns the API server's address.
    pub(crate) fn server(&self) -> String {
        let address = self.purpose.address();
        format!("https://{address}:{}", self.port.load(Ordering::Relaxed))
    }

    /// Returns the API server's certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.join("certs/apiserver.crt")
    }

    /// Returns a directory for files of this instance.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the administrator's access.
    pub(crate) fn admin(&self) -> &Kubeconfig {
        &self.admin
    }

    /// Returns the access of one of the [`COMPONENTS`].
    pub(crate) fn component(&self, user: &str) -> Result<Kubeconfig> {
        let access = Access {
            server: &self.server(),
            certificate: Some(&self.certificate()),
            token: user,
            namespace: "default",
        };
        let file = format!("{}.kubeconfig", user.replace(':', "-"));
        Kubeconfig::write(self.directory.join(file), &self.admin.kubectl, &access)
    }

    /// Returns the key that signs the tokens of service accounts.
    pub(crate) fn signing_key(&self) -> PathBuf {
        self.directory.join("sa.key")
    }

    /// Shuts the API server down gracefully; it notifies its clients.
    pub(crate) async fn stop_api_server(&self) -> Result<()> {
        let Some(process) = self.api_server.lock().await.take() else {
            return Ok(());
        };
        process.signal(Signal::TERM)?;
        process.wait(LIMIT).await?;
        Ok(())
    }

    /// Kills the API server: connections break without notice.
    pub(crate) async fn kill_api_server(&self) -> Result<()> {
        match self.api_server.lock().await.take() {
            Some(process) => process.kill(),
            None => Ok(()),
        }
    }

    /// Starts the API server again, at the same address, and waits until it is ready.
    pub(crate) async fn start_api_server(&self) -> Result<()> {
        let deadline = now().after(LIMIT);
        while now() < deadline {
            if let Started::Ready(process) = self.try_start(SLOW_HOOKS).await? {
                *self.api_server.lock().await = Some(process);
                return Ok(());
            }
        }
        bail!("{} stays in use by another process", self.server())
    }

    /// Makes the API server hang: connections stay open, and no request is answered.
    pub(crate) async fn freeze(&self) -> Result<()> {
        signal(&self.api_server, Signal::STOP).await
    }

    /// Continues a frozen API server.
    pub(crate) async fn thaw(&self) -> Result<()> {
        signal(&self.api_server, Signal::CONT).await
    }

    /// Makes etcd hang: the API server's answers are late and leave the outcome unknown.
    pub(crate) async fn freeze_etcd(&self) -> Result<()> {
        signal(&self.etcd_process, Signal::STOP).await
    }

    /// Continues a frozen etcd. It applies what was sent in the meantime.
    pub(crate) async fn thaw_etcd(&self) -> Result<()> {
        signal(&self.etcd_process, Signal::CONT).await
    }

    /// Kills etcd while the API server runs.
    pub(crate) async fn kill_etcd(&self) -> Result<()> {
        match self.etcd_process.lock().await.take() {
            Some(process) => process.kill(),
            None => Ok(()),
        }
    }

    /// Restarts a killed etcd with its existing data.
    pub(crate) async fn start_etcd(&self) -> Result<()> {
        *self.etcd_process.lock().await = Some(self.etcd.start().await?);
        Ok(())
    }

    /// Backs up the running etcd.
    pub(crate) async fn snapshot_etcd(&self, name: &str) -> Result<PathBuf> {
        self.etcd.snapshot(name).await
    }

    /// Compacts all history of etcd.
    pub(crate) async fn compact_etcd(&self) -> Result<()> {
        self.etcd.compact().await
    }

    /// Removes an object of ours from the running etcd, without the API server.
    pub(crate) async fn remove_from_etcd(&self, object: &str) -> Result<()> {
        let removed = self.take_from_etcd(object).await?;
        removed.with_context(|| format!("{object} was not there"))?;
        Ok(())
    }

    /// The same, and returns the removed object, if any.
    pub(crate) async fn take_from_etcd(&self, object: &str) -> Result<Option<serde_json::Value>> {
        let key = format!("/registry/leasehold.dev/{object}");
        let removed = self.etcd.remove(&key).await?;
        let removed = removed.map(|removed| serde_json::from_str(&removed));
        Ok(removed.transpose()?)
    }

    /// Restores a backup: stops everything, replaces the data, starts everything. With `bump` it
    /// raises the store's revision by that number, as the runbook advises.
    pub(crate) async fn restore_etcd(&self, snapshot: &Path, bump: Option<u64>) -> Result<()> {
        self.stop_api_server().await?;
        let mut etcd = self.etcd_process.lock().await;
        if let Some(process) = etcd.take() {
            self.etcd.stop(process).await?;
        }
        self.etcd.restore(snapshot, bump).await?;
        *etcd = Some(self.etcd.start().await?);
        drop(etcd);
        self.start_api_server().await
    }

    /// Returns the requests of service accounts that the API server received, in order.
    pub(crate) fn served(&self) -> Result<Vec<Served>> {
        audit::read(&self.audit_log())
    }

    /// Returns the CPU time of the API server and of etcd.
    pub(crate) async fn cpu_time(&self) -> Result<(Duration, Duration)> {
        let api_server = cpu_time(&self.api_server).await?;
        Ok((api_server, cpu_time(&self.etcd_process).await?))
    }

    /// Tries ports until one is still free when the server binds it.
    async fn first_start(&self) -> Result<()> {
        for _ in 0..5 {
            self.port.store(own_port()?, Ordering::Relaxed);
            let access = Access {
                server: &self.server(),
                certificate: Some(&self.certificate()),
                token: ADMIN_TOKEN,
                namespace: "default",
            };
            Kubeconfig::write(self.admin.path.clone(), &self.admin.kubectl, &access)?;
            if let Started::Ready(process) = self.try_start("").await? {
                *self.api_server.lock().await = Some(process);
                return Ok(());
            }
        }
        bail!("five ports in a row were taken before the API server could bind them")
    }

    async fn try_start(&self, exclusions: &str) -> Result<Started> {
        let log = self.directory.join("kube-apiserver.log");
        // An earlier run's error about the port must not count.
        let _absent = std::fs::remove_file(&log);
        let process = Process::spawn("kube-apiserver", &mut self.api_server_command(), &log)?;
        let deadline = now().after(LIMIT);
        while now() < deadline {
            if process.exited()?.is_some() {
                if process.log().contains("address already in use") {
                    return Ok(Started::PortTaken);
                }
                bail!("kube-apiserver ended:\n{}", process.last_words());
            }
            if self.is_ready(exclusions).await {
                return Ok(Started::Ready(process));
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        bail!(
            "kube-apiserver is not ready after {LIMIT:?}:\n{}",
            process.last_words()
        )
    }

    async fn is_ready(&self, exclusions: &str) -> bool {
        // The certificate exists only after the first start.
        let Ok(client) = self.admin.client().await else {
            return false;
        };
        let Ok(request) = http::Request::get(format!("/readyz{exclusions}")).body(vec![]) else {
            return false;
        };
        client
            .request_text(request)
            .await
            .is_ok_and(|answer| answer == "ok" || answer.starts_with("[+]"))
    }

    fn api_server_command(&self) -> Command {
        let at = |name: &str| self.directory.join(name).display().to_string();
        let mut command = Command::new(&self.binaries.kube_apiserver);
        command.args([
            format!("--etcd-servers={}", self.etcd.endpoint()),
            format!("--secure-port={}", self.port.load(Ordering::Relaxed)),
            format!("--cert-dir={}", at("certs")),
            format!("--service-account-key-file={}", at("sa.pub")),
            format!("--service-account-signing-key-file={}", at("sa.key")),
            format!("--token-auth-file={}", at("tokens.csv")),
            format!("--audit-policy-file={}", at("audit.yaml")),
            format!("--audit-log-path={}", self.audit_log().display()),
        ]);
        let address = self.purpose.address();
        command.args([
            format!("--bind-address={address}"),
            format!("--advertise-address={address}"),
        ]);
        command.args(self.purpose.flags());
        command.args([
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--shutdown-watch-termination-grace-period=1s",
            "--profiling=false",
        ]);
        command
    }

    fn audit_log(&self) -> PathBuf {
        self.directory.join("audit.log")
    }
}

async fn signal(process: &Mutex<Option<Process>>, signal: Signal) -> Result<()> {
    let process = process.lock().await;
    let running = process
        .as_ref()
        .context("a process must run to be signalled")?;
    running.signal(signal)
}

async fn cpu_time(process: &Mutex<Option<Process>>) -> Result<Duration> {
    let process = process.lock().await;
    let running = process
        .as_ref()
        .context("a process must run to use CPU time")?;
    running.cpu_time()
}

/// Writes the files that the API server reads at its start.
fn write_files(directory: &Path, purpose: Purpose) -> Result<()> {
    let key = rcgen::KeyPair::generate()?;
    std::fs::write(directory.join("sa.key"), key.serialize_pem())?;
    std::fs::write(directory.join("sa.pub"), key.public_key_pem())?;
    let mut users = format!("{ADMIN_TOKEN},admin,admin,\"system:masters\"\n");
    for (user, groups) in COMPONENTS {
        writeln!(users, "{user},{user},{user},\"{groups}\"")?;
    }
    std::fs::write(directory.join("tokens.csv"), users)?;
    let audited = match purpose {
        Purpose::ManyTests | Purpose::OneTest => audit::POLICY,
        Purpose::Measuring | Purpose::Node => audit::NOTHING,
    };
    std::fs::write(directory.join("audit.yaml"), audited)?;
    Ok(())
}
