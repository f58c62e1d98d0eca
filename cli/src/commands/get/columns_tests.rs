use serde_json::json;

use super::*;

/// Returns headings and cells of an object that was created two minutes ago.
fn shown(kind: Kind, mut object: Value, wide: bool) -> [String; 2] {
    object["metadata"]["name"] = "x".into();
    object["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z".into();
    let columns = Columns::of(kind).unwrap();
    let cells = columns.cells(object.to_string().as_bytes(), &object, wide, 120).unwrap();
    let headings = columns.headings(wide);
    assert_eq!(headings.len(), cells.len());
    [headings.join("|"), cells.join("|")]
}

#[test]
fn every_table_has_columns() {
    for &kind in KINDS {
        let [headings, cells] = shown(kind, json!({}), false);
        match kind {
            // The only column of its definition is a status field.
            Kind::CiliumClusterwideNetworkPolicy => assert_eq!((&*headings, &*cells), ("", "")),
            Kind::CiliumEndpoint => assert_eq!(cells, "|||"),
            _ => assert!(cells.contains("2m") && headings.contains("AGE"), "{kind}: {headings} {cells}"),
        }
    }
}

#[test]
fn pods() {
    let running = json!({"spec": {"nodeName": "n"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}});
    assert_eq!(shown(Kind::Pod, running.clone(), false), ["STATUS|AGE", "Running|2m"]);
    assert_eq!(shown(Kind::Pod, running.clone(), true), ["STATUS|AGE|IP|NODE", "Running|2m|10.0.0.1|n"]);
    let mut leaving = running;
    leaving["metadata"] = json!({"deletionTimestamp": "1970-01-01T00:00:00Z"});
    assert_eq!(shown(Kind::Pod, leaving, false)[1], "Terminating|2m");
    assert_eq!(shown(Kind::Pod, json!({}), true)[1], "<unknown>|2m|<none>|<none>");
    let gate = json!({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"});
    let gated = json!({"status": {"phase": "Pending", "conditions": [gate]}});
    assert_eq!(shown(Kind::Pod, gated, false)[1], "SchedulingGated|2m");
}

#[test]
fn services() {
    let row = |spec: Value, ingress: Value| {
        shown(Kind::Service, json!({"spec": spec, "status": {"loadBalancer": {"ingress": ingress}}}), false)
            [1]
        .clone()
    };
    let ports = json!([{"port": 80}, {"port": 53, "protocol": "UDP", "nodePort": 30053}]);
    let plain = json!({"clusterIPs": ["10.96.0.1", "fd00::1"], "ports": ports, "externalIPs": ["192.0.2.1", "192.0.2.2"]});
    assert_eq!(row(plain, json!([])), "ClusterIP|10.96.0.1|192.0.2.1,192.0.2.2|80/TCP,53:30053/UDP|2m");
    assert_eq!(row(json!({"clusterIP": "None"}), json!([])), "ClusterIP|None|<none>|<none>|2m");
    let balanced = json!({"type": "LoadBalancer", "clusterIP": "10.96.0.2", "externalIPs": ["192.0.2.9"]});
    let ingress = json!([{"ip": "203.0.113.9"}, {"hostname": "a.example"}, {"ip": "203.0.113.10"}]);
    assert_eq!(
        row(balanced, ingress),
        "LoadBalancer|10.96.0.2|203.0.113.10,203.0.113.9,a.example,192.0.2.9|<none>|2m"
    );
    assert_eq!(row(json!({"type": "LoadBalancer"}), json!([])), "LoadBalancer|<none>|<pending>|<none>|2m");
    assert_eq!(row(json!({"type": "ExternalName"}), json!([])), "ExternalName|<none>|<unknown>|<none>|2m");
    let selector = shown(Kind::Service, json!({"spec": {"selector": {"b": "2", "a": "1"}}}), true);
    assert!(selector[0].ends_with("|SELECTOR") && selector[1].ends_with("|a=1,b=2"), "{selector:?}");
}

#[test]
fn nodes() {
    let node = json!({
        "metadata": {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge"}},
        "spec": {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "InternalIP", "address": "2001:db8::1"}],
        },
    });
    assert_eq!(
        shown(Kind::Node, node, true),
        [
            "STATUS|ROLES|AGE|INTERNAL-IP|EXTERNAL-IP",
            "Ready,SchedulingDisabled|edge,worker|2m|192.0.2.1|<none>"
        ]
    );
    assert_eq!(shown(Kind::Node, json!({}), false)[1], "Unknown|<none>|2m");
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    assert_eq!(shown(Kind::Node, unready, false)[1], "NotReady|<none>|2m");
}

#[test]
fn slices_show_three_of_their_ports_and_addresses() {
    let slice = |ports: Value, addresses: &[&str]| {
        let endpoints: Vec<Value> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
        let slice = json!({"addressType": "IPv4", "ports": ports, "endpoints": endpoints});
        shown(Kind::EndpointSlice, slice, false)[1].clone()
    };
    assert_eq!(slice(json!([]), &[]), "IPv4|<unset>|<unset>|2m");
    assert_eq!(slice(json!([{"port": 80}, {"name": "p"}, {}]), &["a", "b", "c"]), "IPv4|80,p,*|a,b,c|2m");
    let four = json!([{"port": 1}, {"port": 2}, {"port": 3}, {"port": 4}]);
    assert_eq!(slice(four, &["a", "b", "c", "d", "e"]), "IPv4|1,2,3 + 1 more...|a,b,c + 2 more...|2m");
}

#[test]
fn policies_show_their_selector() {
    let selector = json!({
        "matchLabels": {"b": "1"},
        "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["y", "x"]}, {"key": "c", "operator": "DoesNotExist"},
            {"key": "d", "operator": "Exists"}, {"key": "e", "operator": "NotIn", "values": ["z"]},
        ],
    });
    let policy = json!({"spec": {"podSelector": selector}});
    assert_eq!(
        shown(Kind::NetworkPolicy, policy, false),
        ["POD-SELECTOR|AGE", "a in (x,y),b=1,!c,d,e notin (z)|2m"]
    );
    assert_eq!(shown(Kind::NetworkPolicy, json!({}), false)[1], "<none>|2m");
    let policy = json!({"spec": {"tier": "Admin", "priority": 7}});
    assert_eq!(shown(Kind::ClusterNetworkPolicy, policy, false), ["TIER|PRIORITY|AGE", "Admin|7|2m"]);
}

#[test]
fn namespaces_are_terminating_once_they_are_deleted() {
    assert_eq!(shown(Kind::Namespace, json!({}), false), ["STATUS|AGE", "Active|2m"]);
    let leaving = json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:00Z"}});
    assert_eq!(shown(Kind::Namespace, leaving, false)[1], "Terminating|2m");
}

#[test]
fn custom_resources_have_the_columns_of_their_definitions() {
    let endpoint = json!({"status": {
        "identity": {"id": 7000}, "state": "ready", "networking": {"addressing": [{"ipv4": "10.0.0.5"}]},
        "policy": {"ingress": {"state": "enforcing"}},
    }});
    assert_eq!(
        shown(Kind::CiliumEndpoint, endpoint.clone(), false),
        ["SECURITY IDENTITY|ENDPOINT STATE|IPV4|IPV6", "7000|ready|10.0.0.5|"]
    );
    assert_eq!(
        shown(Kind::CiliumEndpoint, endpoint, true)[0],
        "SECURITY IDENTITY|INGRESS ENFORCEMENT|EGRESS ENFORCEMENT|ENDPOINT STATE|IPV4|IPV6"
    );
    let node = json!({"spec": {"addresses": [
        {"type": "InternalIP", "ip": "192.0.2.1"}, {"type": "CiliumInternalIP", "ip": "10.0.0.1"},
    ]}});
    assert_eq!(
        shown(Kind::CiliumNode, node, false),
        ["CILIUMINTERNALIP|INTERNALIP|AGE", "10.0.0.1|192.0.2.1|2m"]
    );
    let identity = json!({"metadata": {"labels": {"io.kubernetes.pod.namespace": "shop"}}});
    assert_eq!(shown(Kind::CiliumIdentity, identity, false), ["NAMESPACE|AGE", "shop|2m"]);
    assert_eq!(shown(Kind::CiliumNetworkPolicy, json!({"status": {}}), false), ["AGE", "2m"]);
    assert_eq!(shown(Kind::CiliumCIDRGroup, json!({}), false), ["AGE", "2m"]);
}
