//! The limit of errors that are shown at once.

use std::fmt::Display;

/// The default number of items of a list that are shown.
pub const SHOWN: usize = 8;

/// Returns the first `shown` items and the number of further ones, so that a client that creates many invalid objects
/// cannot flood log and health. Empty if there are none.
///
/// ```
/// use hive::health::summarize;
///
/// assert_eq!(summarize(["a", "b", "c"], 2, "; "), "a; b; and 1 more");
/// assert_eq!(summarize(["a", "b"], 2, "; "), "a; b");
/// ```
pub fn summarize<T: Display>(items: impl IntoIterator<Item = T>, shown: usize, separator: &str) -> String {
    let mut items = items.into_iter();
    let mut texts: Vec<String> = items.by_ref().take(shown).map(|item| item.to_string()).collect();
    match items.count() {
        0 => {}
        more => texts.push(format!("and {more} more")),
    }
    texts.join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_of_many_are_shown() {
        assert_eq!(summarize([""; 0], SHOWN, "\n"), "");
        assert_eq!(summarize(1..=8, SHOWN, "\n"), "1\n2\n3\n4\n5\n6\n7\n8");
        assert_eq!(summarize(1..=100_000, SHOWN, "\n"), "1\n2\n3\n4\n5\n6\n7\n8\nand 99992 more");
    }
}
