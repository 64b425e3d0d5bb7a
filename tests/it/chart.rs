//! The chart's own files, without Helm: versions agree, and each value is described, checked by the schema and has a
//! default. `tests/chart/check.sh` compares the rendered files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

const VALUES: &str = "charts/leasehold/values.yaml";
const SCHEMA: &str = "charts/leasehold/values.schema.json";

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart: Value = serde_yaml::from_str(&read("charts/leasehold/Chart.yaml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(chart["version"], version);
    assert_eq!(chart["appVersion"], version);
    let images = &chart["annotations"]["artifacthub.io/images"];
    let image = format!("image: ghcr.io/leasehold/leasehold:{version}\n");
    assert!(images.as_str().unwrap().contains(&image), "{images}");
}

#[test]
fn schema_has_exactly_the_values_of_the_chart() {
    let schema: Value = serde_json::from_str(&read(SCHEMA)).unwrap();
    let values: Value = serde_yaml::from_str(&read(VALUES)).unwrap();
    assert_eq!(known(&schema, ""), set(&values, &schema, ""));
}

/// Returns the paths of a schema. An open object, such as labels, counts as one.
fn known(schema: &Value, path: &str) -> BTreeSet<String> {
    let Some(properties) = fields(schema) else {
        return BTreeSet::from([path.to_owned()]);
    };
    // Parent charts may put their own values into `global`.
    let is_closed = schema["additionalProperties"] == false;
    assert!(is_closed || path == ".global", "{path} takes anything");
    let deeper = properties
        .iter()
        .map(|(name, schema)| known(schema, &format!("{path}.{name}")));
    deeper.flatten().collect()
}

/// Returns the paths that have a default, as deep as the schema goes.
fn set(value: &Value, schema: &Value, path: &str) -> BTreeSet<String> {
    let (Some(values), Some(properties)) = (value.as_object(), fields(schema)) else {
        return BTreeSet::from([path.to_owned()]);
    };
    let deeper = values.iter().map(|(name, value)| {
        let path = format!("{path}.{name}");
        set(value, properties.get(name).unwrap_or(&Value::Null), &path)
    });
    deeper.flatten().collect()
}

/// Returns the fields that a schema lists. An object behind a `$ref`, such as an issuer, is set as
/// a whole.
fn fields(schema: &Value) -> Option<&serde_json::Map<String, Value>> {
    schema["properties"].as_object()
}

#[test]
fn each_value_is_described() {
    let schema: Value = serde_json::from_str(&read(SCHEMA)).unwrap();
    let mut silent = known(&schema, "");
    let text = read(VALUES);
    let mut path: Vec<&str> = Vec::new();
    let mut is_described = false;
    for line in text.lines() {
        let words = line.trim_start();
        if let Some(comment) = words.strip_prefix('#') {
            is_described |= comment.starts_with(" -- ");
            continue;
        }
        path.truncate((line.len() - words.len()) / 2);
        path.extend(words.split(':').next());
        if is_described {
            silent.remove(&format!(".{}", path.join(".")));
        }
        is_described = false;
    }
    assert_eq!(silent, BTreeSet::new());
}
