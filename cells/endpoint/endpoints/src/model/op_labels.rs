//! Labels of an endpoint by their use.

use labels::{Labels, RESERVED};
use serde::{Deserialize, Serialize};

/// An endpoint's labels by their use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct OpLabels {
    /// Set by `PATCH /endpoint/{id}/labels`.
    pub custom: Labels,
    /// Set by the orchestrator, part of the identity.
    pub orchestration_identity: Labels,
    /// Removed from the identity by a client.
    pub disabled: Labels,
    /// Set by the orchestrator, not part of the identity.
    pub orchestration_info: Labels,
}

impl OpLabels {
    /// Returns the labels that make up the identity.
    pub fn identity(&self) -> Labels {
        let both = self.orchestration_identity.0.iter().chain(&self.custom.0);
        Labels(both.map(|(key, label)| (key.clone(), label.clone())).collect())
    }

    /// Whether the endpoint waits for its labels (`reserved:init`).
    pub fn is_init(&self) -> bool {
        self.identity().0.get("init").is_some_and(|label| label.source == RESERVED)
    }

    /// Whether the endpoint is one of the agent's own (host, health, ...), which clients may not change.
    pub fn is_reserved(&self) -> bool {
        !self.is_init() && !self.orchestration_identity.of_source(RESERVED).is_empty()
    }
}
