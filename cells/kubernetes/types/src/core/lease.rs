//! Leases.

use smol_str::SmolStr;

use crate::slim::slim;
use crate::{ObjectMeta, resource::resource};

slim! {
    /// A lock with an end, which its holder renews.
    pub struct Lease {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The holder, and until when.
        always pub spec: LeaseSpec,
    }

    /// The holder of a lease. Times are those of the holder's clock, to the microsecond.
    pub struct LeaseSpec {
        /// The holder; empty when the lease was released.
        pub holder_identity: Option<SmolStr>,
        /// How long others wait after the last renewal that they have seen.
        pub lease_duration_seconds: Option<i32>,
        /// When the holder got it.
        pub acquire_time: Option<SmolStr>,
        /// When the holder renewed it last.
        pub renew_time: Option<SmolStr>,
        /// How often the holder has changed.
        pub lease_transitions: Option<i32>,
    }
}

resource!(Lease);
