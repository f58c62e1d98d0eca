//! Rows of the tables.

use statedb::TableDisplay;

use super::*;
use crate::model::error::Refused;

fn web(extra: &str) -> String {
    format!(
        "services:\n- metadata: {{name: web, namespace: app}}\n  spec: {{clusterIP: 10.96.0.1, {extra} \
         ports: [{{name: blue, port: 100}}]}}\n"
    )
}

fn slice(name: &str, ports: &str, endpoints: &str) -> String {
    format!(
        "- metadata: {{name: {name}, namespace: app, labels: {{kubernetes.io/service-name: web}}}}\n  \
         addressType: IPv4\n  ports: {ports}\n  endpoints: {endpoints}\n"
    )
}

fn cells<T: TableDisplay>(table: &Table<T>, columns: &[usize]) -> Vec<String> {
    let snapshot = table.snapshot();
    let row = |row: Vec<String>| columns.iter().map(|at| row[*at].as_str()).collect::<Vec<_>>().join(" ");
    table.all(&snapshot).map(|object| row(object.row())).collect()
}

#[test]
fn port_names_choose_backends() {
    let writer = writer();
    let ports = "[{name: blue, port: 101}, {name: green, port: 102}, {name: azure, port: 101}]";
    let slices = slice("web-1", ports, "[{addresses: [10.23.0.1]}]")
        + &slice("web-2", "[{port: 103}]", "[{addresses: [10.23.0.2]}]");
    writer.replace(Source::Api, state(&format!("{}endpoints:\n{slices}", web(""))));
    assert_eq!(
        cells(&writer.backends(), &[0, 1, 2, 3, 5]),
        [
            "app/web 10.23.0.1:101/TCP api 7 blue,azure",
            "app/web 10.23.0.1:102/TCP api 7 green",
            "app/web 10.23.0.2:103/TCP api 7 ",
        ]
    );
    assert_eq!(
        cells(&writer.frontends(), &[0, 4]),
        ["10.96.0.1:100/TCP 10.23.0.1:101/TCP, 10.23.0.2:103/TCP"]
    );
}

#[test]
fn slices_of_a_service_are_merged_and_an_address_may_move() {
    let writer = writer();
    let text = |one: &str, two: &str| {
        state(&format!(
            "{}endpoints:\n{}{}",
            web(""),
            slice("web-1", "[{port: 69}]", one),
            slice("web-2", "[{port: 69}]", two)
        ))
    };
    writer.replace(
        Source::Api,
        text("[{addresses: [10.62.0.1]}, {addresses: [10.62.0.2]}]", "[{addresses: [10.62.0.3]}]"),
    );
    let all = "10.62.0.1:69/TCP, 10.62.0.2:69/TCP, 10.62.0.3:69/TCP";
    assert_eq!(cells(&writer.frontends(), &[4]), [all]);
    let revision = writer.backends().revision(&writer.backends().snapshot());
    writer.replace(
        Source::Api,
        text("[{addresses: [10.62.0.1]}]", "[{addresses: [10.62.0.3]}, {addresses: [10.62.0.2]}]"),
    );
    assert_eq!(cells(&writer.frontends(), &[4]), [all]);
    assert_eq!(writer.backends().revision(&writer.backends().snapshot()), revision, "nothing was written");
}

#[test]
fn backends_may_precede_and_outlive_their_service() {
    let writer = writer();
    let slices = format!("endpoints:\n{}", slice("web-1", "[{port: 69}]", "[{addresses: [10.62.0.1]}]"));
    writer.replace(Source::Api, state(&slices));
    assert_eq!(cells(&writer.backends(), &[1]), ["10.62.0.1:69/TCP"]);
    writer.replace(Source::Api, state(&format!("{}{slices}", web(""))));
    assert_eq!(cells(&writer.frontends(), &[4]), ["10.62.0.1:69/TCP"]);
    writer.replace(Source::Api, state(&slices));
    assert_eq!(cells(&writer.frontends(), &[0]), [] as [String; 0]);
    assert_eq!(cells(&writer.backends(), &[1]), ["10.62.0.1:69/TCP"]);
    writer.replace(Source::Api, State::default());
    assert_eq!(cells(&writer.backends(), &[1]), [] as [String; 0]);
}

