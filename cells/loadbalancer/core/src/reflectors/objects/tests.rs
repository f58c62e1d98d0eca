//! From objects to tables.

mod refused;
mod slices;

use std::collections::BTreeMap;
use std::sync::Mutex;

use k8s_tables::{Resource, Row};
use serde_json::{Value, json};
use statedb::{Db, RwTable, TableDisplay};

use super::*;
use crate::tests::{FAMILIES, writer_with};
use crate::writer::services_writer::Rules;

struct Cluster {
    /// The labels of the node.
    labels: Arc<Mutex<Vec<(String, String)>>>,
    services: RwTable<Row<Manifest>>,
    slices: RwTable<Row<EndpointSlice>>,
    pods: RwTable<Row<Pod>>,
    writer: ServicesWriter,
    reflector: Reflector,
    host_ports: HostPorts,
}

fn row<T: Resource + k8s_tables::Tabled>(object: Value) -> Row<T> {
    let (object, _) = k8s_tables::manifest(&object).unwrap_or_else(|error| panic!("{error}: {object}"));
    Row::of(object)
}

impl Cluster {
    fn new(labels: &[(&str, &str)]) -> Cluster {
        Cluster::with_proxy(labels, "")
    }

    fn with_proxy(labels: &[(&str, &str)], proxy_name: &str) -> Cluster {
        let db = Db::new();
        let (services, slices, pods) = (db.table().unwrap(), db.table().unwrap(), db.table().unwrap());
        let writer = writer_with(Rules::default());
        let labels: Vec<(String, String)> =
            labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let labels = Arc::new(Mutex::new(labels));
        let of = |services: &RwTable<Row<Manifest>>| services.reader();
        let tables = (of(&services), slices.reader());
        let (of_node, proxy_name) = (labels.clone(), proxy_name.to_owned());
        let labels_now = move || of_node.lock().unwrap().iter().cloned().collect();
        let reflector = Reflector::new(writer.clone(), tables, FAMILIES, proxy_name, labels_now);
        let host_ports = HostPorts::new(writer.clone(), pods.reader(), FAMILIES, 30_000..=32_767);
        Cluster { labels, services, slices, pods, writer, reflector, host_ports }
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
    // The slice moves to another service.
    cluster.slice(slice("b", "other", &["10.0.0.2"]));
    assert_eq!(cluster.frontends(), ["10.96.0.1:80/TCP ns/web "]);
    assert_eq!(cluster.backends(), ["ns/other 10.0.0.2:1/TCP"]);
    cluster.no_slice("b").no_service("web");
    assert_eq!((cluster.frontends(), cluster.backends()), (vec![], vec![]));
    assert!(cluster.reflector.is_empty());
}

#[test]
fn frontends_are_written_in_the_order_in_which_their_objects_arrived() {
    let mut cluster = Cluster::new(&[]);
    let order = |cluster: &Cluster| {
        let (table, snapshot) = (cluster.writer.frontends(), cluster.writer.frontends().snapshot());
        table.by_revision(&snapshot, 0).map(|row| row.service.name.to_string()).collect::<Vec<_>>()
    };
    for (name, ip) in [("z", "10.96.0.3"), ("a", "10.96.0.1"), ("m", "10.96.0.2")] {
        cluster.service(service(name, ip, json!({})));
    }
    cluster.round();
    assert_eq!(order(&cluster), ["ns/z", "ns/a", "ns/m"]);
    // Later slices cause the frontends to be written once more, before they have ids.
    cluster.slice(slice("z-1", "z", &["10.0.0.1"])).slice(slice("m-1", "m", &["10.0.0.2"]));
    cluster.slice(slice("a-1", "a", &["10.0.0.3"])).slice(slice("z-2", "z", &["10.0.0.4"]));
    cluster.round();
    assert_eq!(order(&cluster), ["ns/z", "ns/m", "ns/a"]);
}

#[test]
fn a_refused_service_is_retried_when_its_address_is_released() {
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
    assert_eq!(cluster.names(), ["ns/match", "ns/sel", "ns/wrong"]);
    cluster.service(annotated("match", "10.96.0.1", node, "core"));
    assert_eq!(cluster.names(), ["ns/sel", "ns/wrong"]);
    // An object for another proxy.
    let mut object = service("sel", "10.96.0.3", json!({}));
    object["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
    cluster.service(object);
    assert_eq!(cluster.names(), ["ns/wrong"]);
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
    // A pod of the same name replaces one whose deletion was missed.
    cluster.pod(pod("u2", "Running", ports.clone()));
    cluster.round();
    cluster.pod(pod("u3", "Running", ports));
    assert_eq!(cluster.frontends(), of("u3"));
    cluster.pods.transact(|txn| txn.delete(Row::by_name("ns", "dns")));
    assert_eq!((cluster.names(), cluster.backends()), (vec![], vec![]));
}

#[test]
fn a_host_port_has_the_addresses_that_the_pod_requests() {
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

#[test]
fn a_port_at_the_loopback_address_of_another_family_has_a_frontend_without_backends() {
    let mut cluster = Cluster::new(&[]);
    let mut pod = pod("u", "Running", json!([{"containerPort": 1, "hostPort": 3, "hostIP": "127.0.0.1"}]));
    pod["status"] = json!({"phase": "Running", "podIP": "fd50::7", "podIPs": [{"ip": "fd50::7"}]});
    cluster.pod(pod);
    assert_eq!(cluster.frontends(), ["0.0.0.0:3/TCP ns/dns:host-port:3:u "]);
}

#[test]
fn labels_choose_the_proxy_of_an_object() {
    let label = |mut object: Value, proxy: &str| {
        object["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = json!(proxy);
        object
    };
    for (configured, served) in [("", "plain"), ("ours", "labelled"), ("other", "")] {
        let mut cluster = Cluster::with_proxy(&[], configured);
        cluster
            .service(service("plain", "10.96.0.1", json!({})))
            .service(label(service("labelled", "10.96.0.2", json!({})), "ours"))
            .slice(slice("plain-1", "plain", &["10.0.0.1"]))
            .slice(label(slice("labelled-1", "labelled", &["10.0.0.2"]), "ours"));
        let expected: Vec<String> = served.split_whitespace().map(|name| format!("ns/{name}")).collect();
        assert_eq!(cluster.names(), expected, "{configured}");
        let of: Vec<String> =
            cluster.backends().iter().map(|line| line[..line.find(' ').unwrap()].into()).collect();
        assert_eq!(of, expected, "{configured}");
    }
}

#[test]
fn slices_of_other_clusters_and_of_names_are_left_out() {
    let mut cluster = Cluster::new(&[]);
    let mut mesh = slice("mesh", "web", &["10.0.0.1"]);
    mesh["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] =
        json!("endpointslice-mesh-controller.cilium.io");
    let mut names = slice("names", "web", &["pods.example.com"]);
    names["addressType"] = json!("FQDN");
    cluster.slice(mesh).slice(names).slice(slice("own", "web", &["10.0.0.3"]));
    cluster.round();
    assert_eq!(cluster.backends(), ["ns/web 10.0.0.3:1/TCP"]);
    assert_eq!(cluster.reflector.invalid_fields(), [] as [String; 0]);
}

#[test]
fn changed_node_labels_select_other_services() {
    let mut cluster = Cluster::new(&[("rack", "r1")]);
    for (name, ip, selector) in [("one", "10.96.0.1", "rack=r1"), ("two", "10.96.0.2", "rack in (r2)")] {
        let mut object = service(name, ip, json!({}));
        object["metadata"]["annotations"] = json!({"service.cilium.io/node-selector": selector});
        cluster.service(object);
    }
    assert_eq!(cluster.names(), ["ns/one"]);
    *cluster.labels.lock().unwrap() = vec![("rack".to_owned(), "r2".to_owned())];
    assert_eq!(cluster.names(), ["ns/two"]);
}

#[test]
fn fields_of_a_service_determine_its_frontends() {
    let mut cluster = Cluster::new(&[]);
    // Both families, in either order; external addresses for other types as well.
    let mut object =
        service("web", "", json!({"type": "LoadBalancer", "externalIPs": ["fd00::9", "192.0.2.9"]}));
    object["spec"]["clusterIPs"] = json!(["fd00::1", "10.96.0.1"]);
    object["spec"]["ports"][0]["nodePort"] = json!(30_080);
    object["status"] = json!({"loadBalancer": {"ingress": [
        {"ip": "192.0.2.1", "ipMode": "VIP"}, {"ip": "192.0.2.2", "ipMode": "Proxy"}, {"ip": "192.0.2.3"},
        {"hostname": "lb.example.com"},
    ]}});
    let addresses = |cluster: &mut Cluster| {
        let of = |line: String| line[..line.find(' ').unwrap()].to_owned();
        cluster.frontends().into_iter().map(of).collect::<Vec<_>>()
    };
    let external = ["192.0.2.9:80/TCP", "[fd00::9]:80/TCP"];
    cluster.service(object.clone());
    let all = [
        "[::]:30080/TCP",
        "0.0.0.0:30080/TCP",
        "10.96.0.1:80/TCP",
        "192.0.2.1:80/TCP",
        "192.0.2.3:80/TCP",
        external[0],
        "[fd00::1]:80/TCP",
        external[1],
    ];
    assert_eq!(addresses(&mut cluster), all);
    // The families of the service determine those of node ports.
    object["spec"]["ipFamilies"] = json!(["IPv6"]);
    cluster.service(object.clone());
    assert_eq!(addresses(&mut cluster), [&all[..1], &all[2..]].concat());
    // One policy that is Local makes two scopes, two do not; ClusterIP addresses always have one.
    object["spec"]["externalTrafficPolicy"] = json!("Local");
    cluster.service(object.clone());
    let inside = addresses(&mut cluster).into_iter().filter(|address| address.ends_with("/i"));
    assert_eq!(inside.collect::<Vec<_>>(), ["[::]:30080/TCP/i", "192.0.2.1:80/TCP/i", "192.0.2.3:80/TCP/i"]);
    object["spec"]["internalTrafficPolicy"] = json!("Local");
    cluster.service(object);
    assert!(addresses(&mut cluster).iter().all(|address| !address.ends_with("/i")));
    // Without ClusterIP addresses, and for another type, the external ones stay.
    let mut object =
        service("web", "", json!({"type": "ExternalName", "externalIPs": ["fd00::9", "192.0.2.9"]}));
    object["spec"]["clusterIPs"] = json!([]);
    cluster.service(object);
    assert_eq!(addresses(&mut cluster), external);
}

#[test]
fn affinity_lasts_three_hours_by_default() {
    let mut cluster = Cluster::new(&[]);
    let config = |seconds: u32| json!({"clientIP": {"timeoutSeconds": seconds}});
    for (extra, expected) in [
        (json!({}), None),
        (json!({"sessionAffinity": "None", "sessionAffinityConfig": config(7)}), None),
        (json!({"sessionAffinity": "ClientIP"}), Some(10_800)),
        (json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config(7)}), Some(7)),
    ] {
        cluster.service(service("web", "10.96.0.1", extra));
        cluster.round();
        let services = cluster.writer.services();
        let affinity = services.all(&services.snapshot()).next().unwrap().session_affinity;
        assert_eq!(affinity.map(|timeout| timeout.as_secs()), expected);
    }
}

#[test]
fn wrong_fields_are_told_and_the_rest_is_served() {
    let mut cluster = Cluster::new(&[]);
    // As a server without validation may send them.
    let decoded = |object: Value| Row::of(Manifest::from_json(object.to_string().as_bytes()).unwrap());
    let mut object = service("web", "10.96.0.1", json!({"externalIPs": ["10.96.0.300", "192.0.2.1"]}));
    object["spec"]["clusterIPs"] = json!(["10.96.0.1", "x"]);
    object["spec"]["loadBalancerSourceRanges"] = json!(["10.0.0.0/33"]);
    object["spec"]["ports"] =
        json!([{"port": 80}, {"name": "zero", "port": 0}, {"name": "odd", "port": 81, "protocol": "ICMP"}]);
    cluster.services.transact(|txn| txn.insert(decoded(object)));
    let mut wrong = slice("web-1", "web", &["10.0.0.1", "10.0.0.256"]);
    wrong["ports"] = json!([{"port": 0}, {"port": 80}, {"port": 81, "protocol": "ICMP"}, {}]);
    let wrong: EndpointSlice = EndpointSlice::from_json(wrong.to_string().as_bytes()).unwrap();
    cluster.slices.transact(|txn| txn.insert(Row::of(wrong)));
    cluster.service(service("other", "10.96.0.2", json!({})));
    assert_eq!(
        cluster.frontends(),
        [
            "10.96.0.1:80/TCP ns/web 10.0.0.1:80/TCP",
            "10.96.0.2:80/TCP ns/other ",
            "192.0.2.1:80/TCP ns/web 10.0.0.1:80/TCP"
        ]
    );
    assert_eq!(
        cluster.reflector.invalid_fields(),
        [
            "EndpointSlice ns/web-1: endpoints[1].addresses[0]: '10.0.0.256' is not an IP address; ports[0].port: 0 \
             is no port; give one from 1 to 65535; ports[2].protocol: 'ICMP' is not TCP, UDP or SCTP",
            "Service ns/web: spec.clusterIPs[1]: 'x' is not an IP address; spec.ports[1].port: 0 is no port; give one \
             from 1 to 65535; spec.ports[2].protocol: 'ICMP' is not TCP, UDP or SCTP; spec.externalIPs[0]: \
             '10.96.0.300' is not an IP address; and 1 more",
        ]
    );
    cluster.service(service("web", "10.96.0.1", json!({}))).no_slice("web-1");
    cluster.round();
    assert_eq!(cluster.reflector.invalid_fields(), [] as [String; 0]);
}

#[test]
fn ending_endpoints_are_counted() {
    let mut cluster = Cluster::new(&[]);
    let mut object = slice("web-1", "web", &["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    object["endpoints"][1]["conditions"] = json!({"ready": false, "terminating": true});
    cluster.slice(object.clone()).round();
    object["endpoints"][2]["conditions"] = json!({"ready": false, "terminating": true});
    cluster.slice(object).no_slice("none").round();
    let metrics = metrics::Metrics::default();
    cluster.writer.events.register(&metrics);
    let text = metrics.text();
    assert!(text.contains("\ncilium_k8s_terminating_endpoints_events_total 3\n"), "{text}");
}

/// More backends than a frontend can have are reported in its status, and do not affect other services.
#[test]
fn a_hundred_thousand_endpoints() {
    use crate::reconciler::balancer::Balancer;
    use crate::reconciler::operations::{LbOps, ReconcileContext};

    let mut cluster = Cluster::new(&[]);
    cluster.service(service("huge", "10.96.0.1", json!({}))).service(service("web", "10.96.0.2", json!({})));
    cluster.slice(slice("web-1", "web", &["10.0.0.1"]));
    for n in 0..100 {
        let addresses: Vec<String> =
            (0..1000).map(|at| format!("10.{}.{}.{}", n + 1, at / 250, at % 250)).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        cluster.slice(slice(&format!("huge-{n}"), "huge", &addresses));
    }
    cluster.round();
    let frontends = cluster.writer.frontends();
    let snapshot = frontends.snapshot();
    let rows: Vec<_> = frontends.all(&snapshot).cloned().collect();
    assert_eq!(rows.iter().map(|row| row.backends.len()).collect::<Vec<_>>(), [100_000, 1]);
    let maps = Arc::<crate::testing::FakeMaps>::default();
    let context =
        ReconcileContext { settings: Default::default(), addresses: None, frontends: frontends.clone() };
    let balancer = Balancer::restore(maps.clone()).unwrap();
    let mut ops = LbOps { balancer, comparisons: Arc::default(), context, unserved: Default::default() };
    let results = ops.upsert_batch(&snapshot, rows.iter().map(|row| &**row));
    let error = results[0].as_ref().unwrap_err().to_string();
    assert_eq!(error, "100000 backends are more than the 65535 that a frontend can have");
    assert!(results[1].is_ok());
    // The frontend's own entry, its slot, its backend, its reverse NAT entry.
    assert_eq!(maps.dump().len(), 4);
}

#[test]
fn annotations_without_effect_are_reported() {
    let mut cluster = Cluster::new(&[]);
    let annotated = |name: &str, ip: &str, values: Value| {
        let mut object = service(name, ip, json!({}));
        object["metadata"]["annotations"] = values;
        object
    };
    let (kind, mode) = ("service.cilium.io/type", "service.cilium.io/forwarding-mode");
    cluster
        .service(annotated("a", "10.96.0.1", json!({kind: "All", mode: "tunnel"})))
        .service(annotated("b", "10.96.0.2", json!({kind: "ClusterIP", mode: "dsr"})))
        .service(annotated("c", "10.96.0.3", json!({"service.cilium.io/node-selector": "rack of (r7)"})));
    let mut weighted = slice("a-1", "a", &["10.0.0.1"]);
    weighted["metadata"]["annotations"] = json!({"service.cilium.io/weight": "70000"});
    cluster.slice(weighted);
    assert_eq!(cluster.names(), ["ns/a", "ns/b", "ns/c"]);
    assert_eq!(
        cluster.reflector.invalid_fields(),
        [
            "EndpointSlice ns/a-1: metadata.annotations[\"service.cilium.io/weight\"]: '70000' is not a number from 0 to \
             65535",
            "Service ns/a: metadata.annotations[\"service.cilium.io/type\"]: 'All' is not ClusterIP, NodePort or \
             LoadBalancer; metadata.annotations[\"service.cilium.io/forwarding-mode\"]: 'tunnel' is not dsr or snat",
            "Service ns/c: metadata.annotations[\"service.cilium.io/node-selector\"]: 'rack of (r7)' is not a selector of \
             labels; the service is for all nodes",
        ]
    );
}
