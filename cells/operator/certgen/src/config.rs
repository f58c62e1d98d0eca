//! The options, in the spelling of `cilium-certgen`. Each is read once.

use std::time::Duration;

use rcgen::{ExtendedKeyUsagePurpose, KeyUsagePurpose};
use serde::Deserialize;

use crate::error::Error;

/// The longest validity: beyond it, dates have no form in a certificate.
const MAX_VALIDITY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Options of the authority, and the certificates.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Certificates")]
pub struct CertgenConfig {
    /// The certificates as YAML: certs, a list of name, namespace, commonName, hosts, usage, validity
    #[flag(default = "")]
    pub config: String,
    /// Create an authority where the secret has none
    #[flag(default = false)]
    pub ca_generate: bool,
    /// Use the authority that the secret has
    #[flag(default = false)]
    pub ca_reuse_secret: bool,
    /// Name of the secret of the authority
    #[flag(default = "cilium-ca")]
    pub ca_secret_name: String,
    /// Namespace of the secret of the authority
    #[flag(default = "kube-system")]
    pub ca_secret_namespace: String,
    /// Common name of a new authority
    #[flag(default = "Cilium CA")]
    pub ca_common_name: String,
    /// How long a new authority is valid: three years
    #[flag(default = "26280h")]
    pub ca_validity_duration: Duration,
    /// How long all requests to the API server may take
    #[flag(default = "1m")]
    pub timeout: Duration,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    certs: Vec<Certificate>,
}

/// A certificate to make.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Certificate {
    /// The name of its secret.
    pub name: String,
    /// The namespace of its secret.
    pub namespace: String,
    /// The common name of its subject.
    pub common_name: String,
    /// The names and addresses that it is valid for.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// The uses of its key, in the words of CFSSL: `signing`, `key encipherment`, `server auth`, `client auth`.
    pub usage: Vec<String>,
    /// How long it is valid, as Go writes durations.
    pub validity: String,
}

impl CertgenConfig {
    /// Returns the certificates, checked.
    pub(crate) fn certificates(&self) -> Result<Vec<Certificate>, Error> {
        let wrong = |reason: String| Error::Config { reason };
        let list: List = yaml_values::from_str(&self.config).map_err(|fault| wrong(fault.to_string()))?;
        if list.certs.is_empty() {
            return Err(wrong("certs: is empty: nothing would be made".to_owned()));
        }
        for certificate in &list.certs {
            let name = &certificate.name;
            let wrong = |reason: String| Error::Config { reason: format!("certs: {name}: {reason}") };
            if name.is_empty() || certificate.namespace.is_empty() || certificate.common_name.is_empty() {
                return Err(wrong("needs name, namespace and commonName".to_owned()));
            }
            if certificate.name == self.ca_secret_name && certificate.namespace == self.ca_secret_namespace {
                return Err(wrong("its secret is that of the authority".to_owned()));
            }
            certificate.valid_for().map_err(wrong)?;
            certificate.usages().map_err(wrong)?;
        }
        Ok(list.certs)
    }
}

impl Certificate {
    /// Returns how long it is valid.
    pub(crate) fn valid_for(&self) -> Result<Duration, String> {
        let validity = go_duration::parse(&self.validity).map_err(|error| format!("validity: {error}"))?;
        match validity.is_zero() || validity > MAX_VALIDITY {
            true => Err(format!("validity: {} is not between 1s and 100 years", self.validity)),
            false => Ok(validity),
        }
    }

    /// Returns the uses of its key.
    pub(crate) fn usages(&self) -> Result<(Vec<KeyUsagePurpose>, Vec<ExtendedKeyUsagePurpose>), String> {
        let (mut uses, mut extended) = (Vec::new(), Vec::new());
        for usage in &self.usage {
            match usage.as_str() {
                "signing" | "digital signature" => uses.push(KeyUsagePurpose::DigitalSignature),
                "key encipherment" => uses.push(KeyUsagePurpose::KeyEncipherment),
                "server auth" => extended.push(ExtendedKeyUsagePurpose::ServerAuth),
                "client auth" => extended.push(ExtendedKeyUsagePurpose::ClientAuth),
                other => {
                    return Err(format!(
                        "usage: {other:?} is none of signing, key encipherment, server auth, client auth"
                    ));
                }
            }
        }
        match uses.is_empty() && extended.is_empty() {
            true => Err("usage: is empty: a client or server would refuse the certificate".to_owned()),
            false => Ok((uses, extended)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(yaml: &str) -> CertgenConfig {
        CertgenConfig {
            config: yaml.to_owned(),
            ca_generate: true,
            ca_reuse_secret: true,
            ca_secret_name: "cilium-ca".to_owned(),
            ca_secret_namespace: "kube-system".to_owned(),
            ca_common_name: "Cilium CA".to_owned(),
            ca_validity_duration: Duration::from_secs(3600),
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn certificates_are_read_as_ciliums_chart_writes_them() {
        let yaml = "certs:\n- name: hubble-server-certs\n  namespace: kube-system\n  commonName: \"*.a.hubble-grpc.cilium.io\"\n  \
                    hosts:\n  - \"*.a.hubble-grpc.cilium.io\"\n  - \"192.0.2.1\"\n  usage:\n  - signing\n  - key encipherment\n  \
                    - server auth\n  - client auth\n  validity: 8760h\n";
        let certificates = config(yaml).certificates().unwrap();
        assert_eq!(certificates[0].hosts, ["*.a.hubble-grpc.cilium.io", "192.0.2.1"]);
        assert_eq!(certificates[0].valid_for().unwrap(), Duration::from_secs(365 * 24 * 3600));
        let (uses, extended) = certificates[0].usages().unwrap();
        assert_eq!((uses.len(), extended.len()), (2, 2));
    }

    #[test]
    fn faults_are_named() {
        let one = |rest: &str| format!("certs: [{{name: a, namespace: b, commonName: c, {rest}}}]");
        for (yaml, fault) in [
            (String::new(), "config: "),
            ("certs: []".to_owned(), "certs: is empty"),
            (one("usage: [server auth], validity: 1d"), "certs: a: validity: "),
            (one("usage: [server auth], validity: 0s"), "certs: a: validity: 0s is not between"),
            (one("usage: [server auth], validity: 1000000h"), "certs: a: validity: 1000000h is not between"),
            (one("usage: [guest], validity: 1h"), "certs: a: usage: \"guest\" is none of"),
            (one("usage: [], validity: 1h"), "certs: a: usage: is empty"),
            (one("usage: [signing], validity: 1h, secret: x"), "secret"),
            (
                "certs: [{name: cilium-ca, namespace: kube-system, commonName: c, usage: [signing], validity: 1h}]"
                    .to_owned(),
                "certs: cilium-ca: its secret is that of the authority",
            ),
        ] {
            let error = config(&yaml).certificates().unwrap_err().to_string();
            assert!(error.contains(fault), "{yaml}: {error}");
        }
    }
}
