//! Certificates of identities and the authorities that sign them, as SPIRE has sent them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, TrustAnchor};
use rustls::sign::CertifiedKey;

use crate::proto::X509svidWithKey;
use crate::spiffe::TrustDomain;
use crate::verify::Authorities;

/// Certificates and authorities of a trust domain. Immutable: a message of SPIRE makes a new value.
#[derive(Clone, Debug)]
pub(crate) struct Certificates {
    domain: TrustDomain,
    provider: Arc<CryptoProvider>,
    keys: Arc<BTreeMap<u32, Arc<CertifiedKey>>>,
    anchors: Option<Arc<[TrustAnchor<'static>]>>,
}

/// The identities with certificates that a message has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// With their first certificate.
    pub(crate) added: BTreeSet<u32>,
    /// With a certificate that replaces another.
    pub(crate) renewed: BTreeSet<u32>,
    /// Without a certificate.
    pub(crate) withdrawn: BTreeSet<u32>,
    /// SPIFFE ids of certificates and keys that cannot be used.
    pub(crate) invalid: Vec<String>,
}

/// A message of SPIRE without authorities of the trust domain.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidBundle {
    #[error(
        "SPIRE has sent no authorities of the trust domain; set mesh-auth-spiffe-trust-domain to that of SPIRE"
    )]
    Missing,
    #[error("the authorities of the trust domain are no certificates in DER")]
    Malformed,
}

impl Certificates {
    pub(crate) fn new(domain: TrustDomain) -> Certificates {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Certificates { domain, provider, keys: Arc::default(), anchors: None }
    }

    pub(crate) fn domain(&self) -> &TrustDomain {
        &self.domain
    }

    /// Returns the certificate and key of an identity.
    pub(crate) fn key(&self, identity: u32) -> Option<&Arc<CertifiedKey>> {
        self.keys.get(&identity)
    }

    /// Returns the number of certificates.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the authorities, once SPIRE has sent them.
    pub(crate) fn authorities(&self) -> Option<Authorities> {
        let anchors = self.anchors.clone()?;
        Some(Authorities { domain: self.domain.clone(), anchors, provider: self.provider.clone() })
    }

    /// Returns the certificates after a message, which has all of them, and its changes. Those of other trust domains and
    /// of SPIFFE ids that are no identities are ignored.
    pub(crate) fn with_svids(&self, svids: Vec<X509svidWithKey>) -> (Certificates, Changes) {
        let (mut keys, mut changes) = (BTreeMap::new(), Changes::default());
        for X509svidWithKey { x509_svid, x509_svid_key } in svids {
            let Some(svid) = x509_svid else { continue };
            let id = svid.id.unwrap_or_default();
            let id = format!("spiffe://{}{}", id.trust_domain, id.path);
            let Some(identity) = self.domain.identity_of_id(&id) else { continue };
            let chain: Vec<CertificateDer<'static>> = svid.cert_chain.into_iter().map(Into::into).collect();
            let before = self.keys.get(&identity);
            let key = match before.filter(|key| key.cert == chain) {
                Some(key) => Ok(key.clone()),
                None => {
                    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(x509_svid_key));
                    CertifiedKey::from_der(chain, key, &self.provider).map(Arc::new)
                }
            };
            match key {
                Ok(key) => {
                    match before {
                        None => drop(changes.added.insert(identity)),
                        Some(before) if Arc::ptr_eq(before, &key) => {}
                        Some(_) => drop(changes.renewed.insert(identity)),
                    }
                    keys.insert(identity, key);
                }
                Err(_) => changes.invalid.push(id),
            }
        }
        changes.withdrawn = self.keys.keys().filter(|id| !keys.contains_key(id)).copied().collect();
        (Certificates { keys: Arc::new(keys), ..self.clone() }, changes)
    }

    /// Returns the certificates after a message with the authorities of trust domains.
    pub(crate) fn with_bundles<'a>(
        &self,
        bundles: impl IntoIterator<Item = (&'a String, &'a Vec<u8>)>,
    ) -> Result<Certificates, InvalidBundle> {
        let mut bundles = bundles.into_iter();
        let bundle = bundles.find(|(name, _)| self.domain.is_named(name));
        let (_, bundle) = bundle.ok_or(InvalidBundle::Missing)?;
        let anchors = split(bundle).ok_or(InvalidBundle::Malformed)?.into_iter().map(|certificate| {
            let certificate = CertificateDer::from(certificate);
            webpki::anchor_from_trusted_cert(&certificate).map(|anchor| anchor.to_owned())
        });
        let anchors: Vec<_> = anchors.collect::<Result<_, _>>().map_err(|_| InvalidBundle::Malformed)?;
        if anchors.is_empty() {
            return Err(InvalidBundle::Missing);
        }
        Ok(Certificates { anchors: Some(anchors.into()), ..self.clone() })
    }

    /// Returns these certificates with the authorities of others.
    pub(crate) fn with_anchors_of(&self, other: &Certificates) -> Certificates {
        Certificates { anchors: other.anchors.clone(), ..self.clone() }
    }
}

