//! The selection of backends against the simplest computation, and its inputs other than the sources.

use proptest::prelude::*;

use super::*;
use crate::model::address::{Protocol, Scope};
use crate::model::backend::{Backend, BackendState, Zone};
use crate::model::frontend::{FrontendParams, FrontendType};
use crate::model::name::ServiceName;
use crate::model::service::{ProxyRedirect, Service, TrafficDistribution as D, TrafficPolicy};

fn web() -> ServiceName {
    ServiceName::new("ns", "web")
}

#[derive(Debug, Clone)]
struct Case {
    kind: FrontendType,
    internal: bool,
    port_name: &'static str,
    local: (bool, bool),
    distribution: D,
    checked: bool,
    backends: Vec<Backend>,
}

prop_compose! {
    fn backend()(
        last in 1u8..6,
        (node, zones, name) in (0usize..3, 0usize..4, 0usize..3),
        (udp, v6) in (proptest::bool::weighted(0.1), proptest::bool::weighted(0.1)),
        state in 0usize..4,
        (source, checked) in (any::<bool>(), proptest::option::of(any::<bool>())),
    ) -> Backend {
        let ip = if v6 { format!("fd00::{last}") } else { format!("10.0.0.{last}") };
        let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
        let zones = [&[][..], &["north"], &["south"], &["south", "north"]][zones];
        let source = if source { Source::Kubernetes } else { Source::Api };
        Backend {
            node_name: ["", NODE, "other"][node].into(),
            zone: (!zones.is_empty()).then(|| {
                Arc::new(Zone { zone: zones[0].into(), for_zones: zones.iter().map(|zone| (*zone).into()).collect() })
            }),
            port_names: [&[][..], &["http"], &["grpc", "x"]][name].iter().map(|name| (*name).into()).collect(),
            state: [BackendState::Active, BackendState::Terminating, BackendState::TerminatingNotServing,
                BackendState::Maintenance][state],
            unhealthy: checked == Some(false),
            unhealthy_updated_at: checked.map(|_| std::time::SystemTime::UNIX_EPOCH),
            ..Backend::new(web(), LbAddress::new(ip.parse().unwrap(), 80, protocol), source)
        }
    }
}

prop_compose! {
    fn case()(
        kind in 0usize..3,
        (internal, name) in (any::<bool>(), 0usize..3),
        local in (any::<bool>(), any::<bool>()),
        distribution in 0usize..4,
        checked in any::<bool>(),
        backends in proptest::collection::vec(backend(), 0..8),
    ) -> Case {
        Case {
            kind: [FrontendType::ClusterIP, FrontendType::LoadBalancer, FrontendType::HostPort][kind],
            internal,
            port_name: ["", "http", "x"][name],
            local,
            distribution: [D::Default, D::PreferClose, D::PreferSameZone, D::PreferSameNode][distribution],
            checked,
            backends,
        }
    }
}

