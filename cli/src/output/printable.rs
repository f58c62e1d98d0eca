//! Text of others on a terminal.

/// Returns text without characters that control a terminal or the order of text; lines and tabs stay.
pub(crate) fn printable(text: &str) -> String {
    text.replace(is_harmful, "\u{fffd}")
}

fn is_harmful(c: char) -> bool {
    let orders = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    orders || (c.is_control() && !matches!(c, '\n' | '\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_and_tabs_are_left_of_control_characters() {
        let text = "a\tb\n\u{1b}[2J\u{9b}31m\u{202e}\r\u{7f}é";
        assert_eq!(printable(text), "a\tb\n\u{fffd}[2J\u{fffd}31m\u{fffd}\u{fffd}\u{fffd}é");
    }
}