/// Splits concatenated values in DER; `None` if one is not complete.
fn split(mut der: &[u8]) -> Option<Vec<&[u8]>> {
    /// Lengths of this many bytes are longer than any certificate.
    const MAX_LENGTH_BYTES: usize = 4;
    let mut values = Vec::new();
    while !der.is_empty() {
        let first = usize::from(*der.get(1)?);
        let (header, len) = match first.checked_sub(0x80) {
            None => (2, first),
            Some(count) if count <= MAX_LENGTH_BYTES => {
                let bytes = der.get(2..2 + count)?;
                (2 + count, bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)))
            }
            Some(_) => return None,
        };
        let (value, rest) = der.split_at_checked(header.checked_add(len)?)?;
        values.push(value);
        der = rest;
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Authority;

    fn certificates() -> Certificates {
        Certificates::new(TrustDomain::new("spiffe.cilium").unwrap())
    }

    #[test]
    fn a_message_has_all_certificates() {
        let authority = Authority::new("spiffe.cilium");
        let (one, two) = (authority.svid(1000), authority.svid(2000));
        let (first, changes) = certificates().with_svids(vec![one.clone(), two.clone()]);
        assert_eq!((changes.added, changes.renewed), (BTreeSet::from([1000, 2000]), BTreeSet::new()));
        let (same, changes) = first.with_svids(vec![two.clone(), one.clone()]);
        assert_eq!((changes, same.len()), (Changes::default(), 2));
        let (next, changes) = same.with_svids(vec![authority.svid(1000)]);
        assert_eq!((changes.renewed, changes.withdrawn), (BTreeSet::from([1000]), BTreeSet::from([2000])));
        assert!(next.key(1000).is_some() && next.key(2000).is_none());
        // Another trust domain, another form, a key of another certificate.
        let mut swapped = one.clone();
        swapped.x509_svid_key = two.x509_svid_key;
        let foreign = vec![Authority::new("other").svid(1000), X509svidWithKey::default(), swapped];
        let (none, changes) = certificates().with_svids(foreign);
        assert_eq!(
            (none.len(), changes.invalid),
            (0, vec!["spiffe://spiffe.cilium/identity/1000".to_owned()])
        );
    }

    #[test]
    fn bundles_are_split_into_authorities() {
        let domains = ["spiffe.cilium", "other"].map(Authority::new);
        let both = [domains[0].certificate(), domains[1].certificate()].concat();
        let bundle = |name: &str, bytes: &[u8]| BTreeMap::from([(name.to_owned(), bytes.to_vec())]);
        for name in ["spiffe.cilium", "spiffe://spiffe.cilium"] {
            let known = certificates().with_bundles(&bundle(name, &both)).unwrap();
            assert_eq!(known.authorities().unwrap().anchors.len(), 2);
        }
        assert!(certificates().authorities().is_none());
        let missing = [bundle("spiffe://other", &both), bundle("spiffe.cilium", &[])];
        for bundles in &missing {
            assert!(matches!(certificates().with_bundles(bundles), Err(InvalidBundle::Missing)));
        }
        for length in 1..both.len() {
            let known = certificates().with_bundles(&bundle("spiffe.cilium", &both[..length]));
            assert_eq!(known.is_ok(), length == domains[0].certificate().len(), "{length} bytes");
        }
    }
}
