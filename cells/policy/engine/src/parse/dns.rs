//! Parses DNS names and patterns: peers of `toFQDNs`, and rules on queries.

use super::cursor::{Field, Problems, quoted};
use crate::proxy::DnsRule;
use crate::selector::{FqdnSelector, Selector};

/// The maximum length of a name or a pattern.
const MAX_LENGTH: usize = 255;

/// Reads an element of `toFQDNs`: a name or a pattern.
pub(super) fn fqdn(field: &Field<'_>, problems: &mut Problems) -> Option<Selector> {
    let DnsRule { match_name, match_pattern } = dns_rule(field, problems)?;
    if !match_name.is_empty() && !match_pattern.is_empty() {
        problems.add(
            &field.path,
            "matchName and matchPattern in one element",
            "make each an element of its own",
        );
        return None;
    }
    if match_name.is_empty() && match_pattern.is_empty() {
        problems.warn(&field.path, "selects no peers", "write matchName or matchPattern");
    }
    Some(Selector::Fqdn(FqdnSelector { match_name: match_name.into(), match_pattern: match_pattern.into() }))
}

/// Reads an element of `rules.dns`; both fields may be given.
pub(super) fn dns_rule(field: &Field<'_>, problems: &mut Problems) -> Option<DnsRule> {
    let before = problems.count();
    let object = field.object(problems)?;
    object.check_names(problems, &["matchName", "matchPattern"], &[]);
    let mut read = |name: &str, extra: &[u8], remedy| {
        let text = object.text(name, problems);
        let is_valid = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b) || extra.contains(&b);
        let trimmed = if extra.is_empty() { text } else { text.trim() };
        let reason = match () {
            () if !trimmed.bytes().all(is_valid) => format!("{}: not a DNS name", quoted(&text.into())),
            () if trimmed.len() > MAX_LENGTH => format!("longer than {MAX_LENGTH} characters"),
            () => return text.to_owned(),
        };
        problems.add(&object.path_of(name), reason, remedy);
        String::new()
    };
    let match_name = read("matchName", b"", "letters, digits, dashes, underscores and dots");
    let match_pattern = read("matchPattern", b"*", "letters, digits, dashes, underscores, dots and *");
    (problems.count() == before).then_some(DnsRule { match_name, match_pattern })
}
