//! The committed generated files are up to date; `make generate` rewrites them.

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

/// The same for the part of a page between `<!-- NAME -->` and `<!-- /NAME -->`.
pub(crate) fn assert_committed_part(file: &str, name: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(path).expect("the page must be readable");
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let (before, rest) = text.split_once(&begin).expect("the part must begin");
    let (_, after) = rest.split_once(&end).expect("the part must end");
    assert_committed(file, &format!("{before}{begin}{generated}{end}{after}"));
}