/// Returns the expected backends, written from the description one condition after the other.
fn expected(case: &Case) -> Vec<String> {
    let mut addresses: Vec<LbAddress> = case.backends.iter().map(|backend| backend.address).collect();
    addresses.sort();
    addresses.dedup();
    // The last row of a source takes effect; the source of higher precedence wins.
    let row = |address: &LbAddress| {
        let of = |source| case.backends.iter().rev().find(|b| b.address == *address && b.source == source);
        of(Source::Kubernetes).or(of(Source::Api)).unwrap()
    };
    let (ext, int) = case.local;
    let local = match case.kind {
        FrontendType::HostPort => false,
        FrontendType::ClusterIP => int,
        _ if case.internal => int,
        _ => ext,
    };
    let mut rows: Vec<&Backend> = addresses.iter().map(row).collect();
    rows.retain(|b| b.address.protocol == Protocol::Tcp && b.address.ip.is_ipv4());
    rows.retain(|b| {
        case.port_name.is_empty()
            || b.port_names.is_empty()
            || b.port_names.iter().any(|n| n == case.port_name)
    });
    rows.retain(|b| !local || ["", NODE].contains(&b.node_name.as_str()));
    let known = |b: &&Backend| !case.checked || (b.unhealthy_updated_at.is_some() && !b.unhealthy);
    let candidates: Vec<&Backend> = rows
        .iter()
        .copied()
        .filter(|b| matches!(b.state, BackendState::Active | BackendState::Maintenance))
        .filter(known)
        .collect();
    let zones = |b: &Backend| b.zone.as_ref().map(|zone| zone.for_zones.clone()).unwrap_or_default();
    match case.distribution {
        D::Default => {}
        D::PreferSameNode if candidates.iter().any(|b| b.node_name == NODE) => {
            rows.retain(|b| b.node_name == NODE)
        }
        D::PreferSameNode => {}
        _ => {
            let ours = |b: &&Backend| zones(b).iter().any(|zone| zone == "north");
            if candidates.iter().any(ours) && candidates.iter().all(|b| !zones(b).is_empty()) {
                rows.retain(ours);
            }
        }
    }
    rows.retain(|b| !case.checked || b.state != BackendState::Active || b.unhealthy_updated_at.is_some());
    rows.iter().map(|b| format!("{} {}", b.address, b.source)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn selection_is_that_of_the_model(case in case()) {
        let writer = writer_with(Rules { topology: true, ..Rules::default() });
        let policy = |local| if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
        let scope = if case.internal && case.kind == FrontendType::LoadBalancer { Scope::Internal } else { Scope::External };
        let service = Service {
            ext_traffic_policy: policy(case.local.0),
            int_traffic_policy: policy(case.local.1),
            traffic_distribution: case.distribution,
            ..Service::new(web(), Source::Api)
        };
        let address = LbAddress { scope, ..LbAddress::new([10, 96, 0, 1].into(), 80, Protocol::Tcp) };
        let frontend = FrontendParams { address, kind: case.kind, port_name: case.port_name.into(), service_port: 80 };
        let mut txn = writer.write();
        txn.upsert_service(service, vec![frontend]).unwrap();
        txn.commit();
        // With their health, which does not come from a source.
        for backend in &case.backends {
            writer.backends.transact(|txn| txn.insert(backend.clone()));
        }
        writer.set_is_service_health_checked(move |_| case.checked);
        let frontends = writer.frontends();
        let snapshot = frontends.snapshot();
        let frontend = frontends.get(&snapshot, Frontend::by_address(&address)).unwrap();
        let chosen: Vec<String> = frontend.backends.iter().map(|b| format!("{} {}", b.address, b.source)).collect();
        prop_assert_eq!(chosen, expected(&case));
    }
}

/// Returns a writer with a service of one address and these backends.
fn serving(rules: Rules, service: Service, backends: Vec<Backend>) -> ServicesWriter {
    let writer = writer_with(rules);
    let mut txn = writer.write();
    txn.upsert_service(service, vec![frontend("10.96.0.1:80/TCP", FrontendType::ClusterIP)]).unwrap();
    txn.set_backends(&web(), Source::Api, backends);
    txn.commit();
    writer
}

fn frontend(address: &str, kind: FrontendType) -> FrontendParams {
    FrontendParams { address: address.parse().unwrap(), kind, port_name: "".into(), service_port: 80 }
}

fn at(name: &ServiceName, address: &str) -> Backend {
    Backend::new(name.clone(), address.parse().unwrap(), Source::Api)
}

fn used(writer: &ServicesWriter, address: &str) -> Vec<String> {
    let (frontends, address) = (writer.frontends(), address.parse().unwrap());
    let snapshot = frontends.snapshot();
    let frontend = frontends.get(&snapshot, Frontend::by_address(&address)).unwrap();
    frontend.backends.iter().map(|backend| backend.address.to_string()).collect()
}

#[test]
fn the_zone_of_the_node_is_followed() {
    let zone = Arc::new(std::sync::Mutex::new(None));
    let of_node = zone.clone();
    let place =
        move || Place { node: NODE.to_owned(), zone: of_node.lock().unwrap().clone(), ..Place::default() };
    let service = Service { traffic_distribution: D::PreferClose, ..Service::new(web(), Source::Api) };
    let meant = |address: &str, zone: &str| {
        let zone = Zone { zone: zone.into(), for_zones: vec![zone.into()] };
        Backend { zone: Some(Arc::new(zone)), ..at(&web(), address) }
    };
    let both = vec![meant("10.0.0.1:80/TCP", "north"), meant("10.0.0.2:80/TCP", "south")];
    let rules = Rules { topology: true, ..Rules::default() };
    let writer =
        ServicesWriter { node_info: NodeInfo::new(place, BTreeSet::new), ..serving(rules, service, both) };
    for (now, expected) in [
        (Some("south"), &["10.0.0.2:80/TCP"][..]),
        (Some("north"), &["10.0.0.1:80/TCP"]),
        (Some("west"), &["10.0.0.1:80/TCP", "10.0.0.2:80/TCP"]),
        (Some("south"), &["10.0.0.2:80/TCP"]),
        (None, &["10.0.0.1:80/TCP", "10.0.0.2:80/TCP"]),
    ] {
        *zone.lock().unwrap() = now.map(Into::into);
        writer.choose_again(|service| service.traffic_distribution.is_by_zone());
        assert_eq!(used(&writer, "10.96.0.1:80/TCP"), expected, "{now:?}");
    }
}

#[test]
fn only_checked_backends_are_selected_and_all_are_checked() {
    let backends = vec![at(&web(), "10.0.0.1:80/TCP"), at(&web(), "10.0.0.2:80/TCP")];
    let writer = serving(Rules::default(), Service::new(web(), Source::Api), backends);
    writer.set_is_service_health_checked(|service| service.name == web());
    assert_eq!(used(&writer, "10.96.0.1:80/TCP"), [] as [String; 0]);
    assert_eq!(served(&writer)[0].health_check_backends.len(), 2);
    for (address, healthy) in [("10.0.0.2:80/TCP", true), ("10.0.0.1:80/TCP", false)] {
        let mut txn = writer.write();
        assert!(txn.set_health(
            &web(),
            &address.parse().unwrap(),
            healthy,
            std::time::SystemTime::UNIX_EPOCH
        ));
        txn.commit();
        assert!(used(&writer, "10.96.0.1:80/TCP").contains(&address.to_owned()));
    }
    assert_eq!(desired(&writer)[0].active, 1);
}

#[test]
fn a_redirected_frontend_follows_the_other_service() {
    let writer =
        serving(Rules::default(), Service::new(web(), Source::Api), vec![at(&web(), "10.0.0.1:80/TCP")]);
    let other = ServiceName::new("ns", "policy:local-redirect");
    let address = "10.96.0.1:80/TCP";
    let redirect = |to: Option<ServiceName>| {
        let mut txn = writer.write();
        assert!(txn.set_redirect_to(&address.parse().unwrap(), to));
        assert!(!txn.set_redirect_to(&"10.96.0.9:80/TCP".parse().unwrap(), None));
        txn.commit();
    };
    redirect(Some(other.clone()));
    assert_eq!(used(&writer, address), [] as [String; 0]);
    let backends = |backends: Vec<Backend>| {
        let mut txn = writer.write();
        txn.set_backends(&other, Source::Api, backends);
        txn.commit();
    };
    backends(vec![at(&other, "10.1.0.1:80/TCP")]);
    assert_eq!(used(&writer, address), ["10.1.0.1:80/TCP"]);
    assert_eq!(served(&writer)[0].redirect_to, Some(other.clone()));
    // Its source upserts the same service again: the redirect stays.
    let mut txn = writer.write();
    let service = Service { health_check_node_port: 7, ..Service::new(web(), Source::Api) };
    txn.upsert_service(service, vec![frontend(address, FrontendType::ClusterIP)]).unwrap();
    txn.commit();
    assert_eq!(used(&writer, address), ["10.1.0.1:80/TCP"]);
    redirect(None);
    assert_eq!(used(&writer, address), ["10.0.0.1:80/TCP"]);
    let revision = writer.frontends().revision(&writer.frontends().snapshot());
    redirect(None);
    backends(vec![]);
    assert_eq!(
        writer.frontends().revision(&writer.frontends().snapshot()),
        revision,
        "no frontend is concerned"
    );
}

#[test]
fn proxies_of_a_service_are_kept_when_its_source_updates_it() {
    let writer = serving(Rules::default(), Service::new(web(), Source::Api), vec![]);
    let redirects = vec![ProxyRedirect { proxy_port: 10_000, ports: vec![80, 443] }];
    let mut txn = writer.write();
    assert!(txn.set_proxy_redirects(&web(), redirects.clone()));
    assert!(!txn.set_proxy_redirects(&ServiceName::new("ns", "none"), vec![]));
    txn.commit();
    let mut txn = writer.write();
    let service = Service { health_check_node_port: 7, ..Service::new(web(), Source::Api) };
    txn.upsert_service(service, vec![frontend("10.96.0.1:80/TCP", FrontendType::ClusterIP)]).unwrap();
    txn.commit();
    let frontend = &served(&writer)[0];
    assert_eq!(
        (frontend.service.proxy_port(443), frontend.service.health_check_node_port),
        (Some(10_000), 7)
    );
    assert_eq!(*frontend.service.proxy_redirects, *redirects);
}

#[test]
fn addresses_that_would_hide_node_ports_are_left_out() {
    let writer = writer();
    let wanted = [
        ("192.0.2.90:86/TCP", FrontendType::LoadBalancer),
        ("192.0.2.90:31086/TCP", FrontendType::LoadBalancer),
        ("192.0.2.90:31087/TCP", FrontendType::ExternalIPs),
        ("203.0.113.86:31086/TCP", FrontendType::LoadBalancer),
        ("10.96.0.1:31086/TCP", FrontendType::ClusterIP),
    ];
    let mut txn = writer.write();
    let frontends = wanted.iter().map(|(address, kind)| frontend(address, *kind)).collect();
    txn.upsert_service(Service::new(web(), Source::Api), frontends).unwrap();
    txn.commit();
    let mut addresses: Vec<String> = served(&writer).iter().map(|f| f.address().to_string()).collect();
    addresses.sort();
    assert_eq!(addresses, ["10.96.0.1:31086/TCP", "192.0.2.90:86/TCP", "203.0.113.86:31086/TCP"]);
}

#[test]
fn ids_follow_the_order_of_addresses_even_if_backends_come_later() {
    let writer = writer();
    let addresses = ["10.96.0.1:80/TCP", "10.96.0.2:80/UDP", "[fd10::1]:80/TCP"];
    let mut txn = writer.write();
    let frontends = addresses.map(|address| frontend(address, FrontendType::ClusterIP)).to_vec();
    txn.upsert_service(Service::new(web(), Source::Api), frontends).unwrap();
    txn.commit();
    let mut txn = writer.write();
    txn.set_backends(&web(), Source::Api, vec![at(&web(), "10.0.0.1:80/TCP")]);
    txn.commit();
    let order = || served(&writer).iter().map(|f| f.address().to_string()).collect::<Vec<_>>();
    assert_eq!(order(), addresses);
    // A change of a node's address does not alter the order of those without ids.
    writer.node_addresses_changed(&["10.96.0.1".parse().unwrap()].into());
    assert_eq!(order(), addresses);
}
