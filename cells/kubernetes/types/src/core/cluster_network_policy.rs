//! ClusterNetworkPolicies: Kubernetes' own, of the whole cluster. Their rules are stored as written: the policy engine
//! parses them itself, and a rule that it does not know must not be dropped.

use serde_json::{Map, Value};

use crate::slim::slim;
use crate::{ObjectMeta, resource::resource};

slim! {
    /// Rules for the traffic of selected pods, in a tier and with a priority.
    pub struct ClusterNetworkPolicy {
        /// Standard object metadata.
        always pub metadata: ObjectMeta,
        /// Tier, priority, selected pods and rules.
        pub spec: Option<Map<String, Value>>,
        /// The observed state.
        pub status: Option<Map<String, Value>>,
    }
}

resource!(ClusterNetworkPolicy);
