//! Tests that need two cells, root, namespaces or real clients.
//!
//! [`Node`] is a whole node in a sandbox: the real `agent` binary, its uplink to a world outside, and pods that
//! the real CNI plugin adds. Nothing in it is faked.

mod api_server;
mod build;
pub mod cast;
mod cluster;
pub mod costs;
mod events;
pub mod frames;
mod http;
mod image;
mod kubelet;
mod machine;
pub mod measure;
mod node;
mod pod;
mod policy;
mod refused;
mod rights;
pub mod scripts;
mod services;
pub mod simulated;
pub mod soak;
mod spoiler;
mod tls;
mod tool;
mod workload;

pub use api_server::ApiServer;
pub use build::other_build;
pub use cluster::Cluster;
pub use events::{Dropped, Event, Events};
pub use http::{Answer, request};
pub use image::Image;
pub use kubelet::{Kubelet, RunningPod};
pub use machine::Machine;
pub use node::{Node, binary, pod_manifest};
pub use pod::{Pod, plugin, plugin_input};
pub use rights::{Right, asked, granted};
pub use services::{ServiceFixture, many_services, state_file};
pub use simulated::SimulatedCluster;
pub use spoiler::{Real, Spoiler};
pub use test_kit::{Authority, Identity, Valid};
pub use tls::{Front, TlsServer};
pub use tool::brought_by;
pub use workload::{RunningContainer, Workload};

/// The example of CONTRIBUTING.md, so that it stays true.
#[cfg(doctest)]
#[doc = include_str!("../../CONTRIBUTING.md")]
pub struct Contributing;
