//! Network policy as pure computation: rules to entries, entries to map rows. Nothing here touches a kernel, a file or
//! a clock.
//!
//! **Owns** the reading and checking of policy objects, selectors, the computation of an endpoint's policy map and the
//! lookup in it. **Needs** labels.

mod model;
mod parse;
mod refusal;
mod selector;
mod settings;

pub use model::{
    Action, Direction, Entry, Kind, Peers, Policy, Port, PortSpec, Ports, Prefix, ResourceId, Subject,
    world_label,
};
pub use parse::parse;
pub use refusal::{Problem, Refusal};
pub use selector::{CidrSelector, Requirement, Selector, Test};
pub use settings::{Enforcement, Settings};
