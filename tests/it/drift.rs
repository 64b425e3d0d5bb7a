//! What is generated is committed as it is generated; `make generate` writes it anew.

use std::path::Path;

/// Compares a committed file with what the code generates, or writes it.
pub(crate) fn assert_committed(file: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("LEASEHOLD_REGENERATE").is_some() {
        std::fs::write(&path, generated).expect("the file must be writable");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "{file} is not what the code generates; run `make generate` and commit it"
    );
}
