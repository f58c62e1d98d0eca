//! Objects in, tables out.

use std::collections::BTreeMap;

use k8s::{Resource, Row};
use serde_json::{Value, json};
use statedb::{Db, RwTable, TableSpec};

use super::*;
use crate::tests::{FAMILIES, writer_with};
use crate::writer::Rules;

struct Cluster {
    services: RwTable<Row<Manifest>>,
    slices: RwTable<Row<EndpointSlice>>,
    pods: RwTable<Row<Pod>>,
    writer: ServicesWriter,
    reflector: Reflector,
    host_ports: HostPorts,
}

fn row<T: Resource + k8s::Tabled>(object: Value) -> Row<T> {
    Row::of(k8s::manifest(&object).unwrap_or_else(|error| panic!("{error}: {object}")))
}

impl Cluster {
    fn new(labels: &[(&str, &str)]) -> Cluster {
        let db = Db::new();
        let (services, slices, pods) = (db.table().unwrap(), db.table().unwrap(), db.table().unwrap());
        let writer = writer_with(Rules::default());
        let labels: BTreeMap<String, String> =
            labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let of = |services: &RwTable<Row<Manifest>>| services.reader();
        let reflector =
            Reflector::new(writer.clone(), of(&services), slices.reader(), FAMILIES, move || labels.clone());
        let host_ports = HostPorts::new(writer.clone(), pods.reader(), FAMILIES, 30_000..=32_767);
        Cluster { services, slices, pods, writer, reflector, host_ports }
    }

    fn service(&mut self, object: Value) -> &mut Self {
        self.services.transact(|txn| txn.insert(row(object)));
        self
    }

    fn no_service(&mut self, name: &str) -> &mut Self {
        self.services.transact(|txn| txn.delete(Row::by_name("ns", name)));
        self
    }

    fn slice(&mut self, object: Value) -> &mut Self {
        self.slices.transact(|txn| txn.insert(row(object)));
        self
    }

    fn no_slice(&mut self, name: &str) -> &mut Self {
        self.slices.transact(|txn| txn.delete(Row::by_name("ns", name)));
        self
    }

    fn pod(&mut self, object: Value) -> &mut Self {
        self.pods.transact(|txn| txn.insert(row(object)));
        self
    }

    fn round(&mut self) {
        while self.reflector.round().more {}
        self.host_ports.round();
    }

    /// Frontends with their backends.
    fn frontends(&mut self) -> Vec<String> {
        self.round();
        let table = self.writer.frontends();
        let rows = table.all(&table.snapshot()).map(|frontend| frontend.row()).collect::<Vec<_>>();
        rows.into_iter().map(|row| format!("{} {} {}", row[0], row[2], row[4])).collect()
    }

    fn names(&mut self) -> Vec<String> {
        self.round();
        let table = self.writer.services();
        table.all(&table.snapshot()).map(|service| service.name.to_string()).collect()
    }

    fn backends(&self) -> Vec<String> {
        let table = self.writer.backends();
        table.all(&table.snapshot()).map(|b| format!("{} {}", b.service_name, b.address)).collect()
    }
}

fn service(name: &str, ip: &str, extra: Value) -> Value {
    let mut spec = json!({"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80, "protocol": "TCP"}]});
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "ns"}, "spec": spec})
}

fn slice(name: &str, service: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().map(|ip| json!({"addresses": [ip]})).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "ns", "labels": {"kubernetes.io/service-name": service}},
        "endpoints": endpoints, "ports": [{"name": "", "port": 1, "protocol": "TCP"}],
    })
}

#[test]
fn slices_of_a_service_count_together_and_may_move() {
    let mut cluster = Cluster::new(&[]);
    cluster.slice(slice("a", "web", &["10.0.0.1", "10.0.0.2"])).slice(slice("b", "web", &["10.0.0.2"]));
    assert_eq!(cluster.frontends(), [] as [String; 0]);
    assert_eq!(cluster.backends(), ["ns/web 10.0.0.1:1/TCP", "ns/web 10.0.0.2:1/TCP"]);
    cluster.service(service("web", "10.96.0.1", json!({})));
    assert_eq!(cluster.frontends(), ["10.96.0.1:80/TCP ns/web 10.0.0.1:1/TCP, 10.0.0.2:1/TCP"]);
    cluster.no_slice("a");
    assert_eq!(cluster.frontends(), ["10.96.0.1:80/TCP ns/web 10.0.0.2:1/TCP"]);
    // The slice becomes another service's.
    cluster.slice(slice("b", "other", &["10.0.0.2"]));
    assert_eq!(cluster.frontends(), ["10.96.0.1:80/TCP ns/web "]);
    assert_eq!(cluster.backends(), ["ns/other 10.0.0.2:1/TCP"]);
    cluster.no_slice("b").no_service("web");
    assert_eq!((cluster.frontends(), cluster.backends()), (vec![], vec![]));
    assert!(cluster.reflector.is_empty());
}

#[test]
fn a_refused_service_is_taken_when_the_owner_of_its_address_goes() {
    let mut cluster = Cluster::new(&[]);
    let shared = json!({"externalIPs": ["192.0.2.1"]});
    cluster.service(service("holder", "10.96.0.1", shared.clone()));
    cluster.round();
    cluster.service(service("rival", "10.96.0.2", shared));
    assert_eq!(cluster.names(), ["ns/holder"]);
    assert_eq!(
        cluster.reflector.errors(),
        ["frontend already owned by another service: 192.0.2.1:80/TCP is owned by ns/holder"]
    );
    cluster.no_service("holder");
    assert_eq!(cluster.names(), ["ns/rival"]);
    assert_eq!(cluster.reflector.errors(), [] as [String; 0]);
}

