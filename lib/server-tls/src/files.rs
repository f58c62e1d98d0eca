//! Files to the configuration of a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

/// The files of a server's TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server, for messages.
    pub server: &'static str,
    /// The option that names the files of authorities, for messages.
    pub authorities_option: &'static str,
    /// The protocol that is chosen by ALPN.
    pub protocol: &'static [u8],
    /// The certificate with its chain, in PEM.
    pub certificate: PathBuf,
    /// The key of the certificate, in PEM.
    pub key: PathBuf,
    /// With them, clients need a certificate of one of these authorities.
    pub client_authorities: Vec<PathBuf>,
}

/// Files that are no configuration of TLS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file cannot be read, or is not in PEM.
    #[error("{path}: is no {expected} in PEM")]
    File {
        path: String,
        /// The contents that it must have.
        expected: &'static str,
        #[source]
        source: pem::Error,
    },
    /// A certificate of an authority is invalid.
    #[error("{path}: has an invalid certificate of an authority")]
    Authority {
        path: String,
        #[source]
        source: rustls::Error,
    },
    /// There is no certificate in the files of authorities.
    #[error("{option}: the files have no certificate")]
    Authorities {
        option: &'static str,
        #[source]
        source: VerifierBuilderError,
    },
    /// Certificate and key do not fit.
    #[error("{path}: the certificate cannot be used with its key")]
    Certificate {
        path: String,
        #[source]
        source: rustls::Error,
    },
}

impl TlsFiles {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Path> {
        let own = [self.certificate.as_path(), self.key.as_path()];
        own.into_iter().chain(self.client_authorities.iter().map(PathBuf::as_path))
    }

    /// Reads the files. Blocks.
    pub(crate) fn load(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        // The provider has cipher suites of this version.
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("ring has TLS 1.3");
        let builder = match &self.client_authorities[..] {
            [] => builder.with_no_client_auth(),
            files => {
                let mut roots = RootCertStore::empty();
                for path in files {
                    for certificate in certificates(path)? {
                        let invalid = |source| TlsError::Authority { path: shown(path), source };
                        roots.add(certificate).map_err(invalid)?;
                    }
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let option = self.authorities_option;
                let verifier = verifier.build().map_err(|source| TlsError::Authorities { option, source })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|source| TlsError::File {
            path: shown(&self.key),
            expected: "private key",
            source,
        })?;
        let unusable = |source| TlsError::Certificate { path: shown(&self.certificate), source };
        let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
        config.alpn_protocols = vec![self.protocol.to_vec()];
        Ok(config)
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Reads all certificates of a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let invalid = |source| TlsError::File { path: shown(path), expected: "certificate", source };
    let all: Vec<_> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(invalid)?;
    match all.is_empty() {
        true => Err(invalid(pem::Error::NoItemsFound)),
        false => Ok(all),
    }
}
