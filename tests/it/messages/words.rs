//! The rules for words that users read, as far as a program can check them.

use std::collections::BTreeMap;

use super::scan::Log;

/// The most words of a log message. What varies is a field.
const WORDS_MAX: usize = 8;

/// Words and phrases with a standard word in their place. Only those that are wrong wherever they stand.
const RETIRED: &[(&str, &str)] = &[
    ("anew", "again, recreated"),
    ("begun", "started"),
    ("came to nothing", "failed"),
    ("comes to nothing", "failed"),
    ("dead", "expired, crashed"),
    ("died", "failed, crashed"),
    ("gave up", "released"),
    ("give up", "release"),
    ("gives back", "releases"),
    ("gives up", "releases"),
    ("go on", "continue"),
    ("goes on", "continues"),
    ("going on", "continuing"),
    ("hears", "receives"),
    ("heard", "received"),
    ("in line", "queued"),
    ("in vain", "unsuccessfully"),
    ("is no", "is not a"),
    ("let go", "released"),
    ("lets go", "releases"),
    ("looked at", "checked"),
    ("looks at", "checks"),
    ("mend", "fix"),
    ("mended", "fixed"),
    ("nobody", "the caller, no client"),
    ("of use", "useful"),
    ("put right", "fix"),
    ("somebody", "the holder, another client"),
    ("somebody else", "another client"),
    ("the process before", "the previous process"),
    ("there is no", "not found"),
    ("told", "was returned, was notified"),
    ("trouble", "error"),
    ("trying on", "retrying"),
    ("unless said", "default:"),
    ("went on", "continued"),
    ("what it came to", "the result"),
    ("who asks", "the caller"),
    ("whoever", "a client that"),
];

/// Fields that mean the same, of which one spelling is used.
const SPELLINGS: &[(&str, &str)] = &[
    ("addr", "address"),
    ("cause", "reason"),
    ("directoryPath", "directory"),
    ("err", "error"),
    ("fencing", "fencingToken"),
    ("grant", "grantId"),
    ("lease", "leaseId"),
    ("owner", "ownerId"),
    ("path", "file"),
    ("sessionId", "session"),
    ("token", "fencingToken"),
    ("ttl", "ttlSeconds"),
    ("uid", "podUid"),
    ("what", "reason"),
    ("why", "reason"),
];

/// The faults of a log message and of the names of its fields.
pub(super) fn faults_of(log: &Log) -> Vec<String> {
    let mut faults = Vec::new();
    let words = log.message.split_whitespace().count();
    if words > WORDS_MAX {
        faults.push(format!("{words} words, at most {WORDS_MAX}"));
    }
    if log.message.contains(['{', '\n']) {
        faults.push("a value in the message instead of a field".into());
    }
    faults.extend(retired_in(&log.message));
    for field in &log.fields {
        let is_camel_case = field.starts_with(|c: char| c.is_ascii_lowercase())
            && field.chars().all(|c| c.is_ascii_alphanumeric());
        if !is_camel_case {
            faults.push(format!("the field {field} is not lowerCamelCase"));
        }
        let other = SPELLINGS.iter().find(|(wrong, _)| wrong == field);
        faults.extend(other.map(|(wrong, right)| format!("the field {wrong} is spelled {right}")));
    }
    faults
}

/// The fields that differ in the case of their letters alone.
pub(super) fn two_spellings(logs: &[Log]) -> Vec<String> {
    let mut spelled = BTreeMap::<String, &str>::new();
    let mut faults = Vec::new();
    for field in logs.iter().flat_map(|log| &log.fields) {
        let first = *spelled.entry(field.to_lowercase()).or_insert(field);
        if first != field {
            faults.push(format!(
                "the fields {first} and {field} differ in case alone"
            ));
        }
    }
    faults
}

/// The retired words of a text, each with what to write in its place.
pub(crate) fn retired_in(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let is_word = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let has = |phrase: &str| {
        lower.match_indices(phrase).any(|(at, found)| {
            let before = lower[..at].chars().next_back();
            let after = lower[at + found.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
    };
    RETIRED
        .iter()
        .filter(|(phrase, _)| has(phrase))
        .map(|(phrase, instead)| format!("{phrase:?} is retired; write: {instead}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(message: &str, fields: &[&str]) -> Log {
        Log {
            module: "m".into(),
            level: "info".into(),
            message: message.into(),
            fields: fields.iter().map(|&name| name.into()).collect(),
        }
    }

    #[test]
    fn retired_words_are_found_as_whole_words() {
        for text in ["Nobody waits", "it goes on.", "(mend it)", "made anew"] {
            assert_eq!(retired_in(text).len(), 1, "{text}");
        }
        for text in [
            "recommended",
            "renewed",
            "deadline",
            "is not a lock",
            "is no-op",
        ] {
            assert_eq!(retired_in(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn faulty_log_messages_are_found() {
        assert_eq!(
            faults_of(&log("lease lost", &["leaseId", "reason"])),
            Vec::<String>::new()
        );
        for bad in [
            log("one two three four five six seven eight nine", &[]),
            log("lease {id} lost", &[]),
            log("nobody waits", &[]),
            log("lease lost", &["lease_id"]),
            log("lease lost", &["lock.place"]),
            log("lease lost", &["why"]),
        ] {
            assert_eq!(faults_of(&bad).len(), 1, "{bad:?}");
        }
        let two = [log("a", &["leaseId"]), log("b", &["leaseID"])];
        assert_eq!(two_spellings(&two).len(), 1);
    }
}
