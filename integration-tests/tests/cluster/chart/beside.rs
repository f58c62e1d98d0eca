//! Objects that the chart installs beside agent and operator: Envoy, relay, the page of Hubble, certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use test_kit::{NetNs, Process, Sandbox, require, require_root, try_wait_until};

use super::{config, objects, render, require_helm, root};

const LIMIT: Duration = Duration::from_secs(60);
/// Where a bootstrap of the chart has the sockets that Envoy shares with the agent.
const SOCKETS: &str = "/var/run/cilium/envoy/sockets";

fn yaml(text: &str) -> Value {
    yaml_values::from_str(text).unwrap()
}

/// Returns the paths at which the first container of a workload has its mounts.
fn mounted(workload: &Value) -> BTreeSet<String> {
    let mounts = workload["spec"]["template"]["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
    mounts.iter().map(|mount| mount["mountPath"].as_str().unwrap().to_owned()).collect()
}

/// Asks a listener on the loopback address; returns the status and the body.
fn get(ns: &NetNs, port: u16, path: &str) -> Result<(u16, String), String> {
    let answer = || -> std::io::Result<String> {
        let mut stream = ns.run(|| TcpStream::connect(("127.0.0.1", port)))?;
        stream.write_all(
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes(),
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = answer().map_err(|error| error.to_string())?;
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| text.clone())?, text))
}

