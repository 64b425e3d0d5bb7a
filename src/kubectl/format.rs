//! The output formats of `kubectl leasehold`, as kubectl prints them: the flag `-o`, tables, JSON,
//! YAML, names, JSONPath templates, custom columns, `--sort-by` and durations.
//!
//! Everything is pure: values go in, text comes out. The caller reads the clock, finds out whether
//! it writes to a terminal, and prints. Tables escape control characters. The machine-readable
//! formats print values as they are, because scripts need them unchanged.

pub mod columns;
pub mod human;
pub mod jsonpath;
pub mod object;
pub mod sort;
pub mod table;

use std::str::FromStr;

use columns::{Columns, ColumnsError};
use jsonpath::{JsonPathError, Template};

/// The value of the flag `-o`. A command without the flag prints its table.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// The objects as JSON.
    Json,
    /// The objects as YAML.
    Yaml,
    /// The table with all its columns.
    Wide,
    /// One `kind.group/name` a line.
    Name,
    /// A JSONPath template, executed on the object or on the list.
    JsonPath(Template),
    /// A table whose columns the user defines.
    CustomColumns(Columns),
}

/// The value of `-o` is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// The format is unknown.
    #[error(
        "unable to match a printer suitable for the output format {0:?}, allowed formats are: \
         custom-columns,json,jsonpath,name,wide,yaml"
    )]
    Unknown(String),
    /// `jsonpath` has no template.
    #[error("template format specified but no template given; use -o jsonpath='{{.path}}'")]
    NoTemplate,
    /// The template of `jsonpath` is invalid.
    #[error(transparent)]
    JsonPath(#[from] JsonPathError),
    /// The columns of `custom-columns` are invalid.
    #[error(transparent)]
    CustomColumns(#[from] ColumnsError),
}

impl FromStr for Output {
    type Err = OutputError;

    fn from_str(flag: &str) -> Result<Self, OutputError> {
        let (format, argument) = match flag.split_once('=') {
            Some((format, argument)) => (format, Some(argument)),
            None => (flag, None),
        };
        match (format.to_ascii_lowercase().as_str(), argument) {
            ("json", None) => Ok(Self::Json),
            ("yaml", None) => Ok(Self::Yaml),
            ("wide", None) => Ok(Self::Wide),
            ("name", None) => Ok(Self::Name),
            ("jsonpath", None | Some("")) => Err(OutputError::NoTemplate),
            ("jsonpath", Some(template)) => Ok(Self::JsonPath(template.parse()?)),
            ("custom-columns", spec) => Ok(Self::CustomColumns(spec.unwrap_or_default().parse()?)),
            _ => Err(OutputError::Unknown(flag.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(flag: &str) -> String {
        flag.parse::<Output>().unwrap_err().to_string()
    }

    #[test]
    fn plain_formats_are_parsed() {
        assert_eq!("json".parse(), Ok(Output::Json));
        assert_eq!("YAML".parse(), Ok(Output::Yaml));
        assert_eq!("wide".parse(), Ok(Output::Wide));
        assert_eq!("name".parse(), Ok(Output::Name));
    }

    #[test]
    fn formats_with_an_argument_are_parsed() {
        let template = "{.a}{\"=\"}".parse().unwrap();
        assert_eq!(
            "jsonpath={.a}{\"=\"}".parse(),
            Ok(Output::JsonPath(template))
        );
        let columns = "NAME:.metadata.name".parse().unwrap();
        assert_eq!(
            "custom-columns=NAME:.metadata.name".parse(),
            Ok(Output::CustomColumns(columns))
        );
    }

    #[test]
    fn unknown_format_is_answered_with_the_allowed_ones() {
        for flag in ["x", "", "json=x", "jsonpath-file=x"] {
            assert_eq!(
                error(flag),
                format!(
                    "unable to match a printer suitable for the output format {flag:?}, allowed \
                     formats are: custom-columns,json,jsonpath,name,wide,yaml"
                )
            );
        }
    }

    #[test]
    fn format_without_its_argument_is_rejected() {
        assert!(error("jsonpath").starts_with("template format specified but no template given"));
        assert!(error("jsonpath=").starts_with("template format specified but no template given"));
        assert!(error("custom-columns").starts_with("custom-columns format specified but no"));
    }

    #[test]
    fn error_in_a_template_is_shown() {
        assert_eq!(
            error("jsonpath={.a"),
            "invalid JSONPath \"{.a\": expected } at the end"
        );
    }
}
