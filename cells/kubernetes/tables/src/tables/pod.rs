//! Table `k8s-pods`.

use std::time::SystemTime;

use k8s_types::core::{Container, ContainerPort, Pod};
use k8s_types::{ObjectMeta, OwnerReference, Resource, Shared, SmolStr};
use serde::{Serialize, Serializer};

use crate::pool::Pool;
use crate::row::{Row, Tabled, time};

impl Tabled for Pod {
    const TABLE: &'static str = "k8s-pods";

    fn columns() -> &'static [&'static str] {
        &["Name", "UID", "HostNetwork", "PodIPs", "Containers", "Phase", "Age"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let ips: Vec<&str> = row.status.pod_ips.iter().map(|ip| ip.ip.as_str()).collect();
        let containers: Vec<String> = row.spec.containers.iter().map(container).collect();
        vec![
            format!("{}/{}", row.metadata.namespace, row.metadata.name),
            row.metadata.uid.to_string(),
            row.spec.host_network.to_string(),
            ips.join(", "),
            containers.join(", "),
            row.status.phase.to_string(),
            row.age(),
        ]
    }

    /// Serializes as Cilium: with kind and version, without the metadata that its slim type lacks.
    fn write<S: Serializer>(row: &Row<Self>, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Shown<'r> {
            kind: &'static str,
            api_version: &'static str,
            #[serde(flatten)]
            object: &'r Pod,
            #[serde(serialize_with = "time")]
            updated_at: SystemTime,
        }
        let owner = |owner: &OwnerReference| OwnerReference { block_owner_deletion: None, ..owner.clone() };
        let metadata = ObjectMeta {
            creation_timestamp: None,
            finalizers: Shared::default(),
            owner_references: row.metadata.owner_references.iter().map(owner).collect(),
            ..row.metadata.clone()
        };
        let object = Pod { metadata, ..row.object.clone() };
        let (kind, api_version) = (Pod::KIND.name(), Pod::KIND.api_version());
        Shown { kind, api_version, object: &object, updated_at: row.updated_at }.serialize(to)
    }

    fn share(&mut self, pool: &mut Pool) {
        let Pod { spec, status, .. } = self;
        pool.text(&mut spec.node_name);
        pool.text(&mut spec.service_account_name);
        for container in spec.init_containers.iter_mut().chain(&mut spec.containers) {
            pool.text(&mut container.name);
            pool.text(&mut container.image);
            container.volume_mounts.iter_mut().for_each(|mount| pool.text(&mut mount.mount_path));
        }
        pool.text(&mut status.host_ip);
        for condition in &mut status.conditions {
            pool.text(&mut condition.r#type);
        }
    }
}

/// Formats a container as `c (80/TCP (http),443/TCP)`.
fn container(container: &Container) -> String {
    let port = |port: &ContainerPort| {
        let protocol: &SmolStr = &port.protocol;
        let protocol = if protocol.is_empty() { "TCP" } else { protocol };
        match port.name.is_empty() {
            true => format!("{}/{protocol}", port.container_port),
            false => format!("{}/{protocol} ({})", port.container_port, port.name),
        }
    };
    match container.ports.is_empty() {
        true => container.name.to_string(),
        false => {
            let ports: Vec<String> = container.ports.iter().map(port).collect();
            format!("{} ({})", container.name, ports.join(","))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use statedb::TableDisplay;

    use super::*;

    #[test]
    fn a_pod_is_printed_as_by_cilium() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "bee", "namespace": "work", "uid": "b-1", "managedFields": [{"manager": "x"}]},
            "spec": {"nodeName": "n", "containers": [
                {"name": "hive", "image": "none", "ports": [
                    {"containerPort": 80, "protocol": "TCP", "name": "http"}, {"containerPort": 443, "protocol": "TCP"},
                ]},
                {"name": "side", "image": "none", "ports": []},
            ]},
            "status": {"phase": "Running", "podIP": "10.80.0.1", "podIPs": [{"ip": "10.80.0.1"}, {"ip": "fd80::1"}]},
        });
        let row = Row::of(k8s_types::decode::<Pod>(pod.to_string().as_bytes()).unwrap());
        assert_eq!(
            row.row()[..6],
            [
                "work/bee",
                "b-1",
                "false",
                "10.80.0.1, fd80::1",
                "hive (80/TCP (http),443/TCP), side",
                "Running"
            ]
        );
        let shown: Value = serde_json::to_value(&row).unwrap();
        let members: Vec<&str> = shown.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(members.len(), 6, "{members:?}");
        assert_eq!((&shown["kind"], &shown["apiVersion"]), (&json!("Pod"), &json!("v1")));
        assert_eq!(shown["metadata"]["name"], "bee");
        assert_eq!(shown["status"]["podIPs"], pod["status"]["podIPs"]);
        assert_eq!(shown["updatedAt"], "1970-01-01T00:00:00Z");
    }
}