/// A real Envoy starts with the bootstrap of the chart, without its agent, and answers probes and Prometheus.
#[test]
fn envoy_starts_with_the_bootstrap_of_the_chart() {
    require_root!();
    require_helm!();
    let envoy = Command::new(root().join("tools/envoy")).arg("there").output().unwrap();
    require!(envoy.status.success(), "Envoy is not fetched: tools/envoy does it");
    let values = json!({"envoy": {"enabled": true, "initialFetchTimeoutSeconds": 1, "healthPort": 9879, "baseID": 3,
        "maxGlobalDownstreamConnections": 70, "debug": {"admin": {"enabled": true}}, "prometheus": {"port": 9965}}});
    let text = render(&values).unwrap();
    assert_eq!(config(&text)["external-envoy-proxy"], "true");
    let rendered = objects(&text);
    let bootstrap =
        rendered["ConfigMap/cilium-envoy-config"]["data"]["bootstrap-config.json"].as_str().unwrap();
    let sandbox = Sandbox::new().unwrap();
    let file = sandbox.dir().join("bootstrap-config.json");
    fs::write(&file, bootstrap.replace(SOCKETS, sandbox.dir().to_str().unwrap())).unwrap();

    let container = &rendered["DaemonSet/cilium-envoy"]["spec"]["template"]["spec"]["containers"][0];
    // Behind `--` are the arguments of Envoy itself.
    let arguments: Vec<&str> =
        container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    let (wrapper, arguments) = arguments.split_at(arguments.iter().position(|word| *word == "--").unwrap());
    assert_eq!(wrapper, [""; 0]);
    let arguments = arguments[1..].iter().map(|word| match *word {
        "/etc/cilium-envoy/bootstrap-config.json" => file.to_str().unwrap(),
        word => word,
    });
    let mut command = sandbox.host().command(String::from_utf8(envoy.stdout).unwrap().trim());
    command.args(arguments).args(["--concurrency", "1"]).stdout(Stdio::null()).stderr(Stdio::null());
    let _process = Process::start(&mut command).unwrap();
    let probe = &container["livenessProbe"]["httpGet"];
    let port = u16::try_from(probe["port"].as_u64().unwrap()).unwrap();
    let is_ready = || match get(sandbox.host(), port, probe["path"].as_str().unwrap())? {
        (200, _) => Ok(()),
        (status, text) => Err(format!("{status}: {text}")),
    };
    try_wait_until(LIMIT, is_ready).unwrap();
    let (_, metrics) = get(sandbox.host(), 9965, "/metrics").unwrap();
    for name in [
        "envoy_cluster_upstream_cx_connect_fail{envoy_cluster_name=\"xds-grpc-cilium\"}",
        "envoy_server_live",
    ] {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
    let (_, limits) = get(sandbox.host(), 9901, "/config_dump").unwrap();
    assert!(limits.contains("\"max_active_downstream_connections\": \"70\""), "{limits}");

    // Its container has what the bootstrap names, from where the agent has it.
    let daemon_set = &rendered["DaemonSet/cilium-envoy"];
    assert!(mounted(daemon_set).contains(SOCKETS));
    let volumes = daemon_set["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    let sockets = volumes.iter().find(|volume| volume["name"] == "envoy-sockets").unwrap();
    assert_eq!(sockets["hostPath"]["path"], SOCKETS);
    let without = objects(&render(&json!({})).unwrap());
    assert!(!without.contains_key("DaemonSet/cilium-envoy"));
}

/// Relay finds agents by the service of the chart, trusts their authority, and the page trusts that of relay.
#[test]
fn relay_and_page_are_wired_to_agents_and_to_each_other() {
    require_helm!();
    let relay = |tls: Value, server: bool| {
        let values = json!({"cluster": {"name": "west"}, "hubble": {
            "enabled": true, "tls": tls, "relay": {"enabled": true, "tls": {"server": {"enabled": server, "mtls": true}}},
            "ui": {"enabled": true, "baseUrl": "/flows/"},
        }});
        objects(&render(&values).unwrap())
    };
    let rendered = relay(json!({}), true);
    let options = yaml(rendered["ConfigMap/hubble-relay-config"]["data"]["config.yaml"].as_str().unwrap());
    assert_eq!(options["cluster-name"], "west");
    let peers = &rendered["Service/hubble-peer"];
    let address = format!("hubble-peer.kube-system.svc.cluster.local.:{}", peers["spec"]["ports"][0]["port"]);
    assert_eq!(options["peer-service"], Value::from(address));
    let deployment = &rendered["Deployment/hubble-relay"];
    let pod = &deployment["spec"]["template"]["spec"];
    let sources = pod["volumes"][1]["projected"]["sources"].as_array().unwrap();
    let files: BTreeSet<String> = sources
        .iter()
        .flat_map(|source| source["secret"]["items"].as_array().unwrap())
        .map(|item| format!("/var/lib/hubble-relay/tls/{}", item["path"].as_str().unwrap()))
        .collect();
    let named: BTreeSet<String> = options
        .as_object()
        .unwrap()
        .iter()
        .filter(|(key, _)| key.starts_with("tls-"))
        .map(|(_, file)| file.as_str().unwrap().to_owned())
        .collect();
    assert_eq!(named, files, "each file is mounted and used");
    assert_eq!(
        (options["disable-client-tls"].as_bool(), options["disable-server-tls"].as_bool()),
        (None, None)
    );
    let secrets = sources.iter().map(|source| source["secret"]["name"].as_str().unwrap());
    let page = &rendered["Deployment/hubble-ui"]["spec"]["template"]["spec"];
    let of_page = page["volumes"][2]["projected"]["sources"][0]["secret"]["name"].as_str().unwrap();
    let authority = &rendered["Secret/cilium-ca"]["data"]["ca.crt"];
    for secret in secrets.chain([of_page, "hubble-server-certs"]) {
        let data = &rendered[&format!("Secret/{secret}")]["data"];
        assert!(data["ca.crt"] == *authority && data["tls.crt"].is_string(), "{secret}");
    }
    let port = |object: &str| rendered[object]["spec"]["ports"][0].clone();
    assert_eq!(
        (&port("Service/hubble-relay")["port"], &port("Service/hubble-relay")["targetPort"]),
        (&json!(443), &json!("grpc"))
    );
    let variables = page["containers"][1]["env"].as_array().unwrap();
    let variable =
        |name: &str| variables.iter().find(|variable| variable["name"] == name).unwrap()["value"].clone();
    assert_eq!(variable("FLOWS_API_ADDR"), "hubble-relay:443");
    let server = rendered["ConfigMap/hubble-ui-nginx"]["data"]["nginx.conf"].as_str().unwrap();
    let backend =
        format!("proxy_pass http://127.0.0.1:{}/api;", variable("EVENTS_SERVER_PORT").as_str().unwrap());
    assert!(server.contains("location /flows/api {") && server.contains(&backend), "{server}");
    // Accounts without rights, but for the page's list of namespaces.
    let bound: Vec<&String> = rendered
        .keys()
        .filter(|name| name.ends_with("Binding/hubble-ui") || name.ends_with("Binding/hubble-relay"))
        .collect();
    assert_eq!(bound, ["ClusterRoleBinding/hubble-ui"]);
    assert_eq!(
        rendered["ClusterRole/hubble-ui"]["rules"],
        json!([{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"]}])
    );
    assert_eq!(pod["automountServiceAccountToken"], false);

    let plain = relay(json!({"enabled": false}), true);
    let options = yaml(plain["ConfigMap/hubble-relay-config"]["data"]["config.yaml"].as_str().unwrap());
    assert_eq!(options["peer-service"], "hubble-peer.kube-system.svc.cluster.local.:80");
    assert_eq!(
        (&options["disable-client-tls"], &options["disable-server-tls"]),
        (&json!(true), &json!(true))
    );
    assert!(!plain.keys().any(|name| name.starts_with("Secret/")));
    assert_eq!(plain["Service/hubble-relay"]["spec"]["ports"][0]["port"], 80);
}

/// Given certificates are those of the secrets; nothing is generated beside them.
#[test]
fn certificates_and_an_authority_that_are_given_are_used() {
    require_helm!();
    let [first, second, third] = ["Zmlyc3Q=", "c2Vjb25k", "dGhpcmQ="];
    let given = json!({"cert": first, "key": second});
    let values = json!({"tls": {"ca": {"cert": third}}, "hubble": {
        "enabled": true, "tls": {"server": given}, "relay": {"enabled": true, "tls": {"client": given}},
        "metrics": {"enabled": ["drop"], "tls": {"enabled": true, "server": given}},
    }});
    let rendered = objects(&render(&values).unwrap());
    for secret in ["hubble-server-certs", "hubble-relay-client-certs", "hubble-metrics-server-certs"] {
        let expected = json!({"ca.crt": third, "tls.crt": first, "tls.key": second});
        assert_eq!(rendered[&format!("Secret/{secret}")]["data"], expected, "{secret}");
    }
    assert!(!rendered.contains_key("Secret/cilium-ca"));

    // The authority of one rendering signs the certificates of another.
    let own = objects(&render(&json!({"hubble": {"enabled": true}})).unwrap());
    let authority = &own["Secret/cilium-ca"]["data"];
    let ca = json!({"cert": authority["ca.crt"], "key": authority["ca.key"]});
    let signed = objects(&render(&json!({"hubble": {"enabled": true}, "tls": {"ca": ca}})).unwrap());
    assert_eq!(signed["Secret/cilium-ca"]["data"], *authority);
    assert_eq!(signed["Secret/hubble-server-certs"]["data"]["ca.crt"], authority["ca.crt"]);
    assert_ne!(
        signed["Secret/hubble-server-certs"]["data"]["tls.crt"],
        own["Secret/hubble-server-certs"]["data"]["tls.crt"]
    );
}

/// Cert-manager is asked for the certificates that Helm would make, by the names of their secrets.
#[test]
fn certificates_of_cert_manager_are_those_that_helm_would_make() {
    require_helm!();
    let rendered = |auto: Value| {
        let values = json!({"cluster": {"name": "west-1"}, "hubble": {
            "enabled": true, "relay": {"enabled": true, "tls": {"server": {"enabled": true}}}, "ui": {"enabled": true},
            "metrics": {"enabled": ["drop"], "tls": {"enabled": true}},
            "tls": {"auto": auto, "server": {"extraDnsNames": ["hubble.example.org"], "extraIpAddresses": ["192.0.2.7"]}},
        }});
        objects(&render(&values).unwrap())
    };
    let names = |objects: &BTreeMap<String, Value>, kind: &str| -> BTreeSet<String> {
        objects.keys().filter_map(|name| name.strip_prefix(kind)).map(str::to_owned).collect()
    };
    let issuer = json!({"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "ca"});
    let asked = rendered(
        json!({"method": "certmanager", "certValidityDuration": 90, "certManagerIssuerRef": issuer}),
    );
    let mut made = names(&rendered(json!({})), "Secret/");
    assert!(made.remove("cilium-ca"));
    assert_eq!((names(&asked, "Certificate/"), names(&asked, "Secret/")), (made, BTreeSet::new()));
    let spec = &asked["Certificate/hubble-server-certs"]["spec"];
    assert_eq!(spec["secretName"], "hubble-server-certs");
    assert_eq!(spec["dnsNames"], json!(["*.west-1.hubble-grpc.cilium.io", "hubble.example.org"]));
    assert_eq!((&spec["ipAddresses"], &spec["duration"]), (&json!(["192.0.2.7"]), &json!("2160h0m0s")));
    assert_eq!(spec["issuerRef"], issuer);
}

/// The families that agents export: name, kind, labels, the feature that a missing one waits for.
const EXPORTED: &str = include_str!("../../node/recorded_metrics.tsv");

/// Each metric of the dashboard is one that an agent exports, with the labels by which it is grouped.
#[test]
fn the_dashboard_shows_metrics_of_the_agent() {
    require_helm!();
    let values = json!({"dashboards": {"enabled": true, "namespace": "monitoring", "labelValue": "2"}});
    let object = objects(&render(&values).unwrap()).remove("ConfigMap/cilium-dashboard").unwrap();
    assert_eq!(object["metadata"]["namespace"], "monitoring");
    assert_eq!(object["metadata"]["labels"]["grafana_dashboard"], "2");
    let dashboard: Value =
        serde_json::from_str(object["data"]["cilium-dashboard.json"].as_str().unwrap()).unwrap();
    let exported: BTreeMap<&str, BTreeSet<&str>> = EXPORTED
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .filter(|row| ["", "(in use)"].contains(&row[3]))
        .map(|row| (row[0], row[2].split(',').collect()))
        .collect();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut shown = BTreeSet::new();
    for target in targets {
        let query = target["expr"].as_str().unwrap();
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let name =
            query.split(|letter| !is_word(letter)).find_map(|word| word.strip_prefix("cilium_")).unwrap();
        let labels = exported.get(name).unwrap_or_else(|| panic!("{name} is not exported: {query}"));
        let groups = query.split("by (").nth(1).map(|rest| rest.split(')').next().unwrap());
        let selected = query.split('{').nth(1).map(|rest| rest.split('=').next().unwrap());
        let legend = target["legendFormat"].as_str().unwrap().split("{{").skip(1);
        let of_legend = legend.map(|rest| rest.split("}}").next().unwrap());
        for label in groups.into_iter().flat_map(|list| list.split(", ")).chain(selected).chain(of_legend) {
            assert!(labels.contains(label), "{name} has no label {label}: {query}");
        }
        shown.insert(name.to_owned());
    }
    assert!(shown.len() >= 12, "{shown:?}");
}
