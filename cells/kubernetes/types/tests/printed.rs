//! Objects as the script tracker prints them: normalized, as YAML.

use k8s_types::{Kind, documents, yaml};

/// Returns the object of a manifest as printed.
fn shown(manifest: &str) -> String {
    let document = documents(manifest).remove(0).unwrap();
    let text = |name| document.value[name].as_str().unwrap();
    let kind = Kind::of(text("apiVersion"), text("kind")).unwrap();
    yaml::print(&kind.normalize(&document.value).unwrap())
}

#[test]
fn a_service_has_fields_that_go_never_omits() {
    let manifest = "
apiVersion: v1
kind: Service
metadata: {name: front, namespace: net, labels: {a: b}, creationTimestamp: 2026-11-22T10:00:00Z, finalizers: [a/b]}
spec:
  clusterIP: 10.98.0.1
  dnsPolicy: x
  ports:
    - {name: '', port: 1, protocol: TCP}
";
    let expected = "apiVersion: v1
kind: Service
metadata:
  labels:
    a: b
  name: front
  namespace: net
spec:
  clusterIP: 10.98.0.1
  ports:
  - port: 1
    protocol: TCP
    targetPort: 0
status:
  loadBalancer: {}
";
    assert_eq!(shown(manifest), expected);
}

#[test]
fn a_cilium_node_has_its_empty_structs() {
    let manifest = "
apiVersion: cilium.io/v2
kind: CiliumNode
metadata: {name: node-x, resourceVersion: '7', labels: {rack: a}}
spec: {addresses: [{ip: 192.0.2.1, type: InternalIP}]}
";
    let expected = "apiVersion: cilium.io/v2
kind: CiliumNode
metadata:
  labels:
    rack: a
  name: node-x
  resourceVersion: \"7\"
spec:
  addresses:
  - ip: 192.0.2.1
    type: InternalIP
  alibaba-cloud: {}
  azure: {}
  encryption: {}
  eni: {}
  health: {}
  ingress: {}
  ipam:
    pools: {}
status:
  alibaba-cloud: {}
  azure: {}
  eni: {}
  ipam:
    operator-status: {}
";
    assert_eq!(shown(manifest), expected);
}

#[test]
fn unset_lists_are_null() {
    let slice = shown(
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a}, addressType: IPv4}",
    );
    assert!(
        slice.ends_with("endpoints: null\nkind: EndpointSlice\nmetadata:\n  name: a\nports: null\n"),
        "{slice}"
    );
    let policy =
        shown("{apiVersion: cilium.io/v2alpha1, kind: CiliumL2AnnouncementPolicy, metadata: {name: a}}");
    assert!(
        policy.contains("  interfaces: null\n  loadBalancerIPs: false\n  nodeSelector: null\n"),
        "{policy}"
    );
}

#[test]
fn selectors_of_policies_have_sources() {
    let policy = shown(
        "
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: a, namespace: b}
spec:
  endpointSelector: {matchLabels: {app: web, 'k8s:io.kubernetes.pod.namespace': b}}
  egress: []
  ingress:
    - fromEndpoints: [{}, {matchExpressions: [{key: x, operator: Exists}]}]
      toPorts: [{ports: [{port: '80', protocol: TCP}]}]
",
    );
    let expected = "apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata:
  name: a
  namespace: b
spec:
  endpointSelector:
    matchLabels:
      any:app: web
      k8s:io.kubernetes.pod.namespace: b
  ingress:
  - fromEndpoints:
    - {}
    - matchExpressions:
      - key: any:x
        operator: Exists
    toPorts:
    - ports:
      - port: \"80\"
        protocol: TCP
status: {}
";
    assert_eq!(policy, expected);
}
