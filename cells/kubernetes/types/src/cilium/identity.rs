//! Security identities.

use crate::resource::resource;
use crate::slim::slim;
use crate::{ObjectMeta, StringMap, UnknownMembers};

slim! {
    /// A security identity. The object's name is its id.
    pub struct CiliumIdentity {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// The labels of the identity, with their sources: `k8s:app`.
        #[serde(rename = "security-labels")]
        always pub security_labels: StringMap,
        /// Members of another version.
        unknown pub unknown: UnknownMembers,
    }
}

resource!(CiliumIdentity keeps unknown);
