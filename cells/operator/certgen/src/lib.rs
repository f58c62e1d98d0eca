//! Makes certificates that an authority of the cluster signs, as secrets: what Cilium's `cilium-certgen` does in a Job.
//!
//! **Owns** nothing. **Needs** `Arc<dyn k8s_types::Api>`, and the options of `cilium-certgen`: those of the authority, and the
//! certificates as YAML ([`CertgenConfig`]). **Provides** nothing: the cell writes the secrets and stops its hive, which is one
//! of its own.
//!
//! **Life.** The authority is that of its secret, else a new one, which is stored before anything is signed by it: of two Jobs
//! that run at once, the second one uses the authority of the first. Each run replaces the certificates with their keys.
//! Temporary errors are retried until the timeout; the Job repeats a run that has failed.
//!
//! **Bad input**: an authority that has expired, has the key of another one, or is none, is named with its secret, and no
//! certificate is written. A certificate is valid no longer than its authority.
//!
//! **Differences from Cilium**: files of an authority (`ca-cert-file`) and the options of single certificates, which Cilium's
//! chart does not use any more, are unknown.

#![forbid(unsafe_code)]

mod authority;
mod cell;
mod config;
mod error;
mod key;
mod secrets;

pub use cell::cell;
pub use config::{CertgenConfig, Certificate};
pub use error::{Error, SignError};
