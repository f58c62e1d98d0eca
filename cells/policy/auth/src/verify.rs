//! Verification of peers: rustls with certificates of identities instead of host names.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme};
use webpki::{EndEntityCert, KeyUsage};

use crate::error::InvalidPeer;
use crate::spiffe::TrustDomain;

/// The authorities of a trust domain.
#[derive(Clone, Debug)]
pub(crate) struct Authorities {
    pub(crate) domain: TrustDomain,
    pub(crate) anchors: Arc<[TrustAnchor<'static>]>,
    pub(crate) provider: Arc<CryptoProvider>,
}

impl Authorities {
    /// Returns the identity of a certificate with the URI of exactly one, which an authority has signed.
    pub(crate) fn identity(
        &self,
        chain: &[CertificateDer<'_>],
        usage: KeyUsage,
        now: UnixTime,
    ) -> Result<u32, InvalidPeer> {
        let (leaf, intermediates) = chain.split_first().ok_or(InvalidPeer::Missing)?;
        let leaf = EndEntityCert::try_from(leaf)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        leaf.verify_for_usage(algorithms, &self.anchors, intermediates, now, usage, None, None)?;
        let uris: Vec<&str> = leaf.valid_uri_names().collect();
        let [id] = uris[..] else { return Err(InvalidPeer::Uris(uris.len())) };
        self.domain.identity_of_id(id).ok_or_else(|| InvalidPeer::Foreign(id.to_owned()))
    }

    /// Returns the end of a certificate's validity.
    pub(crate) fn not_after(&self, chain: &[CertificateDer<'_>]) -> Result<SystemTime, InvalidPeer> {
        let (leaf, intermediates) = chain.split_first().ok_or(InvalidPeer::Missing)?;
        let leaf = EndEntityCert::try_from(leaf)?;
        // webpki has no accessor. Validity is checked before signatures, and the error names its end.
        let end = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
        let algorithms = self.provider.signature_verification_algorithms.all;
        let usage = KeyUsage::client_auth();
        match leaf.verify_for_usage(algorithms, &self.anchors, intermediates, end, usage, None, None) {
            Err(webpki::Error::CertExpired { not_after, .. }) => {
                Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(not_after.as_secs()))
            }
            Err(error) => Err(error.into()),
            Ok(_) => Err(InvalidPeer::Certificate(webpki::Error::InvalidCertValidity)),
        }
    }
}

/// The verifier of a handshake's other side: of one identity for clients, of any for servers.
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) authorities: Authorities,
    pub(crate) expected: Option<u32>,
}

impl Verifier {
    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        usage: KeyUsage,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let chain: Vec<CertificateDer<'_>> = std::iter::once(leaf).chain(intermediates).cloned().collect();
        let verified = self.authorities.identity(&chain, usage, now).and_then(|found| match self.expected {
            Some(expected) if found != expected => Err(InvalidPeer::Identity { found, expected }),
            _ => Ok(()),
        });
        verified.map_err(|error| CertificateError::Other(OtherError(Arc::new(error))).into())
    }

    fn verify_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.authorities.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The error of TLS 1.2, which neither side offers.
fn is_not_offered() -> rustls::Error {
    rustls::PeerIncompatible::Tls13RequiredForQuic.into()
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verify(leaf, intermediates, KeyUsage::server_auth(), now)
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(is_not_offered())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verify_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verify(leaf, intermediates, KeyUsage::client_auth(), now)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(is_not_offered())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verify_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}
