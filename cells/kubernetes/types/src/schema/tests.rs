use serde_json::json;

use super::*;
use crate::Refusal;

fn faults(kind: Kind, object: &Value) -> Vec<String> {
    check(kind, object, Strictness::Manifest).iter().map(ToString::to_string).collect()
}

fn paths(kind: Kind, object: &Value) -> Vec<String> {
    let mut paths: Vec<String> =
        check(kind, object, Strictness::Manifest).into_iter().map(|problem| problem.path).collect();
    paths.sort();
    paths
}

#[test]
fn schemas_are_parsed_completely() {
    let schemas = &*SCHEMAS;
    assert_eq!(schemas.faults, Vec::<String>::new());
    assert_eq!(schemas.version, "1.33.9");
    for node in schemas.nodes() {
        assert!(!matches!(node.shape, Shape::Undecided));
        assert!(node.pattern.as_ref().is_none_or(|pattern| pattern.is_good()));
    }
    for &kind in Kind::ALL {
        let definition = schemas.definition(kind).unwrap_or_else(|| panic!("{kind} has no schema"));
        if kind.group() == "cilium.io" {
            let facts = &definition.facts;
            assert_eq!((facts.plural, &*facts.short_names), (kind.plural(), kind.short_names()));
            assert_eq!(facts.is_namespaced, kind.namespaced(), "{kind}");
            assert!(facts.is_served && facts.is_stored, "{kind}");
        }
    }
}

#[test]
fn every_wrong_field_of_a_pod_has_its_path() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "spce": {},
        "metadata": {"name": "a_b", "namespace": "X"},
        "spec": {
            "hostNetwork": "yes", "nodeNmae": "a", "dnsPolicy": "Default",
            "containers": [
                {"name": "c", "ports": [
                    {"containerPort": 70000}, {"name": "http"}, {"containerPort": 1, "protocol": "tcp"},
                    {"containerPort": 2, "name": "a"}, {"containerPort": 3, "name": "a", "hostport": 1},
                ]},
                7,
            ],
        },
        "status": {"phase": "Gone", "podIPs": [{"ip": "10.0.0"}, {}], "hostIPs": []},
    });
    let expected = [
        "metadata.name",
        "metadata.namespace",
        "spce",
        "spec.containers[0].ports[0].containerPort",
        "spec.containers[0].ports[1].containerPort",
        "spec.containers[0].ports[2].protocol",
        "spec.containers[0].ports[4].hostport",
        "spec.containers[0].ports[4].name",
        "spec.containers[1]",
        "spec.hostNetwork",
        "spec.nodeNmae",
        "status.phase",
        "status.podIPs[0].ip",
        "status.podIPs[1].ip",
    ];
    assert_eq!(paths(Kind::Pod, &pod), expected);
    let server = check(Kind::Pod, &pod, Strictness::Server);
    assert!(server.iter().all(|problem| problem.path != "spce" && problem.path != "spec.nodeNmae"));
}

#[test]
fn every_wrong_field_of_a_service_and_a_slice_has_its_path() {
    let service = json!({
        "metadata": {"name": "0web"},
        "spec": {
            "type": "clusterip", "clusterIP": "10.96", "clusterIPs": [1], "externalIP": [], "sessionAffinity": 1,
            "ports": [{}, {"port": 80, "name": "A", "nodePort": -1, "target": 1}, 5],
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}, "internalTrafficPolicy": "local",
        },
    });
    let expected = [
        "metadata.name",
        "spec.clusterIP",
        "spec.clusterIPs[0]",
        "spec.externalIP",
        "spec.internalTrafficPolicy",
        "spec.ports[0].port",
        "spec.ports[1].name",
        "spec.ports[1].nodePort",
        "spec.ports[1].target",
        "spec.ports[2]",
        "spec.sessionAffinity",
        "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
        "spec.type",
    ];
    assert_eq!(paths(Kind::Service, &service), expected);
    let slice = json!({
        "metadata": {"name": "a"}, "addressType": "IPv4",
        "ports": [{"port": 0, "prot": "TCP"}],
        "endpoints": [{"addresses": ["fd00::1"], "conditions": {"ready": "yes", "redy": true}}, {"address": []}],
    });
    let expected = [
        "endpoints[0].addresses[0]",
        "endpoints[0].conditions.ready",
        "endpoints[0].conditions.redy",
        "endpoints[1].address",
        "ports[0].port",
        "ports[0].prot",
    ];
    assert_eq!(paths(Kind::EndpointSlice, &slice), expected);
    assert_eq!(faults(Kind::EndpointSlice, &json!({"metadata": {"name": "a"}})), ["addressType: is missing"]);
}

