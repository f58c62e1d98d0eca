//! Private keys in the forms that others write.

use rcgen::KeyPair;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// `AlgorithmIdentifier`s in DER: of RSA (RFC 8017, A.1), and of keys on the curves P-256 and P-384 (RFC 5480).
const RSA: &[u8] = &[0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 1, 5, 0];
const P256: &[u8] =
    &[0x30, 19, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const P384: &[u8] = &[0x30, 16, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 5, 0x2b, 0x81, 4, 0, 34];

/// Returns the key of a text of PEM: PKCS#8, or the older forms of RSA and elliptic curves, which Helm and CFSSL write.
pub(crate) fn read(pem: &[u8]) -> Result<KeyPair, String> {
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| error.to_string())?;
    let candidates: Vec<Vec<u8>> = match &key {
        PrivateKeyDer::Pkcs8(key) => vec![key.secret_pkcs8_der().to_vec()],
        PrivateKeyDer::Pkcs1(key) => vec![pkcs8(RSA, key.secret_pkcs1_der())],
        PrivateKeyDer::Sec1(key) => [P256, P384].map(|curve| pkcs8(curve, key.secret_sec1_der())).into(),
        _ => return Err("an unknown form".to_owned()),
    };
    let read = |der: Vec<u8>| KeyPair::try_from(&PrivatePkcs8KeyDer::from(der)).ok();
    let unusable = || "neither RSA of 2048 bits or more, nor a curve P-256, P-384 or Ed25519".to_owned();
    candidates.into_iter().find_map(read).ok_or_else(unusable)
}

/// Returns a key as PKCS#8 (RFC 5208): version 0, algorithm, the key as octets.
fn pkcs8(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let mut content = vec![2, 1, 0];
    content.extend(algorithm);
    content.extend(element(4, key));
    element(0x30, &content)
}

/// Returns an element of DER.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut element = vec![tag];
    let length = content.len().to_be_bytes();
    let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    match *length {
        [] => element.push(0),
        [short] if short < 0x80 => element.push(short),
        _ => {
            element.push(0x80 | u8::try_from(length.len()).expect("at most 8 bytes"));
            element.extend(length);
        }
    }
    element.extend(content);
    element
}
