//! Text about other pods, for people: the API and the kubectl plugin share it.
//!
//! Tenants choose the names. None of them may control a terminal, break a line or look like another one.

use std::borrow::Cow;

/// Returns the text with control characters and invisible characters escaped as in Rust: `\n`,
/// `\u{1b}`.
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_if(text, is_harmful)
}

/// Returns the same of a text of several lines, which keeps its line breaks and tabs.
#[must_use]
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    escape_if(text, |c| is_harmful(c) && !matches!(c, '\n' | '\t'))
}

fn escape_if(text: &str, harmful: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&harmful) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if harmful(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// Returns whether a character controls the terminal, reorders the text around it, or makes two
/// different names look the same. The joiners U+200C and U+200D are kept: Persian, the languages
/// of India and emojis need them.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}' | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Returns a pod and its owner: `worker-1 in pod worker-a`.
#[must_use]
pub fn who(owner: &str, pod: &str) -> String {
    if owner == pod {
        return format!("pod {}", escape(pod));
    }
    format!("{} in pod {}", escape(owner), escape(pod))
}

/// Returns a position: `1st`, `2nd`.
#[must_use]
pub fn ordinal(number: usize) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape("a\u{1b}[31mb"), "a\\u{1b}[31mb");
        assert_eq!(escape("a\r\n\tb\0\u{7f}"), "a\\r\\n\\tb\\u{0}\\u{7f}");
        assert_eq!(escape("\u{9b}2J"), "\\u{9b}2J", "the CSI of one character");
    }

    #[test]
    fn lines_of_a_text_stay_lines() {
        assert_eq!(escape_lines("a\tb\n\u{1b}c\r\n"), "a\tb\n\\u{1b}c\\r\n");
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(escape("a\u{202e}b\u{200b}c"), "a\\u{202e}b\\u{200b}c");
        assert_eq!(escape("a\u{2028}b\u{feff}"), "a\\u{2028}b\\u{feff}");
    }

    #[test]
    fn visible_text_is_unchanged() {
        for text in ["orders/42", "C:\\temp", "注文", "é", "👩\u{200d}💻", ""] {
            assert!(matches!(escape(text), Cow::Borrowed(same) if same == text));
        }
    }
}
