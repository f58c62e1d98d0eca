//! The options that can be changed while the agent runs, for the cells that apply them.
//!
//! **Owns** the names and values of the options of `PATCH /config` ([`RuntimeOption`], a row of the table
//! `runtime-options`, which the cell `daemon-config` writes), and the protocol by which that request waits for cells
//! that apply them ([`Follower`]). **Needs** only tables. A cell that acts on an option takes
//! `Option<Arc<Table<RuntimeOption>>>`, watches it, and contributes a [`Follower`] by which it reports its progress.
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
//! **Differences from Cilium.** The effects of the options in this agent:
//!
//! | option | effect of a change |
//! |---|---|
//! | `DropNotification`, `TraceNotification`, `PolicyVerdictNotification` | if off for the node, there are no events at all; endpoints can disable them, too |
//! | `MonitorAggregationLevel` | the higher of the node's and the endpoint's level |
//! | `SourceIPVerification`, `PolicyAuditMode` | applies to endpoints that are created later; existing ones have their own option |
//! | `Debug` | debug lines in the agent's log |
//! | `policy-enforcement` | applies to all endpoints at once |
//! | `DebugLB`, `PolicyTracing` | none: accepted, returned, and logged |

mod follower;
mod option;

pub use follower::{Follower, NotApplied, Progress, follower};
pub use option::{
    BadOption, DEBUG, DROP_NOTIFICATION, MONITOR_AGGREGATION_LEVEL, POLICY_AUDIT_MODE, POLICY_ENFORCEMENT,
    POLICY_VERDICT_NOTIFICATION, RuntimeOption, SOURCE_IP_VERIFICATION, TRACE_NOTIFICATION, level, switch,
};
