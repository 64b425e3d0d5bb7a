//! The committed docs/openapi.json is the generated one (`make generate` rewrites it), and contains
//! what a client generator needs.

use leasehold::http::openapi_document;
use leasehold::protocol::ids::{
    METADATA_KEY_MAX_BYTES, METADATA_MAX_ENTRIES, METADATA_VALUE_MAX_BYTES, OWNER_ID_MAX_BYTES,
    RESOURCE_MAX_BYTES,
};
use serde_json::Value;

use crate::drift::{assert_committed, assert_committed_part};

#[test]
fn the_committed_description_has_not_drifted() {
    assert_committed("docs/openapi.json", &openapi_document());
}

/// The table of calls in the documentation.
#[test]
fn documented_calls_have_not_drifted() {
    let description: Value = serde_json::from_str(&openapi_document()).unwrap();
    let mut table = String::from("| call | does | takes | answers |\n| --- | --- | --- | --- |\n");
    for (path, calls) in description["paths"].as_object().unwrap() {
        for (method, call) in calls.as_object().unwrap() {
            let row = [
                format!("`{} {path}`", method.to_uppercase()),
                call["summary"].as_str().unwrap().to_owned(),
                taken_by(&description, call),
                answers_of(call),
            ];
            table = table + "| " + &row.join(" | ") + " |\n";
        }
    }
    assert_committed_part("docs/http-api.md", "calls", &table);
}

/// Returns the fields of a call's body and query; `?` marks optional ones.
fn taken_by(description: &Value, call: &Value) -> String {
    let content = &call["requestBody"]["content"]["application/json"]["schema"];
    let schema = one_of(content)
        .and_then(|schema| schema["$ref"].as_str())
        .and_then(|reference| reference.strip_prefix('#'))
        .and_then(|pointer| description.pointer(pointer));
    let required = |field: &str| {
        let required = schema.and_then(|schema| schema["required"].as_array());
        required.is_some_and(|all| all.iter().any(|name| name == field))
    };
    let fields = schema.and_then(|schema| schema["properties"].as_object());
    let fields = fields.into_iter().flat_map(|fields| fields.keys());
    let fields = fields.map(|field| {
        let mark = if required(field) { "" } else { "?" };
        format!("`{field}{mark}`")
    });
    let query = call["parameters"].as_array().into_iter().flatten();
    let query = query.filter(|parameter| parameter["in"] == "query");
    let query = query.filter_map(|parameter| Some(format!("`?{}=`", parameter["name"].as_str()?)));
    fields.chain(query).collect::<Vec<_>>().join(", ")
}

/// Returns a schema, or its alternative that is not `null`.
fn one_of(schema: &Value) -> Option<&Value> {
    let Some(alternatives) = schema["oneOf"].as_array() else {
        return Some(schema);
    };
    alternatives.iter().find(|one| one["type"] != "null")
}

/// Returns the statuses of a call, each refusal with its codes.
fn answers_of(call: &Value) -> String {
    let responses = call["responses"].as_object().unwrap();
    let answers = responses.iter().map(|(status, response)| {
        let examples = &response["content"]["application/problem+json"]["examples"];
        let codes = examples.as_object().into_iter().flatten();
        let codes: Vec<_> = codes.map(|(code, _)| format!("`{code}`")).collect();
        format!("{status} {}", codes.join(" "))
            .trim_end()
            .to_owned()
    });
    answers.collect::<Vec<_>>().join(", ")
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
        ("post", "/v1/locks/{leaseId}/complete"),
        ("get", "/v1/locks/{leaseId}"),
        ("delete", "/v1/locks/{leaseId}"),
        ("get", "/v1/locks"),
        ("get", "/v1/elections/{name}"),
        ("get", "/v1/elections/{name}/events"),
        ("post", "/v1/elections/{name}/candidacy"),
        ("post", "/v1/fencing/verify"),
        ("post", "/v1/fencing/verify-batch"),
        ("post", "/v1/fencing/refusals"),
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
        // These two are for requests outside the described calls.
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
fn every_reference_resolves() {
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
