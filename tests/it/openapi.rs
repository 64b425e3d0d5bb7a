//! The committed docs/openapi.json is what the code generates (`make generate` writes it anew), and it
//! says what a client generator needs.

use leasehold::http::openapi_document;
use leasehold::protocol::ids::{
    METADATA_KEY_MAX_BYTES, METADATA_MAX_ENTRIES, METADATA_VALUE_MAX_BYTES, OWNER_ID_MAX_BYTES,
    RESOURCE_MAX_BYTES,
};
use serde_json::Value;

use crate::drift::assert_committed;

#[test]
fn the_committed_description_has_not_drifted() {
    assert_committed("docs/openapi.json", &openapi_document());
}

#[test]
fn every_call_is_described_and_every_refusal_has_an_example() {
    let description: Value = serde_json::from_str(&openapi_document()).unwrap();
    assert_eq!(description["openapi"], "3.1.0");
    let calls = [
        ("post", "/v1/locks/acquire"),
        ("post", "/v1/locks/hold"),
        ("get", "/v1/locks/{leaseId}/events"),
        ("post", "/v1/locks/{leaseId}/renew"),
        ("get", "/v1/locks/{leaseId}"),
        ("delete", "/v1/locks/{leaseId}"),
        ("get", "/v1/locks"),
        ("get", "/v1/elections/{name}"),
        ("get", "/v1/elections/{name}/events"),
        ("post", "/v1/elections/{name}/candidacy"),
        ("post", "/v1/fencing/verify"),
        ("get", "/openapi.json"),
    ];
    let mut shown = Vec::new();
    for (method, path) in calls {
        let call = &description["paths"][path][method];
        assert!(call["summary"].is_string(), "{method} {path}");
        for response in call["responses"].as_object().unwrap().values() {
            let examples = &response["content"]["application/problem+json"]["examples"];
            shown.extend(
                examples
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(code, _)| code.clone()),
            );
        }
    }
    let codes = &description["components"]["schemas"]["Problem"]["properties"]["code"]["enum"];
    for code in codes.as_array().unwrap() {
        // These two are about requests that no call is described for.
        let of_no_call = code == "not_found" || code == "method_not_allowed";
        let is_shown = shown.iter().any(|shown| code == shown.as_str());
        assert!(is_shown || of_no_call, "{code} has no example");
    }
}

#[test]
fn the_bounds_are_those_that_are_checked() {
    let description: Value = serde_json::from_str(&openapi_document()).unwrap();
    let fields = &description["components"]["schemas"]["AcquireRequest"]["properties"];
    assert_eq!(fields["resource"]["maxLength"], RESOURCE_MAX_BYTES);
    assert_eq!(fields["ownerId"]["maxLength"], OWNER_ID_MAX_BYTES);
    let of_metadata = fields["metadata"]["description"].as_str().unwrap();
    let numbers: Vec<usize> = of_metadata
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let bounds = [
        METADATA_MAX_ENTRIES,
        METADATA_KEY_MAX_BYTES,
        METADATA_VALUE_MAX_BYTES,
    ];
    assert_eq!(numbers, bounds);
}

#[test]
fn every_reference_leads_somewhere() {
    let description: Value = serde_json::from_str(&openapi_document()).unwrap();
    let mut open = vec![&description];
    let mut references = 0;
    while let Some(value) = open.pop() {
        if let Some(reference) = value["$ref"].as_str() {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(description.pointer(pointer).is_some(), "{reference}");
            references += 1;
        }
        match value {
            Value::Object(members) => open.extend(members.values()),
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    assert!(references > 10);
}
