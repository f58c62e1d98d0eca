//! The client's certificate: its location and validity period. No other fields are parsed.

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The client's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    /// Its key and file, for messages.
    pub(crate) name: String,
    /// The validity period, if it can be parsed.
    validity: Option<(Timestamp, Timestamp)>,
}

impl Certificate {
    /// Parses the first certificate of a PEM file.
    pub(super) fn of_pem(name: String, pem: &[u8]) -> Certificate {
        let certificate = CertificateDer::from_pem_slice(pem).ok();
        Certificate { name, validity: certificate.and_then(|der| validity(&der)) }
    }

    /// Parses the first certificate of PEM data that is encoded in base64 once more.
    pub(super) fn of_data(name: String, data: &str) -> Certificate {
        // Wrapped as PEM, so that the PEM parser decodes the outer base64, too.
        let outer = format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", data.trim());
        let pem = CertificateDer::from_pem_slice(outer.as_bytes());
        Certificate::of_pem(name, pem.as_deref().unwrap_or_default())
    }

    /// Returns an error with its remedy if the certificate is not valid at this time.
    pub(crate) fn fault(&self, now: Timestamp) -> Option<String> {
        let (from, to) = self.validity?;
        let second = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
        let clock = format!("this machine's clock says {}", second(now));
        match () {
            () if now > to => Some(format!("it has expired at {to} ({clock}): renew it")),
            () if now < from => Some(format!("it is valid from {from} on ({clock}): is the clock right?")),
            () => None,
        }
    }
}

/// Parses `notBefore` and `notAfter` of an X.509 certificate (RFC 5280, section 4.1).
fn validity(der: &[u8]) -> Option<(Timestamp, Timestamp)> {
    let (certificate, _) = element(der)?;
    let mut rest = element(certificate.content)?.0.content;
    // The version is optional; then serial number, signature algorithm, issuer.
    if rest.first() == Some(&0xa0) {
        rest = element(rest)?.1;
    }
    for _ in 0..3 {
        rest = element(rest)?.1;
    }
    let validity = element(rest)?.0.content;
    let (from, rest) = element(validity)?;
    Some((from.time()?, element(rest)?.0.time()?))
}

/// An element of DER.
struct Element<'d> {
    tag: u8,
    content: &'d [u8],
}

impl Element<'_> {
    /// Parses `UTCTime` (years 1950 to 2049) or `GeneralizedTime`, in UTC with seconds.
    fn time(&self) -> Option<Timestamp> {
        let text = std::str::from_utf8(self.content).ok()?.strip_suffix('Z')?;
        let text = match self.tag {
            0x17 if text.get(..2)? >= "50" => format!("19{text}"),
            0x17 => format!("20{text}"),
            _ => text.to_owned(),
        };
        let part = |from: usize, to: usize| text.get(from..to);
        let date = format!("{}-{}-{}", part(0, 4)?, part(4, 6)?, part(6, 8)?);
        format!("{date}T{}:{}:{}Z", part(8, 10)?, part(10, 12)?, part(12, 14)?).parse().ok()
    }
}

/// Returns the first element, and the bytes behind it.
fn element(der: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        _ => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = bytes.iter().try_fold(0_usize, |length, byte| {
                length.checked_mul(256).map(|length| length + usize::from(*byte))
            });
            (length?, rest)
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((Element { tag, content }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generated for these tests.
    const PEM: &str = "-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIUbHVPVZyESnCosG738WEc1GMGPNkwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBYTAeFw0yNjExMjIxNzI5MjdaFw0yNzAzMDIxNzI5MjdaMAwx
CjAIBgNVBAMMAWEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARJgXP0/hX/DbTH
kSo8dWLHazH7daNFffpaTFSphbvCXll2H0nW8mDvsiPN9Nno2tXSXGjHrIU3xgOH
W1XhB6xMo1MwUTAdBgNVHQ4EFgQUueYsLcTMB9PQN9vGiavIM5jQ7NMwHwYDVR0j
BBgwFoAUueYsLcTMB9PQN9vGiavIM5jQ7NMwDwYDVR0TAQH/BAUwAwEB/zAKBggq
hkjOPQQDAgNIADBFAiEAl33iX3A4bGkgTysKMcKtihGl7Z8+jrZOfuLPo4hHwscC
IEgnFGMaanoGbMUScI5YxYF6++qYRxZTWD8tpC14BcPe
-----END CERTIFICATE-----
";

    #[test]
    fn the_validity_is_compared_with_the_clock() {
        let data = {
            use std::io::Write as _;
            use std::process::{Command, Stdio};
            let mut base64 = Command::new("base64");
            let mut base64 =
                base64.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("base64 of coreutils");
            base64.stdin.take().unwrap().write_all(PEM.as_bytes()).unwrap();
            String::from_utf8(base64.wait_with_output().unwrap().stdout).unwrap()
        };
        let of_file = Certificate::of_pem("c".to_owned(), PEM.as_bytes());
        assert_eq!(Certificate::of_data("c".to_owned(), &data), of_file);
        assert_eq!(Certificate::of_data("c".to_owned(), &data.replace('\n', "")), of_file);
        let fault = |now: &str| of_file.fault(now.parse().unwrap());
        assert_eq!(fault("2026-12-01T00:00:00Z"), None);
        assert_eq!(
            fault("2027-03-03T00:00:00.7Z").as_deref(),
            Some(
                "it has expired at 2027-03-02T17:29:27Z (this machine's clock says 2027-03-03T00:00:00Z): renew it"
            )
        );
        let early = fault("1970-01-01T00:00:00Z").unwrap();
        assert!(early.starts_with("it is valid from 2026-11-22T17:29:27Z on"), "{early}");
    }

    #[test]
    fn no_certificate_no_expiry() {
        let der = CertificateDer::from_pem_slice(PEM.as_bytes()).unwrap();
        assert!(validity(&der).is_some());
        for end in 0..der.len().min(180) {
            assert_eq!(validity(&der[..end]), None);
            let mut wrong = der.to_vec();
            wrong[end] ^= 0xff;
            let _ = validity(&wrong);
        }
        assert_eq!(Certificate::of_pem("c".to_owned(), b"no").validity, None);
    }
}
