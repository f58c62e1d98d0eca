//! Network policy of the endpoints: from rules to rows in their policy maps.
//!
//! **Owns** the rows of the policy maps, the table `endpoint-policies`. **Gives** [`Policies`] to whoever has endpoints.
//!
//! ```
//! use policy::{EndpointPolicy, Policies, Subject};
//!
//! async fn make(policies: &Policies, subject: Subject) -> Result<u64, policy::NotRealized> {
//!     let endpoint = subject.endpoint;
//!     policies.enforce(subject);
//!     policies.realized(endpoint).await // its rows are in the kernel: it may send
//! }
//! ```

mod cell;
mod endpoint;
mod handle;
mod plan;
mod rows;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;

pub use cell::cell;
pub use endpoint::{EndpointPolicy, Progress, RowCounts, Subject};
pub use handle::{NotRealized, Policies};
pub use plan::{Plan, Violation, WrongVerdict, check, plan};
pub use policy_engine::NamedPorts;
pub use rows::{RowKey, Rows, Verdict};
