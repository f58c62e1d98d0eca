//! Values that are refused, and by which path.

use serde_json::{Value, json};

use super::{render, require_helm, root};

/// Returns a value at a path as a file of values has it.
fn at(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |inner, name| json!({name: inner}))
}

#[test]
fn values_of_another_type_or_name_are_refused_by_path() {
    require_helm!();
    for (path, value, expected) in [
        ("ipv4.enabled", json!("yes"), "at '/ipv4/enabled': got string, want boolean"),
        ("ipv4.enable", json!(true), "at '/ipv4': additional properties 'enable' not allowed"),
        ("ciliumEndpointSlices", json!(true), "additional properties 'ciliumEndpointSlices' not allowed"),
        ("tls.caBundles", json!(true), "at '/tls': additional properties 'caBundles' not allowed"),
        (
            "securityContext.allowPrivilegeEscalation",
            json!(true),
            "at '/securityContext/allowPrivilegeEscalation'",
        ),
        ("extraHostPathMounts", json!([{"name": "a"}]), "at '/extraHostPathMounts/0': missing properties"),
        ("cluster.id", json!("one"), "at '/cluster/id': got string, want integer"),
        ("cluster.id", json!(512), "at '/cluster/id': maximum: got 512, want 511"),
        ("cluster.name", json!(""), "at '/cluster/name': '' does not match pattern"),
        ("cluster.name", json!("West"), "at '/cluster/name': 'West' does not match pattern"),
        ("cluster.name", json!("a".repeat(33)), "at '/cluster/name': maxLength: got 33, want 32"),
        (
            "clustermesh.maxConnectedClusters",
            json!(300),
            "at '/clustermesh/maxConnectedClusters': value must be one of 255, 511",
        ),
        (
            "kubeProxyReplacement",
            json!("strict"),
            "at '/kubeProxyReplacement': value must be one of 'true', 'false', true, false",
        ),
        ("ipam.mode", json!("eni"), "at '/ipam/mode': value must be one of 'cluster-pool'"),
        ("tunnelProtocol", json!("geneve"), "at '/tunnelProtocol': value must be one of '', 'vxlan'"),
        (
            "ipam.ciliumNodeUpdateRate",
            json!("15"),
            "at '/ipam/ciliumNodeUpdateRate': '15' does not match pattern",
        ),
        (
            "ipam.operator.clusterPoolIPv4MaskSize",
            json!(33),
            "at '/ipam/operator/clusterPoolIPv4MaskSize': maximum",
        ),
        ("operator.replicas", json!(0), "at '/operator/replicas': minimum: got 0, want 1"),
        ("extraEnv", json!([{"value": "x"}]), "at '/extraEnv/0': missing property 'name'"),
        ("healthPort", json!(70000), "at '/healthPort': maximum"),
        ("policyEnforcementMode", json!("Always"), "at '/policyEnforcementMode': value must be one of"),
        ("hubble.tls.auto.method", json!("cron"), "at '/hubble/tls/auto/method': value must be one of"),
        ("certgen.generateCA", json!("no"), "at '/certgen/generateCA': got string, want boolean"),
        (
            "certgen.hostNetwork",
            json!(true),
            "at '/certgen': additional properties 'hostNetwork' not allowed",
        ),
        ("envoy.xdsMode", json!("ads"), "at '/envoy/xdsMode': value must be one of"),
        ("hubble.ui.baseUrl", json!("flows"), "at '/hubble/ui/baseUrl': 'flows' does not match pattern"),
    ] {
        let error = render(&at(path, value)).expect_err(path);
        assert!(error.contains(expected), "{path}: want {expected:?} in {error}");
    }
}

