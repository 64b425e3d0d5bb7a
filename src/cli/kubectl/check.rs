//! `kubectl leasehold check`.

mod accounts;
mod before;
mod certificate;
mod objects;
mod read;
mod shipped;
mod webhook;

use super::api::Api;
use super::failure::Failure;
use super::flags::Document;
use super::terminal;
use crate::kubectl::check::text::text;
use crate::kubectl::check::{self, CheckResult, Status};

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Checks only whether the chart can be installed by you in this cluster.
    #[arg(long, conflicts_with_all = ["pod", "service_account", "operator_namespace"])]
    pre: bool,
    /// Checks the sidecar of this pod, too; says why the pod has none.
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
    /// The service account whose rights are checked; default: those of the namespace's pods with a sidecar.
    #[arg(long, value_name = "NAME")]
    service_account: Option<String>,
    /// The operator's namespace, for users who may not list Deployments in all namespaces.
    #[arg(long, value_name = "NAME")]
    operator_namespace: Option<String>,
    /// The format; default: text.
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Document>,
}

/// What the help says beyond one line.
pub(super) const LONG_ABOUT: &str = "\
Checks the installation, and the pods of one namespace: API version, definitions, policies and their mode, operator, \
webhook and its certificate, rights, versions, clocks, flow control, token floors, and a dry run of creating a lock. \
Changes nothing.

√ is fine, ‼ is a warning, × has failed, - was not checked. A warning or a failure is followed by what to do. The exit \
code is 1 if a check failed.

Rights: ClusterRole view suffices for the checks of the namespace. The others need get or list on \
customresourcedefinitions, validatingadmissionpolicies, validatingadmissionpolicybindings, clusterroles, \
mutatingwebhookconfigurations, flowschemas and prioritylevelconfigurations; on the deployments, configmaps, services, \
endpointslices and the Secret of the certificate in the operator's namespace; and create on subjectaccessreviews. A \
check without its right is skipped, and names it.";

/// Checks, and prints the results.
///
/// # Errors
/// `Unfulfilled` if a check failed.
pub(super) async fn run(api: &Api, args: &Args) -> Result<(), Failure> {
    let results = results(api, args).await?;
    match args.output {
        None => terminal::print(&text(&results, terminal::has_colour()))?,
        Some(format) => terminal::print_document(format, &results)?,
    }
    match check::count(&results, Status::Failed) {
        0 => Ok(()),
        1 => Err(Failure::Unfulfilled("1 check failed".to_owned())),
        number => Err(Failure::Unfulfilled(format!("{number} checks failed"))),
    }
}

async fn results(api: &Api, args: &Args) -> Result<Vec<CheckResult>, Failure> {
    // Every authenticated user may read the version, so an error here is not about rights.
    let server = match api.get("/version").await {
        Ok(server) => server,
        Err(Failure::Unreachable(why)) => return Ok(check::unreachable(&why)),
        Err(error) => return Err(error),
    };
    if args.pre {
        return Ok(check::run_pre(&before::findings(api, server).await?));
    }
    Ok(check::run(&read::findings(api, args, server).await?))
}
