//! The operator's HTTP API: whether it is healthy, and its metrics as JSON.
//!
//! **Owns** the listeners of `operator-api-serve-addr`. **Needs** a [`ServerProbe`](k8s_client::ServerProbe) of the API server, if one is
//! configured, and the registry of metrics. **Provides** the registry's [`MetricsProfile`](metrics::MetricsProfile): prefix
//! `cilium_operator`, served on `operator-prometheus-serve-addr` with `enable-metrics`, by TLS with
//! `operator-prometheus-enable-tls`: each connection has the latest valid files, and is refused before there are any.
//!
//! | request | answer |
//! |---|---|
//! | `GET /healthz`, `GET /v1/healthz` | 200 `ok` if the API server answers its version, 500 with the reason, 501 without Kubernetes |
//! | `GET /v1/metrics` | name, labels and value of each metric |
//!
//! Leadership plays no role: an operator that waits for the lease is healthy.
//!
//! **Differences from Cilium**: `GET /v1/cluster` is 501, as this operator connects to no other clusters.

#![forbid(unsafe_code)]

mod answer;
mod cell;
mod config;
mod error;
mod server;

pub use cell::cell;
pub use config::OperatorApiConfig;
pub use error::Error;
