//! Small rules: properties of backends, and frontends in the REST API.

use std::time::Duration;

use devices::NodeAddress;
use hive::prelude::*;
use statedb::RwTable;

use super::*;
use crate::model::backend::Backend;
use crate::model::frontend::{FrontendParams, FrontendType};
use crate::model::name::ServiceName;
use crate::model::service::{NatPolicy, ProxyRedirect, Service};
use crate::reconciler::operations::{LbOps, ReconcileContext};

fn web() -> ServiceName {
    ServiceName::new("app", "web")
}

fn at(address: &str) -> Backend {
    Backend::new(web(), address.parse().unwrap(), Source::ClusterMesh)
}

fn frontend(address: &str) -> FrontendParams {
    let kind = FrontendType::ClusterIP;
    FrontendParams { address: address.parse().unwrap(), kind, port_name: "".into(), service_port: 80 }
}

fn addresses(writer: &ServicesWriter) -> Vec<String> {
    let backends = writer.backends();
    backends.all(&backends.snapshot()).map(|row| format!("{} {}", row.address, row.cluster_id)).collect()
}

#[test]
fn backends_of_one_cluster_are_replaced_alone() {
    let writer = writer();
    let of = |cluster_id, address: &str| Backend { cluster_id, ..at(address) };
    let set = |cluster_id, rows: Vec<Backend>| {
        let mut txn = writer.write();
        txn.set_backends_of_cluster(&web(), Source::ClusterMesh, cluster_id, rows);
        txn.commit();
        addresses(&writer)
    };
    set(1, vec![of(1, "10.1.0.1:80/TCP"), of(1, "10.1.0.2:80/TCP")]);
    assert_eq!(
        set(2, vec![of(2, "10.2.0.1:80/TCP")]),
        ["10.1.0.1:80/TCP 1", "10.1.0.2:80/TCP 1", "10.2.0.1:80/TCP 2"]
    );
    assert_eq!(set(1, vec![of(1, "10.1.0.2:80/TCP")]), ["10.1.0.2:80/TCP 1", "10.2.0.1:80/TCP 2"]);
    assert_eq!(set(2, vec![]), ["10.1.0.2:80/TCP 1"]);
    let mut txn = writer.write();
    txn.set_backends(&web(), Source::ClusterMesh, vec![]);
    txn.commit();
    assert_eq!(addresses(&writer), [] as [String; 0]);
}

#[test]
fn entries_of_backends_have_the_ids_of_their_zones() {
    let maps = Arc::<FakeMaps>::default();
    let writer = writer();
    let set_zone = |zone: &str| {
        let text = format!(
            "services: [{{metadata: {{name: web}}, spec: {{clusterIP: 10.96.0.1, ports: [{{port: 80}}]}}}}]\n\
             endpoints: [{{metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}, addressType: IPv4, \
             ports: [{{port: 80}}], endpoints: [{{addresses: [10.0.0.1], zone: {zone}}}, {{addresses: [10.0.0.2]}}]}}]\n"
        );
        writer.replace(Source::Api, state(&text));
    };
    let bring = |zones: &[(&str, u8)]| {
        let zones =
            zones.iter().map(|(zone, number)| (zone.to_string(), *number)).collect::<BTreeMap<_, _>>();
        let settings = Settings { zones: zones.into(), ..settings() };
        let frontends = writer.frontends();
        let context = ReconcileContext { settings, addresses: None, frontends: frontends.clone() };
        // Each is a new agent: ids are restored from the maps.
        let balancer = Balancer::restore(maps.clone()).unwrap();
        let mut ops = LbOps { balancer, comparisons: Arc::default(), context, unserved: Default::default() };
        for result in ops.upsert_batch(&frontends.snapshot(), served(&writer).iter()) {
            result.unwrap();
        }
        let zone = |(_, value): (Key, Value)| match value {
            Value::Backend(row) => Some((row.address.ip.to_string(), row.zone)),
            _ => None,
        };
        maps.dump().into_iter().filter_map(zone).collect::<Vec<_>>()
    };
    let zoned = |number| vec![("10.0.0.1".to_owned(), number), ("10.0.0.2".to_owned(), 0)];
    let both = [("north", 7), ("south", 255)];
    set_zone("north");
    assert_eq!(bring(&[]), zoned(0));
    assert_eq!(bring(&both), zoned(7));
    set_zone("south");
    assert_eq!(bring(&both), zoned(255));
    let operations = maps.operations();
    assert_eq!(bring(&both), zoned(255));
    assert_eq!(maps.operations(), operations, "a restart writes nothing");
    set_zone("west");
    assert_eq!(bring(&both), zoned(0));
    set_zone("south");
    bring(&both);
    assert_eq!(bring(&[]), zoned(0), "the option is gone");
}

