//! The selection of exported metrics: `--metrics +cilium_x -cilium_y`.

use std::collections::BTreeSet;

/// Metrics that differ from their default, and those that are off by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    on: BTreeSet<String>,
    off: BTreeSet<String>,
    off_by_default: BTreeSet<String>,
}

impl Selection {
    /// Parses words such as `+cilium_x`; returns those that begin with neither `+` nor `-` as invalid. The last word
    /// for a name takes precedence.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> (Self, Vec<&'a str>) {
        let mut selection = Self::default();
        let mut wrong = Vec::new();
        for word in words {
            if let Some(name) = word.strip_prefix('+') {
                selection.off.remove(name);
                selection.on.insert(name.to_owned());
            } else if let Some(name) = word.strip_prefix('-') {
                selection.on.remove(name);
                selection.off.insert(name.to_owned());
            } else {
                wrong.push(word);
            }
        }
        (selection, wrong)
    }

    /// Replaces the parsed words; the set of metrics that are off by default is kept.
    pub(crate) fn change(&mut self, other: Selection) {
        (self.on, self.off) = (other.on, other.off);
    }

    pub(crate) fn off_by_default(&mut self, name: String) {
        self.off_by_default.insert(name);
    }

    /// Whether a family is exported, by its full name.
    pub fn exports(&self, name: &str) -> bool {
        self.on.contains(name) || !(self.off.contains(name) || self.off_by_default.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_for_a_name_applies_and_invalid_words_are_returned() {
        let (selection, wrong) =
            Selection::parse(["+cilium_a", "-cilium_a", "-cilium_b", "+cilium_b", "cilium_c"]);
        assert!(!selection.exports("cilium_a"));
        assert!(selection.exports("cilium_b"));
        assert!(selection.exports("cilium_c"));
        assert_eq!(wrong, ["cilium_c"]);
    }
}
