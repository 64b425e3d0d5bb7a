//! Shell completion, for kubectl: it calls `kubectl_complete-leasehold` with the words of the command line, the last one
//! perhaps begun, and reads a candidate in each line and then `:4` (no file names), as Cobra's completion prints them.
//!
//! An error makes no candidates: a shell has no place to show it.

use std::time::Duration;

use clap::{Arg, CommandFactory as _, FromArgMatches as _};
use kube::config::Kubeconfig;
use serde_json::Value;

use super::api::{Api, locks};
use super::flags::ClusterFlags;
use super::{Plugin, terminal};

/// How long a shell waits for names at most.
const PATIENCE: Duration = Duration::from_secs(3);
/// The number of names that are still of use to a person.
const NAMES_MAX: usize = 500;

/// What can be written at the end of a command line.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// One of these, each with what it means.
    Words(Vec<(String, String)>),
    /// The name of a lock object.
    Locks,
    /// A resource, or its beginning.
    Resources,
    /// The name of a pod that holds or waits.
    Pods,
    /// The name of a namespace.
    Namespaces,
    /// The name of a context of the kubeconfig.
    Contexts,
    /// Nothing that is known.
    Nothing,
}

/// Prints the candidates for the last of `words`.
pub(super) fn run(words: &[String]) {
    let command = Plugin::command();
    let begun = begun(words);
    let candidates = match wanted(&command, words) {
        Wanted::Words(words) => words,
        Wanted::Nothing => Vec::new(),
        Wanted::Contexts => contexts(),
        names => {
            let runtime = terminal::runtime();
            let found = runtime.map(|runtime| {
                let names = names_of(&names, words);
                runtime.block_on(async { tokio::time::timeout(PATIENCE, names).await })
            });
            found
                .ok()
                .and_then(Result::ok)
                .flatten()
                .unwrap_or_default()
        }
    };
    let fitting = candidates
        .iter()
        .filter(|(word, _)| word.starts_with(begun));
    let lines = fitting.take(NAMES_MAX).map(|(word, about)| {
        if about.is_empty() {
            format!("{word}\n")
        } else {
            format!("{word}\t{about}\n")
        }
    });
    let text: String = lines.chain([":4\n".to_owned()]).collect();
    // A shell that has left reads nothing.
    let _unheard = terminal::print(&text);
}

/// Returns the word to complete. The value of `--flag=value` is a word of its own, and the shell keeps what is before it.
fn begun(words: &[String]) -> &str {
    let last = words.last().map_or("", String::as_str);
    let value = last
        .strip_prefix("--")
        .and_then(|flag| flag.split_once('='));
    value.map_or(last, |(_, value)| value)
}

/// Returns what the last of `words` can be.
fn wanted(plugin: &clap::Command, words: &[String]) -> Wanted {
    let (begun, before) = words
        .split_last()
        .map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let mut command = plugin;
    // The flag whose value is expected, and how many arguments the command has already.
    let (mut flag, mut arguments, mut only_arguments) = (None, 0, false);
    for word in before {
        if flag.take().is_some() {
        } else if only_arguments || !word.starts_with('-') {
            match plugin
                .find_subcommand(word)
                .filter(|_| std::ptr::eq(command, plugin))
            {
                Some(found) => command = found,
                None => arguments += 1,
            }
        } else if word == "--" {
            only_arguments = true;
        } else if !word.contains('=') {
            flag = flag_of(plugin, command, word).filter(|arg| arg.get_action().takes_values());
        }
    }
    if let Some(flag) = flag {
        return values_of(flag);
    }
    if !only_arguments
        && begun.starts_with("--")
        && let Some((name, _)) = begun.split_once('=')
    {
        return flag_of(plugin, command, name).map_or(Wanted::Nothing, values_of);
    }
    if begun.starts_with('-') && !only_arguments {
        return Wanted::Words(flags_of(plugin, command));
    }
    if std::ptr::eq(command, plugin) {
        return Wanted::Words(commands_of(plugin));
    }
    command
        .get_positionals()
        .nth(arguments)
        .map_or(Wanted::Nothing, values_of)
}

fn flag_of<'a>(
    plugin: &'a clap::Command,
    command: &'a clap::Command,
    word: &str,
) -> Option<&'a Arg> {
    let matches = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short() == word[1..].chars().last(),
    };
    command
        .get_arguments()
        .chain(plugin.get_arguments())
        .find(matches)
}

fn flags_of(plugin: &clap::Command, command: &clap::Command) -> Vec<(String, String)> {
    let own = command.get_arguments();
    let global = plugin
        .get_arguments()
        .filter(|_| !std::ptr::eq(command, plugin));
    let flags = own
        .chain(global)
        .filter_map(|arg| Some((arg.get_long()?, arg)));
    flags
        .map(|(long, arg)| (format!("--{long}"), first_line(arg.get_help())))
        .collect()
}

fn commands_of(plugin: &clap::Command) -> Vec<(String, String)> {
    let shown = plugin
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    shown
        .map(|command| {
            (
                command.get_name().to_owned(),
                first_line(command.get_about()),
            )
        })
        .collect()
}

