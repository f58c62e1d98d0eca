//! `apiary get` beside `kubectl get`: the same objects, columns and words, from a real API server and from a folder.

use std::process::Output;
use std::time::Duration;

use integration_tests::{Cluster, Node};
use k8s_types::core::Service;
use k8s_types::decode;
use k8s_types::schema::custom_resource_definitions;
use serde_json::{Value, json};
use test_kit::{require_root, try_wait_until};

const LIMIT: Duration = Duration::from_secs(120);

/// Resources with the columns of kubectl that the agent has no data for, without and with `-o wide`.
const RESOURCES: &[(&str, &[&str], &[&str])] = &[
    ("pods", &["READY", "RESTARTS"], &["NOMINATED NODE", "READINESS GATES"]),
    ("services", &[], &[]),
    ("endpointslices", &[], &[]),
    ("namespaces", &[], &[]),
    ("nodes", &["VERSION"], &["OS-IMAGE", "KERNEL-VERSION", "CONTAINER-RUNTIME"]),
    ("networkpolicies", &[], &[]),
    ("ciliumnetworkpolicies", &["VALID"], &[]),
    ("ciliumclusterwidenetworkpolicies", &["VALID"], &[]),
    ("ciliumcidrgroups", &[], &[]),
    ("ciliumidentities", &[], &[]),
    ("ciliumendpoints", &[], &[]),
    ("ciliumnodes", &[], &[]),
];

const OBJECTS: &str = r#"
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Pod, metadata: {name: web-0, namespace: default, labels: {app: web, tier: front}},
   spec: {nodeName: node-1, containers: [{name: c, image: i}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: database-0, namespace: default, labels: {app: db}},
   spec: {nodeName: node-1, containers: [{name: c, image: i}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: agent, namespace: kube-system},
   spec: {nodeName: node-1, containers: [{name: c, image: i}]}}
- {apiVersion: v1, kind: Namespace, metadata: {name: leaving}}
- {apiVersion: v1, kind: Service, metadata: {name: web, namespace: default},
   spec: {type: NodePort, selector: {app: web, tier: front}, externalIPs: [192.0.2.1, 192.0.2.2],
     ports: [{name: http, port: 80, nodePort: 30080}, {name: dns, port: 53, protocol: UDP, nodePort: 30053}]}}
- {apiVersion: v1, kind: Service, metadata: {name: headless, namespace: default},
   spec: {clusterIP: None, ports: [{port: 80}]}}
- {apiVersion: v1, kind: Service, metadata: {name: waiting, namespace: default},
   spec: {type: LoadBalancer, ports: [{port: 443, nodePort: 30443}]}}
- {apiVersion: v1, kind: Service, metadata: {name: balanced, namespace: kube-system},
   spec: {type: LoadBalancer, externalIPs: [192.0.2.3], ports: [{port: 443, nodePort: 30444}]}}
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: empty, namespace: default}, addressType: IPv6,
   endpoints: [], ports: []}
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: many, namespace: default}, addressType: IPv4,
   endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}, {addresses: [10.0.0.3]}, {addresses: [10.0.0.4]}],
   ports: [{name: a, port: 1}, {name: b, port: 2}, {name: c, port: 3}, {name: d, port: 4}]}
- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: some, namespace: default},
   spec: {podSelector: {matchLabels: {tier: front}, matchExpressions: [
     {key: app, operator: In, values: [web, db]}, {key: zone, operator: DoesNotExist}, {key: x, operator: Exists},
     {key: "y", operator: NotIn, values: [b, a]}]}}}
- {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: all, namespace: default},
   spec: {podSelector: {}}}
- {apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: rules, namespace: default},
   spec: {endpointSelector: {}, ingress: [{}]}}
- {apiVersion: cilium.io/v2, kind: CiliumClusterwideNetworkPolicy, metadata: {name: rules},
   spec: {endpointSelector: {}, ingress: [{}]}}
- {apiVersion: cilium.io/v2, kind: CiliumCIDRGroup, metadata: {name: offices}, spec: {externalCIDRs: [192.0.2.0/24]}}
- {apiVersion: cilium.io/v2, kind: CiliumIdentity,
   metadata: {name: "7000", labels: {io.kubernetes.pod.namespace: default}}, security-labels: {"k8s:app": web}}
