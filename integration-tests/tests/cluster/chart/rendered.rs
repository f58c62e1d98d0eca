//! Rendered objects and configurations.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use integration_tests::binary;
use serde_json::{Value, json};
use test_kit::require_root;

use super::{CONFIG_FILES, config, objects, render, require_helm, root, run};
use crate::stage_with_definitions;

/// Default values of the keys that Cilium's chart renders.
const CILIUM: &str = include_str!("../../../../agent/tests/data/chart.tsv");
/// Those of them that this chart leaves out, and why.
const LEFT_OUT: &str = include_str!("left-out.tsv");

/// Values as users give them, by what they are for.
fn value_sets() -> Vec<(&'static str, Value)> {
    vec![
        ("defaults", json!({})),
        (
            "both families",
            json!({"ipv6": {"enabled": true}, "underlayProtocol": "ipv6", "MTU": 9000, "tunnelPort": 8473}),
        ),
        (
            "IPv6 alone",
            json!({"ipv4": {"enabled": false}, "ipv6": {"enabled": true}, "bpf": {"masquerade": true}}),
        ),
        (
            "native routing",
            json!({"routingMode": "native", "ipv4NativeRoutingCIDR": "10.0.0.0/8", "autoDirectNodeRoutes": true,
                "endpointRoutes": {"enabled": true}, "ipam": {"mode": "crd"},
                "directRoutingSkipUnreachable": true, "devices": ["eth0", "eth1"], "l2NeighDiscovery": {"enabled": true}}),
        ),
        (
            "ranges that are not masqueraded",
            json!({"routingMode": "native", "bpf": {"masquerade": true}, "ipMasqAgent": {"enabled": true, "config": {
                "nonMasqueradeCIDRs": ["10.0.0.0/8", "fd00::/8"], "masqLinkLocal": false, "masqLinkLocalIPv6": true}}}),
        ),
        (
            "native routing of the pool",
            json!({"routingMode": "native", "nativeRoutingCIDRFromClusterPool": true}),
        ),
        (
            "several pools",
            json!({"identityManagementMode": "operator",
            "ipam": {"mode": "multi-pool", "multiPoolPreAllocation": "default=8,blue=4", "operator": {
            "autoCreateCiliumPodIPPools": {
                "default": {"ipv4": {"cidrs": ["10.10.0.0/16", "10.11.0.0/16"], "maskSize": 27}},
                "blue": {"ipv4": {"cidrs": ["10.20.0.0/16"], "maskSize": 24}, "ipv6": {"cidrs": ["fd00:20::/104"], "maskSize": 120}},
            }}}}),
        ),
        (
            "ranges of Kubernetes",
            json!({"ipam": {"mode": "kubernetes"}, "k8s": {"requireIPv4PodCIDR": true}}),
        ),
        (
            "behind another plugin",
            json!({"cni": {"chainingMode": "generic-veth", "chainingTarget": "*", "exclusive": false}, "enableIPv4Masquerade": false}),
        ),
        ("host ports by another plugin", json!({"cni": {"chainingMode": "portmap"}})),
        (
            "an own plugin configuration",
            json!({"cni": {"customConf": true, "readCniConf": "/host/etc/cni/net.d/own.conflist"}}),
        ),
        (
            "metrics",
            json!({"prometheus": {"enabled": true, "metricsService": true, "metrics": ["+a", "-b"]}, "rollOutCiliumPods": true, "dashboards": {"enabled": true},
                "operator": {"prometheus": {"metricsService": true, "port": 9964}, "rollOutPods": true, "dashboards": {"enabled": true},
                    "podDisruptionBudget": {"enabled": true}}}),
        ),
        (
            "no metrics",
            json!({"operator": {"prometheus": {"enabled": false}, "podDisruptionBudget": {"enabled": true, "minAvailable": 1}}}),
        ),
        (
            "privileged",
            json!({"securityContext": {"privileged": true}, "cgroup": {"autoMount": {"enabled": true}}}),
        ),
        (
            "an API server elsewhere",
            json!({"k8sServiceHost": "api.example.org", "k8sServicePort": 6443, "operator": {"replicas": 1},
                "k8sClientRateLimit": {"qps": 12.5, "burst": 30, "operator": {"qps": 50, "burst": 100}}}),
        ),
        (
            "several API servers",
            json!({"k8s": {"apiServerURLs": "https://192.0.2.1:6443 https://192.0.2.2:6443"}}),
        ),
        (
            "all steps",
            json!({"cleanState": true, "cleanBpfState": true, "waitForKubeProxy": true, "cgroup": {"autoMount": {"enabled": true}},
                "cni": {"uninstall": true, "iptablesRemoveAWSRules": true}, "initResources": {"requests": {"cpu": "10m"}}}),
        ),
        (
            "no steps",
            json!({"sysctlfix": {"enabled": false}, "bpf": {"autoMount": {"enabled": false}}, "cni": {"install": false}}),
        ),
        (
            "services at sockets, with a cgroup of others",
            json!({"socketLB": {"enabled": true}, "loadBalancer": {"mode": "snat", "acceleration": "disabled"},
                "cgroup": {"autoMount": {"enabled": false}, "hostRoot": "/sys/fs/cgroup"}}),
        ),
        (
            "a DNS proxy of its own",
            json!({"dnsProxy": {"proxyPort": 10094}, "standaloneDnsProxy": {"enabled": true, "rollOutPods": true, "debug": true,
                "annotations": {"a": "b"}, "tolerations": [{"key": "c", "operator": "Exists"}], "serverPort": 10096}}),
        ),
        (
            "mutual authentication",
            json!({"authentication": {"enabled": true, "queueSize": 16, "mutual": {"port": 4251, "spire": {"enabled": true,
                "trustDomain": "example.org", "adminSocketPath": "/run/spire/admin/admin.sock"}}}}),
        ),
        (
            "policy",
            json!({"policyCIDRMatchMode": ["nodes"], "policyDenyResponse": "icmp", "policyEnforcementMode": "always",
                "endpointLockdownOnMapOverflow": true}),
        ),
        (
            "placement and security of pods",
            json!({"upgradeCompatibility": "1.18", "ipam": {"mode": "crd", "nodeSpec": {"ipamMinAllocate": 8, "ipamPreAllocate": 4, "ipamMaxAllocate": 64},
                "operator": {"clusterPoolIPv4PodCIDRList": "10.42.0.0/16"}},
                "scheduling": {"mode": "kube-scheduler"}, "enableCriticalPriorityClass": false, "minReadySeconds": 5, "dnsPolicy": "ClusterFirstWithHostNet",
                "annotations": {"a": "b"}, "podSecurityContext": {"appArmorProfile": {"type": "RuntimeDefault"}, "runAsUser": 0},
                "securityContext": {"seLinuxOptions": {"type": "container_t"}, "capabilities": {"mountCgroup": ["SYS_ADMIN"], "applySysctlOverwrites": ["SYS_ADMIN", "SYS_CHROOT"]}},
                "kubeConfigPath": "/etc/kubernetes/agent.conf", "tmpVolume": {"sizeLimit": "64Mi"}, "image": {"useDigest": false, "digest": format!("sha256:{}", "0".repeat(64))},
                "extraHostPathMounts": [{"name": "data", "mountPath": "/data", "hostPath": "/srv", "hostPathType": "Directory", "readOnly": true, "mountPropagation": "HostToContainer"}],
                "configDriftDetection": {"driftChecker": false, "ignoredKeys": ["debug"]}, "socketLB": {"enabled": true, "tracing": false},
                "bpf": {"authMapMax": 1024, "disableExternalIPMitigation": true}, "localRedirectPolicy": true, "envoyConfig": {"enabled": true, "retryInterval": "5s"},
                "secretsNamespaceLabels": {"c": "d"}, "secretsNamespaceAnnotations": {"e": "f"}, "prometheus": {"enabled": true},
                "serviceAccounts": {"clustermeshApiserver": {"create": true}}, "clustermesh": {"apiserver": {"replicas": 2}},
                "operator": {"annotations": {"a": "b"}, "hostNetwork": false, "dnsPolicy": "Default", "updateStrategy": {"type": "Recreate"},
                    "podSecurityContext": {"runAsNonRoot": false}, "podDisruptionBudget": {"enabled": true, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
                    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}],
                    "extraHostPathMounts": [{"name": "data", "mountPath": "/data", "hostPath": "/srv"}], "image": {"suffix": "-ci", "useDigest": false}},
                "envoy": {"enabled": true, "startupProbe": {"enabled": false}, "initContainers": [{"name": "before", "image": "none"}],
                    "podSecurityContext": {"runAsUser": 0}, "securityContext": {"seLinuxOptions": {"type": "container_t"}},
                    "extraHostPathMounts": [{"name": "data", "mountPath": "/data", "hostPath": "/srv"}]},
                "hubble": {"enabled": true, "relay": {"enabled": true, "pprof": {"enabled": true}, "logOptions": {"format": "json", "level": "debug"},
                    "podDisruptionBudget": {"enabled": true, "unhealthyPodEvictionPolicy": "IfHealthyBudget"}},
                    "ui": {"enabled": true, "labels": {"a": "b"}, "tmpVolume": {"medium": "Memory"}}}}),
        ),
        ("the agent alone", json!({"operator": {"enabled": false}})),
        ("the operator alone", json!({"agent": false, "operator": {"skipCRDCreation": true}})),
        (
            "additions",
            json!({"extraEnv": [{"name": "A", "value": "b"}], "extraArgs": ["--debug"], "podLabels": {"a": "b"}, "podAnnotations": {"c": "d"},
                "commonLabels": {"e": "f"}, "extraVolumes": [{"name": "more", "emptyDir": {}}],
                "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}], "resources": {"limits": {"memory": "512Mi"}},
                "extraContainers": [{"name": "beside", "image": "none"}], "extraInitContainers": [{"name": "before", "image": "none"}],
                "imagePullSecrets": [{"name": "key"}], "priorityClassName": "own",
                "image": {"repository": "registry.example.org/apiary", "digest": format!("sha256:{}", "0".repeat(64))},
                "operator": {"image": {"override": "registry.example.org/operator:1"}, "extraArgs": ["--debug"]},
                "hubble": {"enabled": true, "listenAddress": "10.0.0.1:4245", "preferIpv6": true, "tls": {"enabled": false}, "peerService": {"targetPort": 4245}},
                "extraConfig": {"route-metric": 5, "policy-accounting": false, "trace-payloadlen": "64"}}),
        ),
        (
            "services",
            json!({"kubeProxyReplacement": true, "kubeProxyReplacementHealthzBindAddr": "0.0.0.0:10256",
                "loadBalancer": {"algorithm": "maglev", "serviceTopology": true}, "maglev": {"tableSize": 2039},
                "nodePort": {"range": "30000,32000", "addresses": ["192.0.2.0/24"], "bindProtection": false, "autoProtectPortRange": false}, "bpf": {"lbMapMax": 1_000_000, "natMax": 1_048_576},
                "envoyConfig": {"enabled": true}, "extraConfig": {"external-envoy-proxy": "true"},
                "tls": {"secretsNamespace": {"name": "cilium-secrets"}, "secretSync": {"enabled": false}, "readSecretsOnlyFromSecretsNamespace": false},
                "localRedirectPolicies": {"enabled": true, "addressMatcherCIDRs": ["169.254.0.0/16"]},
                "nodeIPAM": {"enabled": true}, "enableLBIPAM": false, "defaultLBServiceIPAM": "nodeipam",
                "socketLB": {"enabled": true, "hostNamespaceOnly": true},
                "hubble": {"enabled": true, "socketPath": "/run/flows.sock", "eventBufferCapacity": 1023, "eventQueueSize": 64,
                    "networkPolicyCorrelation": {"enabled": false}, "skipUnknownCGroupIDs": false,
                    "redact": {"enabled": true, "http": {"urlQuery": true, "userInfo": false, "headers": {"deny": ["Cookie", "Authorization"]}},
                        "kafka": {"apiKey": true}},
                    "tls": {"server": {"extraDnsNames": ["hubble.example.org"], "extraIpAddresses": ["192.0.2.7"]}}}}),
        ),
        (
            "flows in files and as metrics",
            json!({"hubble": {"enabled": true,
                "export": {"static": {"enabled": true, "filePath": "/var/run/cilium/hubble/own.log", "fileMaxSizeMb": 20, "fileMaxBackups": 0,
                    "fileCompress": true, "allowList": ["{\"verdict\":[\"DROPPED\"]}", "{\"source_pod\":[\"kube-system/\"]}"],
                    "denyList": ["{\"reply\":[true]}"], "fieldMask": ["time", "verdict"],
                    "fieldAggregate": ["source.identity"], "aggregationInterval": "30s"}},
                "metrics": {"dashboards": {"enabled": true}, "enabled": ["dns:query;ignoreAAAA", "drop"], "enableOpenMetrics": true, "port": 9966, "serviceAnnotations": {"a": "b"},
                    "tls": {"enabled": true, "server": {"extraDnsNames": ["metrics.example.org"], "mtls": {"enabled": true, "useSecret": false, "name": "scrapers"}}}}}}),
        ),
        (
            "metrics of the operator by TLS",
            json!({"operator": {"prometheus": {"metricsService": true,
                "tls": {"enabled": true, "server": {"existingSecret": "own", "mtls": {"enabled": true}}}}}}),
        ),
        (
            "certificates by a Job",
            json!({"debug": {"enabled": true}, "k8sServiceHost": "192.0.2.1", "k8sServicePort": 6443, "imagePullSecrets": [{"name": "key"}],
                "hubble": {"enabled": true, "tls": {"auto": {"method": "cronJob", "schedule": "0 3 * * 1"}}, "relay": {"enabled": true}},
                "certgen": {"generateCA": false, "ttlSecondsAfterFinished": 1800, "priorityClassName": "own", "nodeSelector": {"a": "b"},
                    "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}}, "podLabels": {"a": "b"}, "podAnnotations": {"c": "d"},
                    "annotations": {"job": {"e": "f"}, "cronJob": {"g": "h"}}, "resources": {"limits": {"memory": "64Mi"}},
                    "extraVolumes": [{"name": "more", "emptyDir": {}}], "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}]}}),
        ),
        (
            "flows by files that change",
            json!({"hubble": {"enabled": true, "dropEventEmitter": {"enabled": true, "interval": "1m", "reasons": ["policy_denied", "policy_deny"]},
                "export": {"dynamic": {"enabled": true, "config": {"configMapName": "own", "content": [
                    {"name": "drops", "filePath": "/var/run/cilium/hubble/drops.log", "includeFilters": [{"verdict": ["DROPPED"]}]}]}}},
                "metrics": {"dynamic": {"enabled": true, "config": {"content": [
                    {"name": "drop", "contextOptions": [{"name": "sourceContext", "values": ["pod"]}]}]}}}}}),
        ),
        (
            "Envoy on each node",
            json!({"ipv6": {"enabled": true}, "debug": {"enabled": true}, "envoyConfig": {"enabled": true},
                "envoy": {"enabled": true, "xdsMode": "split", "image": {"useDigest": false, "digest": format!("sha256:{}", "0".repeat(64))},
                    "connectTimeoutSeconds": 3, "httpRetryCount": 5, "httpUpstreamLingerTimeout": 7, "policyRestoreTimeoutDuration": "1m",
                    "useOriginalSourceAddress": false, "xffNumTrustedHopsL7PolicyIngress": 2, "rollOutPods": true,
                    "log": {"defaultLevel": "warning", "path": "/tmp/log", "accessLogEnabled": false}, "prometheus": {"port": 9969},
                    "securityContext": {"capabilities": {"keepCapNetBindService": true, "envoy": ["NET_ADMIN", "BPF", "PERFMON", "NET_BIND_SERVICE"]}},
                    "extraArgs": ["--concurrency", "2"], "extraEnv": [{"name": "A", "value": "b"}], "podLabels": {"a": "b"}, "podAnnotations": {"c": "d"},
                    "extraVolumes": [{"name": "more", "emptyDir": {}}], "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}]}}),
        ),
        (
            "flows of the cluster and their page",
            json!({"hubble": {"enabled": true, "relay": {"enabled": true, "replicas": 2, "rollOutPods": true, "sortBufferLenMax": 100, "dialTimeout": "5s",
                    "tls": {"server": {"enabled": true, "mtls": true, "extraDnsNames": ["flows.example.org"]}}, "prometheus": {"enabled": true},
                    "podDisruptionBudget": {"enabled": true}, "service": {"type": "NodePort"}},
                "ui": {"enabled": true, "baseUrl": "/flows/", "rollOutPods": true, "podDisruptionBudget": {"enabled": true, "minAvailable": 1},
                    "backend": {"livenessProbe": {"enabled": true}, "readinessProbe": {"enabled": true}},
                    "frontend": {"extraVolumes": [{"name": "more", "emptyDir": {}}], "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}]},
                    "ingress": {"enabled": true, "className": "own", "hosts": ["flows.example.org"], "tls": [{"hosts": ["flows.example.org"], "secretName": "flows"}]}}}}),
        ),
        (
            "flows of the cluster without TLS",
            json!({"hubble": {"enabled": true, "tls": {"enabled": false}, "relay": {"enabled": true}, "ui": {"enabled": true}},
                "serviceAccounts": {"relay": {"create": false, "name": "a"}, "ui": {"annotations": {"a": "b"}}}}),
        ),
        (
            "certificates, a plugin configuration and an API server that are given",
            json!({"tls": {"ca": {"cert": "Y2E="}}, "hubble": {"enabled": true, "tls": {"server": {"cert": "Y2VydA==", "key": "a2V5"}}},
                "cni": {"configMap": "own", "configMapKey": "own.conflist"}, "k8sServiceHostRef": {"name": "api", "key": "host"}, "k8sServicePort": 6443,
                "nodePort": {"directRoutingDevice": "eth0"}, "resourceQuotas": {"enabled": true, "operator": {"hard": {"pods": 5}}}}),
        ),
        (
            "names and roles of others",
            json!({"serviceAccounts": {"cilium": {"create": false, "name": "a"}, "operator": {"create": false, "name": "b"}},
                "rbac": {"create": false}, "logOptions": {"format": "json"}, "debug": {"enabled": true},
                "cluster": {"name": "west-1", "id": 7}}),
        ),
        (
            "a file for Cilium that turns off what is not built",
            json!({"hubble": {"enabled": false, "relay": {"enabled": false}, "metrics": {"port": 9965}}, "l7Proxy": false,
                "envoy": {"enabled": false}, "encryption": {"enabled": false, "type": "wireguard"}, "clustermesh": {"useAPIServer": false},
                "operator": {"removeNodeTaints": false, "setNodeTaints": false, "unmanagedPodWatcher": {"restart": false}}}),
        ),
    ]
}

#[test]
fn a_server_accepts_every_object_and_the_programs_every_option() {
    require_root!();
    require_helm!();
    let stage = stage_with_definitions();
    // A dry run creates no namespaces for the objects after them.
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: cilium-secrets}}";
    stage.kubectl_with(&["apply", "-f", "-"], namespace).unwrap();
    for (what, values) in value_sets() {
        let rendered = render(&values).unwrap_or_else(|error| panic!("{what}: {error}"));
        let arguments = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"];
        match stage.kubectl_with(&arguments, &rendered) {
            Ok(_) => assert_ne!(what, "privileged"),
            // The server permits no privileged containers; nothing else is wrong with these.
            Err(error) if what == "privileged" => {
                let error = error.to_string();
                let faults: Vec<&str> = error.lines().filter(|line| line.starts_with("* ")).collect();
                let is_policy =
                    |line: &&str| line.ends_with("privileged: Forbidden: disallowed by cluster policy");
                assert!(!faults.is_empty() && faults.iter().all(is_policy), "{error}");
            }
            Err(error) => panic!("{what}: {error}\n{rendered}"),
        }
        let folder = tempfile::tempdir().unwrap();
        for (key, value) in config(&rendered) {
            fs::write(folder.path().join(key), value).unwrap();
        }
        let [agent, operator] = ["agent", "operator"].map(|program| {
            let option = format!("--config-dir={}", folder.path().display());
            let output = Command::new(binary(program)).args(["config", &option]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(
                output.status.success(),
                "{what}: {program}: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            );
            text
        });
        // The operator prints its own options alone; the agent names those that it lacks.
        let is_of_operator = |key: &str| operator.lines().any(|line| line.split(':').next() == Some(key));
        let vain = agent.lines().filter(|line| line.contains("no effect") && line.contains("# file"));
        let unknown = agent.lines().filter_map(|line| line.strip_prefix("# unknown: "));
        let vain: Vec<&str> = vain
            .map(|line| line.split(':').next().unwrap())
            .chain(unknown.map(|line| line.split(' ').next().unwrap()))
            // The step of the agent's pod reads it.
            .filter(|key| !is_of_operator(key) && *key != "cni-uninstall")
            .collect();
        assert_eq!(vain, [""; 0], "{what}: options without effect");
    }
}

#[test]
fn default_options_are_those_of_ciliums_chart_but_for_what_is_not_built() {
    require_helm!();
    let rendered = config(&render(&json!({})).unwrap());
    let rows = |text: &'static str| -> BTreeMap<&str, &str> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split_once('\t').unwrap_or((line, ""))).collect()
    };
    let left_out = rows(LEFT_OUT);
    let expected = rows(CILIUM);
    let absent: BTreeSet<&str> = left_out
        .keys()
        .filter(|key| rendered.contains_key(**key) || !expected.contains_key(*key))
        .copied()
        .collect();
    assert_eq!(absent, BTreeSet::new(), "left-out.tsv names keys that are rendered, or not Cilium's");
    let expected: BTreeMap<&str, &str> =
        expected.into_iter().filter(|(key, _)| !left_out.contains_key(key)).collect();
    let rendered: BTreeMap<&str, &str> =
        rendered.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(rendered, expected);
    assert!(left_out.values().all(|reason| !reason.is_empty()));
}

/// Agents may read secrets only with an Envoy, and those of their namespace; the operator those of all only to copy them.
#[test]
fn roles_of_secrets_are_of_their_namespaces() {
    require_helm!();
    let rules = |values: Value| -> Vec<String> {
        let objects = objects(&render(&values).unwrap());
        let rules = |role: &Value| role["rules"].as_array().cloned().unwrap_or_default();
        let is_of_secrets = |rule: &Value| rule["resources"].to_string().contains("\"secrets\"");
        let roles = objects.values().flat_map(|role| {
            let rules = rules(role).into_iter().filter(is_of_secrets);
            rules.map(move |rule| {
                let (name, namespace) = (&role["metadata"]["name"], &role["metadata"]["namespace"]);
                let verbs: Vec<&str> =
                    rule["verbs"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
                let text = |value: &Value| value.as_str().unwrap_or("*").to_owned();
                format!("{} {}: {}", text(namespace), text(name), verbs.join(" "))
            })
        });
        roles.collect()
    };
    let envoy = json!({"external-envoy-proxy": "true"});
    assert_eq!(rules(json!({})), [""; 0]);
    let of = |namespace: &str| {
        [
            "* cilium-operator: list watch".to_owned(),
            format!("{namespace} cilium-envoy-secrets: list watch"),
            format!("{namespace} cilium-operator-tls-secrets: get create update delete"),
        ]
    };
    assert_eq!(rules(json!({"extraConfig": envoy})), of("cilium-secrets"));
    assert_eq!(rules(json!({"envoy": {"enabled": true}})), of("cilium-secrets"), "the chart's own Envoy");
    let mut values = json!({"extraConfig": envoy, "tls": {"secretsNamespace": {"name": "own"}}});
    assert_eq!(rules(values.clone()), of("own"));
    values["tls"]["secretSync"] = json!({"enabled": false});
    assert_eq!(rules(values.clone()), ["own cilium-envoy-secrets: list watch"]);
    values["tls"]["readSecretsOnlyFromSecretsNamespace"] = json!(false);
    assert_eq!(rules(values), ["* cilium: list watch"]);
}

/// The keys and objects of exporters and metrics of flows are those of Cilium's chart.
#[test]
fn exporters_and_metrics_of_flows_are_rendered_as_in_ciliums_chart() {
    require_helm!();
    let sets = value_sets();
    let rendered = |name: &str| {
        let (_, values) = sets.iter().find(|(set, _)| *set == name).unwrap();
        render(values).unwrap()
    };
    let of_flows = |text: &str| -> BTreeMap<String, String> {
        let is_of_flows = |key: &str| {
            [
                "hubble-export-",
                "hubble-flowlogs-",
                "hubble-metrics",
                "hubble-dynamic-",
                "hubble-redact-",
                "hubble-skip-",
                "enable-hubble-open-",
                "hubble-network-",
            ]
            .iter()
            .any(|prefix| key.starts_with(prefix))
        };
        config(text).into_iter().filter(|(key, _)| is_of_flows(key)).collect()
    };
    let expected = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };

    assert_eq!(of_flows(&rendered("defaults")), expected(&[]));
    let keys = expected(&[
        ("hubble-network-policy-correlation-enabled", "false"),
        ("hubble-skip-unknown-cgroup-ids", "false"),
        ("hubble-redact-enabled", "true"),
        ("hubble-redact-http-urlquery", "true"),
        ("hubble-redact-http-userinfo", "false"),
        ("hubble-redact-http-headers-deny", "Cookie,Authorization"),
    ]);
    assert_eq!(of_flows(&rendered("services")), keys, "neither exporters nor metrics");
    let correlated = ("hubble-network-policy-correlation-enabled", "true");

    let text = rendered("flows in files and as metrics");
    let keys = expected(&[
        ("hubble-export-file-path", "/var/run/cilium/hubble/own.log"),
        ("hubble-export-file-max-size-mb", "20"),
        ("hubble-export-file-max-backups", "0"),
        ("hubble-export-file-compress", "true"),
        ("hubble-export-allowlist", r#"{"verdict":["DROPPED"]} {"source_pod":["kube-system/"]}"#),
        ("hubble-export-denylist", r#"{"reply":[true]}"#),
        ("hubble-export-fieldmask", "time verdict"),
        ("hubble-export-fieldaggregate", "source.identity"),
        ("hubble-export-aggregation-interval", "30s"),
        ("hubble-metrics-server", ":9966"),
        ("hubble-metrics", "dns:query;ignoreAAAA drop"),
        ("enable-hubble-open-metrics", "true"),
        ("hubble-metrics-server-enable-tls", "true"),
        ("hubble-metrics-server-tls-cert-file", "/var/lib/cilium/tls/hubble-metrics/server.crt"),
        ("hubble-metrics-server-tls-key-file", "/var/lib/cilium/tls/hubble-metrics/server.key"),
        ("hubble-metrics-server-tls-client-ca-files", "/var/lib/cilium/tls/hubble-metrics/client-ca.crt"),
        correlated,
    ]);
    assert_eq!(of_flows(&text), keys);
    let fixed = objects(&text);
    let service = &fixed["Service/hubble-metrics"];
    assert_eq!(service["spec"]["clusterIP"], "None");
    assert_eq!(service["spec"]["ports"][0]["port"], 9966);
    assert_eq!(service["metadata"]["annotations"]["prometheus.io/port"], "9966");
    let container = |objects: &BTreeMap<String, Value>| {
        let containers = &objects["DaemonSet/cilium"]["spec"]["template"]["spec"]["containers"];
        containers[0].clone()
    };
    // One authority signs both certificates; clients of metrics have another.
    let authority = |secret: &str| fixed[&format!("Secret/{secret}")]["data"]["ca.crt"].clone();
    assert!(authority("cilium-ca").is_string());
    for secret in ["hubble-server-certs", "hubble-metrics-server-certs"] {
        assert_eq!(authority(secret), authority("cilium-ca"), "{secret}");
    }
    let volumes = &fixed["DaemonSet/cilium"]["spec"]["template"]["spec"]["volumes"];
    let volumes = volumes.as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == "hubble-metrics-tls").unwrap();
    let sources = &volume["projected"]["sources"];
    assert_eq!(sources[0]["secret"]["name"], "hubble-metrics-server-certs");
    assert_eq!(sources[1]["configMap"]["name"], "scrapers");
    let port = json!({"name": "hubble-metrics", "containerPort": 9966, "hostPort": 9966, "protocol": "TCP"});
    assert!(container(&fixed)["ports"].as_array().unwrap().contains(&port));

    let text = rendered("flows by files that change");
    let keys = expected(&[
        ("hubble-flowlogs-config-path", "/flowlog-config/flowlogs.yaml"),
        ("hubble-metrics-server", ":9965"),
        ("hubble-dynamic-metrics-config-path", "/dynamic-metrics-config/dynamic-metrics.yaml"),
        correlated,
    ]);
    assert_eq!(of_flows(&text), keys);
    let dynamic = objects(&text);
    let exporters = dynamic["ConfigMap/own"]["data"]["flowlogs.yaml"].as_str().unwrap();
    let exporters = hubble_exporter::flow_logs(exporters).unwrap();
    assert_eq!((exporters[0].name.as_str(), exporters[0].allow.len()), ("drops", 1));
    for (mount, map, file) in [
        ("/flowlog-config", "own", "flowlogs.yaml"),
        ("/dynamic-metrics-config", "cilium-dynamic-metrics-config", "dynamic-metrics.yaml"),
    ] {
        assert!(dynamic[&format!("ConfigMap/{map}")]["data"][file].is_string(), "{map}");
        let mounts = container(&dynamic)["volumeMounts"].clone();
        let volume = mounts.as_array().unwrap().iter().find(|entry| entry["mountPath"] == mount).unwrap();
        let volumes = &dynamic["DaemonSet/cilium"]["spec"]["template"]["spec"]["volumes"];
        let volume = volumes.as_array().unwrap().iter().find(|entry| entry["name"] == volume["name"]);
        assert_eq!(volume.unwrap()["configMap"]["name"], map);
    }
}

/// The options of TLS name the files of the secret that is mounted, of which clients' authority is one with mtls alone.
#[test]
fn the_operator_has_the_certificates_of_its_metrics() {
    require_helm!();
    let rendered = |mtls: bool| {
        let tls = json!({"enabled": true, "server": {"existingSecret": "own", "mtls": {"enabled": mtls}}});
        render(&json!({"operator": {"prometheus": {"tls": tls}}})).unwrap()
    };
    let files = |text: &str| -> BTreeSet<String> {
        let spec = &objects(text)["Deployment/cilium-operator"]["spec"]["template"]["spec"];
        let find = |list: &Value| {
            let list = list.as_array().unwrap();
            list.iter().find(|entry| entry["name"] == "prometheus-tls").unwrap().clone()
        };
        let mount = find(&spec["containers"][0]["volumeMounts"]);
        let secret = &find(&spec["volumes"])["projected"]["sources"][0]["secret"];
        assert_eq!(secret["name"], "own");
        let items = secret["items"].as_array().unwrap();
        let path = |item: &Value| {
            format!("{}/{}", mount["mountPath"].as_str().unwrap(), item["path"].as_str().unwrap())
        };
        items.iter().map(path).collect()
    };
    let options = |text: &str| -> BTreeSet<String> {
        let options = config(text).into_iter();
        options.filter(|(key, _)| key.starts_with("operator-prometheus-tls-")).map(|(_, file)| file).collect()
    };
    for (mtls, count) in [(false, 2), (true, 3)] {
        let text = rendered(mtls);
        assert_eq!(config(&text)["operator-prometheus-enable-tls"], "true");
        assert_eq!(files(&text), options(&text));
        assert_eq!(files(&text).len(), count);
    }
    let off = render(&json!({})).unwrap();
    assert!(config(&off).keys().all(|key| !key.contains("-tls-") || !key.starts_with("operator-prometheus")));
    assert!(!off.contains("prometheus-tls"));
}

/// Each monitor selects the service that the chart makes for it, by its labels and the name of its port.
#[test]
fn service_monitors_find_their_services() {
    require_helm!();
    let monitor = json!({"enabled": true, "trustCRDsExist": true, "labels": {"release": "prometheus"}, "interval": "30s",
        "scrapeTimeout": "5s", "tlsConfig": {"insecureSkipVerify": true}});
    let mut of_others = monitor.clone();
    of_others.as_object_mut().unwrap().remove("tlsConfig");
    let values = json!({
        "prometheus": {"enabled": true, "serviceMonitor": monitor},
        "operator": {"prometheus": {"enabled": true, "serviceMonitor": monitor,
            "tls": {"enabled": true, "server": {"existingSecret": "own"}}}},
        "hubble": {"enabled": true, "metrics": {"enabled": ["drop"], "tls": {"enabled": true}, "serviceMonitor": monitor},
            "relay": {"enabled": true, "prometheus": {"enabled": true, "serviceMonitor": of_others}}},
        "envoy": {"enabled": true, "prometheus": {"serviceMonitor": of_others}},
    });
    let rendered = objects(&render(&values).unwrap());
    for (monitor, service, scheme) in [
        ("cilium-agent", "cilium-agent", None),
        ("cilium-operator", "cilium-operator", Some("https")),
        ("hubble", "hubble-metrics", Some("https")),
        ("hubble-relay", "hubble-relay-metrics", None),
        ("cilium-envoy", "cilium-envoy", None),
    ] {
        let service = &rendered[&format!("Service/{service}")];
        let monitor = &rendered[&format!("ServiceMonitor/{monitor}")];
        assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
        let spec = &monitor["spec"];
        assert_eq!(spec["namespaceSelector"]["matchNames"], json!([service["metadata"]["namespace"]]));
        let labels = &service["metadata"]["labels"];
        let selected = spec["selector"]["matchLabels"].as_object().unwrap();
        assert!(selected.iter().all(|(label, value)| labels[label] == *value), "{selected:?}: {labels}");
        let endpoint = &spec["endpoints"][0];
        assert_eq!(endpoint["port"], service["spec"]["ports"][0]["name"]);
        assert_eq!((&endpoint["interval"], &endpoint["scrapeTimeout"]), (&json!("30s"), &json!("5s")));
        assert_eq!(endpoint["scheme"].as_str(), scheme);
        assert_eq!(endpoint["tlsConfig"].is_object(), scheme.is_some());
    }
}

#[test]
fn the_folder_config_has_what_the_chart_renders() {
    require_helm!();
    let rendered = objects(&render(&json!({})).unwrap());
    let mut of_config = BTreeMap::new();
    for file in CONFIG_FILES {
        of_config.extend(objects(&fs::read_to_string(root().join(file)).unwrap()));
    }
    assert!(of_config.len() >= 8, "{:?}", of_config.keys());
    for (name, object) in of_config {
        assert_eq!(Some(&object), rendered.get(&name), "{name}: run tools/chart-files");
    }
}

#[test]
fn no_container_of_the_default_chart_is_privileged_or_runs_a_shell() {
    require_helm!();
    let rendered = objects(&render(&json!({})).unwrap());
    let spec = &rendered["DaemonSet/cilium"]["spec"]["template"]["spec"];
    let all = ["initContainers", "containers"].into_iter().flat_map(|list| spec[list].as_array().unwrap());
    let of_operator = &rendered["Deployment/cilium-operator"]["spec"]["template"]["spec"]["containers"][0];
    let mut capabilities = BTreeMap::new();
    for container in all.chain([of_operator]) {
        let name = container["name"].as_str().unwrap();
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
        assert_eq!(context["privileged"], Value::Null, "{name}");
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{name}");
        let program = container["command"][0].as_str().unwrap();
        assert!(["agent", "apiary-cni", "operator"].contains(&program), "{name}: {program}");
        let added = context["capabilities"]["add"]
            .as_array()
            .map_or(vec![], |list| list.iter().map(|name| name.as_str().unwrap().to_owned()).collect());
        capabilities.insert(name.to_owned(), added);
    }
    let host = ["SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"].map(str::to_owned).to_vec();
    let agent = ["BPF", "PERFMON", "NET_ADMIN", "NET_RAW", "CHOWN", "DAC_OVERRIDE", "SYS_ADMIN"];
    let expected = [
        ("config", vec![]),
        ("mount-cgroup", host.clone()),
        ("apply-sysctl-overwrites", host.clone()),
        ("mount-bpf-fs", host),
        ("install-cni-binaries", vec![]),
        ("cilium-agent", agent.map(str::to_owned).to_vec()),
        ("cilium-operator", vec![]),
    ];
    assert_eq!(capabilities, expected.map(|(name, list)| (name.to_owned(), list)).into());
}

#[test]
fn helm_finds_nothing_to_improve() {
    require_helm!();
    let output = run("lint", &json!({}));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !text.contains("[WARNING]"), "{text}");
}
