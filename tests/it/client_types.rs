//! The committed types of the clients are those of docs/openapi.json (`make generate` rewrites them).
//!
//! Only what the clients send and read is generated: one file for each language, in its own style.

mod go;
mod java;
mod python;
mod rust;
mod typescript;

use std::collections::BTreeMap;

use leasehold::http::openapi_document;
use serde_json::Value;

use crate::drift::assert_committed;

/// What the clients send.
const SENT: [&str; 4] = [
    "AcquireRequest",
    "CandidacyRequest",
    "CompleteRequest",
    "HoldRequest",
];
/// What the clients read. A problem is read field by field: another server's may lack any.
const READ: [&str; 7] = [
    "Acquired",
    "HeartbeatEvent",
    "Holder",
    "Lease",
    "LostEvent",
    "ReleaseRequested",
    "ReleaseRequestedEvent",
];
/// The longest line of each language.
const WIDTH: usize = 100;

/// What is generated.
struct Types {
    records: Vec<Record>,
    /// What each code of a problem means.
    outcomes: BTreeMap<String, String>,
}

/// A JSON object.
struct Record {
    name: String,
    description: String,
    fields: Vec<Field>,
    is_sent: bool,
}

struct Field {
    name: String,
    description: String,
    kind: Kind,
    is_optional: bool,
}

/// The type of a field.
enum Kind {
    Text,
    Integer,
    Flag,
    Texts,
    /// An object whose values are texts.
    Map,
    /// Another record.
    Record(String),
}

#[test]
fn types_of_the_clients_have_not_drifted() {
    let description: Value = serde_json::from_str(&openapi_document()).unwrap();
    let types = Types::of(&description["components"]["schemas"]);
    let files = [
        ("clients/go/internal/api/api.go", go::print(&types)),
        (
            "clients/java/src/main/java/dev/leasehold/Api.java",
            java::print(&types),
        ),
        (
            "clients/python/src/leasehold/_api.py",
            python::print(&types),
        ),
        ("clients/rust/src/api.rs", rust::print(&types)),
        ("clients/typescript/src/api.ts", typescript::print(&types)),
    ];
    for (file, generated) in files {
        assert_committed(file, &generated);
    }
}

impl Types {
    fn of(schemas: &Value) -> Self {
        let sent = SENT.map(|name| Record::of(schemas, name, true));
        let read = READ.map(|name| Record::of(schemas, name, false));
        let code = &schemas["Problem"]["properties"]["code"];
        let outcomes = code["x-outcomes"].as_object().unwrap();
        let outcomes = outcomes
            .iter()
            .map(|(code, outcome)| (code.clone(), text(outcome)));
        Self {
            records: sent.into_iter().chain(read).collect(),
            outcomes: outcomes.collect(),
        }
    }
}

impl Record {
    fn of(schemas: &Value, name: &str, is_sent: bool) -> Self {
        let schema = &schemas[name];
        let mut fields = Vec::new();
        add_fields(schemas, schema, &mut fields);
        Self {
            name: name.to_owned(),
            description: text(&schema["description"]),
            fields,
            is_sent,
        }
    }
}

/// Adds the fields of a schema, and of the schemas that it extends.
fn add_fields(schemas: &Value, schema: &Value, to: &mut Vec<Field>) {
    for part in schema["allOf"].as_array().into_iter().flatten() {
        let extended = reference(part).map_or(part, |name| &schemas[name]);
        add_fields(schemas, extended, to);
    }
    let required = schema["required"].as_array();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        to.push(Field {
            name: name.clone(),
            description: text(&property["description"]),
            kind: kind(property),
            is_optional: !required.is_some_and(|all| all.iter().any(|one| one == name)),
        });
    }
}

/// Returns the type of a property. Each may be null if it is optional.
fn kind(property: &Value) -> Kind {
    if let Some(name) = reference(property) {
        return Kind::Record(name.to_owned());
    }
    let types = &property["type"];
    let name = types.as_str().or_else(|| types[0].as_str());
    match name.unwrap() {
        "string" => Kind::Text,
        "integer" => Kind::Integer,
        "boolean" => Kind::Flag,
        "array" if property["items"]["type"] == "string" => Kind::Texts,
        "object" if property["additionalProperties"]["type"] == "string" => Kind::Map,
        _ => panic!("no client has a type for {property}"),
    }
}

fn reference(schema: &Value) -> Option<&str> {
    let path = schema["$ref"].as_str()?;
    path.strip_prefix("#/components/schemas/")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().replace('\n', " ")
}

/// Returns a text as lines that begin with `prefix`.
fn comment(prefix: &str, text: &str) -> String {
    let mut lines = String::new();
    let mut line = prefix.to_owned();
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > WIDTH && line != prefix {
            lines = lines + &line + "\n";
            prefix.clone_into(&mut line);
        }
        line = line + " " + word;
    }
    lines + &line + "\n"
}

/// Returns `a_name` of `aName`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// Returns `AName` of `a_name` or `aName`.
fn pascal_case(name: &str) -> String {
    let words = name.split('_').map(|word| {
        let (first, rest) = word.split_at(1);
        first.to_uppercase() + rest
    });
    words.collect()
}