- {apiVersion: cilium.io/v2, kind: CiliumIdentity, metadata: {name: "7001"}, security-labels: {"k8s:app": db}}
- {apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: node-9}, spec: {addresses: [
     {type: InternalIP, ip: 192.0.2.9}, {type: InternalIP, ip: "2001:db8::9"}, {type: CiliumInternalIP, ip: 10.0.9.1}]}}
- {apiVersion: cilium.io/v2, kind: CiliumEndpoint, metadata: {name: web-0, namespace: default}, status: {
     identity: {id: 7000}, state: ready, policy: {ingress: {enforcing: true, state: enforcing}},
     networking: {node: 192.0.2.1, addressing: [{ipv4: 10.0.0.5, ipv6: "fd00::5"}]}}}
- {apiVersion: cilium.io/v2, kind: CiliumEndpoint, metadata: {name: database-0, namespace: default}, status: {}}
"#;

/// Writes the status, which the server drops when the object is created.
fn settle(cluster: &Cluster) {
    let patch = |what: &[&str], status: Value| {
        let patch = json!({"status": status}).to_string();
        let words = [&["patch"], what, &["--subresource=status", "--type=merge", "-p", &patch]].concat();
        cluster.stage.kubectl(&words).unwrap();
    };
    let running = json!({"phase": "Running", "podIP": "10.0.0.5", "podIPs": [{"ip": "10.0.0.5"}]});
    patch(&["pod", "web-0"], running);
    patch(
        &["service", "balanced", "-n", "kube-system"],
        json!({"loadBalancer": {"ingress": [
            {"ip": "203.0.113.9"}, {"hostname": "a-long-name.example.org"},
        ]}}),
    );
    patch(
        &["node", Cluster::NODE],
        json!({
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "ExternalIP", "address": "203.0.113.1"}],
        }),
    );
    let label =
        ["label", "node", Cluster::NODE, "node-role.kubernetes.io/worker=", "kubernetes.io/role=edge"];
    cluster.stage.kubectl(&label).unwrap();
    cluster.stage.kubectl(&["delete", "namespace", "leaving", "--wait=false"]).unwrap();
}

/// Headings, and rows with a cell for each: a heading stands where its column begins.
fn columns(text: &str) -> (Vec<String>, Vec<Vec<String>>) {
    let mut lines = text.lines();
    let headings = lines.next().unwrap_or_default();
    let begins: Vec<usize> = (0..headings.len())
        .filter(|&at| !headings[at..].starts_with(' ') && (at == 0 || headings[..at].ends_with("   ")))
        .collect();
    let cells = |line: &str| -> Vec<String> {
        let end = |at: usize| begins.get(at + 1).copied().unwrap_or(usize::MAX);
        let cell = |(at, begin): (usize, &usize)| {
            line.chars().take(end(at)).skip(*begin).collect::<String>().trim().to_owned()
        };
        begins.iter().enumerate().map(cell).collect()
    };
    (cells(headings), lines.map(cells).collect())
}

/// `1m5s` in seconds.
fn seconds(age: &str) -> u64 {
    let mut total = 0;
    let mut number = 0;
    for character in age.chars() {
        match character.to_digit(10) {
            Some(digit) => number = number * 10 + u64::from(digit),
            None => {
                total += number * if character == 'm' { 60 } else { 1 };
                number = 0;
            }
        }
    }
    total
}

/// kubectl and the tool show the same of a resource, but for the columns that the tool lacks.
fn compare(cluster: &Cluster, words: &[&str], missing: &[&str]) -> Result<(), String> {
    let words = [&["get"], words].concat();
    let ours = || columns(&cluster.node.apiary(&words));
    let ((headings, before), kubectl, (_, after)) = (ours(), cluster.stage.kubectl(&words).unwrap(), ours());
    let (expected, rows) = columns(&kubectl);
    let have: Vec<&String> = expected.iter().filter(|heading| !missing.contains(&heading.as_str())).collect();
    assert_eq!(headings.iter().collect::<Vec<_>>(), have, "{words:?}");
    assert_eq!(expected.len() - have.len(), missing.len(), "{words:?}: {expected:?}");
    let differ = |what: &str| Err(format!("{words:?}: {what}\n{before:#?}\nis not\n{kubectl}"));
    if (before.len(), after.len()) != (rows.len(), rows.len()) {
        return differ("other rows");
    }
    for (at, heading) in headings.iter().enumerate() {
        let theirs = expected.iter().position(|one| one == heading).unwrap();
        for ((row, before), after) in rows.iter().zip(&before).zip(&after) {
            let (row, before, after) = (&row[theirs], &before[at], &after[at]);
            let same = match heading.as_str() {
                "AGE" => (seconds(before)..=seconds(after)).contains(&seconds(row)),
                _ => row == before,
            };
            if !same {
                return differ(&format!("{heading} {before} and {row}"));
            }
        }
    }
    Ok(())
}

