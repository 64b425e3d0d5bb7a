//! `make node`: the node without the tests, for manual trials.

use anyhow::Result;

use crate::harness::target_directory;
use crate::machine::Machine;

#[tokio::test]
#[ignore = "it stays until it is killed: make node"]
async fn stay() -> Result<()> {
    let machine = Machine::shared().await?;
    let kubeconfig = &machine.cluster.control_plane().admin().path;
    let built = target_directory().join("controlplane");
    crate::tell(&format!(
        "The node is ready, and has our image. Its network is its own; a shell there, as root:\n\n  \
         nsenter --all --wd=\"$PWD\" --target \"$(pgrep --newest --full stay::stay)\" \\\n    \
         env KUBECONFIG={} PATH=\"{built}/v1.36:{built}/helm:$PATH\" bash\n\n\
         Ctrl-C here takes all of it away.",
        kubeconfig.display(),
        built = built.display(),
    ))?;
    std::future::pending().await
}
