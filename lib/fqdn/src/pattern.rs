//! Patterns of names, with the semantics of the regular expressions into which Cilium translates them.

use std::fmt::Write as _;

use crate::name::canonical;

/// The characters that a star stands for.
const CLASS: &str = "[-a-zA-Z0-9_]";
/// The maximum length of a name or a pattern.
const MAX_LENGTH: usize = 255;

/// A canonical name or pattern. Matching takes no memory and, per label, at most the product of the lengths of label and
/// pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    text: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    /// Only stars: every name.
    Every,
    /// Stars as whole first labels: one or more labels, then the rest of the text.
    Below,
    /// A label of the text for each label of the name.
    Labels,
}

/// The error of a text that is neither a name nor a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadPattern {
    /// A character that names of policies cannot have.
    #[error("{text:?}: {found:?} is not allowed: letters, digits, dashes, underscores, dots and * are")]
    Character {
        /// The text.
        text: String,
        /// The first such character.
        found: char,
    },
    /// Too long.
    #[error("a pattern of {length} characters; {MAX_LENGTH} are allowed")]
    Length {
        /// Its length.
        length: usize,
    },
}

impl Pattern {
    /// Returns the pattern of a text that has been validated, in canonical form.
    pub fn parse(text: &str) -> Pattern {
        let text = text.trim();
        let kind = match text {
            _ if is_every(text) => Kind::Every,
            _ if text.starts_with("**") && text.trim_start_matches('*').starts_with('.') => Kind::Below,
            _ => Kind::Labels,
        };
        let text = match kind {
            Kind::Every => text.to_owned(),
            Kind::Below | Kind::Labels => canonical(text),
        };
        Pattern { text, kind }
    }

    /// Parses a pattern that was not validated, such as an argument of a request.
    pub fn checked(text: &str) -> Result<Pattern, BadPattern> {
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_.*".contains(c);
        let trimmed = text.trim();
        match trimmed.chars().find(|c| !is_valid(*c)) {
            Some(found) => Err(BadPattern::Character { text: text.to_owned(), found }),
            None if trimmed.len() > MAX_LENGTH => Err(BadPattern::Length { length: trimmed.len() }),
            None => Ok(Pattern::parse(text)),
        }
    }

    /// Returns the canonical text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it consists of stars only.
    pub fn is_every(&self) -> bool {
        self.kind == Kind::Every
    }

    /// Whether a canonical name matches. Names with escaped bytes match no pattern.
    pub fn matches(&self, name: &str) -> bool {
        match self.kind {
            Kind::Every => {
                name == "." || name.strip_suffix('.').is_some_and(|labels| labels.split('.').all(is_label))
            }
            Kind::Labels => labels_match(self.text.split('.'), name.split('.')),
            Kind::Below => {
                let rest = self.text.trim_start_matches('*');
                // The stars stand for all labels before the ones that the rest has.
                let dots = rest.matches('.').count();
                let Some((at, _)) = name.rmatch_indices('.').nth(dots - 1) else { return false };
                let (below, tail) = name.split_at(at);
                below.split('.').all(is_label) && labels_match(rest.split('.'), tail.split('.'))
            }
        }
    }

    /// Returns the regular expression for whole names, as Cilium's API shows it.
    ///
    /// ```
    /// assert_eq!(fqdn::Pattern::parse("*.a.io").expression(), "^[-a-zA-Z0-9_]*[.]a[.]io[.]$");
    /// ```
    pub fn expression(&self) -> String {
        match self.kind {
            Kind::Every => format!("(^({CLASS}+[.])+$)|(^[.]$)"),
            Kind::Below | Kind::Labels => format!("^{}$", self.body()),
        }
    }

    /// Returns the regular expression without anchors, of which the rules of an endpoint are made.
    pub(crate) fn body(&self) -> String {
        let mut expression = String::new();
        let rest = match self.kind {
            Kind::Every => return ".*".to_owned(),
            Kind::Labels => self.text.as_str(),
            Kind::Below => {
                let _ = write!(expression, "({CLASS}+([.]{CLASS}+){{0,}})[.]");
                self.text.trim_start_matches('*').strip_prefix('.').unwrap_or_default()
            }
        };
        let mut is_after_star = false;
        for c in rest.chars() {
            match c {
                '.' => expression.push_str("[.]"),
                '*' if is_after_star => {}
                '*' => expression.push_str("[-a-zA-Z0-9_]*"),
                c => expression.push(c),
            }
            is_after_star = c == '*';
        }
        expression
    }
}

/// Whether a pattern has only stars, and perhaps a dot at its end.
fn is_every(text: &str) -> bool {
    let stars = text.strip_suffix('.').unwrap_or(text);
    !stars.is_empty() && stars.bytes().all(|b| b == b'*')
}

fn is_in_class(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

fn is_label(label: &str) -> bool {
    !label.is_empty() && label.bytes().all(is_in_class)
}

fn labels_match<'a>(
    mut patterns: impl Iterator<Item = &'a str>,
    mut labels: impl Iterator<Item = &'a str>,
) -> bool {
    loop {
        match (patterns.next(), labels.next()) {
            (None, None) => return true,
            (Some(pattern), Some(label)) if label_matches(pattern.as_bytes(), label.as_bytes()) => {}
            _ => return false,
        }
    }
}

/// Whether a label matches one of a pattern. On a mismatch only the last star takes another character: what an earlier
/// one could take, the last one can, too.
fn label_matches(pattern: &[u8], label: &[u8]) -> bool {
    let (mut p, mut l) = (0, 0);
    let mut last_star = None;
    while l < label.len() {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                last_star = Some((p, l));
            }
            Some(byte) if *byte == label[l] => (p, l) = (p + 1, l + 1),
            _ => match last_star {
                Some((after, taken)) if is_in_class(label[taken]) => {
                    (p, l) = (after, taken + 1);
                    last_star = Some((after, taken + 1));
                }
                _ => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}
