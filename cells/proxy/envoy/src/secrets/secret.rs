//! A secret: its items, and the resource of SDS that it is.

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use envoy_api::core::{DataSource, data_source::Specifier};
use envoy_api::tls::secret::Type;
use envoy_api::tls::{
    CertificateValidationContext, GenericSecret, Secret as Resource, TlsCertificate, TlsSessionTicketKeys,
};
use k8s_types::core::Secret as Object;
use xds::Value;

use crate::resources::encoded;

/// The items by default: a certificate with its chain, its private key, the trusted authorities.
pub(crate) const CERTIFICATE: &str = "tls.crt";
pub(crate) const KEY: &str = "tls.key";
pub(crate) const AUTHORITY: &str = "ca.crt";
const TICKET_KEY: &str = "tls.sessionticket.key";
/// The length of a key of session tickets.
const TICKET_KEY_LENGTH: usize = 80;
const MAX_TICKET_KEYS: usize = 10;

/// Labels of a copy that the operator keeps: namespace and name of its original.
const OWNER_NAMESPACE: &str = "secretsync.cilium.io/owning-secret-namespace";
const OWNER_NAME: &str = "secretsync.cilium.io/owning-secret-name";

/// The items of a secret. Without `Debug`: nothing prints them.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct Secret {
    items: BTreeMap<String, Vec<u8>>,
    /// Namespace and name of the original, if it is a copy of the operator.
    original: Option<(String, String)>,
}

impl Secret {
    /// Decodes an object; the error names the item that is not valid.
    pub(crate) fn decode(object: &Object) -> Result<Secret, String> {
        let mut items = BTreeMap::new();
        for (key, value) in object.data.iter() {
            let bytes = BASE64_STANDARD.decode(value.as_bytes());
            let bytes = bytes.map_err(|error| format!("data.{key} is no base64: {error}"))?;
            items.insert(key.to_string(), bytes);
        }
        let plain =
            object.string_data.iter().map(|(key, value)| (key.to_string(), value.as_bytes().to_vec()));
        items.extend(plain);
        let label = |key| object.metadata.labels.get(key).map(ToString::to_string);
        let original = label(OWNER_NAMESPACE).zip(label(OWNER_NAME));
        Ok(Secret { items, original })
    }

    /// Returns a secret with these items.
    pub(crate) fn of_items(items: BTreeMap<String, Vec<u8>>) -> Secret {
        Secret { items, original: None }
    }

    /// Whether it is a copy of another secret: `a-b/c` and `a/b-c` have copies of the same name. A secret without an original was
    /// made by hand.
    pub(crate) fn is_copy_of_another(&self, namespace: &str, name: &str) -> bool {
        self.original.as_ref().is_some_and(|original| original.0 != namespace || original.1 != name)
    }

    /// Returns an item.
    pub(crate) fn get(&self, key: &str) -> Option<&[u8]> {
        self.items.get(key).map(Vec::as_slice)
    }

    /// Returns the item of a secret that has no other.
    pub(crate) fn single(&self) -> Option<&[u8]> {
        match self.items.len() {
            1 => self.items.values().next().map(Vec::as_slice),
            _ => None,
        }
    }

