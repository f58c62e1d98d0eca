//! The map `cilium_runtime_config` (ARRAY, values of 8 bytes): values that the agent writes while it runs.

/// The index of the offset from the monotonic clock to UTC, in units of 2^[`UTIME_SHIFT`] ns.
pub const UTIME_OFFSET: u32 = 0;
/// The index of the agent liveness timestamp: the monotonic time of the last write, in nanoseconds.
pub const AGENT_LIVENESS: u32 = 1;
/// Programs count UTC in units of 512 ns; the unit as a shift.
pub const UTIME_SHIFT: u32 = 9;
