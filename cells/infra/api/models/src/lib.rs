//! The models of the REST API under `/v1` and of the health API under `/v1beta`, with field names and order as Cilium's clients expect them.
//!
//! **Owns** the form of each body that this agent sends or accepts, but no sockets and no state. The agent's cells, the
//! CNI plugin and the operator's tool share it, so it **needs** only serde.
//!
//! Models are encoded as by the generated Go types of Cilium 1.20:
//! - keys in byte order of their JSON names, which is the order of the fields here;
//! - empty strings, zeros, `false`, empty maps and absent models are omitted;
//! - lists are always written ([`List`]), an absent one as `null`; lists with a name of their own
//!   ([`Labels`], logs, controllers) are omitted when empty;
//! - [`Required`] values, models that are not an `Option`, and times are always written.
//!
//! Decoding is as lenient as Go's: absent keys and `null` are the empty value, unknown keys are ignored. Further rules
//! of request bodies are checked by [`Validate`].
//!
//! ```
//! use api_models::{EndpointChangeRequest, Validate};
//!
//! let request: EndpointChangeRequest =
//!     serde_json::from_str(r#"{"state":"waiting-for-identity","interface-name":"lxc1","labels":null}"#)?;
//! assert_eq!(request.validate(), Ok(()));
//! assert_eq!(
//!     serde_json::to_string(&request)?,
//!     r#"{"interface-name":"lxc1","state":"waiting-for-identity"}"#,
//! );
//! # Ok::<(), serde_json::Error>(())
//! ```

mod config;
mod endpoint;
mod features;
mod health;
mod ipam;
mod map;
mod node;
mod policy;
mod prefilter;
mod service;
mod status;
mod time;
mod validate;
mod wire;

use std::collections::BTreeMap;

pub use config::*;
pub use endpoint::*;
pub use features::*;
pub use health::*;
pub use ipam::*;
pub use map::*;
pub use node::*;
pub use policy::*;
pub use prefilter::*;
pub use service::*;
pub use status::*;
pub use time::{DateTime, GoDuration, from_rfc3339, rfc3339, rfc3339_nanos};
pub use validate::{ENDPOINT_STATES, Validate, Violation};
pub use wire::{List, Required};

pub(crate) use wire::models;

/// Labels as `source:key=value`, or `source:key` without a value.
pub type Labels = Vec<String>;

/// Options by name with their values as text: `Enabled`, `Disabled`, `None`, `Medium`, ...
pub type ConfigurationMap = BTreeMap<String, String>;

/// An error of an operation: its body is a bare JSON string.
pub type Error = String;

models! {
    /// An error of the server in front of the operations: unknown path, unreadable body, failed validation.
    FrameworkError {
        "code" code: Required<i64>,
        "message" message: Required<String>,
    }
}
