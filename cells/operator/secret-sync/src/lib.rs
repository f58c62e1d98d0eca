//! Copies of the secrets that policies name, in the namespace that agents read.
//!
//! **Owns** the copies in `policy-secrets-namespace`: secrets `NAMESPACE-NAME` whose labels name their originals. **Needs** the
//! tables of policies, the source of secrets, the writer of cluster objects, the [`Leadership`](operator_election::Leadership).
//! **Provides** nothing.
//!
//! A secret has a copy while a policy names it: `terminatingTLS`, `originatingTLS`, and `headerMatches` of HTTP rules. Only the
//! secrets that policies name are read, each by a watch of its own. A copy follows the data and the type of its original; one that
//! another client changes or deletes is written again. It is deleted when its original is, or when no policy names it any more.
//! An invalid policy keeps the secrets of its last valid version, as agents keep its rules.
//!
//! Secrets of that namespace without the labels are left as they are: agents use them as copies, too. Copies that Cilium's operator
//! has made are kept up to date, but not deleted because no policy names them: an Ingress may.
//!
//! Names are ambiguous: `a-b/c` and `a/b-c` have one copy. The first one keeps it, health names the other one, and agents deny its
//! rules.
//!
//! **Life.** With `enable-policy-secrets-sync`, `external-envoy-proxy` and a namespace a job follows policies and secrets. Nothing is
//! deleted before all policies and copies are listed. Writes are decided by the server's object, and only while the lease holds.
//!
//! **Differences from Cilium**: it reads all secrets of the cluster, replaces secrets without the labels, and the ambiguous names
//! replace each other. Secrets of Ingresses and Gateways are not copied: their controllers are not built.

#![forbid(unsafe_code)]

mod cell;
mod config;
mod copies;
mod job;
mod originals;
mod references;

pub use cell::cell;
pub use config::SecretSyncConfig;