fn reported(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

fn ours(node: &Node, words: &[&str]) -> (String, String, Option<i32>) {
    reported(&node.apiary_command(&[&["get"], words].concat()).output().unwrap())
}

#[test]
fn what_the_agent_holds_is_shown_as_kubectl_shows_it() {
    require_root!();
    let mut cluster = Cluster::new(&custom_resource_definitions());
    cluster.stage.apply(OBJECTS).unwrap();
    settle(&cluster);
    cluster.start();
    cluster.until_equal();
    for (resource, missing, missing_wide) in RESOURCES {
        let all = [*missing, *missing_wide].concat();
        for (words, missing) in [
            (vec![*resource], *missing),
            (vec![*resource, "-A", "-o", "wide"], &all),
            (vec![*resource, "-A", "--show-labels"], *missing),
        ] {
            try_wait_until(LIMIT, || compare(&cluster, &words, missing)).unwrap();
        }
    }
    for words in [
        &["po", "-l", "app in (web),tier=front"][..],
        &["po", "database-0", "web-0"],
        &["pods", "-n", "kube-system", "--field-selector", "metadata.name=agent"],
    ] {
        compare(&cluster, words, &["READY", "RESTARTS"]).unwrap();
    }
    // Without ages the output is equal, and so are errors.
    for words in [
        &["cep", "-A"][..],
        &["cep", "-o", "wide"],
        &["ciliumendpoint", "web-0", "--no-headers"],
        &["pods,svc", "-A", "-o", "name"],
        &["cnp/rules", "netpol/all", "-o", "name"],
        &["svc", "-n", "leaving"],
        &["svc", "-A", "-l", "none"],
        &["pods", "none", "web-0", "-o", "name"],
        &["ciliumnodes", "none"],
        &["svc", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"],
        &["cn", "-o", "jsonpath={.items[?(@.kind==\"CiliumNode\")].metadata.name}"],
    ] {
        let (mut output, errors, code) = ours(&cluster.node, words);
        if words.iter().any(|word| word.starts_with("jsonpath")) {
            // Our tools end their output with the line.
            assert_eq!(output.pop(), Some('\n'));
        }
        let kubectl = cluster.stage.kubectl_command(&[&["get"], words].concat()).output().unwrap();
        assert_eq!((output, errors, code), reported(&kubectl), "{words:?}");
    }
    documents(&cluster);
    incomplete(&mut cluster);
}

/// JSON and YAML have the fields of the types.
fn documents(cluster: &Cluster) {
    let (text, ..) = ours(&cluster.node, &["svc", "web", "-o", "json"]);
    let expected = cluster.stage.kubectl(&["get", "svc", "web", "-o", "json"]).unwrap();
    let read = |text: &str| decode::<Service>(text.as_bytes()).unwrap();
    assert_eq!(read(&text), read(&expected));
    assert!(text.starts_with("{\n    \"apiVersion\": \"v1\",\n    \"kind\": \"Service\",\n"), "{text}");
    // All lines of ours are lines of kubectl's.
    let yaml = ours(&cluster.node, &["svc", "web", "-o", "yaml"]).0;
    let expected = cluster.stage.kubectl(&["get", "svc", "web", "-o", "yaml"]).unwrap();
    let mut lines = expected.lines();
    for line in yaml.lines() {
        assert!(lines.any(|expected| expected == line), "{line:?} of\n{yaml}\nis not in\n{expected}");
    }
    let list: Value = serde_json::from_str(&ours(&cluster.node, &["svc", "-A", "-o", "json"]).0).unwrap();
    let expected = cluster.stage.get(&["svc", "-A"]).unwrap();
    let names = |list: &Value| -> Vec<Value> {
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].clone()).collect()
    };
    assert_eq!((&list["kind"], names(&list)), (&expected["kind"], names(&expected)));
    assert_eq!(list["metadata"], expected["metadata"]);
}

