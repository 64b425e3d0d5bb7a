//! `--sort-by`: objects in the order of a field's values.
//!
//! Values of different types never compare as equal or at random: the order is missing, bool,
//! number, string, everything else. So a hostile object cannot make the order inconsistent.

use std::cmp::Ordering;

use serde_json::{Number, Value};

use super::jsonpath::Path;

/// No object has the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("couldn't find any field with path {path:?} in the list of objects")]
pub struct FieldNotFound {
    /// The path as the user wrote it.
    pub path: String,
}

/// Sorts items by the first value that `path` finds in their objects: numbers by value, strings
/// (so also timestamps) by their characters, objects without the field first. Items with equal
/// values keep their order. An error leaves the items as they were.
pub fn sort_by<T>(
    items: &mut [T],
    path: &Path,
    object: impl Fn(&T) -> &Value,
) -> Result<(), FieldNotFound> {
    let has_field = |item: &T| !path.find(object(item)).is_empty();
    if !items.is_empty() && !items.iter().any(has_field) {
        return Err(FieldNotFound {
            path: path.to_string(),
        });
    }
    items.sort_by_cached_key(|item| Key::of(path.find(object(item)).first().copied()));
    Ok(())
}

/// A value to compare. The order of the variants is the order of the types.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Missing,
    Bool(bool),
    Number(NumberKey),
    Text(String),
    /// An object or an array, as JSON: the order has no meaning but is always the same.
    Other(String),
}

impl Key {
    fn of(value: Option<&Value>) -> Self {
        match value {
            None | Some(Value::Null) => Self::Missing,
            Some(Value::Bool(value)) => Self::Bool(*value),
            Some(Value::Number(number)) => Self::Number(NumberKey::of(number)),
            Some(Value::String(text)) => Self::Text(text.clone()),
            Some(other) => Self::Other(other.to_string()),
        }
    }
}

/// A number. Two integers that one double represents differ in `exact`. A comparison of doubles
/// first keeps the order total, also between integers and fractions.
#[derive(Debug)]
struct NumberKey {
    double: f64,
    exact: i128,
}

impl NumberKey {
    fn of(number: &Number) -> Self {
        Self {
            double: number.as_f64().unwrap_or_default(),
            exact: number.as_i128().unwrap_or_default(),
        }
    }
}

impl Ord for NumberKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let doubles = self.double.total_cmp(&other.double);
        doubles.then_with(|| self.exact.cmp(&other.exact))
    }
}

impl PartialOrd for NumberKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for NumberKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for NumberKey {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the names of the objects after the sort, which are `a`, `b`, … before.
    fn sorted(values: &[Value]) -> String {
        let mut objects: Vec<_> = ('a'..)
            .zip(values)
            .map(|(name, value)| (name, json!({"v": value})))
            .collect();
        let path = Path::relaxed(".v").unwrap();
        sort_by(&mut objects, &path, |(_, object)| object).unwrap();
        objects.iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn numbers_are_sorted_by_value() {
        assert_eq!(sorted(&[json!(10), json!(9), json!(-1)]), "cba");
        assert_eq!(sorted(&[json!(2), json!(1.5), json!(1)]), "cba");
    }

    #[test]
    fn large_tokens_are_sorted_exactly() {
        let large = 1_u64 << 60;
        assert_eq!(sorted(&[json!(large + 2), json!(large + 1)]), "ba");
    }

    #[test]
    fn timestamps_and_strings_are_sorted_by_character() {
        let times = ["2026-01-02T00:00:00Z", "2025-12-31T23:59:59Z"].map(Value::from);
        assert_eq!(sorted(&times), "ba");
        assert_eq!(sorted(&[json!("10"), json!("9")]), "ab");
    }

    #[test]
    fn objects_without_the_field_come_first() {
        let values = [json!("x"), Value::Null, json!("a")];
        assert_eq!(sorted(&values), "bca");
        let mut objects = [json!({"v": 1}), json!({"w": 1})];
        let path = Path::relaxed("{.v}").unwrap();
        sort_by(&mut objects, &path, |object| object).unwrap();
        assert_eq!(objects[0], json!({"w": 1}));
    }

    #[test]
    fn equal_objects_keep_their_order() {
        assert_eq!(sorted(&[json!(1), json!(1), json!(0), json!(1)]), "cabd");
    }

    #[test]
    fn types_have_a_fixed_order() {
        let values = [
            json!({}),
            json!("1"),
            json!(1.5),
            json!(true),
            Value::Null,
            json!([]),
        ];
        assert_eq!(sorted(&values), "edcbfa");
    }

    #[test]
    fn field_that_no_object_has_is_an_error() {
        let mut objects = [json!({"v": 1})];
        let path = Path::relaxed(".missing").unwrap();
        let error = sort_by(&mut objects, &path, |object| object).unwrap_err();
        assert_eq!(
            error.to_string(),
            "couldn't find any field with path \".missing\" in the list of objects"
        );
        assert_eq!(sort_by(&mut [], &path, |object| object), Ok(()));
    }
}
