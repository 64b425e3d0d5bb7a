//! The committed CRDs are what the code generates. `make generate` writes them anew.
//!
//! It does not ask an API server whether it takes them; the e2e tests install them.

use std::path::Path;

use leasehold::crd;

fn assert_committed(name: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("crds")
        .join(name);
    if std::env::var_os("LEASEHOLD_REGENERATE").is_some() {
        std::fs::write(&path, generated).expect("crds must be writable");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "crds/{name} is not what the code generates; run `make generate` and commit it"
    );
}

#[test]
fn the_committed_lock_definition_is_the_generated_one() {
    assert_committed(
        "distributedlocks.leasehold.dev.yaml",
        &crd::lock_as_yaml().unwrap(),
    );
}

#[test]
fn the_committed_session_definition_is_the_generated_one() {
    assert_committed(
        "locksessions.leasehold.dev.yaml",
        &crd::session_as_yaml().unwrap(),
    );
}