#[test]
fn combinations_that_cannot_work_are_refused_by_path_all_at_once() {
    require_helm!();
    let two = json!(["10.0.0.0/16", "10.1.0.0/16"]);
    for (values, expected) in [
        (json!({"cluster": {"id": 3}}), "cluster.name: a cluster with a cluster.id other than 0"),
        (
            json!({"cluster": {"name": "a", "id": 300}}),
            "cluster.id: 300 is beyond clustermesh.maxConnectedClusters (255)",
        ),
        (
            json!({"cluster": {"name": "a", "id": 200}, "cni": {"chainingMode": "aws-cni"}}),
            "cluster.id: 128 to 255 and 384 to 511 use bits of the mark",
        ),
        (
            json!({"routingMode": "native"}),
            "ipv4NativeRoutingCIDR: routingMode native or hybrid with masquerading needs",
        ),
        (
            json!({"routingMode": "native", "ipv4NativeRoutingCIDR": "10.0.0.0/8", "ipv6": {"enabled": true}}),
            "ipv6NativeRoutingCIDR: routingMode native or hybrid with masquerading needs",
        ),
        (
            json!({"nativeRoutingCIDRFromClusterPool": true, "ipam": {"operator": {"clusterPoolIPv4PodCIDRList": two}}}),
            "nativeRoutingCIDRFromClusterPool: needs exactly one range in ipam.operator.clusterPoolIPv4PodCIDRList",
        ),
        (
            json!({"nativeRoutingCIDRFromClusterPool": true, "ipam": {"mode": "kubernetes"}}),
            "nativeRoutingCIDRFromClusterPool: needs ipam.mode cluster-pool",
        ),
        (
            json!({"ipam": {"operator": {"clusterPoolIPv4PodCIDRList": []}}}),
            "clusterPoolIPv4PodCIDRList: is empty",
        ),
        (json!({"ipMasqAgent": {"enabled": true}}), "ipMasqAgent.enabled: needs bpf.masquerade true"),
        (
            json!({"hubble": {"metrics": {"enabled": ["drop"], "dynamic": {"enabled": true}}}}),
            "hubble.metrics.enabled: hubble.metrics.dynamic.enabled is true as well",
        ),
        (
            json!({"operator": {"prometheus": {"serviceMonitor": {"enabled": true}}}}),
            "operator.prometheus.serviceMonitor.enabled: the cluster has no kind ServiceMonitor",
        ),
        (
            json!({"operator": {"prometheus": {"tls": {"enabled": true}}}}),
            "operator.prometheus.tls.server.existingSecret: is empty: give the secret",
        ),
        (
            json!({"hubble": {"redact": {"enabled": true, "http": {"headers": {"allow": ["a"], "deny": ["b"]}}}}}),
            "hubble.redact.http.headers: give allow or deny, not both",
        ),
        (json!({"autoDirectNodeRoutes": true}), "autoDirectNodeRoutes: needs routingMode native or hybrid"),
        (json!({"subnetTopology": "10.0.0.0/8"}), "subnetTopology: needs routingMode hybrid"),
        (json!({"ipv4": {"enabled": false}}), "ipv4.enabled: both families are off"),
        (
            json!({"ciliumEndpointSlice": {"enabled": true}, "disableEndpointCRD": true}),
            "ciliumEndpointSlice.enabled: there are no slices with disableEndpointCRD",
        ),
        (
            json!({"operator": {"removeNodeTaints": false, "setNodeTaints": true}}),
            "operator.setNodeTaints: nothing removes the taints",
        ),
        (
            json!({"authentication": {"enabled": true, "mutual": {"spire": {"enabled": true, "install": {"enabled": true}}}}}),
            "authentication.mutual.spire.install.enabled: is not built: install SPIRE by a chart of its own",
        ),
        (
            json!({"standaloneDnsProxy": {"enabled": true}}),
            "standaloneDnsProxy.enabled: needs a port in dnsProxy.proxyPort",
        ),
        (
            json!({"standaloneDnsProxy": {"enabled": true}, "dnsProxy": {"proxyPort": 1}, "l7Proxy": false}),
            "standaloneDnsProxy.enabled: needs l7Proxy true",
        ),
        (
            json!({"standaloneDnsProxy": {"enabled": true}, "dnsProxy": {"proxyPort": 10095}}),
            "standaloneDnsProxy.serverPort: is dnsProxy.proxyPort, too",
        ),
        (json!({"k8sServiceHost": "api"}), "k8sServiceHost: needs k8sServicePort"),
        (json!({"k8sServiceHost": "auto"}), "k8sServiceHost: auto needs a ConfigMap cluster-info"),
        (json!({"upgradeCompatibility": "1.11"}), "upgradeCompatibility: defaults of versions before 1.12"),
        (json!({"k8sServicePort": 6443}), "k8sServiceHost: needs k8sServicePort"),
        (
            json!({"k8sServicePort": 6443, "k8sServiceHost": "a", "k8sServiceHostRef": {"name": "a", "key": "b"}}),
            "k8sServiceHostRef: k8sServiceHost has a value, too",
        ),
        (
            json!({"k8sServicePort": 6443, "k8sServiceHostRef": {"name": "a"}}),
            "k8sServiceHostRef: needs the name of a ConfigMap and a key",
        ),
        (
            json!({"cni": {"configMap": "a", "readCniConf": "b"}}),
            "cni.configMap: cni.readCniConf has a value, too",
        ),
        (json!({"envoy": {"enabled": true}, "l7Proxy": false}), "envoy.enabled: needs l7Proxy true"),
        (
            json!({"hubble": {"enabled": true, "listenAddress": "", "relay": {"enabled": true}}}),
            "hubble.relay.enabled: needs hubble.enabled true and a hubble.listenAddress",
        ),
        (json!({"hubble": {"ui": {"enabled": true}}}), "hubble.ui.enabled: needs hubble.relay.enabled true"),
        (
            json!({"hubble": {"ui": {"enabled": true, "ingress": {"enabled": true}}}}),
            "hubble.ui.ingress.hosts: is empty",
        ),
        (
            json!({"hubble": {"tls": {"auto": {"method": "certmanager", "certManagerIssuerRef": {"name": "a"}}}}}),
            "hubble.tls.auto.certManagerIssuerRef: needs name and kind",
        ),
        (
            json!({"hubble": {"tls": {"server": {"cert": "YQ=="}}}}),
            "hubble.tls.server: needs cert and key, or neither",
        ),
        (
            json!({"hubble": {"tls": {"server": {"cert": "YQ==", "key": "YQ==", "existingSecret": "a"}}}}),
            "hubble.tls.server.existingSecret: hubble.tls.server.cert has a value, too",
        ),
        (
            json!({"hubble": {"relay": {"tls": {"client": {"cert": "YQ==", "key": "YQ=="}}}}}),
            "tls.ca.cert: is empty: hubble.relay.tls.client.cert needs",
        ),
        (
            json!({"hubble": {"metrics": {"tls": {"server": {"cert": "YQ==", "key": "YQ==", "mtls": {"enabled": true}}}}}}),
            "tls.ca.cert: is empty: hubble.metrics.tls.server.mtls needs",
        ),
        (
            json!({"operator": {"extraEnv": [{"name": "K8S_NODE_NAME"}]}}),
            "operator.extraEnv: K8S_NODE_NAME is set by the chart",
        ),
        (json!({"agent": false, "operator": {"enabled": false}}), "agent: nothing is installed"),
    ] {
        let error = render(&values).expect_err(expected);
        assert!(error.contains(expected), "want {expected:?} in {error}");
    }
    let error = render(
        &json!({"cluster": {"id": 3}, "autoDirectNodeRoutes": true, "hubble": {"relay": {"enabled": true}}}),
    )
    .unwrap_err();
    for path in ["cluster.name: ", "autoDirectNodeRoutes: ", "hubble.relay.enabled: "] {
        assert!(error.contains(&format!("\n{path}")), "{path} in {error}");
    }
}

