//! Objects as resources, without a hive.

use envoy_api::Types;
use envoy_proxy::{Kind, Value};
use k8s_types::cilium::CiliumEnvoyConfig;

use crate::error::Invalid;
use crate::parse::{Object, Settings, parse};

/// A resource: its type, its name, its encoded message.
pub type Resource = (Kind, String, Value);

/// Returns the resources of an object, encoded, with their names; listeners without an address get this port. `None` if
/// it is no object of the kind.
pub fn resources(object: &[u8], port: u16, types: &Types) -> Option<Result<Vec<Resource>, Vec<Invalid>>> {
    let object: CiliumEnvoyConfig = serde_json::from_slice(object).ok()?;
    let settings = Settings { addresses: vec!["127.0.0.1", "::1"], ..Settings::default() };
    let parsed = parse(Object { meta: &object.metadata, spec: &object.spec }, &settings, types);
    Some(parsed.map(|parsed| {
        let listeners = parsed.listeners.iter().map(|(name, listener)| {
            (Kind::Listeners, name.to_string(), listener.encode(Some(port), &settings, types))
        });
        let others =
            parsed.others.iter().map(|((kind, name), value)| (*kind, name.to_string(), value.clone()));
        listeners.chain(others).collect()
    }))
}
