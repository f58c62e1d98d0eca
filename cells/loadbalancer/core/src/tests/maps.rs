//! The map entries of services, as recorded from Cilium.

use super::property::Node;
use super::*;

/// Returns a service and one slice of it.
fn one(spec: &str, endpoints: &str) -> State {
    state(&format!(
        "services:\n- metadata: {{name: web, namespace: app}}\n  spec: {spec}\n\
         endpoints:\n- metadata: {{name: web-1, namespace: app, labels: {{kubernetes.io/service-name: web}}}}\n  \
         addressType: IPv4\n  ports: [{{name: '', port: 9090}}]\n  endpoints: {endpoints}\n"
    ))
}

fn rows(state: State) -> Vec<String> {
    let writer = writer();
    assert_eq!(writer.replace(Source::Api, state), []);
    brought(&Arc::default(), &writer)
}

#[test]
fn affinity_has_a_match_for_each_active_backend() {
    let spec = "{clusterIPs: [10.96.13.1], sessionAffinity: ClientIP, ports: [{port: 90}]}";
    let endpoints = "[{addresses: [10.53.0.1]}, {addresses: [10.53.0.2]}, \
                     {addresses: [10.53.0.3], conditions: {ready: false, serving: true, terminating: true}}]";
    assert_eq!(
        rows(one(spec, endpoints)),
        [
            "AFF: ID=1 BEID=1",
            "AFF: ID=1 BEID=2",
            "BE: ID=1 ADDR=10.53.0.1:9090/TCP STATE=active",
            "BE: ID=2 ADDR=10.53.0.2:9090/TCP STATE=active",
            "BE: ID=3 ADDR=10.53.0.3:9090/TCP STATE=terminating",
            "REV: ID=1 ADDR=10.96.13.1:90",
            "SVC: ID=0 ADDR=10.96.13.1:0/ANY SLOT=0 AFFTimeout=0 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable",
            "SVC: ID=1 ADDR=10.96.13.1:90/TCP SLOT=0 AFFTimeout=10800 COUNT=2 QCOUNT=1 FLAGS=ClusterIP+sessionAffinity+non-routable",
            "SVC: ID=1 ADDR=10.96.13.1:90/TCP SLOT=1 BEID=1 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+sessionAffinity+non-routable",
            "SVC: ID=1 ADDR=10.96.13.1:90/TCP SLOT=2 BEID=2 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+sessionAffinity+non-routable",
            "SVC: ID=1 ADDR=10.96.13.1:90/TCP SLOT=3 BEID=3 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+sessionAffinity+non-routable",
        ]
    );
}

#[test]
fn conditions_order_the_slots() {
    let endpoints = "[{addresses: [10.54.0.1]}, {addresses: [10.54.0.2], conditions: {ready: true}}, \
        {addresses: [10.54.0.3], conditions: {ready: false}}, \
        {addresses: [10.54.0.4], conditions: {ready: false, serving: true, terminating: true}}, \
        {addresses: [10.54.0.5], conditions: {ready: false, serving: false, terminating: true}}, \
        {addresses: [10.54.0.6], conditions: {ready: true, serving: true, terminating: true}}, \
        {addresses: [10.54.0.7], conditions: {ready: false, terminating: true}}]";
    let rows = rows(one("{clusterIP: 10.96.13.3, ports: [{port: 92}]}", endpoints));
    let backends: Vec<&String> = rows.iter().filter(|row| row.starts_with("BE")).collect();
    assert_eq!(
        backends,
        [
            "BE: ID=1 ADDR=10.54.0.1:9090/TCP STATE=active",
            "BE: ID=2 ADDR=10.54.0.2:9090/TCP STATE=active",
            "BE: ID=3 ADDR=10.54.0.6:9090/TCP STATE=active",
            "BE: ID=4 ADDR=10.54.0.4:9090/TCP STATE=terminating",
            "BE: ID=5 ADDR=10.54.0.7:9090/TCP STATE=terminating",
            "BE: ID=6 ADDR=10.54.0.5:9090/TCP STATE=terminating",
            "BE: ID=7 ADDR=10.54.0.3:9090/TCP STATE=maintenance",
        ]
    );
    let master =
        "SVC: ID=1 ADDR=10.96.13.3:92/TCP SLOT=0 AFFTimeout=0 COUNT=3 QCOUNT=3 FLAGS=ClusterIP+non-routable";
    assert!(rows.iter().any(|row| row == master), "{rows:#?}");
    assert_eq!(rows.iter().filter(|row| row.contains(":92/TCP SLOT=")).count(), 7);
}

