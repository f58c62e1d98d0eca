//! A real etcd and kube-apiserver for tests, in a network namespace of their own.
//!
//! **Owns**: a namespace with nothing but loopback, two processes and a folder of temporary files; all of it goes with the
//! [`Stage`], and with the test's process at the latest, even if that is killed.
//! **Needs**: root, openssl, and what `tools/stage` builds once for all checkouts (`tools/setup test` brings a Go for it).
//! A stage that cannot be brought up fails the test with the reason.
//! **Provides**: [`Stage`] (objects by kubectl; servers that are killed and started again, two API servers if wanted;
//! compaction), [`Gate`] (the way from a test's own namespace to an API server, which can be cut, closed, held and slowed
//! down), [`User`] (tokens, kubeconfig).
//!
//! A stage takes about 3 s and 400 MB. [`Stage::shared`] is one for all tests of a binary, for those that only make and
//! watch objects, each in a [`Stage::namespace`] of its own, by gates of its own. [`Stage::start`] is a stage for one test:
//! for those that kill servers, replace tokens, compact, or count objects of the whole cluster. Nothing of a stage is fixed
//! outside of its namespace, so any number of them run side by side; `tools/test` runs the files `cluster_*` of
//! `integration-tests/tests` with two tests at a time, for the memory.
//!
//! There is no controller manager and no kubelet: EndpointSlices, tokens of service accounts and pod statuses exist only
//! if tests write them, no garbage is collected, and a deleted namespace stays in `Terminating`.
//!
//! ```no_run
//! use cluster_stage::{Stage, User};
//!
//! let stage = Stage::shared();
//! let namespace = stage.namespace("web");
//! let gate = stage.gate().unwrap();
//! let kubeconfig = gate.kubeconfig(User::Agent).unwrap(); // for the agent under test
//! stage.kubectl(&["-n", &namespace, "create", "configmap", "colours", "--from-literal=sky=blue"]).unwrap();
//! gate.cut(); // all its connections; the next ones pass again
//! # let _ = kubeconfig;
//! ```

mod etcd;
mod folder;
mod gate;
mod server;
mod stage;
mod users;

pub use gate::Gate;
pub use stage::{Stage, StageOptions};
pub use users::User;
