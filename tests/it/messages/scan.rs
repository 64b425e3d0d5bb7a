//! Finds the log macros in the source.
//!
//! It reads the tokens and not the syntax tree, because a tree does not show macros inside
//! `select!`. A log macro that it cannot read fails the test, so no message is missing from the
//! list.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::{Expr, Ident, LitStr, Token};

const LEVELS: [&str; 5] = ["trace", "debug", "info", "warn", "error"];

/// A macro of `tracing` in shipped code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Log {
    /// The module of its file, as a log filter spells it, without the crate.
    pub(super) module: String,
    pub(super) level: String,
    pub(super) message: String,
    /// The names of its fields, in order.
    pub(super) fields: Vec<String>,
}

/// Returns all log macros of the shipped code, sorted.
pub(super) fn shipped_logs() -> Vec<Log> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut logs = Vec::new();
    for path in sources(&src) {
        let source = fs::read_to_string(&path).unwrap();
        let inside = path.strip_prefix(&src).unwrap().with_extension("");
        let module = inside.to_string_lossy().replace('/', "::");
        let found =
            logs_in(&module, &source).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        logs.extend(found);
    }
    logs.sort();
    logs
}

fn sources(root: &Path) -> Vec<PathBuf> {
    let mut open = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    // A module's unit tests are in separate files.
    let is_test = |path: &Path| {
        let inside = path.strip_prefix(root).unwrap_or(path);
        inside
            .iter()
            .any(|part| part == "tests" || part == "tests.rs")
    };
    files.retain(|path| !is_test(path));
    files
}

/// Returns the log macros of one file, in order.
fn logs_in(module: &str, source: &str) -> syn::Result<Vec<Log>> {
    let mut logs = Vec::new();
    collect(module, source.parse()?, &mut logs)?;
    Ok(logs)
}

/// Adds the log macros among these tokens, including those in brackets.
fn collect(module: &str, tokens: TokenStream, logs: &mut Vec<Log>) -> syn::Result<()> {
    let tokens = shipped(tokens);
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else {
            continue;
        };
        let name = match &tokens[..at] {
            [.., TokenTree::Ident(name), TokenTree::Punct(sign)] if sign.as_char() == '!' => name,
            _ => {
                collect(module, group.stream(), logs)?;
                continue;
            }
        };
        let level = name.to_string();
        if LEVELS.contains(&level.as_str()) {
            let Arguments { message, fields } = syn::parse2(group.stream())?;
            logs.push(Log {
                module: module.to_owned(),
                level,
                message,
                fields,
            });
        } else if is_of_tracing(&tokens[..at - 2]) || level == "event" {
            let error = format!("{name}! is a macro that this test cannot read");
            return Err(syn::Error::new(name.span(), error));
        } else {
            collect(module, group.stream(), logs)?;
        }
    }
    Ok(())
}

fn is_of_tracing(before: &[TokenTree]) -> bool {
    matches!(
        before,
        [.., TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Punct(sign)]
            if name == "tracing" && sign.as_char() == ':'
    )
}

/// The message of a log macro, and the names of its fields.
struct Arguments {
    message: String,
    fields: Vec<String>,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut fields = Vec::new();
        loop {
            if input.peek(LitStr) {
                let text = input.parse::<LitStr>()?.value();
                if !input.peek(Token![=]) {
                    // The rest are the arguments of the message.
                    input.parse::<TokenStream>()?;
                    return Ok(Self {
                        message: text,
                        fields,
                    });
                }
                fields.push(text);
                value(input)?;
            } else {
                let has_sigil = sigil(input)?;
                fields.push(path(input)?);
                if !has_sigil && input.peek(Token![=]) {
                    value(input)?;
                }
            }
            input.parse::<Token![,]>()?;
        }
    }
}

/// Skips the `%` or `?` before a field or a value.
fn sigil(input: ParseStream<'_>) -> syn::Result<bool> {
    Ok(input.parse::<Option<Token![%]>>()?.is_some()
        || input.parse::<Option<Token![?]>>()?.is_some())
}

