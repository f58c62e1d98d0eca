//! Names, labels and annotations by Kubernetes' rules (apimachinery, `pkg/util/validation`).

/// The outcome of a check; the error is a description of valid names.
type Rule = Result<(), &'static str>;

fn lower_alphanumeric(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// Whether all characters are of `kind` or `inner`, and the first and last ones are of `kind`.
fn shaped(text: &str, kind: fn(u8) -> bool, inner: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let ends = bytes.first().is_some_and(|&c| kind(c)) && bytes.last().is_some_and(|&c| kind(c));
    ends && bytes.iter().all(|&c| kind(c) || inner.contains(&c))
}

/// Validates a DNS label, such as the name of a namespace or container.
pub fn dns_label(text: &str) -> Rule {
    match text.len() <= 63 && shaped(text, lower_alphanumeric, b"-") {
        true => Ok(()),
        false => Err("1 to 63 lower-case letters, digits and '-', the first and last no '-'"),
    }
}

/// Validates a DNS name in lower case, such as the name of most objects.
pub fn dns_subdomain(text: &str) -> Rule {
    let label = |label: &str| shaped(label, lower_alphanumeric, b"-");
    match text.len() <= 253 && text.split('.').all(label) {
        true => Ok(()),
        false => Err(
            "1 to 253 lower-case letters, digits, '-' and '.', each part between dots with a letter or digit \
             at both ends",
        ),
    }
}

/// Validates the name of a Service: a DNS label that starts with a letter.
pub fn service_name(text: &str) -> Rule {
    match dns_label(text).is_ok() && text.starts_with(|c: char| c.is_ascii_lowercase()) {
        true => Ok(()),
        false => Err("1 to 63 lower-case letters, digits and '-', the first a letter, the last no '-'"),
    }
}

/// Validates the key of a label or annotation: a name with an optional DNS prefix.
pub fn qualified_name(text: &str) -> Rule {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let good = prefix.is_none_or(|prefix| dns_subdomain(prefix).is_ok())
        && name.len() <= 63
        && shaped(name, |c| c.is_ascii_alphanumeric(), b"-_.");
    match good {
        true => Ok(()),
        false => Err(
            "a name of 1 to 63 letters, digits, '-', '_' and '.' with a letter or digit at both ends, before \
             it if wanted a DNS name and '/'",
        ),
    }
}

/// Validates the value of a label.
pub fn label_value(text: &str) -> Rule {
    let good = text.is_empty() || text.len() <= 63 && shaped(text, |c| c.is_ascii_alphanumeric(), b"-_.");
    match good {
        true => Ok(()),
        false => Err("at most 63 letters, digits, '-', '_' and '.' with a letter or digit at both ends"),
    }
}

/// Validates the name of a container's port (RFC 6335, section 5.1).
pub fn port_name(text: &str) -> Rule {
    let good = text.len() <= 15
        && shaped(text, lower_alphanumeric, b"-")
        && !text.contains("--")
        && text.bytes().any(|c| c.is_ascii_lowercase());
    match good {
        true => Ok(()),
        false => Err("1 to 15 lower-case letters, digits and single '-' between them, at least one letter"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: fn(&str) -> Rule, good: &[&str], bad: &[&str]) {
        good.iter().for_each(|text| assert!(rule(text).is_ok(), "{text} is good"));
        bad.iter().for_each(|text| assert!(rule(text).is_err(), "{text} is bad"));
    }

    #[test]
    fn names_are_validated_as_by_kubernetes() {
        let long = "a".repeat(64);
        let label = &long[1..];
        check(dns_label, &["a", "0", "a-b", label], &["", "-a", "a-", "A", "a.b", "a_b", "\u{e4}", &long]);
        check(
            dns_subdomain,
            &["a", "a.b-c.0", &long],
            &["", ".", "a.", ".a", "a..b", "a-.b", "A", &"a.".repeat(127)],
        );
        check(service_name, &["a", "a0"], &["0a", "", "a-"]);
        check(
            qualified_name,
            &["app", "A_b.c", "example.com/App", "a/b", label],
            &["", "/a", "a/", "a/b/c", "-a", "a b", "Example.com/a", &long],
        );
        check(label_value, &["", "v1.2_3-4", "A", label], &["a b", "-a", "a.", &long, "a/b"]);
        check(
            port_name,
            &["http", "a-1", "http-metrics-x1"],
            &["", "80", "a--b", "-a", "Http", "http-metrics-x12"],
        );
    }
}
