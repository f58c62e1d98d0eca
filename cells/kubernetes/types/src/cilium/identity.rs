//! Security identities.

use crate::resource::resource;
use crate::slim::slim;
use crate::{ObjectMeta, StringMap};

slim! {
    /// A security identity; its number is its name.
    pub struct CiliumIdentity {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The labels that it stands for, with their sources: `k8s:app`.
        #[serde(rename = "security-labels")]
        always pub security_labels: StringMap,
    }
}

resource!(CiliumIdentity);
