//! The programs of a node, and the files that they read. README.md has the reasons for the
//! settings.
//!
//! All their files are in one directory, or where `enter.sh` mounted the node's own directories.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::harness::{ControlPlane, Kubeconfig, NODE_ADDRESS, Process, target_directory};

/// The node's name.
pub(crate) const NODE: &str = "node-1";
/// The image of the pods' apps and of their sandboxes. Its default command sleeps.
pub(crate) const APP_IMAGE: &str = "registry.test/app:1";
/// Our image, with the chart's default name.
pub(crate) const IMAGE: &str = concat!("ghcr.io/leasehold/leasehold:", env!("CARGO_PKG_VERSION"));
/// The pods' address range.
const PODS: &str = "10.244.0.0/24";

/// Returns the path of a program that `tests/controlplane/build.sh` built.
pub(crate) fn program(part: &str, name: &str) -> Result<PathBuf> {
    let path = target_directory()
        .join("controlplane")
        .join(part)
        .join(name);
    if !path.is_file() {
        bail!(
            "{} is missing; run `make controlplane-node`",
            path.display()
        );
    }
    Ok(std::fs::canonicalize(path)?)
}

/// The folder with a node's files.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Returns the folder that `enter.sh` created.
    pub(crate) fn from_env() -> Result<Self> {
        let folder = std::env::var_os("LEASEHOLD_NODE_STATE");
        let folder = folder.context("run it by `make node-e2e`: it needs a machine of its own")?;
        Ok(Self(PathBuf::from(folder)))
    }

    /// Returns a path in it.
    pub(crate) fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Returns the path of containerd's socket, which the kubelet connects to.
    pub(crate) fn containerd_socket(&self) -> String {
        self.at("containerd.sock")
    }

    fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.at(name);
        std::fs::write(&path, text).with_context(|| path.clone())?;
        Ok(path)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.log"))
    }
}

pub(crate) fn start_containerd(folder: &Folder) -> Result<Process> {
    let plugins = program("cni", "bridge")?;
    let plugins = plugins.parent().context("a file must have a folder")?;
    std::fs::create_dir_all(folder.at("cni"))?;
    folder.write("cni/10-pods.conflist", &network(folder))?;
    let config = format!(
        "version = 3
root = '{root}'
state = '/run/containerd'
[grpc]
address = '{socket}'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{APP_IMAGE}'
[plugins.'io.containerd.cri.v1.runtime']
# Not every root user may make a process less likely to be killed.
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{plugins}']
conf_dir = '{cni}'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '{runc}'
",
        root = folder.at("containerd"),
        socket = folder.containerd_socket(),
        plugins = plugins.display(),
        cni = folder.at("cni"),
        runc = program("runc", "runc")?.display(),
    );
    let config = folder.write("containerd.toml", &config)?;
    let mut command = Command::new(program("containerd", "containerd")?);
    command.args(["--config", &config]).env("PATH", path()?);
    Process::spawn("containerd", &mut command, &folder.log("containerd"))
}

/// The shim is beside containerd; the other programs are the machine's.
fn path() -> Result<String> {
    let containerd = program("containerd", "containerd")?;
    let built = containerd.parent().context("a file must have a folder")?;
    let machine = std::env::var("PATH").unwrap_or_default();
    Ok(format!("{}:{machine}", built.display()))
}

