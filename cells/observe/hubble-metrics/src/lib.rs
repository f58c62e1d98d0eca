//! Metrics of the flows of the node's packets, under Cilium's names and labels.
//!
//! **Owns** the series of `hubble-metrics` (dns, drop, flow, flows-to-world, http, httpV2, icmp, policy,
//! port-distribution, sctp, tcp), or of the file `hubble-dynamic-metrics-config-path`, and the server on
//! `hubble-metrics-server`. **Needs** `Arc<`[`hubble::Feed`]`>`, `Arc<`[`hubble::HubbleRegistry`]`>`, the tables `endpoints`
//! and `ipcache`. **Provides** a [`hubble::Consumer`], `hubble-metrics` of the status.
//!
//! **OpenMetrics** is served with `enable-hubble-open-metrics` to clients that accept it: metrics of HTTP with the option
//! `exemplars` name the trace of their latest request there.
//!
//! **TLS** of the server (`hubble-metrics-server-enable-tls`) is of version 1.3: it waits until the files are valid, and each
//! handshake has their latest valid contents.
//!
//! **Life.** Without Hubble or without an address nothing is counted. Else each event is counted when it is decoded,
//! under the lock of one metric at a time. The file is followed: one with a fault is refused as a whole; a metric whose
//! options are the same keeps its series.
//!
//! **Memory**: 16 MiB for all series together, about 50,000 of them. Beyond that a new series is refused, counted in
//! `hubble_metrics_refused_total` and reported once in the log; those that exist go on. A series that names a pod (its
//! name or its address) ends a minute after the pod.
//!
//! **Differences from Cilium**: series of pods end with dynamic metrics and with the contexts `pod-name` and `ip`, too;
//! options of a dynamic metric may change; `hubble_lost_events_total` counts lost events, not reports of them, and not
//! those that one client has missed.

mod cell;
mod config;
mod context;
mod family;
mod job;
mod kind;
mod server;
mod set;
mod spec;

pub use cell::cell;
pub use config::HubbleMetricsConfig;
pub use context::BadContext;
pub use spec::BadMetrics;