#[test]
fn services_are_for_the_nodes_that_they_name() {
    let mut cluster = Cluster::new(&[("service.cilium.io/node", "edge"), ("rack", "r7")]);
    let annotated = |name: &str, ip: &str, key: &str, value: &str| {
        let mut object = service(name, ip, json!({}));
        object["metadata"]["annotations"] = json!({ key: value });
        object
    };
    let (node, selector) = ("service.cilium.io/node", "service.cilium.io/node-selector");
    cluster
        .service(annotated("match", "10.96.0.1", node, "edge"))
        .service(annotated("other", "10.96.0.2", node, "core"))
        .service(annotated("sel", "10.96.0.3", selector, "rack in (r6, r7)"))
        .service(annotated("sel-not", "10.96.0.4", selector, "rack notin (r7)"))
        .service(annotated("wrong", "10.96.0.5", selector, "rack of (r7)"));
    assert_eq!(cluster.names(), ["ns/match", "ns/sel"]);
    cluster.service(annotated("match", "10.96.0.1", node, "core"));
    assert_eq!(cluster.names(), ["ns/sel"]);
    // Another proxy's.
    let mut object = service("sel", "10.96.0.3", json!({}));
    object["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
    cluster.service(object);
    assert_eq!(cluster.names(), [] as [String; 0]);
}

#[test]
fn the_type_annotation_leaves_one_type() {
    let mut cluster = Cluster::new(&[]);
    let mut object = service("web", "10.96.0.1", json!({"type": "LoadBalancer"}));
    object["spec"]["ports"][0]["nodePort"] = json!(30_080);
    object["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}});
    let all = ["0.0.0.0:30080/TCP ns/web ", "10.96.0.1:80/TCP ns/web ", "192.0.2.7:80/TCP ns/web "];
    for (annotation, expected) in [
        ("NodePort", &all[..1]),
        ("ClusterIP", &all[1..2]),
        ("LoadBalancer", &all[2..]),
        ("Everything", &all[..]),
    ] {
        object["metadata"]["annotations"] = json!({"service.cilium.io/type": annotation});
        cluster.service(object.clone());
        assert_eq!(cluster.frontends(), expected, "{annotation}");
    }
}

fn pod(uid: &str, phase: &str, ports: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dns", "namespace": "ns", "uid": uid},
        "spec": {"nodeName": "alpha", "containers": [{"name": "c", "image": "x", "ports": ports}]},
        "status": {"phase": phase, "podIP": "10.50.0.7", "podIPs": [{"ip": "10.50.0.7"}, {"ip": "fd50::7"}]},
    })
}

#[test]
fn ports_of_the_host_live_as_long_as_their_pod_runs() {
    let mut cluster = Cluster::new(&[]);
    let ports = json!([{"containerPort": 5353, "hostPort": 53, "protocol": "UDP"}, {"containerPort": 9}]);
    cluster.pod(pod("u1", "Pending", ports.clone()));
    assert_eq!(cluster.names(), [] as [String; 0]);
    cluster.pod(pod("u1", "Running", ports.clone()));
    let of = |uid: &str| {
        ["[::]:53/UDP", "0.0.0.0:53/UDP"]
            .into_iter()
            .zip(["[fd50::7]", "10.50.0.7"])
            .map(|(at, to)| format!("{at} ns/dns:host-port:53:{uid} {to}:5353/UDP"))
            .collect::<Vec<_>>()
    };
    assert_eq!(cluster.frontends(), of("u1"));
    cluster.pod(pod("u1", "Succeeded", ports.clone()));
    assert_eq!((cluster.frontends(), cluster.names(), cluster.backends()), (vec![], vec![], vec![]));
    // A pod of the same name takes the place of one whose end nobody has seen.
    cluster.pod(pod("u2", "Running", ports.clone()));
    cluster.round();
    cluster.pod(pod("u3", "Running", ports));
    assert_eq!(cluster.frontends(), of("u3"));
    cluster.pods.transact(|txn| txn.delete(Row::by_name("ns", "dns")));
    assert_eq!((cluster.names(), cluster.backends()), (vec![], vec![]));
}

#[test]
fn a_port_of_the_host_is_where_the_pod_wants_it() {
    let mut cluster = Cluster::new(&[]);
    let at = |port: u16, ip: &str| json!({"containerPort": 1, "hostPort": port, "hostIP": ip});
    cluster.pod(pod(
        "u",
        "Running",
        json!([at(1, "192.0.2.5"), at(2, "0.0.0.0"), at(3, "127.0.0.1"), at(30_000, ""),]),
    ));
    assert_eq!(
        cluster.frontends(),
        [
            "0.0.0.0:3/TCP ns/dns:host-port:3:u 10.50.0.7:1/TCP",
            "192.0.2.5:1/TCP ns/dns:host-port:1:u 10.50.0.7:1/TCP",
        ]
    );
    assert_eq!(cluster.names(), ["ns/dns:host-port:1:u", "ns/dns:host-port:2:u", "ns/dns:host-port:3:u"]);
    let services = cluster.writer.services();
    let loopback = services.all(&services.snapshot()).filter(|service| service.loopback_host_port).count();
    assert_eq!(loopback, 1);
}
