//! Secrets of the cluster as resources of SDS.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use envoy_api::Message as _;
use envoy_api::core::{DataSource, data_source::Specifier};
use envoy_api::tls::secret::Type;
use envoy_api::tls::{
    CertificateValidationContext, GenericSecret, Secret as Resource, TlsCertificate, TlsSessionTicketKeys,
};
use envoy_proxy::{Envoy, Kind, Value};
use futures::StreamExt as _;
use hive::JobCx;
use k8s_tables::ObjectEvent;
use k8s_types::core::Secret;
use k8s_types::{Resource as _, Selection, Source};
use parking_lot::Mutex;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";
const TICKET_KEY: &str = "tls.sessionticket.key";
/// The length of a key of session tickets.
const TICKET_KEY_LENGTH: usize = 80;
const MAX_TICKET_KEYS: usize = 10;

/// The secrets of one source by their names, and whether they are all.
#[derive(Default)]
struct Listed {
    secrets: BTreeMap<Arc<str>, Value>,
    is_complete: bool,
}

/// The secrets of all sources.
#[derive(Clone)]
pub(crate) struct Secrets {
    envoy: Envoy,
    sources: Arc<Mutex<Vec<Listed>>>,
}

impl Secrets {
    /// Holds back secrets until all sources have been listed once.
    pub(crate) fn new(envoy: Envoy, sources: usize) -> Secrets {
        envoy.hold(Kind::Secrets, sources > 0);
        let sources = (0..sources).map(|_| Listed::default()).collect();
        Secrets { envoy, sources: Arc::new(Mutex::new(sources)) }
    }

    /// Follows the secrets of a source.
    pub(crate) async fn follow(
        self,
        number: usize,
        source: Arc<dyn Source>,
        namespace: String,
        cx: JobCx,
    ) -> anyhow::Result<()> {
        let selection = Selection::all(Secret::KIND).in_namespace(&namespace);
        let mut events = k8s_tables::events::<Secret>(&*source, selection);
        // Those of a list that is not complete yet: the former ones stay meanwhile.
        let mut secrets: BTreeMap<Arc<str>, Value> = BTreeMap::new();
        let mut is_listing = true;
        loop {
            let event = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                event = events.next() => event,
            };
            match event {
                None => return Ok(()),
                Some(Err(error)) => {
                    cx.health.degraded("Secrets cannot be followed, the former ones stay", &error);
                    continue;
                }
                Some(Ok(ObjectEvent::Restart)) => {
                    secrets.clear();
                    is_listing = true;
                }
                Some(Ok(ObjectEvent::Listed)) => is_listing = false,
                Some(Ok(ObjectEvent::Applied(secret))) => {
                    let name = name(&secret.metadata.namespace, &secret.metadata.name);
                    match resource(&name, &secret) {
                        Ok(value) => _ = secrets.insert(name, value),
                        Err(fault) => {
                            tracing::warn!(secret = %name, %fault, "Envoy does not get a secret");
                            secrets.remove(&name);
                        }
                    }
                }
                Some(Ok(ObjectEvent::Deleted(key))) => _ = secrets.remove(&name(&key.namespace, &key.name)),
                Some(Ok(ObjectEvent::Invalid(_) | ObjectEvent::Progress)) => {}
            }
            if !is_listing {
                self.publish(number, secrets.clone());
                cx.health.ok(format_args!("{} secrets", secrets.len()));
            }
        }
    }

    fn publish(&self, number: usize, secrets: BTreeMap<Arc<str>, Value>) {
        let mut sources = self.sources.lock();
        if let Some(listed) = sources.get_mut(number) {
            *listed = Listed { secrets, is_complete: true };
        }
        let all = sources.iter().flat_map(|listed| &listed.secrets);
        let all = all.map(|(name, value)| (name.clone(), value.clone())).collect();
        self.envoy.replace(Kind::Secrets, all);
        self.envoy.hold(Kind::Secrets, !sources.iter().all(|listed| listed.is_complete));
    }
}

fn name(namespace: &str, name: &str) -> Arc<str> {
    format!("{namespace}/{name}").into()
}