fn value(input: ParseStream<'_>) -> syn::Result<()> {
    input.parse::<Token![=]>()?;
    sigil(input)?;
    input.parse::<Expr>().map(drop)
}

/// A field's name: `leaseId`, or `lock.place`.
fn path(input: ParseStream<'_>) -> syn::Result<String> {
    let mut name = Ident::parse_any(input)?.to_string();
    while input.parse::<Option<Token![.]>>()?.is_some() {
        name.push('.');
        name.push_str(&Ident::parse_any(input)?.to_string());
    }
    Ok(name)
}

/// Returns the tokens without the items that are compiled only for tests.
fn shipped(tokens: TokenStream) -> Vec<TokenTree> {
    let mut kept = Vec::new();
    let mut tokens = tokens.into_iter();
    while let Some(token) = tokens.next() {
        let is_for_tests = matches!(&token, TokenTree::Group(group) if is_cfg_test(group.stream()));
        if !is_for_tests {
            kept.push(token);
            continue;
        }
        // An item ends with a semicolon, or with its block.
        let _item = tokens.find(|token| match token {
            TokenTree::Punct(sign) => sign.as_char() == ';',
            TokenTree::Group(group) => group.delimiter() == proc_macro2::Delimiter::Brace,
            _ => false,
        });
    }
    kept
}

fn is_cfg_test(attribute: TokenStream) -> bool {
    let arguments = |input: ParseStream<'_>| {
        let name: Ident = input.parse()?;
        let inside;
        syn::parenthesized!(inside in input);
        let condition: Ident = inside.parse()?;
        Ok(name == "cfg" && condition == "test" && inside.is_empty() && input.is_empty())
    };
    arguments.parse2(attribute).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(level: &str, message: &str, fields: &[&str]) -> Log {
        Log {
            module: "m".into(),
            level: level.into(),
            message: message.into(),
            fields: fields.iter().map(|&name| name.into()).collect(),
        }
    }

    #[test]
    fn scanner_reads_a_macro_of_many_lines() {
        let source = r#"
            // info!("in a comment")
            let quote = '"'; let escaped = '\''; let name: &'static str = "info!(\"in text\")";
            tracing::warn!(
                resource = %view.resource,
                leaseId = call(a, [b, "text"]),
                ?actor,
                %error,
                "lease \
                 lost",
            );
            info!("stopped: {}", 3);
            fn plain(error: &Error) -> bool { error != other }
        "#;
        let fields = ["resource", "leaseId", "actor", "error"];
        let expected = [
            log("warn", "lease lost", &fields),
            log("info", "stopped: {}", &[]),
        ];
        assert_eq!(logs_in("m", source).unwrap(), expected);
    }

    #[test]
    fn scanner_skips_test_only_code() {
        let source = r#"
            #[cfg(test)]
            use a::{b};
            #[cfg(test)]
            fn only_for_tests() { if true { info!("one") } }
            info!("two");
            #[cfg(test)]
            mod tests { fn f() { info!("three"); } }
        "#;
        assert_eq!(logs_in("m", source).unwrap(), [log("info", "two", &[])]);
    }

    #[test]
    fn scanner_fails_on_unreadable_calls() {
        for source in [
            "info!(resource = 3)",
            "info!(message)",
            "info!(concat!(\"a\", \"b\"))",
            "info!(target: \"t\", \"message\")",
            "tracing::event!(Level::INFO, \"message\")",
            "event!(Level::INFO, \"message\")",
            "tracing::info_span!(\"span\")",
            "info!(\"message\"",
        ] {
            assert!(logs_in("m", source).is_err(), "{source}");
        }
    }

    #[test]
    fn the_shipped_code_is_scanned() {
        let logs = shipped_logs();
        assert!(logs.len() > 100, "{}", logs.len());
        assert!(logs.iter().any(|log| log.module == "agent::driver::report"));
    }
}