#[test]
fn faults_name_the_remedy() {
    let namespace = json!({
        "apiVersion": "v2", "kind": "Namespace",
        "metadata": {"name": "Shop", "lables": {}, "labels": {"a b": "c", "d": 1, "e": "-", "f": true}},
        "spec": {"finalizers": ["kubernetes"]},
    });
    assert_eq!(
        faults(Kind::Namespace, &namespace),
        [
            "apiVersion: \"v2\" is wrong; give one of v1",
            "metadata.lables: is no field; did you mean labels?",
            "metadata.name: \"Shop\" is wrong; give 1 to 63 lower-case letters, digits and '-', the first and last no '-'",
            "metadata.labels[\"a b\"]: \"a b\" is wrong as a key; give a name of 1 to 63 letters, digits, '-', '_' and '.' with \
             a letter or digit at both ends, before it if wanted a DNS name and '/'",
            "metadata.labels.d: expected a string, found 1; put it in quotes",
            "metadata.labels.e: \"-\" is wrong; give at most 63 letters, digits, '-', '_' and '.' with a letter or digit at \
             both ends",
            "metadata.labels.f: expected a string, found true; put it in quotes",
        ]
    );
    let pool = json!({"metadata": {"name": "p"}, "spec": {"ipv4": {"cidrs": [], "maskSize": 33}, "ipv6": {"maskSize": 1.5, "x": 1}}});
    assert_eq!(
        faults(Kind::CiliumPodIPPool, &pool),
        [
            "spec.ipv4.cidrs: has 0 items; give at least 1",
            "spec.ipv4.maskSize: expected a whole number from 1 to 32, found 33",
            "spec.ipv6.x: is no field; remove it",
            "spec.ipv6.cidrs: is missing",
            "spec.ipv6.maskSize: expected a whole number from 1 to 128, found 1.5",
        ]
    );
    let group = json!({"metadata": {"name": "g"}, "spec": {"externalCIDRs": ["10.0.0.0/8", "10.0.0.1", "fd00::/129"]}});
    assert_eq!(paths(Kind::CiliumCIDRGroup, &group), ["spec.externalCIDRs[1]", "spec.externalCIDRs[2]"]);
    assert_eq!(
        faults(Kind::Pod, &json!([])),
        [": expected an object, found a list"].map(|text| text[2..].to_owned())
    );
}

#[test]
fn decode_errors_have_paths() {
    let report = |kind: Kind, object: Value| match kind.normalize(&object) {
        Err(Refusal(problems)) => problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        Ok(object) => panic!("{object}"),
    };
    assert_eq!(
        report(Kind::Service, json!({"metadata": {"name": "x"}, "spec": {"ports": "nonsense"}, "new": 1})),
        ["spec.ports: expected a list, found \"nonsense\""]
    );
    assert_eq!(
        report(
            Kind::CiliumNode,
            json!({"metadata": {"name": "x", "labels": {"y": true}}, "spec": {"encryption": {"key": "1"}}})
        ),
        [
            "metadata.labels.y: expected a string, found true; put it in quotes",
            "spec.encryption.key: expected a whole number, found \"1\"",
        ]
    );
    let broken = crate::decode::<crate::core::Pod>(b"<html>").unwrap_err().to_string();
    assert!(broken.starts_with("is no JSON: "), "{broken}");
}

#[test]
fn many_faults_are_counted() {
    let group = json!({"metadata": {"name": "g"}, "spec": {"externalCIDRs": vec![0; 1000]}});
    let problems = check(Kind::CiliumCIDRGroup, &group, Strictness::Manifest);
    assert_eq!((problems.len(), &*problems[MAX_PROBLEMS].reason), (MAX_PROBLEMS + 1, "and 980 faults more"));
}
