//! Finds the log macros in the source.
//!
//! It knows strings, comments and brackets and nothing else of the language. A log macro that it cannot
//! read fails the test: nothing that is logged is missing from the list.

use std::fs;
use std::path::{Path, PathBuf};

const LEVELS: [&str; 5] = ["trace", "debug", "info", "warn", "error"];

/// A macro of `tracing` in shipped code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Log {
    /// The module that its file is, as a log filter spells it, without the crate.
    pub(super) module: String,
    pub(super) level: String,
    pub(super) message: String,
    /// The names of its fields, in their order.
    pub(super) fields: Vec<String>,
}

/// All that shipped code can log, sorted.
pub(super) fn shipped_logs() -> Vec<Log> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut logs = Vec::new();
    for path in sources(&src) {
        let source = fs::read_to_string(&path).unwrap();
        let inside = path.strip_prefix(&src).unwrap().with_extension("");
        let module = inside.to_string_lossy().replace('/', "::");
        let found =
            logs_in(&module, &source).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
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
    // The unit tests of a module have files of their own.
    let is_test = |path: &Path| {
        let inside = path.strip_prefix(root).unwrap_or(path);
        inside
            .iter()
            .any(|part| part == "tests" || part == "tests.rs")
    };
    files.retain(|path| !is_test(path));
    files
}

/// The log macros of one file, in their order.
fn logs_in(module: &str, source: &str) -> Result<Vec<Log>, String> {
    let tokens = shipped(&tokens(source)?);
    let mut logs = Vec::new();
    for (at, window) in tokens.windows(3).enumerate() {
        let [Token::Word(name), Token::Sign('!'), Token::Sign(open)] = window else {
            continue;
        };
        if !"([{".contains(*open) {
            continue;
        }
        let is_of_tracing = tokens[..at].ends_with(&[
            Token::Word("tracing".into()),
            Token::Sign(':'),
            Token::Sign(':'),
        ]);
        if !LEVELS.contains(&name.as_str()) {
            if is_of_tracing || name == "event" {
                return Err(format!("{name}! is a macro that this test cannot read"));
            }
            continue;
        }
        let inside =
            until_closed(&tokens[at + 3..]).ok_or_else(|| format!("{name}! has no end"))?;
        let (message, fields) = read(inside).map_err(|why| format!("{name}!: {why}"))?;
        logs.push(Log {
            module: module.to_owned(),
            level: name.clone(),
            message,
            fields,
        });
    }
    Ok(logs)
}

/// The message and the names of the fields.
fn read(inside: &[Token]) -> Result<(String, Vec<String>), String> {
    let mut fields = Vec::new();
    let mut arguments = arguments(inside).into_iter();
    for argument in arguments.by_ref() {
        match argument {
            [Token::Text(message)] => {
                // What follows the message fills its braces.
                return Ok((message.clone(), fields));
            }
            [Token::Text(name), Token::Sign('='), ..] => fields.push(name.clone()),
            [Token::Sign('%' | '?'), name @ ..] => fields.push(path(name)?),
            name => {
                let end = name.iter().position(|token| *token == Token::Sign('='));
                fields.push(path(&name[..end.unwrap_or(name.len())])?);
            }
        }
    }
    Err("it has no message that is one string".into())
}

/// A field's name: `leaseId`, or `lock.place`.
fn path(tokens: &[Token]) -> Result<String, String> {
    let mut name = String::new();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Word(word) if at % 2 == 0 => name.push_str(word),
            Token::Sign('.') if at % 2 == 1 => name.push('.'),
            other => return Err(format!("{other:?} in the name of a field")),
        }
    }
    if name.is_empty() {
        return Err("a field has no name".into());
    }
    Ok(name)
}

