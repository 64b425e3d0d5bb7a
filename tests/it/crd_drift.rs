//! The committed CRDs are the generated ones, including those in the chart: a chart cannot read
//! files outside its directory. `make generate` rewrites them.
//!
//! No API server is involved here; the e2e tests install the CRDs.

use std::fs;
use std::path::Path;

use leasehold::crd;
use leasehold::protocol::time::SessionTtl;

use crate::drift::assert_committed;

const FOLDERS: [&str; 2] = ["crds", "charts/leasehold/files/crds"];

#[test]
fn committed_lock_crd_is_the_generated_one() {
    for folder in FOLDERS {
        let file = format!("{folder}/distributedlocks.leasehold.dev.yaml");
        assert_committed(&file, &crd::lock_as_yaml().unwrap());
    }
}

#[test]
fn committed_session_crd_is_the_generated_one() {
    for folder in FOLDERS {
        let file = format!("{folder}/locksessions.leasehold.dev.yaml");
        assert_committed(&file, &crd::session_as_yaml().unwrap());
    }
}

/// An attribute cannot use the constants.
#[test]
fn crds_accept_exactly_the_session_ttls_of_the_protocol() {
    let bounds = [SessionTtl::MAX, SessionTtl::MIN].map(|bound| bound.as_secs());
    let bounds = format!("maximum: {} minimum: {} ", bounds[0], bounds[1]);
    for (crd, fields) in [(crd::lock_as_yaml(), 2), (crd::session_as_yaml(), 1)] {
        let words: Vec<_> = crd.as_ref().unwrap().split_whitespace().collect();
        let text = words.join(" ");
        let ttls = text.split("tlSeconds: description: ").skip(1);
        let found: Vec<_> = ttls.map(|ttl| ttl.split("type: ").next()).collect();
        assert_eq!(found.len(), fields);
        for ttl in found.into_iter().flatten() {
            assert!(ttl.ends_with(&bounds), "{ttl}: {bounds}");
        }
    }
}

/// The help text and the HTTP API cannot use the constant, nor can the documentation.
#[test]
fn install_command_for_crds_is_the_same_everywhere() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tellers = ["docs/install.md", "src/http/explain.rs"];
    for teller in tellers {
        let text = fs::read_to_string(repository.join(teller)).unwrap();
        assert!(text.contains(crd::INSTALL_COMMAND), "{teller}");
        let told = text.matches("kubectl apply ").count();
        let server_side = text.matches("kubectl apply --server-side").count();
        assert_eq!(told, server_side, "{teller}");
    }
    let cli = fs::read_to_string(repository.join("src/cli.rs")).unwrap();
    let (_, applied) = crd::INSTALL_COMMAND.split_once("| ").unwrap();
    assert!(cli.contains(applied), "the help of `leasehold crd`");
}