/// An agent without data of its cluster reports that, and a stopped one leads to an error.
fn incomplete(cluster: &mut Cluster) {
    cluster.node.stop();
    let (output, errors, code) = ours(&cluster.node, &["pods"]);
    assert_eq!((output.as_str(), code), ("", Some(1)));
    assert!(errors.starts_with("Error: dial ") && errors.ends_with("Is the agent running?\n"), "{errors}");
    cluster.gate.close();
    let mut command = cluster.node.agent_command();
    command.env("K8S_NODE_NAME", Cluster::NODE);
    cluster.node.spawn_command(command);
    let warning = "Warning: the agent may not have all pods yet: it waits for ";
    let answered = |node: &Node| match ours(node, &["pods"]) {
        (output, errors, Some(0)) => Ok((output, errors)),
        (_, errors, _) => Err(errors),
    };
    let (output, errors) = try_wait_until(LIMIT, || answered(&cluster.node)).unwrap();
    assert_eq!(output, "");
    assert!(
        errors.starts_with(warning) && errors.contains("No resources found in default namespace."),
        "{errors}"
    );
    cluster.gate.open();
    cluster.node.wait_ready();
    let complete = || match answered(&cluster.node)? {
        (output, errors) if errors.is_empty() => Ok(output),
        (_, errors) => Err(errors),
    };
    let output = try_wait_until(LIMIT, complete).unwrap();
    assert!(output.contains("web-0 "), "{output}");
}

#[test]
fn objects_of_a_folder_are_shown_in_the_same_way() {
    require_root!();
    let mut node = Node::new();
    node.start();
    node.apply(
        "shop.yaml",
        "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n---\n\
         {apiVersion: v1, kind: Pod, metadata: {name: web-0, namespace: shop, labels: {app: web}},\n \
          spec: {containers: [{name: c}]}, status: {phase: Running, podIP: 10.244.0.9}}\n---\n\
         {apiVersion: v1, kind: Pod, metadata: {name: db-0, namespace: shop}, spec: {containers: [{name: c}]}}\n---\n\
         {apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop, creationTimestamp: '2020-01-01T00:00:00Z'},\n \
          spec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}}\n---\n\
         {apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: rules, namespace: shop},\n \
          spec: {endpointSelector: {}, ingress: [{}]}}\n",
    );
    let get = |words: &[&str]| ours(&node, words).0;
    let pods = "NAME    STATUS      AGE\ndb-0    <unknown>   <unknown>\nweb-0   Running     <unknown>\n";
    try_wait_until(LIMIT, || match get(&["pods", "-n", "shop"]) {
        text if text == pods => Ok(()),
        text => Err(text),
    })
    .unwrap();
    assert_eq!(get(&["po", "-A", "-l", "app=web", "--no-headers"]), "shop   web-0   Running   <unknown>\n");
    let (headings, rows) = columns(&get(&["svc", "-A", "-o", "wide"]));
    assert_eq!(headings.join("|"), "NAMESPACE|NAME|TYPE|CLUSTER-IP|EXTERNAL-IP|PORT(S)|AGE|SELECTOR");
    assert_eq!(
        (rows.len(), rows[0][..6].join("|")),
        (1, "shop|web|ClusterIP|10.96.0.9|<none>|80/TCP".to_owned())
    );
    assert!(rows[0][6].contains('y'), "{rows:?}");
    assert_eq!(get(&["cnp", "-A", "-o", "name"]), "ciliumnetworkpolicy.cilium.io/rules\n");
    let policy: Value = serde_json::from_str(&get(&["cnp", "rules", "-n", "shop", "-o", "json"])).unwrap();
    assert_eq!(policy["spec"], json!({"endpointSelector": {}, "ingress": [{}]}));
    let (_, errors, code) = ours(&node, &["ingresses"]);
    assert!(
        errors.contains("there is no resource type \"ingresses\"; the agent has pods (po), "),
        "{errors}"
    );
    assert_eq!(code, Some(1));
}