#[test]
fn rest_shows_redirects_proxies_and_translation() {
    let writer = writer();
    let service = Service { nat_policy: NatPolicy::Nat46, ..Service::new(web(), Source::Api) };
    let mut txn = writer.write();
    txn.upsert_service(service, vec![frontend("10.96.0.1:80/TCP"), frontend("[fd00::1]:80/TCP")]).unwrap();
    txn.set_proxy_redirects(&web(), vec![ProxyRedirect { proxy_port: 10_000, ports: vec![] }]);
    txn.set_redirect_to(
        &"10.96.0.1:80/TCP".parse().unwrap(),
        Some(ServiceName::new("app", "p:local-redirect")),
    );
    txn.commit();
    let shown: Vec<_> =
        crate::rest::list(&writer.frontends()).into_iter().map(|model| model.spec.unwrap()).collect();
    let backends = |at: usize| {
        let backend = |backend: &api_models::BackendAddress| {
            format!("{} {} {} {}", backend.ip.0, backend.port, backend.protocol, backend.state)
        };
        shown[at].backend_addresses.iter().map(backend).collect::<Vec<_>>()
    };
    let flags = |at: usize| {
        shown[at].flags.as_ref().map(|flags| (flags.kind.as_str(), flags.nat_policy.as_str())).unwrap()
    };
    assert_eq!((flags(0), flags(1)), (("LocalRedirect", "Nat46"), ("ClusterIP", "Nat46")));
    assert_eq!(
        (backends(0), backends(1)),
        (vec!["127.0.0.1 10000 TCP active".to_owned()], vec!["::1 10000 TCP active".to_owned()])
    );
}

