//! Certificates of rules: inline, or by the name of a resource of SDS.

use envoy_api::cilium::TlsContext as Message;
use policy_engine::TlsContext;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Peers;
use crate::secrets::{AUTHORITY, CERTIFICATE, Found, KEY, Secret};

/// Returns the context by which the proxy terminates TLS of clients: a certificate with its key. `None` if the secret
/// cannot be used.
pub(super) fn terminating(context: &TlsContext, peers: &impl Peers) -> Option<Message> {
    context_of(context, peers, |found| {
        let (certificate_chain, private_key) = pair(context, &found.secret)?
            .ok_or_else(|| format!("has no items {CERTIFICATE} and {KEY}: add them"))?;
        let is_default =
            is_default(&context.certificate, CERTIFICATE) && is_default(&context.private_key, KEY);
        // As earlier versions of Cilium did; the resource of the pair has no authorities.
        if peers.full_tls_context()
            && let Some((name, trusted_ca)) = item(&found.secret, &context.trusted_ca, AUTHORITY)?
        {
            check_certificates(&name, &trusted_ca)?;
            return Ok(Message { trusted_ca, certificate_chain, private_key, ..Message::default() });
        }
        Ok(match found.sds {
            // The resource of a secret with both items is the pair.
            Some(name) if is_default => Message { tls_sds_secret: name, ..Message::default() },
            _ => Message { certificate_chain, private_key, ..Message::default() },
        })
    })
}

/// Returns the context by which the proxy originates TLS to servers: the authorities that it trusts, and the certificate
/// that it shows if the secret has one. `None` if the secret cannot be used.
pub(super) fn originating(context: &TlsContext, peers: &impl Peers) -> Option<Message> {
    context_of(context, peers, |found| {
        let trusted_ca = authorities(context, &found.secret)?;
        let pair = pair(context, &found.secret)?;
        Ok(match (found.sds, pair) {
            // Without a pair, the resource is the authorities.
            (Some(name), None) if is_default(&context.trusted_ca, AUTHORITY) => {
                Message { validation_context_sds_secret: name, ..Message::default() }
            }
            (_, pair) => {
                let (certificate_chain, private_key) = pair.unwrap_or_default();
                Message { trusted_ca, certificate_chain, private_key, ..Message::default() }
            }
        })
    })
}

fn context_of(
    context: &TlsContext,
    peers: &impl Peers,
    make: impl FnOnce(Found) -> Result<Message, String>,
) -> Option<Message> {
    let found = peers.secret(&context.secret)?;
    make(found).map_err(|reason| peers.refuse(&context.secret, reason)).ok()
}

fn is_default(key: &str, default: &str) -> bool {
    key.is_empty() || key == default
}

/// Returns the text of an item; `None` if there is none by the default name.
fn item(secret: &Secret, key: &str, default: &str) -> Result<Option<(String, String)>, String> {
    let name = if key.is_empty() { default } else { key };
    match secret.get(name) {
        Some(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some((name.to_owned(), text.to_owned()))),
            Err(_) => Err(format!("has no PEM in item {name}: replace it")),
        },
        None if key.is_empty() => Ok(None),
        None => Err(format!("has no item {name}: add it")),
    }
}

fn authorities(context: &TlsContext, secret: &Secret) -> Result<String, String> {
    let (name, text) = item(secret, &context.trusted_ca, AUTHORITY)?
        .ok_or_else(|| format!("has no item {AUTHORITY}: add it"))?;
    check_certificates(&name, &text)?;
    Ok(text)
}

/// Returns certificate and private key; `None` if the secret has neither.
fn pair(context: &TlsContext, secret: &Secret) -> Result<Option<(String, String)>, String> {
    let certificate = item(secret, &context.certificate, CERTIFICATE)?;
    let key = item(secret, &context.private_key, KEY)?;
    let ((certificate_name, certificate), (key_name, key)) = match (certificate, key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) => return Ok(None),
        (Some((name, _)), None) => return Err(format!("has item {name} without its private key: add it")),
        (None, Some((name, _))) => return Err(format!("has item {name} without its certificate: add it")),
    };
    check_certificates(&certificate_name, &certificate)?;
    if PrivateKeyDer::from_pem_slice(key.as_bytes()).is_err() {
        return Err(format!("has no private key in item {key_name}: replace it"));
    }
    Ok(Some((certificate, key)))
}

/// Checks that a text has certificates: Envoy would refuse the policies of all endpoints because of another text.
fn check_certificates(name: &str, text: &str) -> Result<(), String> {
    let mut certificates = CertificateDer::pem_slice_iter(text.as_bytes()).peekable();
    match certificates.peek().is_some() && certificates.all(|certificate| certificate.is_ok()) {
        true => Ok(()),
        false => Err(format!("has no certificates in item {name}: replace it")),
    }
}
