//! Rules on HTTP requests, and the names of TLS servers.

use std::collections::BTreeSet;

use envoy_api::cilium::header_match::MismatchAction;
use envoy_api::cilium::{HeaderMatch, HttpNetworkPolicyRule, HttpNetworkPolicyRules};
use envoy_api::matcher::string_matcher::MatchPattern;
use envoy_api::matcher::{RegexMatcher, StringMatcher};
use envoy_api::route::HeaderMatcher;
use envoy_api::route::header_matcher::HeaderMatchSpecifier;
use policy_engine::{HttpRule, SecretRef};

use super::Peers;

/// Returns the rules; `None` if no request can pass them. A rule that compares a header with a secret which cannot be
/// used is left out: no request matches it.
pub(super) fn rules(rules: &BTreeSet<HttpRule>, peers: &impl Peers) -> Option<HttpNetworkPolicyRules> {
    let http_rules: Vec<_> = rules.iter().filter_map(|rule| http_rule(rule, peers)).collect();
    (!http_rules.is_empty()).then_some(HttpNetworkPolicyRules { http_rules })
}

fn http_rule(rule: &HttpRule, peers: &impl Peers) -> Option<HttpNetworkPolicyRule> {
    let pseudo = [(":path", &rule.path), (":method", &rule.method), (":authority", &rule.host)];
    let pseudo = pseudo.into_iter().filter(|(_, regex)| !regex.is_empty());
    let mut headers: Vec<HeaderMatcher> = pseudo.map(|(name, regex)| matching(name, regex)).collect();
    let mut others: Vec<(&str, String)> = rule.headers.iter().map(|header| split(header)).collect();
    let mut header_matches = Vec::new();
    for header in &rule.header_matches {
        let value = match &header.secret {
            None => HeaderValue::Inline(header.value.clone()),
            Some(reference) => secret_value(reference, peers)?,
        };
        let mismatch_action = match header.mismatch.as_str() {
            "" => match value {
                HeaderValue::Inline(value) => {
                    others.push((&header.name, value));
                    continue;
                }
                HeaderValue::Sds(_) => MismatchAction::FailOnMismatch,
            },
            "LOG" => MismatchAction::ContinueOnMismatch,
            "ADD" => MismatchAction::AddOnMismatch,
            "DELETE" => MismatchAction::DeleteOnMismatch,
            "REPLACE" => MismatchAction::ReplaceOnMismatch,
            _ => MismatchAction::FailOnMismatch,
        };
        let (value, value_sds_secret) = match value {
            HeaderValue::Inline(value) => (value, String::new()),
            HeaderValue::Sds(name) => (String::new(), name),
        };
        header_matches.push(HeaderMatch {
            name: header.name.clone(),
            value,
            value_sds_secret,
            mismatch_action: mismatch_action.into(),
            ..HeaderMatch::default()
        });
    }
    others.sort_unstable();
    headers.extend(others.into_iter().map(|(name, value)| exact(name, &value)));
    Some(HttpNetworkPolicyRule { headers, header_matches })
}

/// The value that a header is compared with.
enum HeaderValue {
    Inline(String),
    /// That of a resource of SDS.
    Sds(String),
}

/// Returns the value in a secret, its only item; `None` if it cannot be used.
fn secret_value(reference: &SecretRef, peers: &impl Peers) -> Option<HeaderValue> {
    let found = peers.secret(reference)?;
    // An empty value would stand for presence: any value would match.
    let is_value = |text: &&str| !text.is_empty() && !text.contains(|c: char| c.is_ascii_control());
    let value = match found.secret.single().map(|bytes| std::str::from_utf8(bytes).ok().filter(is_value)) {
        None => Err("has not exactly one item"),
        Some(None) => Err("is not the value of a header"),
        Some(Some(value)) => Ok(value.to_owned()),
    };
    match (value, found.sds) {
        (Ok(_), Some(name)) => Some(HeaderValue::Sds(name)),
        (Ok(value), None) => Some(HeaderValue::Inline(value)),
        (Err(reason), _) => {
            peers.refuse(reference, reason.to_owned());
            None
        }
    }
}

/// Returns name and value of `Name: value`; of a name alone an empty value, which stands for presence.
fn split(header: &str) -> (&str, String) {
    // Names of pseudo headers begin with a colon.
    let end = header.char_indices().skip(1).find(|(_, c)| *c == ':' || c.is_whitespace());
    match end {
        Some((at, _)) => (&header[..at], header[at..].trim_start_matches(':').trim().to_owned()),
        None => (header, String::new()),
    }
}

fn matching(name: &str, regex: &str) -> HeaderMatcher {
    let pattern = MatchPattern::SafeRegex(RegexMatcher { regex: regex.to_owned() });
    string_match(name, pattern)
}

fn exact(name: &str, value: &str) -> HeaderMatcher {
    match value {
        "" => HeaderMatcher {
            name: name.to_owned(),
            header_match_specifier: Some(HeaderMatchSpecifier::PresentMatch(true)),
        },
        value => string_match(name, MatchPattern::Exact(value.to_owned())),
    }
}

fn string_match(name: &str, pattern: MatchPattern) -> HeaderMatcher {
    let matcher = StringMatcher { match_pattern: Some(pattern) };
    HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(HeaderMatchSpecifier::StringMatch(matcher)),
    }
}

/// Returns the name of a TLS server as Envoy compares it: without a final dot, and each run of stars as one, but for a
/// leading `**.`, which stands for any number of labels.
pub(super) fn server_name(name: &str) -> String {
    let name = name.strip_suffix('.').unwrap_or(name);
    let (prefix, rest) = match name.strip_prefix("**.") {
        Some(rest) => ("**.", rest),
        None => ("", name),
    };
    let mut out = prefix.to_owned();
    for c in rest.chars() {
        if c != '*' || !out.ends_with('*') {
            out.push(c);
        }
    }
    out
}
