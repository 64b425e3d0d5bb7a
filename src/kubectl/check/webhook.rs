//! Whether the API server can call the webhook that injects sidecars: its configuration, endpoints and certificate.

use std::time::Duration;

use serde_json::Value;

use super::containers::{each, operator, setting};
use super::findings::{Certificate, Findings, Validity};
use super::{Check, CheckResult, some_of};
use crate::kubectl::format::human::human;
use crate::kubectl::session_health::since;
use crate::kubectl::world::Known;

const SECTION: &str = "webhook";
const PAGE: &str = "runbooks/webhook-certificate.md";
const CONFIGURATION: Check = Check::new(
    SECTION,
    "webhook-configuration",
    "injection.md#where-there-is-no-sidecar",
);
const ENDPOINTS: Check = Check::new(
    SECTION,
    "webhook-endpoints",
    "injection.md#when-the-webhook-cannot-be-reached",
);
const CERTIFICATE: Check = Check::new(SECTION, "webhook-certificate", PAGE);
const TRUST: Check = Check::new(SECTION, "webhook-ca", PAGE);

/// The operator renews a certificate when 30 days are left. A week less means that it has not.
const SOON: Duration = Duration::from_secs(7 * 24 * 60 * 60);

pub(super) fn check(findings: &Findings) -> Vec<CheckResult> {
    let found = &findings.webhook;
    match &found.configuration {
        Known::Unknown(right) => {
            vec![CONFIGURATION.without_right("the webhook's configuration", right)]
        }
        Known::Seen(None) if is_served(findings) == Some(false) => {
            vec![CONFIGURATION.skipped(
                "the chart was installed without its webhook (webhook.enabled=false): pods bring \
                 their own sidecar",
            )]
        }
        Known::Seen(None) => vec![CONFIGURATION.failed(
            "the MutatingWebhookConfiguration leasehold-injector does not exist: new pods get no sidecar",
            findings.upgrade(""),
        )],
        Known::Seen(Some(configuration)) => {
            let mut results = vec![described(findings, configuration), endpoints(findings)];
            results.extend(certificate(findings, configuration));
            results
        }
    }
}

/// Returns whether the operator was started with the webhook; `None` if that is not known.
fn is_served(findings: &Findings) -> Option<bool> {
    let operator = findings.operators.seen()?.first().and_then(operator)?;
    Some(setting(operator, "--webhook-listen", "LEASEHOLD_WEBHOOK_LISTEN").is_some())
}

fn described(findings: &Findings, configuration: &Value) -> CheckResult {
    let number = each(&configuration["webhooks"]).count();
    let untrusted = each(&configuration["webhooks"]).filter(|one| {
        one["clientConfig"]["caBundle"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
    });
    let untrusted: Vec<_> = untrusted.filter_map(|one| one["name"].as_str()).collect();
    if number == 0 {
        return CONFIGURATION.failed(
            "the MutatingWebhookConfiguration leasehold-injector has no webhook: new pods get no sidecar",
            findings.upgrade(""),
        );
    }
    if untrusted.is_empty() {
        return CONFIGURATION.ok("the webhook's configuration exists, with a CA bundle");
    }
    CONFIGURATION.failed(
        format!(
            "no CA bundle is set for {}: the API server cannot trust the webhook",
            some_of(&untrusted)
        ),
        format!(
            "kubectl --namespace {} logs deployment/leasehold-operator  # or that of its issuer",
            findings.home()
        ),
    )
}

fn endpoints(findings: &Findings) -> CheckResult {
    let found = &findings.webhook;
    match &found.service {
        Known::Unknown(right) => return ENDPOINTS.without_right("the webhook's Service", right),
        Known::Seen(None) => {
            return ENDPOINTS.failed(
                "the Service that the webhook's configuration names does not exist: pods that \
                 request a sidecar are \
                 rejected",
                findings.upgrade(""),
            );
        }
        Known::Seen(Some(_)) => {}
    }
    let slices = match &found.endpoints {
        Known::Unknown(right) => return ENDPOINTS.without_right("the webhook's endpoints", right),
        Known::Seen(slices) => slices,
    };
    let endpoints = slices.iter().flat_map(|slice| each(&slice["endpoints"]));
    let is_ready =
        |one: &&Value| one["conditions"]["ready"] != false && !one["addresses"][0].is_null();
    let ready = endpoints.filter(is_ready).count();
    if ready > 0 {
        return ENDPOINTS.ok(format!(
            "the webhook's Service has ready endpoints ({ready})"
        ));
    }
    ENDPOINTS.failed(
        "the webhook's Service has no ready endpoint: pods that request a sidecar are rejected",
        format!(
            "kubectl --namespace {} describe pods --selector app.kubernetes.io/component=operator",
            findings.home()
        ),
    )
}

fn certificate(findings: &Findings, configuration: &Value) -> Vec<CheckResult> {
    let repair = |found: &Certificate| {
        let (namespace, name) = found.secret.split_once('/').unwrap_or_default();
        format!(
            "kubectl --namespace {namespace} delete secret {name}  # a running operator issues \
             another one; renew one of another issuer there"
        )
    };
    let found = match &findings.webhook.certificate {
        Known::Unknown(right) => return vec![CERTIFICATE.without_right("the certificate", right)],
        Known::Seen(None) => {
            let service = &configuration["webhooks"][0]["clientConfig"]["service"];
            let home = service["namespace"].as_str().unwrap_or_default();
            return vec![CERTIFICATE.failed(
                "the Secret with the webhook's certificate does not exist",
                format!(
                    "kubectl --namespace {home} logs deployment/leasehold-operator  # why none \
                     was issued"
                ),
            )];
        }
        Known::Seen(Some(found)) => found,
    };
    let secret = &found.secret;
    match &found.content {
        Err(why) => vec![CERTIFICATE.failed(
            format!("the Secret {secret} cannot be used: {why}"),
            repair(found),
        )],
        Ok(validity) => vec![
            valid(findings, found, validity, repair(found)),
            trusted(findings, found, validity),
        ],
    }
}

fn valid(
    findings: &Findings,
    found: &Certificate,
    validity: &Validity,
    repair: String,
) -> CheckResult {
    let secret = &found.secret;
    let now = findings.now;
    if validity.not_after <= now {
        let ago = human(since(validity.not_after, now));
        return CERTIFICATE.failed(
            format!(
                "the certificate in Secret {secret} expired {ago} ago: pods that request a \
                     sidecar are rejected"
            ),
            repair,
        );
    }
    if validity.not_before > now {
        let wait = human(since(now, validity.not_before));
        return CERTIFICATE.failed(
            format!("the certificate in Secret {secret} is not valid yet, only in {wait}"),
            repair,
        );
    }
    let left = since(now, validity.not_after);
    let message = format!(
        "the certificate in Secret {secret} expires in {}",
        human(left)
    );
    if left < SOON {
        return CERTIFICATE.warning(message, repair);
    }
    CERTIFICATE.ok(message)
}

fn trusted(findings: &Findings, found: &Certificate, validity: &Validity) -> CheckResult {
    if validity.distrusted.is_empty() {
        return TRUST.ok("the CA bundle of each webhook verifies the certificate");
    }
    TRUST.failed(
        format!(
            "the CA bundle does not verify the certificate in Secret {}: {}",
            found.secret,
            some_of(&validity.distrusted)
        ),
        format!(
            "kubectl --namespace {} logs deployment/leasehold-operator  # it repairs the CA bundle \
             of its own certificate; write the CA of another issuer into caBundle",
            findings.home()
        ),
    )
}
