//! The operator: a list of cells in a hive, for what a cluster needs once.
//!
//! Infrastructure runs in every replica. The cells of the scope [`Leader`] run in the one that holds the lease, which is that of
//! Cilium's operator: definitions of kinds first, then what reads and writes objects of them.
//!
//! ```
//! hive::validate(operator::cells()).unwrap(); // runs nothing, reports every error of the composition
//! ```
//!
//! **Not part of it yet**: IPAM is that of cluster-pool and multi-pool; the other modes that need an
//! operator are refused by name.

#![forbid(unsafe_code)]

mod certgen;
mod client;
mod tables;

pub use certgen::certgen;
pub use known_options::known_options;
pub use tables::large_tables;

use hive::prelude::*;
use hive::scope;
use k8s_types::cilium::{CiliumEndpointSlice, CiliumNode};
use k8s_types::core::{Namespace, Node};
use operator_endpoint_slices::EndpointSlicesConfig;
use operator_identities::IdentitiesConfig;
use operator_policy_status::PolicyStatusConfig;
use operator_secret_sync::SecretSyncConfig;

/// The scope of the cells that only the leader runs.
#[derive(Debug)]
pub enum Leader {}

/// Returns all cells of the binary `operator`.
#[must_use]
pub fn cells() -> Cell {
    let cells = [infrastructure(), control_plane()];
    module("operator", "Operator of a cluster", cells)
}

/// Returns the infrastructure cells: tables, metrics, the HTTP API, the shell, the client of the API server.
#[must_use]
pub fn infrastructure() -> Cell {
    let cells = [
        statedb::cell(),
        memory_limit::trimming(),
        metrics::cell(),
        client::cell(),
        k8s_client::cell(),
        operator_api::cell(),
        statedb_script::cell(),
        hive_shell::cell(),
    ];
    module("infra", "Infrastructure", cells)
}

/// Returns the election, and the cells of the leader.
#[must_use]
pub fn control_plane() -> Cell {
    let cells = [operator_election::cell::<Leader>(), leader()];
    module("controlplane", "Control plane", cells)
}

/// Returns the cells of the leader.
#[must_use]
pub fn leader() -> Cell {
    let cells = [
        operator_definitions::cell(),
        k8s_tables::table::<CiliumNode>(),
        k8s_tables::table::<CiliumEndpointSlice>(),
        k8s_tables::table::<Node>(),
        large_tables(),
        k8s_tables::optional::<Namespace, _>(NamespaceUsers::are_any),
        operator_policy_status::tables(PolicyReaders::are_any),
        k8s_writer::cell(),
        operator_ipam::cell(),
        operator_lb_ipam::cell(),
        operator_node_taints::cell(),
        operator_endpoint_slices::cell(),
        operator_identities::cell(),
        operator_garbage_collection::cell(),
        operator_policy_status::cell(),
        operator_secret_sync::cell(),
    ];
    scope::<Leader>("leader", "Cells of the replica that leads", cells)
}

/// The cells that read namespaces.
#[derive(Params)]
struct NamespaceUsers {
    slices: Config<EndpointSlicesConfig>,
    identities: Config<IdentitiesConfig>,
}

impl NamespaceUsers {
    fn are_any(users: NamespaceUsers) -> bool {
        users.slices.enable_cilium_endpoint_slice || users.identities.is_enabled()
    }
}

/// The cells that read policies.
#[derive(Params)]
struct PolicyReaders {
    status: Config<PolicyStatusConfig>,
    secrets: Config<SecretSyncConfig>,
}

impl PolicyReaders {
    fn are_any(readers: PolicyReaders) -> bool {
        readers.status.validate_network_policy || readers.secrets.is_enabled()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_cells_form_a_valid_hive() {
        hive::validate(super::cells()).unwrap();
    }
}
