//! The options that can be changed while the agent runs, for the cells that apply them.
//!
//! **Owns** the names and values of the options of `PATCH /config` ([`RuntimeOption`], a row of the table
//! `runtime-options`, which the cell `daemon-config` writes) and how that request waits for the cells that apply them
//! ([`Follower`]). **Needs** nothing but tables. A cell that acts on an option takes `Option<Arc<Table<RuntimeOption>>>`,
//! watches it, and contributes a [`Follower`] by which it reports how far it has come.
//!
//! ```
//! use runtime_options::{RuntimeOption, TRACE_NOTIFICATION, follower};
//!
//! let off = RuntimeOption::new("tracenotification", "off")?;
//! assert_eq!((off.name, off.value.as_str(), off.enabled()), (TRACE_NOTIFICATION, "Disabled", false));
//!
//! let (progress, follower) = follower("datapath");
//! progress.applied(7); // the rows of the table's revision 7 are in force
//! assert!(follower.has_applied(7) && !follower.has_applied(8));
//! # Ok::<(), runtime_options::BadOption>(())
//! ```
//!
//! **Differences from Cilium.** What an option does here:
//!
//! | option | effect of a change |
//! |---|---|
//! | `DropNotification`, `TraceNotification`, `PolicyVerdictNotification` | off for the node: no events at all; an endpoint's own switch takes off more |
//! | `MonitorAggregationLevel` | the node's, or the endpoint's own where that is higher |
//! | `SourceIPVerification`, `PolicyAuditMode` | of endpoints that are made from then on; those that exist have a switch each |
//! | `Debug` | debug lines in the agent's log |
//! | `policy-enforcement` | of all endpoints, at once |
//! | `DebugLB`, `PolicyTracing` | none: accepted, shown, and named in the log |

mod follower;
mod option;

pub use follower::{Follower, NotApplied, Progress, follower};
pub use option::{
    BadOption, DEBUG, DROP_NOTIFICATION, MONITOR_AGGREGATION_LEVEL, POLICY_AUDIT_MODE, POLICY_ENFORCEMENT,
    POLICY_VERDICT_NOTIFICATION, RuntimeOption, SOURCE_IP_VERIFICATION, TRACE_NOTIFICATION, level, switch,
};