/// Returns the network configuration: one bridge, whose address connects the pods with the node and
/// with Services.
fn network(folder: &Folder) -> String {
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{
        "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
        "ipam": {"type": "host-local", "dataDir": folder.at("addresses"),
            "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }]})
    .to_string()
}

pub(crate) fn start_kubelet(folder: &Folder, access: &Kubeconfig) -> Result<Process> {
    let cgroup = std::env::var("LEASEHOLD_NODE_CGROUP").context("enter.sh must name a cgroup")?;
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        // Only this machine can reach it.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": NODE_ADDRESS, "readOnlyPort": 0, "healthzPort": 0,
        "containerRuntimeEndpoint": format!("unix://{}", folder.containerd_socket()),
        "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{cgroup}"), "failCgroupV1": false,
        "failSwapOn": false, "oomScoreAdj": 0, "makeIPTablesUtilChains": false,
        "podLogsDir": folder.at("pod-logs"), "resolvConf": "", "clusterDomain": "cluster.local",
        // The disk belongs to the machine, and its free space does not matter to the tests.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%",
            "nodefs.inodesFree": "1%", "imagefs.available": "1%", "imagefs.inodesFree": "1%"},
        "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
    });
    let config = folder.write("kubelet.yaml", &config.to_string())?;
    let mut command = Command::new(program("v1.36-node", "kubelet")?);
    command
        .args(["--config", &config, "--hostname-override", NODE])
        .args([
            "--node-ip",
            NODE_ADDRESS,
            "--root-dir",
            &folder.at("kubelet"),
        ])
        .arg("--kubeconfig")
        .arg(&access.path)
        .args(["--cert-dir", &folder.at("kubelet-certs"), "--v=2"]);
    Process::spawn("kubelet", &mut command, &folder.log("kubelet"))
}

pub(crate) fn start_proxy(folder: &Folder, access: &Kubeconfig) -> Result<Process> {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "nftables", "clusterCIDR": PODS, "hostnameOverride": NODE,
        "bindAddress": NODE_ADDRESS, "oomScoreAdj": 0,
        "healthzBindAddress": "", "metricsBindAddress": "",
        "clientConnection": {"kubeconfig": access.path},
        // These settings belong to the machine, which may not permit changes.
        "conntrack": {"maxPerCore": 0, "min": 0,
            "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    });
    let config = folder.write("kube-proxy.yaml", &config.to_string())?;
    let mut command = Command::new(program("v1.36-node", "kube-proxy")?);
    command.args(["--config", &config]);
    Process::spawn("kube-proxy", &mut command, &folder.log("kube-proxy"))
}

pub(crate) fn start_scheduler(folder: &Folder, access: &Kubeconfig) -> Result<Process> {
    let mut command = Command::new(program("v1.36-node", "kube-scheduler")?);
    command
        .arg("--kubeconfig")
        .arg(&access.path)
        .args(["--leader-elect=false", "--secure-port=0"]);
    Process::spawn(
        "kube-scheduler",
        &mut command,
        &folder.log("kube-scheduler"),
    )
}

/// Starts all controllers, each with its own rights, as in real clusters.
pub(crate) fn start_controllers(folder: &Folder, control_plane: &ControlPlane) -> Result<Process> {
    let access = control_plane.component("system:kube-controller-manager")?;
    let mut command = Command::new(program("v1.36", "kube-controller-manager")?);
    command
        .arg("--kubeconfig")
        .arg(&access.path)
        .arg("--root-ca-file")
        .arg(control_plane.certificate())
        .arg("--service-account-private-key-file")
        .arg(control_plane.signing_key())
        .args([
            "--use-service-account-credentials=true",
            "--leader-elect=false",
        ])
        .arg("--secure-port=0");
    Process::spawn(
        "kube-controller-manager",
        &mut command,
        &folder.log("kube-controller-manager"),
    )
}

/// Imports an image into the node, so that nothing is pulled.
pub(crate) fn load_image(folder: &Folder, archive: &Path) -> Result<()> {
    let output = ctr(folder)?
        .args(["images", "import", "--local"])
        .arg(archive)
        .output()?;
    if !output.status.success() {
        bail!(
            "{}: {}",
            archive.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Tags the pods' image with the names in the examples, so that nothing is pulled for them, either.
pub(crate) fn name_image_as_in_examples(folder: &Folder) -> Result<()> {
    for name in [
        "docker.io/curlimages/curl:8.10.1",
        "docker.io/library/busybox:1.37",
        "registry.k8s.io/e2e-test-images/agnhost:2.53",
    ] {
        let output = ctr(folder)?
            .args(["images", "tag", APP_IMAGE, name])
            .output()?;
        if !output.status.success() {
            bail!("{name}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    Ok(())
}

/// Returns a command for containerd's own client, for objects that the kubelet created.
pub(crate) fn ctr(folder: &Folder) -> Result<Command> {
    let mut command = Command::new(program("containerd", "ctr")?);
    command.args([
        "--address",
        &folder.containerd_socket(),
        "--namespace",
        "k8s.io",
    ]);
    Ok(command)
}