/// Repeated changes of addresses are coalesced, to one update a second.
#[tokio::test(start_paused = true)]
async fn addresses_of_the_node_are_followed_at_a_pace() {
    let writer = Arc::new(writer());
    let mut txn = writer.write();
    let params = FrontendParams { kind: FrontendType::NodePort, ..frontend("0.0.0.0:30080/TCP") };
    txn.upsert_service(Service::new(web(), Source::Api), vec![params]).unwrap();
    txn.commit();
    let addresses: RwTable<NodeAddress> = writer.frontends().db().table().unwrap();
    let (of_job, reader) = (writer.clone(), Arc::new((*addresses).clone()));
    let follow = invoke(move |jobs: JobGroup| {
        let (writer, addresses) = (of_job.clone(), reader.clone());
        jobs.one_shot("follow", move |cx| crate::cell::follow_addresses(writer, addresses, cx)).add();
    });
    let mut hive = TestHive::new([module("addresses", "Addresses of the node", [follow])]);
    hive.start().await;
    let frontends = writer.frontends();
    let revision = || frontends.revision(&frontends.snapshot());
    let add = |last: u8| {
        let addr = [192, 0, 2, last].into();
        let row = NodeAddress { addr, node_port: true, primary: false, device_name: "lan0".to_owned() };
        addresses.transact(|txn| txn.insert(row));
    };
    let before = revision();
    add(1);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(revision(), before + 1, "the first at once");
    for last in 2..50 {
        add(last);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(revision(), before + 1, "half a second later");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(revision(), before + 2, "all others together");
    hive.stop().await;
}

#[test]
fn node_ports_belong_to_kube_proxy_without_the_replacement() {
    let params = |address: &str, kind| FrontendParams { kind, ..frontend(address) };
    let all = [
        params("0.0.0.0:30080/TCP", FrontendType::NodePort),
        params("0.0.0.0:8080/TCP", FrontendType::HostPort),
        params("10.96.0.1:80/TCP", FrontendType::ClusterIP),
        params("192.0.2.1:80/TCP", FrontendType::LoadBalancer),
    ];
    for (node_ports, expected) in [(true, &all[..]), (false, &all[1..])] {
        let writer = writer_with(Rules { node_ports, ..Rules::default() });
        let service = Service::new(web(), Source::Api);
        let mut txn = writer.write();
        txn.upsert_service(service.clone(), all.to_vec()).unwrap();
        txn.commit();
        let shown = |writer: &ServicesWriter| {
            let mut shown: Vec<FrontendParams> = served(writer).into_iter().map(|row| row.params).collect();
            shown.sort_by_key(|params| all.iter().position(|one| one == params));
            shown
        };
        assert_eq!(shown(&writer), expected);
        writer.replace(Source::Api, State { services: vec![(service, all.to_vec())], backends: vec![] });
        assert_eq!(shown(&writer), expected);
    }
}

/// Returns the parts of kube-proxy that the agent replaces, as JSON.
fn replaced(config: &crate::ServicesConfig) -> serde_json::Value {
    let mut status = api_models::StatusResponse::default();
    crate::rest::status(config, &mut status);
    serde_json::to_value(status.kube_proxy_replacement.unwrap()).unwrap()
}

#[test]
fn health_reports_the_replaced_parts_of_kube_proxy() {
    let config = crate::ServicesConfig::default();
    let off = replaced(&config);
    assert_eq!((&off["mode"], &off["features"]["nodePort"]), (&"False".into(), &serde_json::json!({})));
    // As Cilium serializes a nil list.
    assert!(off["features"]["annotations"].is_null(), "{off}");
    let on = replaced(&crate::ServicesConfig { kube_proxy_replacement: true, ..config.clone() });
    assert_eq!(on["mode"], "True");
    let ports = serde_json::json!({
        "acceleration": "Disabled", "algorithm": "Random", "enabled": true, "mode": "SNAT", "portMax": 32767,
        "portMin": 30000,
    });
    let features = &on["features"];
    assert_eq!(features["nodePort"], ports);
    assert_eq!(features["gracefulTermination"], serde_json::json!({"enabled": true}));
    assert_eq!(features["hostPort"], serde_json::json!({"enabled": true}));
    assert_eq!(features["externalIPs"], serde_json::json!({"enabled": true}));
    assert_eq!(off["features"]["hostPort"], serde_json::json!({}));
    let named = |features: &serde_json::Value| features["annotations"].as_array().unwrap().len();
    assert_eq!(named(features), 5);
    let on = replaced(&crate::ServicesConfig {
        kube_proxy_replacement: true,
        bpf_lb_algorithm: crate::model::service::Algorithm::Maglev,
        bpf_lb_algorithm_annotation: true,
        bpf_lb_mode: crate::option_values::LbMode::Dsr,
        bpf_lb_dsr_dispatch: crate::option_values::DsrDispatch::Geneve,
        ..config
    });
    let ports = &on["features"]["nodePort"];
    assert_eq!((&ports["algorithm"], &ports["mode"]), (&"Maglev".into(), &"DSR".into()));
    assert_eq!(ports["dsrMode"], "Geneve");
    assert_eq!((&ports["lutSize"], named(&on["features"])), (&16381.into(), 6));
    let chosen = replaced(&crate::ServicesConfig {
        kube_proxy_replacement: true,
        bpf_lb_algorithm_annotation: true,
        bpf_lb_mode_annotation: true,
        ..crate::ServicesConfig::default()
    });
    let ports = &chosen["features"]["nodePort"];
    assert_eq!((&ports["algorithm"], &ports["lutSize"]), (&"Random".into(), &16381.into()));
    assert_eq!((&ports["mode"], &ports["dsrMode"]), (&"SNAT".into(), &"IP Option/Extension".into()));
    assert_eq!(named(&chosen["features"]), 7, "those of algorithms and modes");
    let node_port = |bpf_lb_mode, bpf_lb_dsr_dispatch| {
        let all = crate::ServicesConfig {
            kube_proxy_replacement: true,
            bpf_lb_mode,
            bpf_lb_dsr_dispatch,
            ..crate::ServicesConfig::default()
        };
        let ports = replaced(&all)["features"]["nodePort"].clone();
        (ports["mode"].clone(), ports.get("dsrMode").cloned())
    };
    use crate::option_values::{DsrDispatch, LbMode};
    let opt = Some("IP Option/Extension".into());
    assert_eq!(node_port(LbMode::Hybrid, DsrDispatch::Opt), ("Hybrid".into(), opt));
    assert_eq!(node_port(LbMode::Dsr, DsrDispatch::Ipip), ("DSR".into(), Some("IPIP".into())));
}
