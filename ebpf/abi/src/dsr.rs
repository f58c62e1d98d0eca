//! Direct server return: which services use it.

/// None.
pub const NONE: u8 = 0;
/// Those with [`FORWARDING_DSR`](crate::lb_flag2::FORWARDING_DSR).
pub const BY_SERVICE: u8 = 1;
/// All.
pub const ALL: u8 = 2;