#[test]
fn an_address_belongs_to_one_service() {
    let service = |name: &str, ip: &str, outside: &str| {
        format!(
            "- metadata: {{name: {name}}}\n  spec: {{clusterIP: {ip}, externalIPs: [{outside}], ports: [{{port: 72}}]}}\n"
        )
    };
    let writer = writer();
    let text = format!(
        "services:\n{}{}",
        service("a", "10.96.0.1", "192.0.2.1"),
        service("b", "10.96.0.2", "192.0.2.1")
    );
    let refused = writer.replace(Source::Api, state(&text));
    assert_eq!(
        refused.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["frontend already owned by another service: 192.0.2.1:72/TCP is owned by default/a"]
    );
    assert_eq!(cells(&writer.services(), &[0]), ["default/a"]);
    // A source of higher precedence does not take it over, but may redefine the service itself.
    let owned = |(service, frontends): (crate::Service, Vec<_>)| {
        let mut txn = writer.write();
        let result = txn.upsert_service(crate::Service { source: Source::Kubernetes, ..service }, frontends);
        txn.commit();
        result
    };
    let other = state(&format!("services:\n{}", service("c", "10.96.0.3", "192.0.2.1"))).services.remove(0);
    assert!(matches!(owned(other), Err(Refused::Owned { .. })));
    let same = state(&format!("services:\n{}", service("a", "10.96.0.9", "192.0.2.1"))).services.remove(0);
    assert_eq!(owned(same.clone()), Ok(()));
    assert_eq!(
        cells(&writer.frontends(), &[0, 2]),
        ["10.96.0.9:72/TCP default/a", "192.0.2.1:72/TCP default/a"]
    );
    // The file cannot take it back.
    let refused = writer.replace(Source::Api, State { services: vec![same], backends: vec![] });
    assert!(matches!(refused[..], [Refused::Defined { .. }]), "{refused:?}");
    assert_eq!(cells(&writer.services(), &[0, 1]), ["default/a k8s"]);
}

#[test]
fn an_address_moves_within_a_source() {
    let service = |name: &str, ip: &str| {
        format!("- metadata: {{name: {name}}}\n  spec: {{clusterIP: {ip}, ports: [{{port: 72}}]}}\n")
    };
    let writer = writer();
    for (a, b) in [("10.96.0.1", "10.96.0.2"), ("10.96.0.2", "10.96.0.1"), ("10.96.0.3", "10.96.0.2")] {
        let text = format!("services:\n{}{}", service("a", a), service("b", b));
        assert_eq!(writer.replace(Source::Api, state(&text)), []);
        let mut expected = [format!("{a}:72/TCP default/a"), format!("{b}:72/TCP default/b")];
        expected.sort();
        assert_eq!(cells(&writer.frontends(), &[0, 2]), expected);
    }
}

#[test]
fn the_row_of_highest_precedence_takes_effect() {
    let writer = writer();
    let text = format!(
        "{}endpoints:\n{}",
        web(""),
        slice("web-1", "[{port: 69}]", "[{addresses: [10.62.0.1], nodeName: file}]")
    );
    writer.replace(Source::Api, state(&text));
    let name = crate::ServiceName::new("app", "web");
    let address = "10.62.0.1:69/TCP".parse().unwrap();
    let believed = crate::Backend {
        node_name: "k8s".into(),
        ..crate::Backend::new(name.clone(), address, Source::Kubernetes)
    };
    let mut txn = writer.write();
    txn.set_backends(&name, Source::Kubernetes, vec![believed]);
    txn.commit();
    let node = || served(&writer)[0].backends.iter().map(|b| b.node_name.to_string()).collect::<Vec<_>>();
    assert_eq!(node(), ["k8s"]);
    let mut txn = writer.write();
    txn.set_backends(&name, Source::Kubernetes, vec![]);
    txn.commit();
    assert_eq!(node(), ["file"]);
}

#[test]
fn health_is_kept_per_service_and_over_changes_of_the_slice() {
    let writer = writer();
    let text = |node: &str| {
        let endpoints = format!("[{{addresses: [10.62.0.1], nodeName: {node}}}]");
        state(&format!("{}endpoints:\n{}", web(""), slice("web-1", "[{port: 69}]", &endpoints)))
    };
    writer.replace(Source::Api, text("a"));
    let name = crate::ServiceName::new("app", "web");
    let report = |healthy| {
        let mut txn = writer.write();
        let found = txn.set_health(
            &name,
            &"10.62.0.1:69/TCP".parse().unwrap(),
            healthy,
            std::time::SystemTime::UNIX_EPOCH,
        );
        txn.commit();
        found
    };
    assert!(report(false));
    writer.replace(Source::Api, text("b"));
    assert_eq!(desired(&writer)[0].active, 0);
    assert!(report(true));
    assert_eq!(desired(&writer)[0].active, 1);
    let revision = writer.backends().revision(&writer.backends().snapshot());
    assert!(report(true));
    assert_eq!(writer.backends().revision(&writer.backends().snapshot()), revision, "no news, no write");
}