fn first_line(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Returns the values of a flag or an argument, which are known by its name.
fn values_of(arg: &Arg) -> Wanted {
    let words = |words: &[&str]| {
        Wanted::Words(
            words
                .iter()
                .map(|word| ((*word).to_owned(), String::new()))
                .collect(),
        )
    };
    let possible = arg.get_possible_values();
    if !possible.is_empty() && arg.get_action().takes_values() {
        let each = possible
            .iter()
            .map(|value| (value.get_name().to_owned(), first_line(value.get_help())));
        return Wanted::Words(each.collect());
    }
    match arg.get_id().as_str() {
        "lock" => Wanted::Locks,
        "prefix" => Wanted::Resources,
        "pod" => Wanted::Pods,
        "namespace" => Wanted::Namespaces,
        "context" => Wanted::Contexts,
        "condition" => words(&["free", "held", "holder="]),
        "output" => words(&[
            "json",
            "yaml",
            "wide",
            "name",
            "jsonpath=",
            "custom-columns=",
        ]),
        _ => Wanted::Nothing,
    }
}

fn contexts() -> Vec<(String, String)> {
    let contexts = Kubeconfig::read()
        .map(|file| file.contexts)
        .unwrap_or_default();
    contexts
        .into_iter()
        .map(|context| (context.name, String::new()))
        .collect()
}

/// Reads names from the API server, with the flags among the words before.
async fn names_of(wanted: &Wanted, words: &[String]) -> Option<Vec<(String, String)>> {
    let parsed = Plugin::command()
        .ignore_errors(true)
        .try_get_matches_from(std::iter::once("kubectl").chain(words.iter().map(String::as_str)));
    let flags = ClusterFlags::from_arg_matches(&parsed.ok()?).ok()?;
    let api = Api::connect(&flags).await.ok()?;
    let begun = begun(words);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut names = Vec::new();
    if *wanted == Wanted::Namespaces {
        let take = |object: Value| names.push((text(&object["metadata"]["name"]), String::new()));
        api.each("/api/v1/namespaces", "", take).await.ok()?;
        return Some(names);
    }
    let take = |object: Value| match wanted {
        Wanted::Resources => names.push((text(&object["spec"]["resource"]), String::new())),
        Wanted::Pods => {
            let status = &object["status"];
            let waiters = status["waiters"].as_array();
            let parties = waiters.into_iter().flatten().chain([&status["holder"]]);
            names.extend(parties.map(|party| (text(&party["pod"]), String::new())));
        }
        _ => {
            let (name, resource) = (
                text(&object["metadata"]["name"]),
                text(&object["spec"]["resource"]),
            );
            // A resource is offered, too, where its object has another name that was not begun.
            if !name.starts_with(begun) && resource.starts_with(begun) {
                names.push((resource, String::new()));
            } else {
                names.push((name, resource));
            }
        }
    };
    api.each(&locks(Some(&api.namespace)), "", take)
        .await
        .ok()?;
    names.retain(|(name, about)| is_harmless(name) && !name.is_empty() && is_harmless(about));
    for (name, about) in &mut names {
        if about == name {
            about.clear();
        }
    }
    names.sort();
    names.dedup();
    Some(names)
}

/// Returns whether a shell takes the text for what it is. kubectl's script for bash expands each candidate as a word, so a
/// resource `$(command)` would be executed.
fn is_harmless(text: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.:/@%+=,".contains(c);
    text.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted_after(line: &str) -> Wanted {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        wanted(&Plugin::command(), &words)
    }

    fn words_after(line: &str) -> Vec<String> {
        match wanted_after(line) {
            Wanted::Words(words) => words.into_iter().map(|(word, _)| word).collect(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn commands_are_completed_where_one_is_missing() {
        for line in ["", "wh", "-n team-a ", "--namespace=team-a "] {
            assert!(words_after(line).contains(&"why".to_owned()), "{line}");
        }
    }

    #[test]
    fn arguments_are_completed_by_what_they_name() {
        for (line, expected) in [
            ("why ", Wanted::Locks),
            ("-n team-a why rep", Wanted::Locks),
            ("why -n team-a ", Wanted::Locks),
            ("why report ", Wanted::Nothing),
            ("why report --pod ", Wanted::Pods),
            ("list ", Wanted::Resources),
            ("list -n ", Wanted::Namespaces),
            ("--context ", Wanted::Contexts),
            ("release report --reason ", Wanted::Nothing),
        ] {
            assert_eq!(wanted_after(line), expected, "{line}");
        }
    }

    #[test]
    fn value_after_an_equals_sign_is_completed_alone() {
        assert_eq!(wanted_after("why x --pod=wo"), Wanted::Pods);
        assert_eq!(wanted_after("--namespace="), Wanted::Namespaces);
        assert_eq!(words_after("why x --output=j"), ["json", "yaml"]);
        assert_eq!(begun(&["--output=j".to_owned()]), "j");
        assert_eq!(begun(&["jsonpath=x".to_owned()]), "jsonpath=x");
        for line in ["list =", "list \u{e4}=", "list --=", "list -="] {
            wanted_after(line);
        }
    }

    #[test]
    fn names_that_a_shell_would_execute_are_left_out() {
        for good in ["tenant_123:report/2026-04", "a.b@c", ""] {
            assert!(is_harmless(good), "{good}");
        }
        for bad in [
            "$(touch x)",
            "`x`",
            "a b",
            "a;b",
            "a\nb",
            "\u{1b}[2J",
            "~",
            "*",
            "'",
            "\"",
            "\\",
        ] {
            assert!(!is_harmless(bad), "{bad}");
        }
    }

    #[test]
    fn flags_and_their_values_are_completed() {
        assert!(words_after("why --").contains(&"--pod".to_owned()));
        assert!(words_after("why --").contains(&"--namespace".to_owned()));
        assert_eq!(words_after("why x -o "), ["json", "yaml"]);
        assert_eq!(words_after("release x --dry-run "), ["client", "server"]);
        assert!(words_after("list -o ").contains(&"jsonpath=".to_owned()));
        assert!(words_after("wait x --for ").contains(&"free".to_owned()));
    }
}