/// Splits at the commas that are in no brackets.
fn arguments(inside: &[Token]) -> Vec<&[Token]> {
    let mut depth = 0_usize;
    let parts = inside.split(|token| {
        match token {
            Token::Sign('(' | '[' | '{') => depth += 1,
            Token::Sign(')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *token == Token::Sign(',')
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// The tokens before the bracket that closes the one before `tokens`.
fn until_closed(tokens: &[Token]) -> Option<&[Token]> {
    let mut depth = 1_usize;
    let end = tokens.iter().position(|token| {
        match token {
            Token::Sign('(' | '[' | '{') => depth += 1,
            Token::Sign(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        depth == 0
    })?;
    Some(&tokens[..end])
}

/// The tokens without the items that are only compiled for tests.
fn shipped(tokens: &[Token]) -> Vec<Token> {
    let word = |name: &str| Token::Word(name.into());
    let cfg_test = [
        Token::Sign('#'),
        Token::Sign('['),
        word("cfg"),
        Token::Sign('('),
        word("test"),
        Token::Sign(')'),
        Token::Sign(']'),
    ];
    let mut kept = Vec::new();
    let mut rest = tokens;
    while let Some(first) = rest.first() {
        let Some(item) = rest.strip_prefix(&cfg_test) else {
            kept.push(first.clone());
            rest = &rest[1..];
            continue;
        };
        // An item ends with a semicolon, or with its block.
        let end = item
            .iter()
            .position(|token| matches!(token, Token::Sign(';' | '{')));
        rest = match end {
            Some(at) if item[at] == Token::Sign('{') => {
                let block = until_closed(&item[at + 1..]).map_or(0, <[Token]>::len);
                &item[(at + block + 2).min(item.len())..]
            }
            Some(at) => &item[at + 1..],
            None => &[],
        };
    }
    kept
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

/// The tokens of a file: comments, spaces, lifetimes and characters in quotes are left out.
fn tokens(source: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            return Err("a comment between /* and */ is nothing that this test reads".into());
        } else if rest.starts_with("r\"") || rest.starts_with("r#\"") {
            let (text, length) = raw_string(rest)?;
            tokens.push(Token::Text(text));
            length
        } else if first == '"' {
            let (text, length) = string(rest)?;
            tokens.push(Token::Text(text));
            length
        } else if first == '\'' {
            quoted(rest)
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            let length = end.unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..length].to_owned()));
            length
        } else {
            if !first.is_whitespace() {
                tokens.push(Token::Sign(first));
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    Ok(tokens)
}

/// The length of a character in quotes, such as `'"'`, or of the apostrophe of a lifetime.
fn quoted(rest: &str) -> usize {
    let mut inside = rest.chars().skip(1);
    let first = inside.next();
    if first == Some('\\') {
        // The character after the backslash may be a quote itself.
        return rest[3..].find('\'').map_or(1, |at| at + 4);
    }
    match (first, inside.next()) {
        (Some(character), Some('\'')) => character.len_utf8() + 2,
        _ => 1,
    }
}

fn raw_string(rest: &str) -> Result<(String, usize), String> {
    let (open, close) = if rest.starts_with("r#") {
        (3, "\"#")
    } else {
        (2, "\"")
    };
    let end = rest[open..].find(close).ok_or("a raw string has no end")?;
    let text = rest[open..open + end].to_owned();
    Ok((text, open + end + close.len()))
}

fn string(rest: &str) -> Result<(String, usize), String> {
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((at, character)) = chars.next() {
        match character {
            '"' => return Ok((text, at + 1)),
            '\\' => match chars.next() {
                // A line break after a backslash, and the indentation after it, are not part of the text.
                Some((_, '\n')) => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                Some((_, 'n')) => text.push('\n'),
                Some((_, other)) => text.push(other),
                None => break,
            },
            other => text.push(other),
        }
    }
    Err("a string has no end".into())
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
            "/* a comment */",
        ] {
            assert!(logs_in("m", source).is_err(), "{source}");
        }
    }

    #[test]
    fn the_shipped_code_is_scanned() {
        let logs = shipped_logs();
        assert!(logs.len() > 100, "{}", logs.len());
        assert!(logs.iter().any(|log| log.module == "agent::acquire"));
    }
}
