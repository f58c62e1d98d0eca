//! Command lines of the shell, built from words.

/// Returns the words as a line; a single word is a whole line already, several are quoted.
pub(super) fn from_words(words: &[String]) -> Option<String> {
    match words {
        [] => None,
        [line] => Some(line.clone()),
        words => Some(quoted(words)),
    }
}

/// Joins words into a line, quoted where the agent would split them.
pub(super) fn quoted(words: &[String]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

fn quote(word: &str) -> String {
    if word.is_empty() || word.contains([' ', '\t', '\r', '\n', '#', '\'', '$']) {
        format!("'{}'", word.replace('\'', "''").replace('\n', " "))
    } else {
        word.to_owned()
    }
}

/// Adds the flag for JSON output, unless the line is empty.
pub(super) fn with_format(line: &str, json: bool) -> String {
    if json && !line.trim().is_empty() { format!("{line} --format=json") } else { line.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_they_would_be_split() {
        let line =
            |words: &[&str]| from_words(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(line(&[]), None);
        assert_eq!(line(&["db/show health"]).as_deref(), Some("db/show health"));
        assert_eq!(
            line(&["db/cmp", "--grep=a b", "it's", "", "$x"]).as_deref(),
            Some("db/cmp '--grep=a b' 'it''s' '' '$x'")
        );
        assert_eq!(with_format("metrics", true), "metrics --format=json");
    }
}
