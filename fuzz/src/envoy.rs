//! Messages of an Envoy, and Envoy configurations of the cluster.

use std::sync::{Arc, LazyLock};

use envoy_api::Types;
use envoy_api::reflect::DynamicMessage;
use envoy_proxy::Kind;

use crate::input::parts;

/// The types are some megabytes: they are built once.
static TYPES: LazyLock<Arc<Types>> = LazyLock::new(|| Types::load().unwrap());

/// The names of the types of resources.
fn type_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Listeners => "envoy.config.listener.v3.Listener",
        Kind::Routes => "envoy.config.route.v3.RouteConfiguration",
        Kind::Clusters => "envoy.config.cluster.v3.Cluster",
        Kind::Endpoints => "envoy.config.endpoint.v3.ClusterLoadAssignment",
        Kind::Secrets => "envoy.extensions.transport_sockets.tls.v3.Secret",
        Kind::Policies | Kind::Hosts => unreachable!("objects have no such resources"),
    }
}

/// An object, a message of the access log, and three requests of a stream.
pub(crate) fn run(data: &[u8]) {
    let [object, log_entry, first, second, third] = parts(data);
    let _ = envoy_proxy::testing::parse_log_entry(log_entry);
    let versions = envoy_proxy::testing::answer(&[first, second, third]);
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?} rise");
    match envoy_config::testing::resources(object, 10_000, &TYPES) {
        Some(Ok(resources)) => {
            for (kind, name, value) in resources {
                assert!(!name.is_empty(), "{kind:?} has a name");
                let descriptor = TYPES.descriptor(type_of(kind)).unwrap();
                DynamicMessage::decode(descriptor, &*value).unwrap();
            }
        }
        Some(Err(faults)) => assert!(!faults.is_empty()),
        None => {}
    }
}
