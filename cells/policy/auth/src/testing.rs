//! Authorities of tests.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::proto::{Spiffeid, X509svid, X509svidWithKey};

/// An authority of a trust domain.
pub(crate) struct Authority {
    domain: &'static str,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(domain: &'static str) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { domain, issuer }
    }

    /// Returns the authority's own certificate in DER.
    pub(crate) fn certificate(&self) -> &[u8] {
        self.issuer.der()
    }

    /// Returns a new certificate of an identity, which is valid for an hour.
    pub(crate) fn svid(&self, identity: u32) -> X509svidWithKey {
        self.svid_until(identity, SystemTime::now() + Duration::from_secs(3600))
    }

    pub(crate) fn svid_until(&self, identity: u32, end: SystemTime) -> X509svidWithKey {
        let uri = format!("spiffe://{}/identity/{identity}", self.domain);
        self.svid_of(identity, &[&uri], end)
    }

    /// Returns a certificate with these URIs, which SPIRE sends as that of an identity.
    pub(crate) fn svid_of(&self, identity: u32, uris: &[&str], end: SystemTime) -> X509svidWithKey {
        let mut params = CertificateParams::default();
        let names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names = names.collect();
        params.not_before = (SystemTime::now() - Duration::from_secs(86_400)).into();
        params.not_after = end.into();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let id = Spiffeid { trust_domain: self.domain.to_owned(), path: format!("/identity/{identity}") };
        let expires_at = end.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let svid = X509svid {
            cert_chain: vec![certificate.der().to_vec()],
            id: Some(id),
            expires_at: i64::try_from(expires_at).unwrap(),
        };
        X509svidWithKey { x509_svid: Some(svid), x509_svid_key: key.serialize_der() }
    }
}