#[test]
fn ports_of_the_node_are_frontends() {
    let writer = writer();
    writer.replace(
        Source::Api,
        state(&web("type: NodePort,").replace("port: 100", "port: 100, nodePort: 30100")),
    );
    assert_eq!(
        cells(&writer.frontends(), &[0, 1, 6, 8]),
        ["0.0.0.0:30100/TCP NodePort Pending ", "10.96.0.1:100/TCP ClusterIP Pending ",]
    );
    assert!(brought(&Arc::default(), &writer).iter().any(|row| row.contains("30100")));
    assert_eq!(crate::rest::list(&writer.frontends()).len(), 2);
}

#[test]
fn disabled_families_are_reported() {
    let writer = ServicesWriter { families: Families { v4: true, v6: false }, ..writer() };
    let content = "services:\n- metadata: {name: web}\n  spec: {clusterIPs: [10.96.0.1, 'fd10::1'], ports: [{port: 80}]}\n";
    writer.replace(Source::Api, state(content));
    let expected = ["10.96.0.1:80/TCP Pending ", "[fd10::1]:80/TCP  IPv6 is off (option enable-ipv6)"];
    assert_eq!(cells(&writer.frontends(), &[0, 6, 8]), expected);
    assert_eq!(served(&writer).len(), 1);
}

#[test]
fn frontends_at_node_addresses_become_pending_again() {
    let writer = writer();
    let content = "services:\n- metadata: {name: web}\n  spec: {clusterIPs: [10.96.0.1, 10.96.0.2], ports: [{port: 80}]}\n";
    writer.replace(Source::Api, state(content));
    let revision = |address: &str| {
        let frontends = writer.frontends();
        let address = address.parse().unwrap();
        frontends.get(&frontends.snapshot(), Frontend::by_address(&address)).unwrap().revision()
    };
    // In the state that the reconciler leaves.
    for (id, frontend) in (1..).zip(served(&writer)) {
        writer
            .frontends
            .transact(|txn| txn.insert(Frontend { id, status: reconciler::Status::done(), ..frontend }));
    }
    let before = (revision("10.96.0.1:80/TCP"), revision("10.96.0.2:80/TCP"));
    writer.node_addresses_changed(&["10.96.0.1".parse().unwrap()].into());
    assert!(revision("10.96.0.1:80/TCP") > before.0);
    assert_eq!(revision("10.96.0.2:80/TCP"), before.1);
    // There is no wildcard entry on the node's own address.
    let settings = |node_addresses| Settings { node_addresses, ..settings() };
    let frontend = &served(&writer)[0];
    assert!(of(frontend, &settings(vec![])).wildcard.is_some());
    assert!(of(frontend, &settings(vec![frontend.address().ip])).wildcard.is_none());
}

#[test]
fn local_policy_follows_the_name_of_the_node() {
    let name = Arc::new(std::sync::Mutex::new(String::new()));
    let of_node = name.clone();
    let place = move || Place { node: of_node.lock().unwrap().clone(), ..Place::default() };
    let writer = ServicesWriter { node_info: NodeInfo::new(place, BTreeSet::new), ..writer() };
    let endpoints = "[{addresses: [10.0.0.1], nodeName: alpha}, {addresses: [10.0.0.2], nodeName: beta}]";
    let text = format!(
        "{}endpoints:\n{}",
        web("internalTrafficPolicy: Local,"),
        slice("web-1", "[{port: 1}]", endpoints)
    );
    writer.replace(Source::Api, state(&text));
    assert_eq!(cells(&writer.frontends(), &[4]), [""]);
    for (node, backends) in [("alpha", "10.0.0.1:1/TCP"), ("beta", "10.0.0.2:1/TCP")] {
        *name.lock().unwrap() = node.to_owned();
        writer.choose_again(|_| true);
        assert_eq!(cells(&writer.frontends(), &[4]), [backends]);
    }
}

