//! The webhook's certificate: what is in its Secret, and whether the API server would trust it. The key is read with it
//! and is not kept.

use jiff::Timestamp;
use serde_json::Value;

use crate::k8s::certificates::{bytes, files_of};
use crate::kubectl::check::findings::{Certificate, Validity};
use crate::store::certificates::TlsFiles;
use crate::webhook::certs::{Pair, authorities, pem_of};

/// Reads the certificate in a Secret, for the webhooks of a configuration.
pub(super) fn read(secret: &Value, configuration: &Value) -> Certificate {
    let metadata = &secret["metadata"];
    let part = |name: &str| metadata[name].as_str().unwrap_or_default();
    Certificate {
        secret: format!("{}/{}", part("namespace"), part("name")),
        content: validity(&files_of(secret), configuration),
    }
}

fn validity(files: &TlsFiles, configuration: &Value) -> Result<Validity, String> {
    let pair = Pair::read(files).map_err(|error| error.to_string())?;
    let (not_before, not_after) = pair.validity();
    let time = |seconds| Timestamp::from_second(seconds).map_err(|error| error.to_string());
    let webhooks = configuration["webhooks"].as_array().into_iter().flatten();
    Ok(Validity {
        not_before: time(not_before)?,
        not_after: time(not_after)?,
        distrusted: webhooks
            .filter_map(|webhook| distrust(files, webhook))
            .collect(),
    })
}

/// Returns why a webhook's CA bundle does not verify the certificate; `None` if it does.
fn distrust(files: &TlsFiles, webhook: &Value) -> Option<String> {
    let name = webhook["name"].as_str().unwrap_or_default();
    let client = &webhook["clientConfig"];
    let service = &client["service"];
    // An API server that reaches the webhook by a URL checks the name in it, which the operator's flags have.
    let names = match (service["name"].as_str(), service["namespace"].as_str()) {
        (Some(service), Some(namespace)) => vec![format!("{service}.{namespace}.svc")],
        _ => Vec::new(),
    };
    let Some(bundle) = authorities(&bytes(&client["caBundle"])) else {
        return Some(format!("{name} has no CA bundle that can be read"));
    };
    let verifies = |authority| {
        let files = TlsFiles {
            authority: pem_of(&[authority]),
            ..files.clone()
        };
        Pair::read_for(&files, &names).map(drop)
    };
    let mut last = None;
    for authority in bundle {
        match verifies(authority) {
            Ok(()) => return None,
            Err(error) => last = Some(error),
        }
    }
    last.map(|error| format!("{name}: {error}"))
}
