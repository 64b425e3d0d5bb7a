//! The flags that kubectl's own commands have, too.

use std::path::PathBuf;
use std::time::Duration;

use crate::kubectl::format::Output;

/// Which cluster, as whom, and for how long.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterFlags {
    /// The kubeconfig file; default: KUBECONFIG, then `~/.kube/config`.
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; default: the current context.
    #[arg(long, global = true, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// The namespace; default: the context's.
    #[arg(short, long, global = true, value_name = "NAME", value_parser = crate::cli::cluster::namespace)]
    pub(super) namespace: Option<String>,
    /// The user to impersonate.
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(super) impersonate: Option<String>,
    /// A group to impersonate; can be repeated. Requires --as.
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub(super) impersonate_groups: Vec<String>,
    /// How long one request may take, as 500ms, 5s or 1m; 0: without a limit.
    #[arg(long, global = true, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(super) request_timeout: Duration,
}

/// How a result is printed.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputFlags {
    /// The format: json, yaml, wide, name, jsonpath=TEMPLATE or custom-columns=NAME:PATH,…
    #[arg(short, long, value_name = "FORMAT")]
    pub(super) output: Option<Output>,
    /// Prints a table without its headers.
    #[arg(long)]
    pub(super) no_headers: bool,
}

/// The format of a document other than a list of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Document {
    /// As JSON.
    Json,
    /// As YAML.
    Yaml,
}

/// Reads a time as kubectl writes it: `90s`, `1m30s`, `500ms`, or seconds without a unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let invalid = || "use a time as 500ms, 5s, 1m30s or 2h".to_owned();
    let span: jiff::SignedDuration = text.parse().map_err(|_| invalid())?;
    Duration::try_from(span).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_for_kubectl() {
        for (text, millis) in [
            ("0", 0),
            ("5", 5_000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "x", "-5s", "5 parsecs"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