/// Each row of the tables, set to what asks for the feature and to what does not.
#[test]
fn values_of_features_that_are_not_built_and_of_other_versions_are_refused_with_what_to_do_instead() {
    require_helm!();
    let (mut asked, mut idle, mut expected) = (json!({}), json!({}), Vec::new());
    for (file, reason) in [("not-built.tsv", "is not built"), ("removed.tsv", "is no value of Cilium 1.20")] {
        let table = std::fs::read_to_string(root().join("helm/apiary").join(file)).unwrap();
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let columns: Vec<&str> = line.split('\t').collect();
            let [path, off, instead] = columns[..] else { panic!("{line:?}") };
            assert!(!instead.is_empty());
            let value = match off {
                "false" => json!(true),
                _ => json!("x"),
            };
            merge(&mut asked, at(path, value));
            if off != "-" {
                merge(&mut idle, at(path, idle_value(off.split('|').next().unwrap())));
            }
            expected.push(format!("{path}: {reason}: {instead}"));
        }
    }
    let error = render(&asked).unwrap_err();
    for line in expected {
        assert!(error.contains(&line), "{line}\nis not in\n{error}");
    }
    render(&idle).unwrap_or_else(|error| panic!("values that ask for nothing: {error}"));
}

/// Returns a value of which a template prints this text.
fn idle_value(text: &str) -> Value {
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(items) => json!(items.split_whitespace().collect::<Vec<_>>()),
        None if text == "map[]" => json!({}),
        None => serde_json::from_str(text).unwrap_or(json!(text)),
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(json!({})), value);
            }
        }
        (into, from) => *into = from,
    }
}
