//! Redaction of contents of requests in flows: values of headers, queries and passwords of URLs.

use crate::config::{Error, RedactConfig};

/// The text in the place of a value.
const REDACTED: &str = "HUBBLE_REDACTED";

/// The contents that flows do not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redaction {
    headers: HeaderRule,
    /// Queries and fragments of URLs.
    query: bool,
    /// Passwords in URLs.
    password: bool,
}

/// The headers with redacted values, by lower-case names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HeaderRule {
    None,
    Only(Vec<String>),
    AllBut(Vec<String>),
}

impl Default for Redaction {
    fn default() -> Self {
        Self { headers: HeaderRule::None, query: false, password: true }
    }
}

impl Redaction {
    /// Returns the redaction of the options. Without `hubble-redact-enabled` passwords are redacted, as in Cilium.
    ///
    /// # Errors
    /// Headers are both allowed and denied.
    pub(crate) fn new(config: &RedactConfig) -> Result<Self, Error> {
        let names = |list: &[String]| -> Vec<String> {
            let words = list.iter().flat_map(|item| item.split_whitespace());
            words.map(str::to_ascii_lowercase).collect()
        };
        let allowed = names(&config.hubble_redact_http_headers_allow);
        let denied = names(&config.hubble_redact_http_headers_deny);
        if !allowed.is_empty() && !denied.is_empty() {
            return Err(Error::Headers);
        }
        if !config.hubble_redact_enabled {
            return Ok(Self::default());
        }
        Ok(Self {
            headers: if denied.is_empty() { HeaderRule::AllBut(allowed) } else { HeaderRule::Only(denied) },
            query: config.hubble_redact_http_urlquery,
            password: config.hubble_redact_http_userinfo,
        })
    }

    /// Returns the value of a header.
    pub(crate) fn header(&self, name: &str, value: &str) -> String {
        let has = |names: &[String]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
        let is_redacted = match &self.headers {
            HeaderRule::None => false,
            HeaderRule::Only(names) => has(names),
            HeaderRule::AllBut(names) => !has(names),
        };
        if is_redacted { REDACTED.to_owned() } else { value.to_owned() }
    }

    /// Returns a URL.
    pub(crate) fn url(&self, url: &str) -> String {
        let end = url.find(['?', '#']).filter(|_| self.query).unwrap_or(url.len());
        let url = &url[..end];
        match password(url).filter(|_| self.password) {
            Some(range) => format!("{}{REDACTED}{}", &url[..range.start], &url[range.end..]),
            None => url.to_owned(),
        }
    }
}

/// Returns the place of the password in a URL (RFC 3986, 3.2).
fn password(url: &str) -> Option<std::ops::Range<usize>> {
    let start = url.find("//").filter(|at| !url[..*at].contains(['/', '?', '#']))? + 2;
    let authority = &url[start..];
    let authority = &authority[..authority.find(['/', '?', '#']).unwrap_or(authority.len())];
    let user_end = authority.rfind('@')?;
    let colon = authority[..user_end].find(':')?;
    Some(start + colon + 1..start + user_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RedactConfig {
        RedactConfig {
            hubble_redact_enabled: true,
            hubble_redact_http_urlquery: false,
            hubble_redact_http_userinfo: true,
            hubble_redact_http_headers_allow: Vec::new(),
            hubble_redact_http_headers_deny: Vec::new(),
        }
    }

    #[test]
    fn headers_are_redacted_by_either_list() {
        let rule = |allow: &[&str], deny: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            Redaction::new(&RedactConfig {
                hubble_redact_http_headers_allow: list(allow),
                hubble_redact_http_headers_deny: list(deny),
                ..config()
            })
        };
        let values = |rule: Redaction| ["Accept", "Authorization"].map(|name| rule.header(name, "v"));
        assert_eq!(values(rule(&[], &[]).unwrap()), [REDACTED, REDACTED]);
        assert_eq!(values(rule(&["accept host"], &[]).unwrap()), ["v", REDACTED]);
        assert_eq!(values(rule(&[], &["AUTHORIZATION"]).unwrap()), ["v", REDACTED]);
        assert_eq!(rule(&["a"], &["b"]), Err(Error::Headers));
        assert_eq!(values(Redaction::default()), ["v", "v"]);
    }

    #[test]
    fn queries_and_passwords_of_urls_are_redacted() {
        let url = |config: RedactConfig, url: &str| Redaction::new(&config).unwrap().url(url);
        let full = "http://user:pa@ss@shop.test:80/a:b@c?d=e#f";
        let hidden = format!("http://user:{REDACTED}@shop.test:80/a:b@c?d=e#f");
        assert_eq!(url(config(), full), hidden);
        let off =
            RedactConfig { hubble_redact_enabled: false, hubble_redact_http_userinfo: false, ..config() };
        assert_eq!(url(off, full), hidden, "as in Cilium");
        assert_eq!(url(RedactConfig { hubble_redact_http_userinfo: false, ..config() }, full), full);
        let no_query = || RedactConfig { hubble_redact_http_urlquery: true, ..config() };
        assert_eq!(url(no_query(), full), format!("http://user:{REDACTED}@shop.test:80/a:b@c"));
        assert_eq!(url(no_query(), "/a#b?c"), "/a");
        for same in ["", "/a//b:c@d", "http://shop.test/x:y@z", "http://user@shop.test/", "//", "ü//ü:ü"] {
            assert_eq!(url(config(), same), same);
        }
    }
}