#[test]
fn terminating_backends_are_the_last_resort() {
    let counts = |endpoints: &str| {
        let rows = rows(one("{clusterIP: 10.96.13.4, ports: [{port: 93}]}", endpoints));
        let master = rows.iter().find(|row| row.contains(":93/TCP SLOT=0")).unwrap();
        master
            .split(' ')
            .filter(|word| word.contains("COUNT"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let terminating = "{ready: false, serving: true, terminating: true}";
    let gone = "{ready: false, serving: false, terminating: true}";
    let two = |a: &str, b: &str| {
        format!("[{{addresses: [10.54.1.1], conditions: {a}}}, {{addresses: [10.54.1.2], conditions: {b}}}]")
    };
    assert_eq!(counts(&two("{}", terminating)), "COUNT=1 QCOUNT=1");
    assert_eq!(counts(&two(terminating, terminating)), "COUNT=2 QCOUNT=0");
    assert_eq!(counts(&two(gone, gone)), "COUNT=0 QCOUNT=2");
    assert_eq!(counts(&two(gone, "{}")), "COUNT=1 QCOUNT=1");
}

#[test]
fn protocols_and_families_share_a_port() {
    let state = state(
        "services:\n- metadata: {name: sig, namespace: tele}\n  \
           spec: {clusterIPs: [10.96.7.7, 'fd10::7'], ports: [{name: t, port: 5060}, {name: u, port: 5060, \
           protocol: UDP}, {name: s, port: 5060, protocol: SCTP}]}\n\
         endpoints:\n- metadata: {name: a, namespace: tele, labels: {kubernetes.io/service-name: sig}}\n  \
           addressType: IPv4\n  endpoints: [{addresses: [10.24.0.5]}]\n  ports: [{name: t, port: 5061}, \
           {name: u, port: 5061, protocol: UDP}, {name: s, port: 5061, protocol: SCTP}]\n\
         - metadata: {name: b, namespace: tele, labels: {kubernetes.io/service-name: sig}}\n  \
           addressType: IPv6\n  endpoints: [{addresses: ['fd22::9']}]\n  ports: [{name: t, port: 5061}]\n",
    );
    let slots: Vec<String> =
        rows(state).into_iter().filter(|row| row.contains("SLOT=1") || row.starts_with("BE")).collect();
    assert_eq!(
        slots,
        [
            "BE: ID=1 ADDR=10.24.0.5:5061/SCTP STATE=active",
            "BE: ID=2 ADDR=10.24.0.5:5061/TCP STATE=active",
            "BE: ID=3 ADDR=10.24.0.5:5061/UDP STATE=active",
            "BE: ID=4 ADDR=[fd22::9]:5061/TCP STATE=active",
            "SVC: ID=1 ADDR=10.96.7.7:5060/SCTP SLOT=1 BEID=1 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable",
            "SVC: ID=2 ADDR=10.96.7.7:5060/TCP SLOT=1 BEID=2 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable",
            "SVC: ID=3 ADDR=10.96.7.7:5060/UDP SLOT=1 BEID=3 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable",
            "SVC: ID=5 ADDR=[fd10::7]:5060/TCP SLOT=1 BEID=4 COUNT=0 QCOUNT=0 FLAGS=ClusterIP+non-routable",
        ]
    );
}

#[test]
fn addresses_from_outside_obey_their_policies() {
    let text = "services:\n- metadata: {name: web, namespace: app}\n  \
        spec: {type: LoadBalancer, clusterIP: 10.96.1.1, externalIPs: [198.51.100.1], externalTrafficPolicy: Local, \
        loadBalancerSourceRanges: [10.1.0.0/8, 'fd00::/8', nonsense], ports: [{port: 80, nodePort: 30080}]}\n  \
        status: {loadBalancer: {ingress: [{ip: 203.0.113.1}, {ip: 203.0.113.9, ipMode: Proxy}]}}\n\
        endpoints:\n- metadata: {name: web-1, namespace: app, labels: {kubernetes.io/service-name: web}}\n  \
        addressType: IPv4\n  ports: [{port: 8080}]\n  \
        endpoints: [{addresses: [10.40.2.1], nodeName: alpha}, {addresses: [10.40.2.2], nodeName: beta}]\n";
    let masters: Vec<String> = rows(state(text))
        .into_iter()
        .filter(|row| row.contains(":80/TCP") && row.contains("SLOT=0"))
        .collect();
    assert_eq!(
        masters,
        [
            "SVC: ID=3 ADDR=10.96.1.1:80/TCP SLOT=0 AFFTimeout=0 COUNT=2 QCOUNT=0 FLAGS=ClusterIP+Local+non-routable",
            "SVC: ID=4 ADDR=198.51.100.1:80/TCP SLOT=0 AFFTimeout=0 COUNT=1 QCOUNT=0 FLAGS=ExternalIPs+Local+two-scopes+check source-range",
            "SVC: ID=5 ADDR=203.0.113.1:80/TCP SLOT=0 AFFTimeout=0 COUNT=1 QCOUNT=0 FLAGS=LoadBalancer+Local+two-scopes+check source-range",
            "SVC: ID=6 ADDR=203.0.113.1:80/TCP/i SLOT=0 AFFTimeout=0 COUNT=2 QCOUNT=0 FLAGS=LoadBalancer+Local+two-scopes+check source-range",
        ]
    );
    let ranges: Vec<String> = rows(state(text)).into_iter().filter(|row| row.starts_with("SRC")).collect();
    assert_eq!(ranges, (1..=6).map(|id| format!("SRCRANGE: ID={id} CIDR=10.0.0.0/8")).collect::<Vec<_>>());
}

#[test]
fn source_ranges_may_be_those_that_are_denied() {
    let text = "services:\n- metadata: {name: web, annotations: {service.cilium.io/src-ranges-policy: deny}}\n  \
        spec: {type: LoadBalancer, clusterIP: 10.96.1.1, loadBalancerSourceRanges: [10.0.0.0/8], ports: [{port: 80}]}\n  \
        status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}\n";
    let flags: Vec<String> = rows(state(text))
        .into_iter()
        .filter(|row| row.contains(":80/TCP"))
        .filter_map(|row| row.rsplit_once("FLAGS=").map(|(_, flags)| flags.to_owned()))
        .collect();
    assert_eq!(flags, ["ClusterIP+non-routable", "LoadBalancer+check source-range+deny"]);
}

#[test]
fn wildcards_follow_the_class() {
    let classes =
        ["", ", loadBalancerClass: io.cilium/bgp-control-plane", ", loadBalancerClass: example.net/foreign"];
    for (class, wanted) in classes.into_iter().zip([true, true, false]) {
        let rows = rows(one(&format!("{{clusterIP: 10.96.21.1, ports: [{{port: 81}}]{class}}}"), "[]"));
        assert_eq!(rows.iter().any(|row| row.contains(":0/ANY")), wanted, "{class}");
    }
}

#[test]
fn a_shared_backend_has_the_better_state_and_is_deleted_with_its_last_user() {
    let service = |name: &str, ip: &str| {
        format!("- metadata: {{name: {name}}}\n  spec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}\n")
    };
    let slice = |name: &str, conditions: &str| {
        format!(
            "- metadata: {{name: {name}, labels: {{kubernetes.io/service-name: {name}}}}}\n  addressType: IPv4\n  \
             ports: [{{port: 8080}}]\n  endpoints: [{{addresses: [10.1.0.1], conditions: {conditions}}}]\n"
        )
    };
    let (a, b) = (service("a", "10.96.0.1"), service("b", "10.96.0.2"));
    let going = "{ready: false, serving: true, terminating: true}";
    let both = format!("services:\n{a}{b}endpoints:\n{}{}", slice("a", "{}"), slice("b", going));
    let last = format!("services:\n{b}endpoints:\n{}", slice("b", going));
    let maps = Arc::<FakeMaps>::default();
    let writer = writer();
    let backend = |rows: &[String]| rows.iter().find(|row| row.starts_with("BE")).cloned();
    let mut balancer = Balancer::restore(maps.clone()).unwrap();
    for (text, shown) in [(&both, "active"), (&last, "terminating")] {
        let gone: Vec<LbAddress> = desired(&writer).iter().map(|desired| desired.address).collect();
        writer.replace(Source::Api, state(text));
        let now = desired(&writer);
        let gone: Vec<LbAddress> = gone
            .into_iter()
            .filter(|address| now.iter().all(|desired| desired.address != *address))
            .collect();
        balancer.delete(&gone).into_iter().for_each(|result| result.unwrap());
        balancer.update(&now).into_iter().for_each(|result| _ = result.unwrap());
        let expected = format!("BE: ID=1 ADDR=10.1.0.1:8080/TCP STATE={shown}");
        assert_eq!(backend(&text_of(&maps)), Some(expected));
    }
    let all: Vec<LbAddress> = desired(&writer).iter().map(|desired| desired.address).collect();
    balancer.delete(&all).into_iter().for_each(|result| result.unwrap());
    assert_eq!(text_of(&maps), [] as [String; 0]);
    let store = &balancer.mirror.store;
    assert_eq!((store.backends.in_use(), balancer.ids.in_use(), store.frontends().count()), (0, 0, 0));
}

fn text_of(maps: &FakeMaps) -> Vec<String> {
    text(&maps.dump())
}

#[test]
fn ids_survive_a_restart_and_are_not_reassigned() {
    let service = |names: &[&str]| {
        let of = |(n, name): (usize, &&str)| {
            format!(
                "- metadata: {{name: {name}}}\n  spec: {{clusterIP: 10.96.0.{}, ports: [{{port: 80}}]}}\n",
                n + name.len()
            )
        };
        state(&format!("services:\n{}", names.iter().enumerate().map(of).collect::<String>()))
    };
    let maps = Arc::<FakeMaps>::default();
    let writer = writer();
    let ids = |rows: Vec<String>| rows.into_iter().filter(|row| row.starts_with("REV")).collect::<Vec<_>>();
    writer.replace(Source::Api, service(&["a", "b"]));
    assert_eq!(ids(brought(&maps, &writer)), ["REV: ID=1 ADDR=10.96.0.1:80", "REV: ID=2 ADDR=10.96.0.2:80"]);
    let before = maps.operations();
    brought(&maps, &writer);
    assert_eq!(maps.operations(), before, "a restart writes nothing");
    writer.replace(Source::Api, service(&["a"]));
    assert_eq!(ids(brought(&maps, &writer)), ["REV: ID=1 ADDR=10.96.0.1:80"]);
}

#[test]
fn ports_of_the_node_have_rows_at_its_addresses_until_those_are_frontends_of_their_own() {
    let mut node = Node::new();
    let port = "- metadata: {name: gate}\n  spec: {type: NodePort, clusterIP: 10.96.1.1, ports: [{port: 80, nodePort: 30080}]}\n";
    let owner = "- metadata: {name: owner}\n  spec: {clusterIP: 10.96.1.2, externalIPs: [192.0.2.2], ports: [{port: 30080}]}\n";
    let ids = |node: &Node| {
        let rows = text_of(&node.maps)
            .into_iter()
            .filter(|row| row.starts_with("REV") && row.contains(":30080") && !row.contains("10.96"));
        rows.collect::<Vec<_>>().join(", ")
    };
    node.address(1, Some(true));
    node.address(2, Some(true));
    node.address(3, Some(false));
    node.state(state(&format!("services:\n{port}")));
    let all = "REV: ID=1 ADDR=0.0.0.0:30080, REV: ID=2 ADDR=192.0.2.1:30080, REV: ID=3 ADDR=192.0.2.2:30080";
    assert_eq!(ids(&node), all);
    // A frontend of its own takes over the address with its id, and returns both on deletion.
    let kind = |node: &Node| {
        let rows = text_of(&node.maps);
        rows.iter().any(|row| row.contains("192.0.2.2:30080") && row.contains("ExternalIPs"))
    };
    node.state(state(&format!("services:\n{port}{owner}")));
    assert_eq!((ids(&node).as_str(), kind(&node)), (all, true));
    node.state(state(&format!("services:\n{port}")));
    assert!(!kind(&node));
    assert_eq!(
        ids(&node),
        "REV: ID=1 ADDR=0.0.0.0:30080, REV: ID=2 ADDR=192.0.2.1:30080, REV: ID=6 ADDR=192.0.2.2:30080"
    );
    // Entries at removed addresses are deleted, the others keep their ids.
    node.address(1, None);
    assert_eq!(ids(&node), "REV: ID=1 ADDR=0.0.0.0:30080, REV: ID=6 ADDR=192.0.2.2:30080");
    node.state(State::default());
    assert_eq!(text_of(&node.maps), [] as [String; 0]);
}

#[test]
fn an_address_returned_in_both_scopes_at_once_is_the_node_ports_in_the_same_round() {
    let mut node = Node::new();
    let port = "- metadata: {name: gate}\n  spec: {type: NodePort, externalTrafficPolicy: Local, clusterIP: 10.96.1.1, ports: [{port: 80, nodePort: 30080}]}\n";
    let owner = "- metadata: {name: owner}\n  spec: {type: LoadBalancer, externalTrafficPolicy: Local, clusterIP: 10.96.1.2, ports: [{port: 30080}]}\n  status: {loadBalancer: {ingress: [{ip: 192.0.2.2}]}}\n";
    // Whether each of the entries at the address, one of a scope, is that of the load balancer.
    let owned = |node: &Node| {
        let rows = text_of(&node.maps);
        let at = rows.iter().filter(|row| row.contains("192.0.2.2:30080") && row.contains("SLOT=0"));
        at.map(|row| row.contains("LoadBalancer")).collect::<Vec<_>>()
    };
    node.address(2, Some(true));
    node.state(state(&format!("services:\n{port}{owner}")));
    assert_eq!(owned(&node), [true, true]);
    node.state(state(&format!("services:\n{port}")));
    assert_eq!((owned(&node), node.deleted.len()), (vec![false, false], 0));
}

#[test]
fn unhealthy_backends_stay_so_over_a_restart_until_the_next_health_check() {
    let mut node = Node::new();
    node.state(one(
        "{clusterIP: 10.96.1.1, ports: [{port: 80}]}",
        "[{addresses: [10.54.1.1]}, {addresses: [10.54.1.2]}]",
    ));
    let name = node.content.services[0].0.name.clone();
    let backends: Vec<LbAddress> = node.content.backends.iter().map(|backend| backend.address).collect();
    let counts = |node: &Node| {
        let rows = text_of(&node.maps);
        let master = rows.iter().find(|row| row.contains("10.96.1.1:80/TCP SLOT=0")).unwrap();
        master.split(" FLAGS").next().unwrap().rsplit("AFFTimeout=0 ").next().unwrap().to_owned()
    };
    let report = |node: &mut Node, healthy: bool| {
        let mut txn = node.writer.write();
        assert!(txn.set_health(&name, &backends[0], healthy, std::time::SystemTime::UNIX_EPOCH));
        txn.commit();
        node.reconcile();
    };
    report(&mut node, false);
    assert_eq!(counts(&node), "COUNT=1 QCOUNT=1");
    let content = node.content.clone();
    let mut node = Node::on(node.maps.clone());
    node.state(content);
    assert_eq!(counts(&node), "COUNT=1 QCOUNT=1");
    report(&mut node, false);
    assert_eq!(counts(&node), "COUNT=1 QCOUNT=1");
    report(&mut node, true);
    assert_eq!(counts(&node), "COUNT=2 QCOUNT=0");
}

#[test]
fn entries_without_protocols_pass_on_their_ids() {
    let content = || one("{clusterIP: 10.96.1.1, ports: [{port: 80}]}", "[{addresses: [10.54.1.1]}]");
    let mut node = Node::new();
    node.state(content());
    let written = text_of(&node.maps);
    let any = |address: &LbAddress| LbAddress { protocol: crate::Protocol::Any, ..*address };
    node.maps.tamper(|rows| {
        let old = std::mem::take(rows).into_iter().map(|(key, value)| match (key, value) {
            (Key::Service(address, slot), value) => (Key::Service(any(&address), slot), value),
            (key, Value::Backend(row)) => {
                (key, Value::Backend(crate::lbmap::rows::BackendValue { address: any(&row.address), ..row }))
            }
            row => row,
        });
        rows.extend(old);
        // Newly assigned ids differ.
        rows.insert(
            Key::ReverseNat(crate::lbmap::rows::Family::V4, 7),
            Value::ReverseNat([10, 9, 9, 9].into(), 1),
        );
    });
    let mut node = Node::on(node.maps.clone());
    node.state(content());
    node.ops.balancer.prune().unwrap();
    assert_eq!(text_of(&node.maps), written);
}
