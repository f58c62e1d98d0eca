//! Rules on HTTP requests, and the names of TLS servers.

use std::collections::BTreeSet;

use envoy_api::cilium::header_match::MismatchAction;
use envoy_api::cilium::{HeaderMatch, HttpNetworkPolicyRule, HttpNetworkPolicyRules};
use envoy_api::matcher::string_matcher::MatchPattern;
use envoy_api::matcher::{RegexMatcher, StringMatcher};
use envoy_api::route::HeaderMatcher;
use envoy_api::route::header_matcher::HeaderMatchSpecifier;
use policy_engine::HttpRule;

/// Returns the rules; `None` if no request can pass them. A rule that compares a header with a secret is among those:
/// this agent does not read secrets, so nothing matches them.
pub(super) fn rules(rules: &BTreeSet<HttpRule>) -> Option<HttpNetworkPolicyRules> {
    let has_secret = |rule: &&HttpRule| rule.header_matches.iter().any(|header| header.secret.is_some());
    let http_rules: Vec<_> = rules.iter().filter(|rule| !has_secret(rule)).map(rule).collect();
    (!http_rules.is_empty()).then_some(HttpNetworkPolicyRules { http_rules })
}

fn rule(rule: &HttpRule) -> HttpNetworkPolicyRule {
    let pseudo = [(":path", &rule.path), (":method", &rule.method), (":authority", &rule.host)];
    let pseudo = pseudo.into_iter().filter(|(_, regex)| !regex.is_empty());
    let mut headers: Vec<HeaderMatcher> = pseudo.map(|(name, regex)| matching(name, regex)).collect();
    let mut others: Vec<(&str, &str)> = rule.headers.iter().map(|header| split(header)).collect();
    let mut header_matches = Vec::new();
    for header in &rule.header_matches {
        let mismatch_action = match header.mismatch.as_str() {
            "" => {
                others.push((&header.name, &header.value));
                continue;
            }
            "LOG" => MismatchAction::ContinueOnMismatch,
            "ADD" => MismatchAction::AddOnMismatch,
            "DELETE" => MismatchAction::DeleteOnMismatch,
            "REPLACE" => MismatchAction::ReplaceOnMismatch,
            _ => MismatchAction::FailOnMismatch,
        };
        header_matches.push(HeaderMatch {
            name: header.name.clone(),
            value: header.value.clone(),
            mismatch_action: mismatch_action.into(),
            ..HeaderMatch::default()
        });
    }
    others.sort_unstable();
    headers.extend(others.into_iter().map(|(name, value)| exact(name, value)));
    HttpNetworkPolicyRule { headers, header_matches }
}

/// Returns name and value of `Name: value`; of a name alone an empty value, which stands for presence.
fn split(header: &str) -> (&str, &str) {
    // Names of pseudo headers begin with a colon.
    let end = header.char_indices().skip(1).find(|(_, c)| *c == ':' || c.is_whitespace());
    match end {
        Some((at, _)) => (&header[..at], header[at..].trim_start_matches(':').trim()),
        None => (header, ""),
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
