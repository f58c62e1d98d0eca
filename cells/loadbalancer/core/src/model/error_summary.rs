//! How much of what is wrong is told at once.

use std::fmt::Display;

/// Errors that are told of many.
const TOLD: usize = 8;

/// The first eight of these errors and how many more there are, a line each: whoever can make many objects must not fill log
/// and health with them.
pub fn told<E: Display>(errors: impl IntoIterator<Item = E>) -> String {
    let mut errors = errors.into_iter();
    let mut lines: Vec<String> = errors.by_ref().take(TOLD).map(|error| error.to_string()).collect();
    match errors.count() {
        0 => {}
        more => lines.push(format!("and {more} more")),
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_errors_are_told_of_many() {
        assert_eq!(told(["a", "b"]), "a\nb");
        assert_eq!(told(1..=8), "1\n2\n3\n4\n5\n6\n7\n8");
        assert_eq!(told(1..=100_000), "1\n2\n3\n4\n5\n6\n7\n8\nand 99992 more");
    }
}
