//! The patterns of strings in the description: what `checks` accepts beyond the types.
//!
//! `make api-schema` compares the two. JSON Schema counts characters and `checks` counts bytes, and
//! JSON Schema has no pattern for invisible characters beyond U+FFFF. Otherwise they accept the
//! same.

use utoipa::Modify;
use utoipa::openapi::path::{Operation, Parameter};
use utoipa::openapi::schema::{AdditionalProperties, Object, Schema, SchemaType, Type};
use utoipa::openapi::{Content, ObjectBuilder, OneOf, RefOr};

use crate::protocol::election::NAME_MAX_BYTES;
use crate::protocol::ids::{
    METADATA_KEY_MAX_BYTES, METADATA_MAX_ENTRIES, METADATA_VALUE_MAX_BYTES,
};

/// The characters that `is_printable` rejects.
const UNPRINTABLE: &str =
    r"\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff";
/// The other characters that make a text blank.
const INVISIBLE: &str = concat!(
    r" \u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200a\u202f",
    r"\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8",
);
const ASCII: &str = "^[ -~]+$";
/// ASCII with a visible character.
const VISIBLE_ASCII: &str = "^[ -~]*[!-~][ -~]*$";
const ELECTION: &str = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$";
/// Tokens of the API server (base64 in a URL) and of the embedded store; empty for the first page.
const CONTINUE: &str = "^[A-Za-z0-9_=-]*$";

/// Adds the patterns to the description.
pub(super) struct Patterns;

impl Modify for Patterns {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_default();
        for (name, schema) in &mut components.schemas {
            if let (true, RefOr::T(Schema::Object(body))) = (name.ends_with("Request"), schema) {
                describe_body(body);
            }
        }
        for item in openapi.paths.paths.values_mut() {
            super::operations(item).for_each(describe_operation);
        }
    }
}

fn printable() -> String {
    format!("^[^{UNPRINTABLE}]*$")
}

fn visible() -> String {
    format!("^[^{UNPRINTABLE}]*[^{UNPRINTABLE}{INVISIBLE}][^{UNPRINTABLE}]*$")
}

fn describe_body(body: &mut Object) {
    for (name, property) in &mut body.properties {
        let RefOr::T(Schema::Object(property)) = property else {
            continue;
        };
        match name.as_str() {
            "resource" | "ownerId" | "guard" => property.pattern = Some(visible()),
            "requestId" => property.pattern = Some(ASCII.to_owned()),
            "key" => property.pattern = Some(VISIBLE_ASCII.to_owned()),
            "metadata" => describe_metadata(property),
            _ => {}
        }
    }
}

fn describe_metadata(metadata: &mut Object) {
    let text = |most| {
        ObjectBuilder::new()
            .schema_type(SchemaType::new(Type::String))
            .pattern(Some(printable()))
            .max_length(Some(most))
    };
    let key = text(METADATA_KEY_MAX_BYTES).min_length(Some(1)).build();
    let value = text(METADATA_VALUE_MAX_BYTES).build();
    metadata.max_properties = Some(METADATA_MAX_ENTRIES);
    metadata.property_names = Some(Box::new(key.into()));
    let value = AdditionalProperties::RefOr(RefOr::T(value.into()));
    metadata.additional_properties = Some(Box::new(value));
}

fn describe_operation(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter {
            describe_parameter(parameter);
        }
    }
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        body.content.values_mut().for_each(describe_content);
    }
}

/// An optional body is still an object if it is present.
fn describe_content(content: &mut RefOr<Content>) {
    if let RefOr::T(content) = content
        && let Some(RefOr::T(Schema::OneOf(OneOf { items, .. }))) = &content.schema
    {
        let object = items.iter().find(|item| matches!(item, RefOr::Ref(_)));
        content.schema = object.cloned();
    }
}

fn describe_parameter(parameter: &mut Parameter) {
    let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema else {
        return;
    };
    match parameter.name.as_str() {
        "name" => {
            schema.pattern = Some(ELECTION.to_owned());
            schema.max_length = Some(NAME_MAX_BYTES);
        }
        "continue" => schema.pattern = Some(CONTINUE.to_owned()),
        _ => {}
    }
}
