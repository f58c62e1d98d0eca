//! Tests from Kubernetes objects to the resulting tables and maps.

mod parse;
mod property;
mod rest;
mod skips;
mod tables;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_tables::cilium::CiliumLocalRedirectPolicy;
use k8s_tables::core::Pod;
use k8s_tables::{Resource, Row};
use loadbalancer::{
    Backend, FrontendParams, FrontendType, LbAddress, Service, ServiceName, ServicesWriter, Source,
};
use prometheus_client::metrics::histogram::Histogram;
use serde_json::{Value, json};
use statedb::RwTable;

use crate::config::Ranges;
use crate::controller::{Controller, Tables};
use crate::policy::LocalRedirectPolicy;
use crate::skip::DesiredSkip;

/// Returns the object of a policy in namespace `ns`.
fn object(name: &str, spec: Value) -> CiliumLocalRedirectPolicy {
    let meta = json!({"name": name, "namespace": "ns", "uid": "u"});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
}

fn port(port: u16, protocol: &str, name: &str) -> Value {
    json!({"port": port.to_string(), "protocol": protocol, "name": name})
}

fn at_address(ip: &str, ports: Vec<Value>, backend: Vec<Value>) -> Value {
    json!({
        "redirectFrontend": {"addressMatcher": {"ip": ip, "toPorts": ports}},
        "redirectBackend": {"localEndpointSelector": {"matchLabels": {"app": "a"}}, "toPorts": backend},
    })
}

fn of_service(service: &str, ports: Vec<Value>, backend: Vec<Value>) -> Value {
    json!({
        "redirectFrontend": {"serviceMatcher": {"serviceName": service, "namespace": "ns", "toPorts": ports}},
        "redirectBackend": {"localEndpointSelector": {"matchLabels": {"app": "a"}}, "toPorts": backend},
    })
}

fn pod(name: &str, app: &str, ip: &str, ready: bool) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "ns", "labels": {"app": app}},
        "spec": {"containers": [{"name": "c", "ports": [
            {"name": "dns", "containerPort": 5300, "protocol": "UDP"},
            {"name": "web", "containerPort": 8080, "protocol": "TCP"},
        ]}]},
        "status": {
            "phase": "Running",
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
        },
    })
}

/// Tables with a controller that runs only in [`World::round`].
struct World {
    objects: RwTable<Row<CiliumLocalRedirectPolicy>>,
    pods: RwTable<Row<Pod>>,
    policies: RwTable<LocalRedirectPolicy>,
    skips: RwTable<DesiredSkip>,
    writer: ServicesWriter,
    controller: Controller,
}

impl World {
    fn new() -> World {
        let writer = loadbalancer::testing::writer().unwrap();
        let frontends = writer.frontends();
        let db = frontends.db();
        let (objects, pods, policies, skips) =
            (db.table().unwrap(), db.table().unwrap(), db.table().unwrap(), db.table().unwrap());
        let tables = Tables {
            objects: RwTable::reader(&objects),
            pods: RwTable::reader(&pods),
            endpoints: None,
            policies: RwTable::clone(&policies),
            skips: RwTable::clone(&skips),
        };
        let histogram = Histogram::new([1.0]);
        let controller = Controller::new(writer.clone(), tables, Ranges::default(), histogram);
        World { objects, pods, policies, skips, writer, controller }
    }

    fn policy(&mut self, name: &str, spec: Option<Value>) {
        self.objects.transact(|txn| match spec {
            Some(spec) => drop(txn.insert(Row::of(object(name, spec)))),
            None => drop(txn.delete(Row::by_name("ns", name))),
        });
    }

    fn pod(&mut self, name: &str, manifest: Option<Value>) {
        self.pods.transact(|txn| match manifest {
            Some(manifest) => drop(txn.insert(row(&manifest))),
            None => drop(txn.delete(Row::by_name("ns", name))),
        });
    }

    /// Upserts a service with those of the ports `dns` (53/UDP) and `web` (80/TCP) that are `wanted`, each with one
    /// backend; deletes it for `None`.
    fn service(&mut self, name: &str, ip: &str, wanted: Option<[bool; 2]>) {
        let service = ServiceName::new("ns", name);
        let mut txn = self.writer.write();
        let Some(wanted) = wanted else {
            txn.delete_service(&service);
            txn.set_backends(&service, Source::Kubernetes, Vec::new());
            return txn.commit();
        };
        let (mut frontends, mut backends) = (Vec::new(), Vec::new());
        for (wanted, text, name) in [(wanted[0], "53/UDP", "dns"), (wanted[1], "80/TCP", "web")] {
            if wanted {
                let address: LbAddress = format!("{ip}:{text}").parse().unwrap();
                let (kind, service_port) = (FrontendType::ClusterIP, address.port);
                frontends.push(FrontendParams { address, kind, port_name: name.into(), service_port });
                let backend = LbAddress { ip: [10, 9, 9, 9].into(), ..address };
                backends.push(Backend {
                    port_names: [name.into()].into(),
                    ..Backend::new(service.clone(), backend, Source::Kubernetes)
                });
            }
        }
        txn.upsert_service(Service::new(service.clone(), Source::Kubernetes), frontends).unwrap();
        txn.set_backends(&service, Source::Kubernetes, backends);
        txn.commit();
    }

    /// Runs three rounds: enough for changes that the controller makes to tables that it reads.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.round();
        }
    }

    fn round(&mut self) {
        self.controller.round(&self.pods.snapshot());
    }

    /// Returns `SERVICE TYPE 'PORT NAME' -> REDIRECT = BACKENDS` of each frontend, by address.
    fn frontends(&self) -> BTreeMap<String, String> {
        let table = self.writer.frontends();
        let snapshot = table.snapshot();
        let shown = |frontend: &loadbalancer::Frontend| {
            let backends: Vec<String> =
                frontend.backends.iter().map(|backend| backend.address.to_string()).collect();
            let to = frontend.redirect_to.as_ref().map(ToString::to_string).unwrap_or_default();
            let (service, kind) = (&frontend.service.name, frontend.params.kind.name());
            format!("{service} {kind} '{}' -> {to} = {}", frontend.params.port_name, backends.join(" "))
        };
        table.all(&snapshot).map(|frontend| (frontend.address().to_string(), shown(frontend))).collect()
    }

    fn services(&self) -> Vec<String> {
        let table = self.writer.services();
        let snapshot = table.snapshot();
        table.all(&snapshot).map(|service| service.name.to_string()).collect()
    }

    fn backends(&self) -> Vec<String> {
        let table = self.writer.backends();
        let snapshot = table.snapshot();
        let shown = |row: &Backend| {
            let names: Vec<&str> = row.port_names.iter().map(|name| name.as_str()).collect();
            format!("{} {} {} {}", row.service_name, row.address, names.join(","), row.weight)
        };
        table.all(&snapshot).map(|row| shown(row)).collect()
    }

    /// Returns `POLICY SKIPS` of each pod that skips a redirection.
    fn skips(&self) -> BTreeMap<String, String> {
        let snapshot = self.skips.snapshot();
        let rows = self.skips.all(&snapshot).filter(|row| !row.skips.is_empty());
        rows.map(|row| (row.pod.clone(), format!("{:?} {:?}", row.policy, row.skips))).collect()
    }
}

fn row<T: Resource + k8s_tables::Tabled>(object: &Value) -> Row<T> {
    Row::of(k8s_tables::manifest(object).unwrap_or_else(|error| panic!("{error}: {object}")).0)
}
