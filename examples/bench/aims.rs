//! The aims, printed next to the measured values.

use crate::rows::Rows;
use crate::{baseline, one_pod, transfer};

/// Prints one line for each aim.
#[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
pub(crate) fn print(rows: &Rows, rss_kib: u64, binary_bytes: u64) {
    let acquire = rows.median(one_pod::ACQUIRE);
    let most = 1.25 * rows.median(baseline::PUT) + 0.2;
    println!();
    println!(
        "acquire of a known lock: {acquire:.3} ms, aim at most 1.25 x administrator's PUT + 0.2 = \
         {most:.3} ms"
    );
    let renew = rows.median(one_pod::RENEW);
    println!("local renew: {renew:.3} ms, aim under 0.150 ms");
    let transfer = rows.median(transfer::TRANSFER);
    let most = 1.5 * rows.median(transfer::PUT_AND_EVENT);
    println!(
        "transfer between two pods: {transfer:.3} ms, aim at most 1.5 x PUT and its event = \
         {most:.3} ms"
    );
    let resident = mebibytes(rss_kib);
    println!("sidecar resident: {resident:.1} MiB, aim under 15 MiB");
    let binary = millions(binary_bytes);
    println!("release binary: {binary:.1} MB, aim under 15 MB");
}

/// Converts KiB to MiB.
#[allow(clippy::cast_precision_loss, reason = "sizes far below 2^53")]
pub(crate) fn mebibytes(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

#[allow(clippy::cast_precision_loss, reason = "sizes far below 2^53")]
fn millions(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
