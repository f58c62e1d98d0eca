//! Names of identities in certificates, by the SPIFFE standard.

use std::sync::Arc;

/// The longest name of a trust domain (SPIFFE-ID, 2.3).
const MAX_TRUST_DOMAIN: usize = 255;
const SCHEME: &str = "spiffe://";
const PATH: &str = "/identity/";

/// The name of a trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrustDomain(Arc<str>);

impl TrustDomain {
    /// Returns a valid name (SPIFFE-ID, 2.1).
    pub(crate) fn new(name: &str) -> Option<TrustDomain> {
        let is_valid =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
        let valid = !name.is_empty() && name.len() <= MAX_TRUST_DOMAIN && name.bytes().all(is_valid);
        valid.then(|| TrustDomain(name.into()))
    }

    /// Returns the SPIFFE id of an identity.
    #[cfg(test)]
    pub(crate) fn id(&self, identity: u32) -> String {
        format!("{SCHEME}{}{PATH}{identity}", self.0)
    }

    /// Returns the name of an identity as clients name it to servers (SNI).
    pub(crate) fn server_name(&self, identity: u32) -> String {
        format!("{identity}.{}", self.0)
    }

    /// Returns the identity of a SPIFFE id; `None` for one of another trust domain or form.
    pub(crate) fn identity_of_id(&self, id: &str) -> Option<u32> {
        let path = id.strip_prefix(SCHEME)?.strip_prefix(&*self.0)?;
        number(path.strip_prefix(PATH)?)
    }

    /// Returns the identity that a client wants; `None` for another name.
    pub(crate) fn identity_of_server_name(&self, name: &str) -> Option<u32> {
        number(name.strip_suffix(&*self.0)?.strip_suffix('.')?)
    }

    /// Whether SPIRE's name of a bundle is that of this domain: with the scheme or without.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        *name.strip_prefix(SCHEME).unwrap_or(name) == *self.0
    }
}

/// Returns the number of a decimal without sign or leading zeros: an identity has one name.
fn number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_has_one_name() {
        let domain = TrustDomain::new("spiffe.cilium").unwrap();
        assert_eq!(domain.id(1234), "spiffe://spiffe.cilium/identity/1234");
        assert_eq!(domain.server_name(1234), "1234.spiffe.cilium");
        assert_eq!(domain.identity_of_id(&domain.id(u32::MAX)), Some(u32::MAX));
        assert_eq!(domain.identity_of_server_name("7.spiffe.cilium"), Some(7));
        for id in [
            "spiffe://other.cilium/identity/7",
            "spiffe://spiffe.cilium.org/identity/7",
            "spiffe://spiffe.cilium/identity/",
            "spiffe://spiffe.cilium/identity/07",
            "spiffe://spiffe.cilium/identity/+7",
            "spiffe://spiffe.cilium/identity/7/8",
            "spiffe://spiffe.cilium/identity/4294967296",
            "https://spiffe.cilium/identity/7",
        ] {
            assert_eq!(domain.identity_of_id(id), None, "{id}");
        }
        for name in ["7.other", "7spiffe.cilium", "a.spiffe.cilium", "spiffe.cilium", "1.2.spiffe.cilium"] {
            assert_eq!(domain.identity_of_server_name(name), None, "{name}");
        }
        assert!(domain.is_named("spiffe.cilium") && domain.is_named("spiffe://spiffe.cilium"));
        assert!(!domain.is_named("spiffe://other"));
    }

    #[test]
    fn invalid_trust_domains_are_refused() {
        let long = "a".repeat(256);
        for name in ["", "Upper.case", "a/b", "spiffe://a", "a b", &long] {
            assert!(TrustDomain::new(name).is_none(), "{name}");
        }
    }
}
