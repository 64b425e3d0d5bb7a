//! Reads the webhook and what it needs to be called.

use serde_json::Value;

use super::certificate;
use super::objects::{find, list};
use crate::cli::kubectl::api::{Api, encoded};
use crate::cli::kubectl::failure::Failure;
use crate::kubectl::check::containers::{operator, setting};
use crate::kubectl::check::findings::WebhookFindings;
use crate::kubectl::world::Known;

/// Reads them. `home` is the namespace of the release.
pub(super) async fn webhook(
    api: &Api,
    home: &str,
    configuration: Known<Option<Value>>,
    operators: &Known<Vec<Value>>,
) -> Result<WebhookFindings, Failure> {
    let found = configuration.seen().and_then(Option::as_ref).cloned();
    let Some(found) = found else {
        return Ok(WebhookFindings {
            configuration,
            service: Known::Seen(None),
            endpoints: Known::Seen(Vec::new()),
            certificate: Known::Seen(None),
        });
    };
    let service = &found["webhooks"][0]["clientConfig"]["service"];
    let part = |field: &str| service[field].as_str().unwrap_or_default();
    let (service, namespace) = (part("name"), part("namespace"));
    let query = encoded(&format!("kubernetes.io/service-name={service}"));
    let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    let operator = operators.seen().and_then(|all| all.first());
    let secret = format!("/api/v1/namespaces/{home}/secrets/{}", secret_of(operator));
    let certificate = match find(api, &secret).await? {
        Known::Seen(secret) => Known::Seen(secret.map(|secret| certificate::read(&secret, &found))),
        Known::Unknown(right) => Known::Unknown(right),
    };
    Ok(WebhookFindings {
        service: find(
            api,
            &format!("/api/v1/namespaces/{namespace}/services/{service}"),
        )
        .await?,
        endpoints: list(api, &slices, &format!("labelSelector={query}")).await?,
        certificate,
        configuration,
    })
}

/// Returns the Secret of the certificate: the one that the operator keeps, or the one that is mounted.
fn secret_of(deployment: Option<&Value>) -> &str {
    const DEFAULT: &str = "leasehold-webhook-cert";
    let Some(deployment) = deployment else {
        return DEFAULT;
    };
    let kept = operator(deployment)
        .and_then(|container| setting(container, "--webhook-secret", "LEASEHOLD_WEBHOOK_SECRET"));
    let volumes = &deployment["spec"]["template"]["spec"]["volumes"];
    let mut volumes = volumes.as_array().into_iter().flatten();
    let mounted = volumes.find(|volume| volume["name"] == "certificate");
    let mounted = mounted.and_then(|volume| volume["secret"]["secretName"].as_str());
    kept.or(mounted).unwrap_or(DEFAULT)
}
