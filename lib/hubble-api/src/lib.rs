//! Hubble's messages and services over gRPC, as Cilium's clients speak them.
//!
//! **Owns** the definitions in `proto/`, with Cilium's names and numbers: [`flow`], [`observer`], [`peer`], [`relay`],
//! and the part of gRPC's [`health`] service that clients use; the JSON form and the lines that clients print
//! ([`to_json`], [`to_compact`]), and the JSON that they write ([`flow_from_json`], [`filter_from_json`]); field masks
//! ([`FieldMask`]); the connection of a client to a [`Server`] ([`connect`]).
//! **Needs** nothing: no clock, no kernel.
//!
//! ```
//! use hubble_api::flow::{Flow, Ip, Verdict};
//! use hubble_api::observer::{GetFlowsResponse, get_flows_response::ResponseTypes};
//!
//! let ip = Ip { source: "10.0.0.1".into(), ..Ip::default() };
//! let flow = Flow { verdict: Verdict::Dropped.into(), ip: Some(ip), ..Flow::default() };
//! let response = GetFlowsResponse { response_types: Some(ResponseTypes::Flow(flow)), ..Default::default() };
//! let json = r#"{"flow":{"verdict":"DROPPED","IP":{"source":"10.0.0.1"}}}"#;
//! assert_eq!(hubble_api::to_json(&response), json);
//! ```

#![forbid(unsafe_code)]

mod client;
mod compact;
mod events;
mod json;
mod mask;
mod read;
mod server;
mod tls;

pub use client::{ConnectError, connect};
pub use compact::{LineOptions, to_columns, to_compact};
pub use events::{agent_event_to_compact, debug_event_to_compact};
pub use json::to_json;
pub use mask::{BadMask, FieldMask};
pub use protos::grpc::health::v1 as health;
pub use protos::{flow, observer, peer, relay};
pub use read::{BadJson, filter_from_json, flow_from_json};
pub use server::{BadServer, ClientTls, Server};
pub use tls::TlsError;
pub use tonic::Status;

/// The definitions of all services and messages, an encoded `google.protobuf.FileDescriptorSet`, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Code of prost and tonic.
mod protos {
    #![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/protos.rs"));
}