#[test]
fn long_lists_of_backends_are_cut() {
    let writer = writer();
    let addresses: Vec<String> = (1..=7).map(|n| format!("{{addresses: [10.0.0.{n}]}}")).collect();
    let text = format!(
        "{}endpoints:\n{}",
        web(""),
        slice("web-1", "[{port: 1}]", &format!("[{}]", addresses.join(",")))
    );
    writer.replace(Source::Api, state(&text));
    assert_eq!(
        cells(&writer.frontends(), &[4]),
        ["10.0.0.1:1/TCP, 10.0.0.2:1/TCP, 10.0.0.3:1/TCP, 10.0.0.4:1/TCP, 10.0.0.5:1/TCP + 2 more ..."]
    );
}

#[test]
fn the_rest_response_has_the_keys_of_cilium() {
    let writer = writer();
    let text = format!(
        "{}endpoints:\n{}",
        web(""),
        slice("web-1", "[{port: 69}]", "[{addresses: [10.62.0.1], nodeName: n1, zone: z1}]")
    );
    writer.replace(Source::Api, state(&text));
    let answer = serde_json::to_string(&crate::rest::list(&writer.frontends())).unwrap();
    let spec = r#"{"backend-addresses":[{"ip":"10.62.0.1","nodeName":"n1","port":69,"preferred":true,"#
        .to_owned()
        + r#""protocol":"TCP","state":"active","weight":100,"zone":"z1"}],"flags":{"extTrafficPolicy":"Cluster","#
        + r#""intTrafficPolicy":"Cluster","name":"web","namespace":"app","trafficPolicy":"Cluster","type":"ClusterIP"},"#
        + r#""frontend-address":{"ip":"10.96.0.1","port":100,"protocol":"TCP","scope":"external"}}"#;
    let expected = format!("[{{\"spec\":{spec},\"status\":{{\"realized\":{spec}}}}}]");
    assert_eq!(answer, expected);
}

#[test]
fn frontends_and_backends_in_json_and_yaml() {
    let writer = writer();
    let endpoints = "[{addresses: [10.62.0.1], nodeName: n1, zone: z1, hints: {forZones: [{name: z1}]}}, {addresses: [10.62.0.2]}]";
    let text = format!("{}endpoints:\n{}", web(""), slice("web-1", "[{name: blue, port: 69}]", endpoints));
    writer.replace(Source::Api, state(&text));
    let frontend = &served(&writer)[0];
    let status = serde_json::to_string(&frontend.status).unwrap();
    let json = r#"{"ServiceName":"app/web","Address":"10.62.0.1:69/TCP","PortNames":["blue"],"Weight":100,"NodeName":"n1","#
        .to_owned()
        + r#""Zone":{"Zone":"z1","ForZones":["z1"]},"ClusterID":0,"Source":"api","State":0,"Unhealthy":false,"#
        + r#""UnhealthyUpdatedAt":null}"#;
    let other = json.replace("62.0.1", "62.0.2").replace("n1", "");
    let other = other.replace(r#"{"Zone":"z1","ForZones":["z1"]}"#, "null");
    let head = r#""Address":"10.96.0.1:100/TCP","Type":"ClusterIP","ServiceName":"app/web","PortName":"blue","ServicePort":100"#;
    let tail = |json: &str, other: &str| {
        format!(
            r#","Status":{status},"Backends":[{json},{other}],"HealthCheckBackends":[{json},{other}],"ID":0,"RedirectTo":null}}"#
        )
    };
    assert_eq!(serde_json::to_string(frontend).unwrap(), format!("{{{head}{}", tail(&json, &other)));
    // In YAML names are in lower case, and the source's content is a struct of its own.
    let names = |text: &str| {
        let mut text = text.to_owned();
        for name in [
            "ServiceName",
            "Address",
            "PortNames",
            "Weight",
            "NodeName",
            "ForZones",
            "Zone",
            "ClusterID",
            "Source",
            "State",
            "UnhealthyUpdatedAt",
            "Unhealthy",
            "Status",
            "HealthCheckBackends",
            "Backends",
            "ID",
            "RedirectTo",
            "Type",
            "PortName",
            "ServicePort",
        ] {
            text = text.replace(&format!("\"{name}\":"), &format!("\"{}\":", name.to_lowercase()));
        }
        text
    };
    let expected = format!("{{\"frontendparams\":{{{}}}{}", names(head), names(&tail(&json, &other)));
    assert_eq!(frontend.yaml().unwrap(), expected);
    let unnamed = crate::Backend::new(frontend.service.name.clone(), frontend.address(), Source::Api);
    assert!(unnamed.yaml().unwrap().contains(r#""portnames":[],"#));
    assert!(serde_json::to_string(&unnamed).unwrap().contains(r#""PortNames":null,"#));
}
