//! The authority: made, read from its secret, and the certificates that it signs.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
    date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::parse_x509_certificate;

use crate::config::Certificate;
use crate::error::SignError;
use crate::key;

/// Certificates begin to be valid this long ago: clocks of nodes differ.
const SKEW: Duration = Duration::from_secs(300);

/// A certificate, or an authority, with its key, in PEM.
#[derive(Debug)]
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// An authority that can sign.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, and others that were beside it, as clients trust them.
    pub(crate) certificate: String,
    /// The name by which certificates refer to it, in DER.
    subject: Vec<u8>,
    /// The end of its validity.
    end: Timestamp,
}

/// Makes the certificate of a new authority.
pub(crate) fn new(name: &str, validity: Duration, now: Timestamp) -> Result<Signed, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, saturating_add(now, validity));
    Ok(Signed { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

impl Authority {
    /// Reads the authority of a secret; fails with the fault.
    pub(crate) fn read(certificate: &[u8], key: &[u8], now: Timestamp) -> Result<Authority, String> {
        let der = CertificateDer::from_pem_slice(certificate).map_err(|error| format!("ca.crt: {error}"))?;
        let (_, parsed) = parse_x509_certificate(&der).map_err(|error| format!("ca.crt: {error}"))?;
        if !parsed.is_ca() {
            return Err("ca.crt: is no certificate of an authority".to_owned());
        }
        let end = Timestamp::from_second(parsed.validity().not_after.timestamp());
        let end = end.map_err(|error| format!("ca.crt: {error}"))?;
        if end <= now {
            return Err(format!("ca.crt: the authority has expired at {end}"));
        }
        let key = key::read(key).map_err(|fault| format!("ca.key: {fault}"))?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err("ca.key: is not the key of ca.crt".to_owned());
        }
        let subject = parsed.subject().as_raw().to_vec();
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(|error| format!("ca.crt: {error}"))?;
        let certificate =
            String::from_utf8(certificate.to_vec()).map_err(|error| format!("ca.crt: {error}"))?;
        Ok(Authority { issuer, certificate, subject, end })
    }

    /// Makes a certificate and its key.
    pub(crate) fn sign(&self, wanted: &Certificate, now: Timestamp) -> Result<Signed, SignError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, wanted.common_name.as_str());
        for host in &wanted.hosts {
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(host.as_str().try_into()?),
            });
        }
        // Both were checked when the options were read.
        (params.key_usages, params.extended_key_usages) = wanted.usages().unwrap_or_default();
        params.use_authority_key_identifier_extension = true;
        let end = saturating_add(now, wanted.valid_for().unwrap_or_default());
        set_validity(&mut params, now, end.min(self.end));
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        // Clients compare names byte by byte: one that could not be repeated would fail at each of them.
        let (_, parsed) =
            parse_x509_certificate(certificate.der()).map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
        if parsed.issuer().as_raw() != self.subject {
            return Err(SignError::Name);
        }
        Ok(Signed { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn saturating_add(time: Timestamp, duration: Duration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

fn set_validity(params: &mut CertificateParams, now: Timestamp, end: Timestamp) {
    let seconds = |time: Timestamp| Duration::from_secs(u64::try_from(time.as_second()).unwrap_or_default());
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + seconds(now).saturating_sub(SKEW);
    params.not_after = epoch + seconds(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn wanted(validity: &str) -> Certificate {
        Certificate {
            name: "a".to_owned(),
            namespace: "b".to_owned(),
            common_name: "c".to_owned(),
            hosts: vec!["c.example.org".to_owned()],
            usage: vec!["server auth".to_owned()],
            validity: validity.to_owned(),
        }
    }

    fn end(certificate: &str) -> i64 {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let (_, parsed) = parse_x509_certificate(&der).unwrap();
        parsed.validity().not_after.timestamp()
    }

    #[test]
    fn a_certificate_ends_with_its_authority_and_an_expired_one_signs_nothing() {
        let now = Timestamp::now();
        let made = new("An authority", DAY * 10, now).unwrap();
        let read = |at| Authority::read(made.certificate.as_bytes(), made.key.as_bytes(), at);
        let authority = read(now).unwrap();
        let short = authority.sign(&wanted("48h"), now).unwrap();
        assert_eq!(end(&short.certificate), now.as_second() + 2 * 86_400);
        let long = authority.sign(&wanted("9000h"), now).unwrap();
        assert_eq!(end(&long.certificate), end(&made.certificate));
        let fault = read(saturating_add(now, DAY * 11)).err().unwrap();
        assert!(fault.contains("the authority has expired at"), "{fault}");
        let fault = Authority::read(short.certificate.as_bytes(), short.key.as_bytes(), now).err().unwrap();
        assert_eq!(fault, "ca.crt: is no certificate of an authority");
    }
}
