//! The paths of the control plane's binaries. The error for a missing one says how to get it.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// A version of Kubernetes that the tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KubeVersion {
    /// The version that every test runs on.
    Default,
    /// v1.33, the oldest supported version.
    Floor,
}

impl KubeVersion {
    /// Returns the default, or the value of `LEASEHOLD_E2E_KUBE` (`v1.33`, `v1.36`).
    pub(crate) fn from_env() -> Result<Self> {
        match std::env::var("LEASEHOLD_E2E_KUBE").as_deref() {
            Err(_) | Ok("" | "v1.36") => Ok(Self::Default),
            Ok("v1.33") => Ok(Self::Floor),
            Ok(other) => bail!("LEASEHOLD_E2E_KUBE is {other:?}; use v1.36 or v1.33"),
        }
    }

    const fn folder(self) -> &'static str {
        match self {
            Self::Default => "v1.36",
            Self::Floor => "v1.33",
        }
    }
}

/// The programs of one control plane.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    pub(crate) kube_apiserver: PathBuf,
    pub(crate) kubectl: PathBuf,
    pub(crate) etcd: PathBuf,
    pub(crate) etcdctl: PathBuf,
    pub(crate) etcdutl: PathBuf,
}

impl Binaries {
    /// Returns the programs in `KUBEBUILDER_ASSETS` (except for the floor), or else those that
    /// `make` built.
    pub(crate) fn find(version: KubeVersion) -> Result<Self> {
        let built = target_directory().join("controlplane");
        let etcd = built.join("etcd");
        let kubernetes = built.join(version.folder());
        let binaries = match assets().filter(|_| version == KubeVersion::Default) {
            Some(assets) => Self {
                kube_apiserver: assets.join("kube-apiserver"),
                kubectl: assets.join("kubectl"),
                etcd: assets.join("etcd"),
                etcdctl: etcd.join("etcdctl"),
                etcdutl: etcd.join("etcdutl"),
            },
            None => Self {
                kube_apiserver: kubernetes.join("kube-apiserver"),
                kubectl: kubernetes.join("kubectl"),
                etcd: etcd.join("etcd"),
                etcdctl: etcd.join("etcdctl"),
                etcdutl: etcd.join("etcdutl"),
            },
        };
        binaries.check(version)?;
        Ok(binaries)
    }

    fn check(&self, version: KubeVersion) -> Result<()> {
        let command = match version {
            KubeVersion::Default => "make controlplane",
            KubeVersion::Floor => "make controlplane-floor",
        };
        let all = [
            &self.kube_apiserver,
            &self.kubectl,
            &self.etcd,
            &self.etcdctl,
            &self.etcdutl,
        ];
        for binary in all {
            if !binary.is_file() {
                bail!("{} is missing; run `{command}`", binary.display());
            }
        }
        Ok(())
    }
}

/// Returns the folder of envtest's convention, if it is complete (as in `build.sh`).
fn assets() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("KUBEBUILDER_ASSETS")?);
    let complete = ["kube-apiserver", "etcd", "kubectl"]
        .iter()
        .all(|name| folder.join(name).is_file());
    complete.then_some(folder)
}

/// Returns the directory where cargo and `make` build.
pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target"),
        PathBuf::from,
    )
}
