//! The text of one cell, shortened to a width in terminal columns.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

const ELLIPSIS: char = '…';

/// Returns the text, or as much of its beginning as fits before an ellipsis.
pub(super) fn shorten(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    let room = width.saturating_sub(1);
    // The width of the whole beginning counts: an emoji of several characters is narrower than
    // their sum, and a variation selector makes the character before it wider.
    let end = text
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| text[..*end].width() <= room)
        .last()
        .unwrap_or(0);
    Cow::Owned(format!("{}{ELLIPSIS}", &text[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_fits_is_unchanged() {
        assert_eq!(shorten("orders", 6), "orders");
        assert_eq!(shorten("注文", 4), "注文");
    }

    #[test]
    fn long_text_ends_with_an_ellipsis() {
        assert_eq!(shorten("orders", 5), "orde…");
        assert_eq!(shorten("orders", 1), "…");
    }

    #[test]
    fn wide_character_is_not_halved() {
        assert_eq!(shorten("注文番号", 7), "注文番…");
        assert_eq!(shorten("注文番号", 6), "注文…");
        assert_eq!(shorten("👍👍👍", 4), "👍…");
    }
}
