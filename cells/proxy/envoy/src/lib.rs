//! Feeds an Envoy with listeners and policies, so that traffic with rules of HTTP or TLS server names can be redirected
//! to it.
//!
//! **Owns** `envoy/` in the run folder: in `sockets/` the xDS server (`xds.sock`) and the access log (`access_log.sock`), and
//! the bootstrap of an Envoy that it starts, with its process.
//! **Needs** `Arc<Proxies>` for ports, the sources of secrets, the tables `endpoint-policies`, `endpoints`, `selectors`, `identities` and of the
//! ipcache, the node's row; `Arc<Monitor>` gets the requests that Envoy logs.
//! **Provides** [`Envoy`], with which other cells give resources to the same Envoy; it acts on Envoy, ports, monitors and
//! the counter of requests.
//!
//! **Life.** With `external-envoy-proxy` a job compares the rules of all endpoints with the four proxies of Cilium
//! (HTTP and TLS, each direction). One that a rule needs gets a port and a listener; when Envoy has accepted it, and the
//! policies, the port is announced to [`proxy_ports`], rules of iptables lead there, and policy maps follow. Until then
//! the port of the rule is denied, and health names the listener. Nothing else waits for Envoy. A listener that Envoy
//! cannot bind gets another port, a listener that no rule needs is removed.
//!
//! **Changes** of policies go to Envoy first: policy maps wait for its acknowledgement, a second at most, so that they lead
//! no traffic to it that it does not know to be allowed.
//!
//! **Secrets** of rules (certificates, values of headers) are copies in `policy-secrets-namespace` with
//! `enable-policy-secrets-sync`, and Envoy gets their names and the secrets by SDS; without it they are inline, of that
//! namespace or of any. Those in files of `certificates-directory` come first. All are followed: a change goes to Envoy at
//! once, of files within 5 s. A rule with a secret that is absent or not valid is left out, so that its port is denied, and
//! health names secret, reason and remedy.
//!
//! **A restart** announces the ports of the previous run at once, for an Envoy of its own pod has served on, and gives
//! it the same listeners. Policies are given when those of all endpoints are known; versions continue after those that
//! Envoy reports.
//!
//! **A process** of Envoy is started without `external-envoy-proxy`, if `envoy-binary` is there, when a listener or a cluster
//! is to be served. When it ends, it is started again with backoff. It is left to run when the agent ends, so that
//! connections of workloads go on: the next run finds it by its socket of administration, and ends it only if its
//! bootstrap would be another one.
//!
//! **Versions.** Every 2 minutes the Envoy that has the socket of administration reports its version; one of another commit than
//! that of the chart's is named in health, unless `disable-envoy-version-check` is set.
//!
//! **Messages** are pure functions of tables: policies of endpoints (`policies`), addresses of identities (`hosts`, from the
//! first request for them on), listeners and clusters (`listeners`). The protocol is that of the crate `xds`.
//!
//! # Differences from Cilium
//! An Envoy that the agent has started outlives it, where no container ends both. Its
//! level of log changes with the next start only. Clusters are given by CDS, too, so that a bootstrap needs
//! only the connection to the agent; those of a bootstrap stay. Certificates are
//! inline where the secret's resource of SDS is another item, and checked before Envoy gets them. Files
//! of secrets are read again without a change of policies. The version is that of the running Envoy, also of one that the agent starts.
//! There is no delta and no aggregated variant, and no reflection. Policy maps wait a second at most for Envoy's policies,
//! not ten.

#![forbid(unsafe_code)]

mod access_log;
mod cell;
mod config;
mod handle;
mod hosts;
mod job;
mod kind;
mod listeners;
mod metrics;
mod policies;
mod process;
#[cfg(test)]
mod real_envoy;
mod receiver;
mod resources;
mod secrets;
mod server;
mod slot;
mod sockets;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;

pub use cell::cell;
pub use config::EnvoyConfig;
pub use handle::Envoy;
pub use kind::Kind;
pub use process::{EnvoyLogLevel, EnvoyProcessConfig};
pub use xds::{Delivery, Value};
