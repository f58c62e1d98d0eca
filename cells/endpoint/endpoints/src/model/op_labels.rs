//! Labels of an endpoint by the use made of them.

use labels::{Labels, RESERVED};
use serde::{Deserialize, Serialize};

/// An endpoint's labels by the use made of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct OpLabels {
    /// Given by PATCH /endpoint/{id}/labels.
    pub custom: Labels,
    /// Given by the orchestrator, part of the identity.
    pub orchestration_identity: Labels,
    /// Taken out of the identity by a client.
    pub disabled: Labels,
    /// Given by the orchestrator, not part of the identity.
    pub orchestration_info: Labels,
}

impl OpLabels {
    /// Those that make up the identity.
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
