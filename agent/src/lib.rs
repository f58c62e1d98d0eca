//! The agent: a list of cells in a hive.
//!
//! A custom agent combines these groups, or some of their cells, with its own:
//!
//! ```
//! use hive::prelude::*;
//!
//! fn greeter() -> Cell {
//!     module("greeter", "Says hello", [invoke(|health: Health| health.ok("hello"))])
//! }
//!
//! let cells = [agent::cells(), greeter()];
//! hive::validate(cells).unwrap(); // runs nothing, reports every error of the composition
//! ```
//!
//! **Modules** are named as Cilium's (`agent.infra`, `agent.datapath`, `agent.controlplane` and most of those inside),
//! since logs and health carry the names. A test starts an agent and compares the order of its start hooks with
//! Cilium's (`integration-tests/tests/node/start_order.rs`). Both begin with health, and end with endpoints, API server
//! and load balancer. Differences:
//!
//! | hook | Cilium | here, and why |
//! |---|---|---|
//! | `pid-file` | before the framework starts | first: two agents on one folder must not both read it |
//! | `maps` | a hook for each map, spread over the start | together, before all other kernel state: each pinned map is compared with its layout, so that a refusal changes nothing |
//! | `local-node` | before the devices | after them: the node's address is an address of a device |
//! | `datapath` | after endpoints, as `orchestrator` and `datapath init` | before: settings of endpoints in the kernel are authoritative, and records are compared with them; programs are loaded by a job meanwhile |
//! | `identity-restore`, `ipam` | within the hook `daemon` | on their own: identities and addresses that packets carry are reserved before any endpoint is read |
//! | `daemon` | one hook of 17 steps that waits for Kubernetes | none: cells wait for the tables that they need, as jobs; the API answers from restored state |
//! | `agent-healthz` | the first | after the API server: 9879 answers when requests are served |

mod options;
mod timeline;

pub use known_options::known_options;

use hive::prelude::*;

/// Returns all cells of the binary `agent`.
#[must_use]
pub fn cells() -> Cell {
    let cells = [daemon_config::instance(), infrastructure(), datapath(), control_plane()];
    module("agent", "Network agent", cells)
}

/// Returns the infrastructure cells: memory, tables, metrics, the REST server, health, the shell.
#[must_use]
pub fn infrastructure() -> Cell {
    let cells = [
        options::cell(),
        memory_limit::cell(),
        statedb::cell(),
        metrics::cell(),
        api::cell(),
        daemon_config::cell(),
        status::cell(),
        timeline::cell(),
        statedb_script::cell(),
        hive_shell::cell(),
    ];
    module("infra", "Infrastructure", cells)
}

/// Returns the datapath cells: maps, devices, sysctls, routing between nodes, routes, iptables, programs, garbage collection of
/// conntrack, statistics of translations.
#[must_use]
pub fn datapath() -> Cell {
    let cells = [
        maps::cell(),
        monitor::cell(),
        devices::cell(),
        sysctl::cell(),
        routes::cell(),
        tunnel::cell(),
        masquerade::cell(),
        masquerade::ip_masq_agent(),
        iptables::cell(),
        proxy_ports::cell(),
        loader::cell(),
        socket_lb::cell(),
        signals::cell(),
        conntrack_gc::cell(),
        nat_stats::cell(),
    ];
    module("datapath", "Datapath", cells)
}

/// Returns the control-plane cells: Kubernetes, identities, addresses, services, policy, endpoints, connectivity of nodes.
#[must_use]
pub fn control_plane() -> Cell {
    module(
        "controlplane",
        "Control plane",
        [
            k8s_client::cell(),
            k8s_tables::cell(),
            k8s_writer::cell(),
            local_node::cell(),
            k8s_node::cell(),
            ciliumnode::cell(),
            identity::cell(),
            ipam::cell(),
            ipam_multi_pool::cell(),
            ipam_crd::cell(),
            ipcache::cell(),
            node_manager::cell(),
            subnet::cell(),
            node_routes::cell(),
            neighbors::cell(),
            loadbalancer::cell(),
            loadbalancer_healthserver::cell(),
            loadbalancer_port_range::cell(),
            loadbalancer_sockets::cell(),
            policy::cell(),
            auth::cell(),
            cni_config::cell(),
            endpoints::cell(),
            endpoint_routes::cell(),
            no_track::cell(),
            mtu::cell(),
            desired_devices::cell(),
            big_tcp::cell(),
            ciliumendpoint::cell(),
            fqdn_names::cell(),
            dns_proxy::cell(),
            envoy_proxy::cell(),
            envoy_config::cell(),
            standalone_dns_proxy::cell(),
            loadbalancer_redirectpolicy::cell(),
            hubble::cell(),
            hubble_drop_events::cell(),
            hubble_exporter::cell(),
            hubble_metrics::cell(),
            cilium_health::cell(),
            agent_notifications::cell(),
        ],
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_cells_form_a_valid_hive() {
        hive::validate(super::cells()).unwrap();
    }
}