/// Returns a secret as Envoy takes it, encoded: a certificate with its key, else an authority, else keys of session
/// tickets, else the value of the only key.
fn resource(name: &str, secret: &Secret) -> Result<Value, String> {
    let mut data: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for (key, value) in secret.data.iter() {
        let bytes = BASE64_STANDARD.decode(value.as_bytes());
        data.insert(key, bytes.map_err(|error| format!("data.{key} is no base64: {error}"))?);
    }
    data.extend(secret.string_data.iter().map(|(key, value)| (key.as_str(), value.as_bytes().to_vec())));
    let mut take = |key: &str| data.remove(key).map(source);
    let content = if let (Some(chain), Some(key)) = (take(CERTIFICATE), take(KEY)) {
        Type::TlsCertificate(TlsCertificate { certificate_chain: Some(chain), private_key: Some(key) })
    } else if let Some(authority) = take(AUTHORITY) {
        Type::ValidationContext(CertificateValidationContext { trusted_ca: Some(authority) })
    } else if data.contains_key(TICKET_KEY) {
        let keys = (0..MAX_TICKET_KEYS).map_while(|number| match number {
            0 => data.remove_entry(TICKET_KEY),
            _ => data.remove_entry(format!("{TICKET_KEY}.{number}").as_str()),
        });
        let keys: Vec<(&str, Vec<u8>)> = keys.collect();
        if let Some((key, bytes)) = keys.iter().find(|(_, bytes)| bytes.len() != TICKET_KEY_LENGTH) {
            return Err(format!("data.{key} has {} bytes: a key has {TICKET_KEY_LENGTH}", bytes.len()));
        }
        let keys = keys.into_iter().map(|(_, bytes)| source(bytes)).collect();
        Type::SessionTicketKeys(TlsSessionTicketKeys { keys })
    } else {
        match (data.pop_first(), data.is_empty()) {
            (Some((_, bytes)), true) => Type::GenericSecret(GenericSecret { secret: Some(source(bytes)) }),
            _ => {
                return Err(format!(
                    "data has neither {CERTIFICATE} and {KEY}, nor {AUTHORITY}, nor one key"
                ));
            }
        }
    };
    let resource = Resource { name: name.to_owned(), r#type: Some(content) };
    Ok(resource.encode_to_vec().into())
}

fn source(bytes: Vec<u8>) -> DataSource {
    DataSource { specifier: Some(Specifier::InlineBytes(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(data: &[(&str, &[u8])]) -> Result<Type, String> {
        let data = data.iter().map(|(key, value)| (*key, BASE64_STANDARD.encode(value))).collect();
        let value = resource("ns/s", &Secret { data, ..Secret::default() })?;
        let decoded = Resource::decode(&*value).unwrap();
        assert_eq!(decoded.name, "ns/s");
        Ok(decoded.r#type.unwrap())
    }

    #[test]
    fn keys_decide_the_kind_of_secret() {
        let of = |bytes: &[u8]| Some(source(bytes.to_vec()));
        assert_eq!(
            content(&[("tls.crt", b"c"), ("tls.key", b"k"), ("ca.crt", b"a")]).unwrap(),
            Type::TlsCertificate(TlsCertificate { certificate_chain: of(b"c"), private_key: of(b"k") })
        );
        assert_eq!(
            content(&[("ca.crt", b"a")]).unwrap(),
            Type::ValidationContext(CertificateValidationContext { trusted_ca: of(b"a") })
        );
        assert_eq!(
            content(&[("password", b"p")]).unwrap(),
            Type::GenericSecret(GenericSecret { secret: of(b"p") })
        );
        let (first, second) = ([1; TICKET_KEY_LENGTH], [2; TICKET_KEY_LENGTH]);
        let keys = [("tls.sessionticket.key", &first[..]), ("tls.sessionticket.key.1", &second[..])];
        let Type::SessionTicketKeys(TlsSessionTicketKeys { keys }) = content(&keys).unwrap() else {
            panic!()
        };
        assert_eq!(keys, [source(first.to_vec()), source(second.to_vec())]);
    }

    #[test]
    fn faults_are_named() {
        assert!(content(&[]).unwrap_err().contains("tls.crt"));
        assert!(content(&[("a", b"1"), ("b", b"2")]).unwrap_err().contains("one key"));
        assert!(content(&[("tls.sessionticket.key", b"short")]).unwrap_err().contains("80"));
        let data = [("a", "%")].into_iter().collect();
        assert!(resource("ns/s", &Secret { data, ..Secret::default() }).unwrap_err().contains("data.a"));
    }
}
