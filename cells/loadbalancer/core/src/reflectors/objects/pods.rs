//! Host ports of this node's pods.

use hive::health::{SHOWN, summarize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use hive::JobCx;
use k8s_tables::Row;
use k8s_tables::core::{ContainerPort, Pod};
use statedb::{Changes, Obj, Query, Table, TableSpec, Watch};

use crate::model::address::LbAddress;
use crate::model::backend::Backend;
use crate::model::error::Refused;
use crate::model::families::Families;
use crate::model::frontend::{FrontendParams, FrontendType};
use crate::model::name::ServiceName;
use crate::model::service::Service;
use crate::model::source::Source;
use crate::reflectors::convert;
use crate::writer::freed::{any_freed, freed};
use crate::writer::services_writer::{Initializers, ServicesWriter};
use crate::writer::txn::ServicesTxn;

/// Maintains a service for each host port of a running pod.
pub(crate) struct HostPorts {
    writer: ServicesWriter,
    pods: Table<Row<Pod>>,
    changes: Changes<Row<Pod>>,
    families: Families,
    /// Ports reserved for NodePort services.
    node_ports: RangeInclusive<u16>,
    /// Refused ports, by pod.
    refused: BTreeMap<String, Vec<Refused>>,
    initializers: Option<Initializers>,
}

/// A host port of a pod.
type HostPort = (Service, Vec<FrontendParams>, Vec<Backend>);

impl HostPorts {
    pub(crate) fn new(
        writer: ServicesWriter,
        pods: Table<Row<Pod>>,
        families: Families,
        node_ports: RangeInclusive<u16>,
    ) -> HostPorts {
        HostPorts {
            initializers: Some(writer.register("k8s-pods")),
            writer,
            changes: pods.changes().named("loadbalancer-reflector"),
            pods,
            families,
            node_ports,
            refused: BTreeMap::new(),
        }
    }

    /// Follows the pods until the agent stops.
    pub(crate) async fn follow(mut self, wait: Duration, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Running");
        loop {
            let (changed, watch) = self.round();
            if changed {
                let error = summarize(self.refused.values().flatten(), SHOWN, "\n");
                if error.is_empty() {
                    cx.health.ok("Running");
                } else if cx.health.degraded_anew("Failure processing pods", &error) {
                    tracing::error!(error, "Ports of the host are refused");
                }
            }
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = watch.changed() => {}
                () = self.pods.wait_initialized(), if self.initializers.is_some() => continue,
                () = freed(self.refused.values().flatten(), &self.writer), if !self.refused.is_empty() => {}
            }
            if changed {
                tokio::select! {
                    () = cx.cancelled() => return Ok(()),
                    () = tokio::time::sleep(wait) => {}
                }
            }
        }
    }

    /// Processes the pending changes; returns whether there were any, and a watch for more.
    pub(crate) fn round(&mut self) -> (bool, Watch) {
        let snapshot = self.pods.snapshot();
        let complete = self.pods.initialized(&snapshot);
        let (changes, watch) = self.changes.read(&snapshot, usize::MAX);
        let refused = self.refused.values().flatten();
        let is_freed = any_freed(refused, &self.writer, &self.writer.frontends().snapshot());
        let changed = !changes.is_empty() || is_freed;
        if changed {
            let writer = self.writer.clone();
            let mut txn = writer.write();
            // Deletions first: their ports become free for other pods.
            let (gone, there): (Vec<_>, Vec<_>) =
                changes.iter().partition(|change| change.deleted || is_over(&change.object));
            for change in gone {
                self.put(&mut txn, &change.object, Vec::new());
            }
            let there: Vec<Obj<Row<Pod>>> = there.into_iter().map(|change| change.object.clone()).collect();
            // The owners of their ports may have been deleted.
            let again = self.refused.keys().filter_map(|name| {
                let pod = self.pods.get(&snapshot, Query::primary(name.clone()))?;
                (!there.iter().any(|there| there.key() == *name) && !is_over(pod)).then(|| pod.clone())
            });
            let again: Vec<Obj<Row<Pod>>> = again.collect();
            for pod in there.iter().chain(&again) {
                let pod: &Pod = pod;
                let runs = pod.status.phase == "Running" && !pod.spec.host_network;
                if runs && pod.metadata.deletion_timestamp.is_none() {
                    let ports = self.ports(pod);
                    self.put(&mut txn, pod, ports);
                }
            }
            txn.commit();
        }
        if complete && let Some(initializers) = self.initializers.take() {
            self.writer.complete(initializers);
        }
        (changed, watch)
    }

    /// Replaces the ports of a pod. Former ports, and those of an earlier pod of the same name, are deleted last: a
    /// backend that changes ports is never without a user and keeps its id.
    fn put(&mut self, txn: &mut ServicesTxn<'_>, pod: &Pod, ports: Vec<HostPort>) {
        let pod_name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
        let mut stale = txn.names(&format!("{pod_name}:host-port:"));
        stale.retain(|name| !ports.iter().any(|(service, ..)| service.name == *name));
        self.refused.remove(&pod_name);
        for (service, frontends, backends) in ports {
            let yields = |owner: &Service| stale.contains(&owner.name);
            if let Err(error) = txn.upsert_service_with_backends(service, frontends, backends, yields) {
                self.refused.entry(pod_name.clone()).or_default().push(error);
            }
        }
        for name in stale {
            txn.delete_service(&name);
            txn.set_backends(&name, Source::Kubernetes, Vec::new());
        }
    }

    /// Returns the ports of a pod, in order of its containers.
    fn ports(&self, pod: &Pod) -> Vec<HostPort> {
        let mut ips: Vec<IpAddr> = pod.status.pod_ips.iter().filter_map(|ip| ip.ip.parse().ok()).collect();
        if ips.is_empty() {
            ips.extend(pod.status.pod_ip.parse::<IpAddr>());
        }
        ips.retain(|ip| self.families.has(ip));
        let mut services: Vec<HostPort> = Vec::new();
        let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        for port in containers.flat_map(|container| &container.ports).filter(|port| port.host_port != 0) {
            let meta = &pod.metadata;
            if self.node_ports.contains(&port.host_port) {
                let (pod, port) = (format!("{}/{}", meta.namespace, meta.name), port.host_port);
                tracing::warn!(
                    pod,
                    port,
                    "Ignoring a HostPort that is in node-port-range; give another port"
                );
                continue;
            }
            let Some(protocol) = convert::protocol(&port.protocol) else { continue };
            let name = ServiceName::host_port(&meta.namespace, &meta.name, port.host_port, &meta.uid);
            let at = services.iter().position(|(service, ..)| service.name == name).unwrap_or_else(|| {
                services.push((Service::new(name.clone(), Source::Kubernetes), Vec::new(), Vec::new()));
                services.len() - 1
            });
            let (service, frontends, backends) = &mut services[at];
            let (addresses, loopback) = host_addresses(port, &ips);
            service.loopback_host_port |= loopback;
            for ip in addresses {
                let address = LbAddress::new(ip, port.host_port, protocol);
                if !frontends.iter().any(|frontend| frontend.address == address) {
                    let (kind, service_port) = (FrontendType::HostPort, port.host_port);
                    frontends.push(FrontendParams { address, kind, port_name: "".into(), service_port });
                }
            }
            for ip in &ips {
                let address = LbAddress::new(*ip, port.container_port, protocol);
                if !backends.iter().any(|backend| backend.address == address) {
                    backends.push(Backend::new(name.clone(), address, Source::Kubernetes));
                }
            }
        }
        services
    }
}

fn is_over(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

/// Returns the addresses of a host port, and whether it is for the host's loopback only. An explicit unspecified
/// address yields none, as in Cilium; a loopback address is used even if the pod has no address of its family, then
/// without backends.
fn host_addresses(port: &ContainerPort, pod: &[IpAddr]) -> (Vec<IpAddr>, bool) {
    let unspecified = |ip: &IpAddr| -> IpAddr {
        match ip {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        }
    };
    let mut families: Vec<IpAddr> = Vec::new();
    for all in pod.iter().map(unspecified) {
        if !families.contains(&all) {
            families.push(all);
        }
    }
    match port.host_ip.parse::<IpAddr>() {
        Err(_) => (families, false),
        Ok(ip) if ip.is_loopback() => (vec![unspecified(&ip)], true),
        Ok(ip) if ip.is_unspecified() => (Vec::new(), false),
        Ok(ip) => (vec![ip], false),
    }
}
