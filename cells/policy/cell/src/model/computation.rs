//! The table `policy-computations`: the policy of each identity that has endpoints here.

use std::sync::Arc;

use datapath_abi::identity;
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};
use statedb::{Query, TableDisplay, TableSpec};

/// A policy as it was computed for an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ComputedPolicy {
    /// The revision of the policies that it was computed from.
    pub revision: u64,
    /// Whether policies select the identity as receiver.
    pub ingress_policy_enabled: bool,
    /// Whether policies select the identity as sender.
    pub egress_policy_enabled: bool,
}

/// The last computation of an identity's policy. One is due when a policy that selects the identity changes; peers that
/// come and go change the rows of the computed policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyComputation {
    /// The identity.
    pub identity: u32,
    /// The policy.
    pub new_policy: ComputedPolicy,
    /// The policy before.
    pub old_policy: Option<ComputedPolicy>,
    /// The reason why the rules are not in force as written.
    pub error: Option<Arc<str>>,
}

impl PolicyComputation {
    /// As in Cilium: the policy holds its selectors until it is released, with this row.
    const NEEDS_RELEASE: bool = true;

    /// Queries the computation of an identity's policy.
    pub fn by_identity(identity: u32) -> Query<PolicyComputation> {
        Query::primary(identity)
    }
}

impl TableSpec for PolicyComputation {
    const NAME: &'static str = "policy-computations";
    const PRIMARY: &'static str = "numeric-identity";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.identity
    }
}

impl TableDisplay for PolicyComputation {
    fn columns() -> &'static [&'static str] {
        &["Identity", "NewPolicy", "OldPolicy", "Revision", "NeedsRelease", "Err"]
    }

    fn row(&self) -> Vec<String> {
        let name = identity::label(self.identity).map_or_else(|| self.identity.to_string(), str::to_owned);
        vec![
            name,
            self.new_policy.revision.to_string(),
            self.old_policy.map_or(0, |policy| policy.revision).to_string(),
            self.new_policy.revision.to_string(),
            Self::NEEDS_RELEASE.to_string(),
            self.error.as_deref().unwrap_or_default().to_owned(),
        ]
    }
}

impl Serialize for PolicyComputation {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut to = to.serialize_struct("PolicyComputation", 6)?;
        to.serialize_field("Identity", &self.identity)?;
        to.serialize_field("NewPolicy", &self.new_policy)?;
        to.serialize_field("OldPolicy", &self.old_policy)?;
        to.serialize_field("Revision", &self.new_policy.revision)?;
        to.serialize_field("NeedsRelease", &Self::NEEDS_RELEASE)?;
        to.serialize_field("Err", &self.error)?;
        to.end()
    }
}
