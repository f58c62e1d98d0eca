//! TLS of clients: files to the configuration.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, UnixTime, pem};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::server::{ClientTls, host};

/// Options of TLS that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Neither authorities nor the wish to do without.
    #[error("TLS needs the certificates of authorities that sign those of servers")]
    NoAuthority,
    /// A file cannot be read, or is not in PEM.
    #[error("{path}: is no {expected} in PEM")]
    File {
        /// The file.
        path: String,
        /// What it must contain.
        expected: &'static str,
        /// The error.
        #[source]
        source: pem::Error,
    },
    /// A certificate or a key is invalid.
    #[error("{path}: cannot be used")]
    Invalid {
        /// The file.
        path: String,
        /// The error.
        #[source]
        source: rustls::Error,
    },
    /// The host or name of the server is neither a name nor an address.
    #[error("{name} is no name of a server")]
    Name {
        /// The name.
        name: String,
        /// The error.
        #[source]
        source: InvalidDnsNameError,
    },
}

impl ClientTls {
    /// Returns the name to verify.
    pub(crate) fn name(&self, address: &str) -> Result<ServerName<'static>, TlsError> {
        let name = self.server_name.clone().unwrap_or_else(|| host(address).to_owned());
        ServerName::try_from(name.clone()).map_err(|source| TlsError::Name { name, source })
    }

    /// Reads the files. Blocks.
    pub(crate) fn load(&self) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone());
        // The provider has cipher suites of this version, which servers of Hubble have at least.
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("ring has TLS 1.3");
        let builder = if self.is_insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)))
        } else {
            let mut roots = RootCertStore::empty();
            for path in &self.authorities {
                for certificate in certificates(path)? {
                    roots
                        .add(certificate)
                        .map_err(|source| TlsError::Invalid { path: shown(path), source })?;
                }
            }
            if roots.is_empty() {
                return Err(TlsError::NoAuthority);
            }
            builder.with_root_certificates(roots)
        };
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::File {
                    path: shown(key),
                    expected: "private key",
                    source,
                })?;
                let invalid = |source| TlsError::Invalid { path: shown(certificate), source };
                builder.with_client_auth_cert(chain, key).map_err(invalid)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<_, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    all.map_err(|source| TlsError::File { path: shown(path), expected: "certificate", source })
}

/// Accepts every certificate whose key the server has.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