    /// Returns the resource with a name, encoded: a certificate with its key, else an authority, else keys of session
    /// tickets, else the value of the only item.
    pub(crate) fn resource(&self, name: &str) -> Result<Value, String> {
        let resource = Resource { name: name.to_owned(), r#type: Some(self.content()?) };
        Ok(encoded(&resource))
    }

    fn content(&self) -> Result<Type, String> {
        let item = |key: &str| self.get(key).map(source);
        if let (Some(chain), Some(key)) = (item(CERTIFICATE), item(KEY)) {
            return Ok(Type::TlsCertificate(TlsCertificate {
                certificate_chain: Some(chain),
                private_key: Some(key),
            }));
        }
        if let Some(authority) = item(AUTHORITY) {
            return Ok(Type::ValidationContext(CertificateValidationContext { trusted_ca: Some(authority) }));
        }
        if self.get(TICKET_KEY).is_some() {
            return self.ticket_keys();
        }
        let single = self.single().ok_or_else(|| {
            format!("data has neither {CERTIFICATE} and {KEY}, nor {AUTHORITY}, nor one key")
        })?;
        Ok(Type::GenericSecret(GenericSecret { secret: Some(source(single)) }))
    }

    fn ticket_keys(&self) -> Result<Type, String> {
        let mut keys = Vec::new();
        for number in 0..MAX_TICKET_KEYS {
            let name = match number {
                0 => TICKET_KEY.to_owned(),
                _ => format!("{TICKET_KEY}.{number}"),
            };
            let Some(bytes) = self.get(&name) else { break };
            if bytes.len() != TICKET_KEY_LENGTH {
                let found = bytes.len();
                return Err(format!("data.{name} has {found} bytes: a key has {TICKET_KEY_LENGTH}"));
            }
            keys.push(source(bytes));
        }
        Ok(Type::SessionTicketKeys(TlsSessionTicketKeys { keys }))
    }
}

fn source(bytes: &[u8]) -> DataSource {
    DataSource { specifier: Some(Specifier::InlineBytes(bytes.to_vec())) }
}

/// A secret with items, for tests.
#[cfg(test)]
impl<'a> FromIterator<(&'a str, &'a [u8])> for Secret {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a [u8])>>(items: I) -> Secret {
        Secret {
            items: items.into_iter().map(|(key, value)| (key.to_owned(), value.to_vec())).collect(),
            original: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use envoy_api::Message as _;

    use super::*;

    fn content<const N: usize>(data: [(&str, &[u8]); N]) -> Result<Type, String> {
        let data = data.iter().map(|(key, value)| (*key, BASE64_STANDARD.encode(value))).collect();
        let secret = Secret::decode(&Object { data, ..Object::default() })?;
        let decoded = Resource::decode(&*secret.resource("ns/s")?).unwrap();
        assert_eq!(decoded.name, "ns/s");
        Ok(decoded.r#type.unwrap())
    }

    #[test]
    fn keys_decide_the_kind_of_secret() {
        let of = |bytes: &[u8]| Some(source(bytes));
        assert_eq!(
            content([("tls.crt", b"c"), ("tls.key", b"k"), ("ca.crt", b"a")]).unwrap(),
            Type::TlsCertificate(TlsCertificate { certificate_chain: of(b"c"), private_key: of(b"k") })
        );
        assert_eq!(
            content([("ca.crt", b"a")]).unwrap(),
            Type::ValidationContext(CertificateValidationContext { trusted_ca: of(b"a") })
        );
        assert_eq!(
            content([("password", b"p")]).unwrap(),
            Type::GenericSecret(GenericSecret { secret: of(b"p") })
        );
        let (first, second) = ([1; TICKET_KEY_LENGTH], [2; TICKET_KEY_LENGTH]);
        let keys = [("tls.sessionticket.key", &first[..]), ("tls.sessionticket.key.1", &second[..])];
        let Type::SessionTicketKeys(TlsSessionTicketKeys { keys }) = content(keys).unwrap() else { panic!() };
        assert_eq!(keys, [source(&first), source(&second)]);
    }

    #[test]
    fn a_copy_is_that_of_its_original_alone() {
        let decode = |labels: &[(&str, &str)]| {
            let mut object = Object::default();
            object.metadata.labels = labels.iter().copied().collect();
            Secret::decode(&object).unwrap()
        };
        let copy = decode(&[(OWNER_NAMESPACE, "a-b"), (OWNER_NAME, "c")]);
        assert!(!copy.is_copy_of_another("a-b", "c") && copy.is_copy_of_another("a", "b-c"));
        assert!(!decode(&[]).is_copy_of_another("a", "b-c"), "made by hand");
    }

    #[test]
    fn faults_are_named() {
        assert!(content([]).unwrap_err().contains("tls.crt"));
        assert!(content([("a", b"1"), ("b", b"2")]).unwrap_err().contains("one key"));
        assert!(content([("tls.sessionticket.key", b"short")]).unwrap_err().contains("80"));
        let data = [("a", "%")].into_iter().collect();
        let fault = Secret::decode(&Object { data, ..Object::default() }).err().unwrap();
        assert!(fault.contains("data.a"));
    }
}
