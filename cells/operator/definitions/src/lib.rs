//! Registers the CustomResourceDefinitions of `cilium.io` at the API server.
//!
//! **Owns** the definitions' labels and specs. **Needs** an `Arc<dyn` [`Api`](k8s_types::Api)`>`, the option `skip-crd-creation`
//! and the options of features that have kinds of their own. **Provides** nothing: its start hook ends when all definitions are
//! established, so that cells behind it can read and write objects.
//!
//! A definition is created if it is missing, and updated if the label `io.cilium.k8s.crd.schema.version` says that it is older;
//! one that is as new or newer is left alone: an operator of a newer version has made it. Labels of others stay.
//!
//! **Failures.** A refusal ends the start with the definition, the request and the reason. Conflicts and an API server that is away
//! are retried for a minute. Names that the API server does not accept, because another definition has them, are named.
//!
//! **Differences from Cilium**: definitions are registered side by side, not one after the other; those of CiliumNodes and
//! CiliumIdentities before the rest, so that nodes need not wait for all.

#![forbid(unsafe_code)]

mod cell;
mod config;
mod error;
mod register;
mod version;

pub use cell::cell;
pub use config::DefinitionsConfig;
pub use error::Error;
pub use register::Registered;
