//! Direct server return: which services use it, and how backends of other nodes learn the frontend.

/// None.
pub const NONE: u8 = 0;
/// Those with [`FORWARDING_DSR`](crate::lb_flag2::FORWARDING_DSR).
pub const BY_SERVICE: u8 = 1;
/// All.
pub const ALL: u8 = 2;

/// How backends of other nodes learn the frontend.
pub mod dispatch {
    /// By an option in the IP header, or an extension header.
    pub const OPTION: u8 = 0;
    /// By an option of the Geneve tunnel.
    pub const GENEVE: u8 = 1;
    /// From the packet itself, which gets an outer IP header.
    pub const IPIP: u8 = 2;
}
