//! Messages and services of Envoy and of Cilium's filters in it, as far as the agent uses them.
//!
//! The definitions in `proto/` have the names and numbers of Envoy's public API (v3) and of `cilium.*`, and only the
//! fields that the agent sets or reads. Crates with the whole of Envoy's API compile 16 MB of generated sources; these
//! messages are a few hundred kilobytes of them.
//!
//! ```
//! use envoy_api::{Any, Message as _, cilium::NetworkPolicyHosts};
//!
//! let hosts = NetworkPolicyHosts { policy: 1, host_addresses: vec!["10.0.0.1/32".to_owned()] };
//! let any = Any::from_msg(&hosts).unwrap();
//! assert_eq!(any.type_url, "type.googleapis.com/cilium.NetworkPolicyHosts");
//! assert_eq!(any.value, hosts.encode_to_vec());
//! ```

//!
//! Resources of users may contain any message of Envoy: [`Types`] has the descriptors of the whole API, compressed to
//! 0.1 MB, and reads messages from JSON by them.

#![forbid(unsafe_code)]

mod dynamic;

pub use dynamic::{BadDescriptors, InvalidJson, Types};
pub use prost::{DecodeError, Message, Name};
pub use prost_reflect as reflect;
pub use prost_types::{Any, Duration};
pub use protos::envoy::config::{
    cluster::v3 as cluster, core::v3 as core, endpoint::v3 as endpoint, listener::v3 as listener,
    route::v3 as route,
};
pub use protos::envoy::extensions::filters::http::router::v3 as router;
pub use protos::envoy::extensions::filters::listener::tls_inspector::v3 as tls_inspector;
pub use protos::envoy::extensions::filters::network::http_connection_manager::v3 as http;
pub use protos::envoy::extensions::filters::network::tcp_proxy::v3 as tcp_proxy;
pub use protos::envoy::extensions::transport_sockets::tls::v3 as tls;
pub use protos::envoy::extensions::upstreams::http::v3 as upstream_http;
pub use protos::envoy::service::discovery::v3 as discovery;
pub use protos::envoy::r#type::matcher::v3 as matcher;
pub use protos::google::rpc;
pub use protos::{cilium, envoy::service};

/// The definitions of the messages and services, as an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.binpb"));

/// Code of prost and tonic.
mod protos {
    #![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/protos.rs"));
}
