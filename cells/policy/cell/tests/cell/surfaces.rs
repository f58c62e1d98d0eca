use api::{Operation, Page, Query, Request, Response};
use ipcache::{IpcacheWriter, Mapping, Source};
use serde_json::{Value, json};

use crate::kit::{Agent, TCP, World, allow, allow_cidr};

async fn body(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    (status, serde_json::from_slice(&response.body().await).unwrap())
}

async fn get(agent: &Agent, operation: Operation) -> Value {
    let routes = agent.surfaces.lock().unwrap().0.clone();
    let route = routes.iter().find(|route| route.operation() == operation).unwrap();
    let (status, body) = body(route.call(Request::new(operation, &[])).await).await;
    assert_eq!(status, 200);
    body
}

async fn why(agent: &Agent, query: &[(&str, &str)]) -> (u16, Value) {
    let page = page(agent, "why");
    body(page.call(query.iter().copied().collect::<Query>()).await).await
}

fn page(agent: &Agent, name: &str) -> Page {
    agent.surfaces.lock().unwrap().1.iter().find(|page| page.name() == name).unwrap().clone()
}

async fn preview(agent: &Agent, manifests: Value, flows: Value) -> (u16, Value) {
    let request = json!({"manifests": manifests, "flows": flows}).to_string();
    body(page(agent, "policy-preview").call_with(Query::default(), request.into()).await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_repository_and_its_selectors_are_formatted_as_in_cilium() {
    let mut world = World::new();
    world.write(&[], true);
    let agent = world.start().await;
    assert_eq!(get(&agent, Operation::GetPolicy).await, json!({"policy": "[]", "revision": 1}));
    assert_eq!(get(&agent, Operation::GetPolicySelectors).await, json!([]));
    let (web, client) = (world.subject(7, "web"), world.subject(8, "client"));
    world.write(
        &[("web", allow("web", "client", 80)), ("world", allow_cidr("web", &["192.0.2.0/24"]))],
        false,
    );
    agent.hive.until("the policies", || agent.policies.revision() == 3).await;

    let policy = get(&agent, Operation::GetPolicy).await;
    assert_eq!(policy["revision"], 3);
    let rules: Value = serde_json::from_str(policy["policy"].as_str().unwrap()).unwrap();
    let expected = json!({
        "Tier": 200, "Priority": 0, "Authentication": null, "Log": {},
        "Subject": {"matchLabels": {"any:app": "web", "k8s:io.kubernetes.pod.namespace": "shop"}},
        "L3": [{"matchLabels": {
            "any:app": "client",
            "k8s:io.cilium.k8s.policy.cluster": "default",
            "k8s:io.kubernetes.pod.namespace": "shop",
        }}],
        "L4": [{"ports": [{"port": "80", "protocol": "TCP"}]}],
        "Labels": rules[0]["Labels"],
        "DefaultDeny": true, "Verdict": 0, "Ingress": true, "Node": false,
    });
    assert_eq!(rules[0], expected);
    assert_eq!(rules[1]["L3"], json!(["cidr:192.0.2.0/24"]));
    assert_eq!(rules[1]["L4"], json!([]));
    // Go's indentation and order of fields.
    assert!(
        policy["policy"].as_str().unwrap().starts_with("[\n  {\n    \"Tier\": 200,\n    \"Priority\": 0,")
    );

    let metric = |line: &str| world.metrics.text().lines().any(|found| found == line);
    agent.hive.until("metrics", || metric("cilium_policy 2") && metric("cilium_policy_max_revision 3")).await;

    let selectors = get(&agent, Operation::GetPolicySelectors).await;
    let text = "&LabelSelector{MatchLabels:map[string]string{any:app: client,k8s:io.cilium.k8s.policy.cluster: default,\
                k8s:io.kubernetes.pod.namespace: shop,},MatchExpressions:[]LabelSelectorRequirement{},}";
    let found = selectors.as_array().unwrap().iter().find(|row| row["selector"] == text).unwrap();
    assert_eq!((&found["identities"], &found["users"]), (&json!([client.identity]), &json!(1)));
    assert_eq!(found["labels"][0][0]["source"], "k8s");
    // Of the subjects, only identities of this node's endpoints are listed: the engine knows one of another node.
    let subjects = async || get(&agent, Operation::GetPolicySubjectSelectors).await;
    let found = subjects().await;
    assert_eq!((&found[0]["identities"], &found[0]["users"]), (&json!([]), &json!(2)));
    world.pod(7, "web");
    agent.policies.enforce(web.clone());
    agent.policies.realized(7).await.unwrap();
    assert_eq!(subjects().await[0]["identities"], json!([web.identity]));
    agent.policies.forget(7);
    assert_eq!(subjects().await[0]["identities"], json!([]));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_returns_the_rule_the_row_and_the_drop() {
    let mut world = World::new();
    let mut rule = allow("web", "client", 80);
    rule["log"] = json!({"value": "to web"});
    world.write(&[("web", rule)], true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.pod(8, "client"));
    for (subject, name, ip) in [(&web, "web-0", "10.0.0.7/32"), (&client, "client-0", "10.0.0.8/32")] {
        let pod = ipcache::Pod { namespace: "shop".into(), name: name.into() };
        let mapping = of_pod(subject.identity, pod);
        let resource = format!("endpoint/{}", subject.endpoint);
        let ipcache = agent.hive.get::<IpcacheWriter>();
        ipcache.upsert(ip.parse().unwrap(), Source::Local, &resource, mapping);
        agent.policies.enforce(subject.clone());
    }
    for endpoint in [7, 8] {
        agent.policies.realized(endpoint).await.unwrap();
    }

    for (source, destination) in [("shop/client-0", "shop/web-0"), ("8", "7"), ("10.0.0.8", "10.0.0.7")] {
        let query = [("src", source), ("dst", destination), ("port", "80")];
        let (status, answer) = why(&agent, &query).await;
        assert_eq!((status, &answer["allowed"]), (200, &json!(true)), "{answer}");
        assert_eq!(answer["destination"]["pod"], "shop/web-0");
        assert_eq!(answer["source"]["identity"], client.identity);
        let ingress = &answer["ingress"];
        assert_eq!(ingress["rules"][0]["object"], "cnp/shop/web");
        assert_eq!(ingress["rules"][0]["path"], "spec.ingress[0]");
        assert_eq!(ingress["rules"][0]["origins"], json!(["web.yaml, document 1"]));
        assert!(ingress["rules"][0]["selector"].as_str().unwrap().contains("any:app: client"));
        let entry = json!({
            "identity": client.identity, "protocol": "TCP", "first_port": 80, "last_port": 80, "deny": false,
            "precedence": 0xffff_ff01_u32, "proxy_port": 0, "auth_type": 0, "cookie": 1, "log": ["to web"],
        });
        assert_eq!(ingress["entry"], entry);
        assert_eq!((&ingress["revision"], &ingress["differs"]), (&json!(2), &json!(false)));
        assert_eq!(
            (&answer["egress"]["allowed"], &answer["egress"]["enforced"]),
            (&json!(true), &json!(false))
        );
    }
    // The same flow with another port is denied.
    let (_, answer) = why(&agent, &[("src", "8"), ("dst", "7"), ("port", "81")]).await;
    assert_eq!(answer["allowed"], false);
    assert_eq!(answer["ingress"]["drop"], json!({"code": 133, "text": "Policy denied"}));
    assert_eq!(answer["ingress"]["entry"], Value::Null);
    let reason = answer["ingress"]["reason"].clone();
    assert_eq!(reason, "denied: the one rule that selects the endpoint does not match");

    // An endpoint in audit mode lets it pass, which the response reports.
    let flags = datapath_abi::ep_flag::POLICY_AUDIT;
    let audited = datapath_api::EndpointDatapath { id: 7, ifindex: 7, flags, ..Default::default() };
    world.datapath.attach(&audited).unwrap();
    let (_, answer) = why(&agent, &[("src", "8"), ("dst", "7"), ("port", "81")]).await;
    assert_eq!((&answer["allowed"], &answer["ingress"]["audited"]), (&json!(true), &json!(true)));
    assert_eq!(answer["ingress"]["reason"], reason);
    let text = world.metrics.text();
    assert!(
        text.contains("cilium_policy_endpoint_enforcement_status{enforcement=\"audit-ingress\"} 1"),
        "{text}"
    );
    world.pod(7, "web");

    // Entries that another program has written take effect, and are reported.
    let everyone = (datapath_abi::PolicyKey::any(false), datapath_abi::PolicyEntry::allow(0));
    world.datapath.write_policy(7, &[datapath_api::PolicyWrite::Set(everyone.0, everyone.1)]).unwrap();
    let (_, answer) = why(&agent, &[("src", "8"), ("dst", "7"), ("port", "81")]).await;
    assert_eq!((&answer["allowed"], &answer["ingress"]["differs"]), (&json!(true), &json!(true)));

    for (query, status, text) in [
        (vec![("src", "8")], 400, "parameter dst is missing"),
        (vec![("src", "8"), ("dst", "x")], 400, "parameter dst: 'x' is wrong"),
        (vec![("src", "8"), ("dst", "shop/nobody")], 404, "nothing is known of 'shop/nobody'"),
        (vec![("src", "8"), ("dst", "7"), ("port", "99999")], 400, "a number from 0 to 65535"),
        (vec![("src", "8"), ("dst", "7"), ("protocol", "xyz")], 400, "tcp, udp"),
    ] {
        let (found, answer) = why(&agent, &query).await;
        assert_eq!(found, status, "{answer}");
        assert!(answer.as_str().unwrap().contains(text), "{answer}");
    }
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preview_lists_the_flows_that_policies_would_cut_and_applies_nothing() {
    let mut world = World::new();
    world.write(&[("web", allow("web", "client", 80))], true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.pod(8, "client"));
    let ipcache = agent.hive.get::<IpcacheWriter>();
    for subject in [&web, &client] {
        let pod = ipcache::Pod { namespace: "shop".into(), name: format!("p{}", subject.endpoint).into() };
        let mapping = of_pod(subject.identity, pod);
        let (address, resource) =
            (format!("10.0.0.{}/32", subject.endpoint), format!("endpoint/{}", subject.endpoint));
        ipcache.upsert(address.parse().unwrap(), Source::Local, &resource, mapping);
        agent.policies.enforce(subject.clone());
    }
    for endpoint in [7, 8] {
        agent.policies.realized(endpoint).await.unwrap();
    }
    let flow = |from: &str, to: &str, port: u16| json!({"source": from, "destination": to, "protocol": 6, "port": port});
    let flows = json!([
        flow("10.0.0.8", "10.0.0.7", 80),
        flow("10.0.0.8", "10.0.0.7", 81),
        flow("10.0.0.8", "192.0.2.1", 443),
        flow("10.0.0.8", "198.51.100.1", 443),
        flow("192.0.2.1", "198.51.100.1", 443),
    ]);
    let policy = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "cilium.io/v2", "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec,
        })
    };
    let cut = |answer: &Value| -> Vec<(u64, String)> {
        let list = answer["cut"].as_array().unwrap_or_else(|| panic!("{answer}"));
        list.iter()
            .map(|cut| (cut["index"].as_u64().unwrap(), cut["direction"].as_str().unwrap().to_owned()))
            .collect()
    };
    let (of_ingress, of_egress) = ("ingress".to_owned(), "egress".to_owned());
    let (revision, calls) = (agent.policies.revision(), world.fake.calls().len());

    // The present policy with another port.
    let other = json!([policy("CiliumNetworkPolicy", "web", allow("web", "client", 81))]);
    let (status, answer) = preview(&agent, other, flows.clone()).await;
    assert_eq!((status, &answer["revision"]), (200, &json!(revision)));
    assert_eq!(answer["policies"], json!([{"policy": "cnp/shop/web", "is_new": false, "warnings": []}]));
    assert_eq!((&answer["decided"], &answer["denied"]), (&json!(4), &json!(1)));
    assert_eq!(cut(&answer), [(0, of_ingress.clone())]);
    let first = &answer["cut"][0];
    assert_eq!((&first["source_pod"], &first["destination_pod"]), (&json!("shop/p8"), &json!("shop/p7")));
    assert_eq!((&first["endpoint"], &first["protocol_name"]), (&json!(7), &json!("TCP")));
    assert_eq!(first["reason"], "denied: the one rule that selects the endpoint does not match");

    // A new policy with a prefix that has no identity yet: the address inside stays allowed, that outside does not.
    let egress =
        |rules: Value| json!({"endpointSelector": {"matchLabels": {"app": "client"}}, "egress": rules});
    let rules = json!([{"toCIDR": ["192.0.2.0/24"]}, {"toEndpoints": [{"matchLabels": {"app": "web"}}]}]);
    let new = json!([policy("CiliumNetworkPolicy", "new", egress(rules))]);
    let (_, answer) = preview(&agent, new, flows.clone()).await;
    assert_eq!(
        (cut(&answer), &answer["policies"][0]["is_new"]),
        (vec![(3, of_egress.clone())], &json!(true))
    );

    // A deny by rule; the control is a policy that cuts nothing.
    let deny = json!({"endpointSelector": {}, "ingressDeny": [{"fromEndpoints": [{"matchLabels": {"app": "client"}}]}]});
    let (_, answer) =
        preview(&agent, json!([policy("CiliumNetworkPolicy", "deny", deny)]), flows.clone()).await;
    assert_eq!(cut(&answer), [(0, of_ingress)]);
    assert_eq!(answer["cut"][0]["reason"], "denied by cnp/shop/deny spec.ingressDeny[0]");
    let (_, answer) =
        preview(&agent, json!([policy("CiliumNetworkPolicy", "none", allow("x", "y", 1))]), flows).await;
    assert_eq!(cut(&answer), []);

    // Nothing was applied, and invalid manifests are refused by path, all of them.
    assert_eq!((agent.policies.revision(), world.fake.calls().len()), (revision, calls));
    assert!(world.ingress(7, client.identity, TCP | 80) && agent.statuses().len() == 1);
    let mut wrong = allow("web", "client", 80);
    wrong["ingress"][0]["toPorts"][0]["ports"][0]["port"] = "99999".into();
    let wrong = json!([
        policy("CiliumNetworkPolicy", "wrong", wrong),
        policy("Pod", "p", json!({})),
        {"apiVersion": "v1", "kind": "NetworkPolicy", "metadata": {"name": "x"}, "spec": {}},
    ]);
    let (status, answer) = preview(&agent, wrong, json!([])).await;
    let lines: Vec<&str> = answer.as_str().unwrap().lines().collect();
    assert_eq!((status, lines.len()), (400, 3), "{answer}");
    assert!(
        lines[0].starts_with("document 1: cnp/shop/wrong: spec.ingress[0].toPorts[0].ports[0].port"),
        "{answer}"
    );
    assert!(lines[1].starts_with("document 2: kind: \"Pod\": is none of"), "{answer}");
    assert!(
        lines[2].starts_with("document 3: apiVersion: \"v1\": NetworkPolicy has networking.k8s.io/v1"),
        "{answer}"
    );
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_have_the_packets_of_the_rows_that_they_decide() {
    let mut world = World::new();
    let mut web = allow("web", "client", 80);
    let rules = web["ingress"].as_array_mut().unwrap();
    // Two rules share a row, one has no peer here.
    rules.push(rules[0].clone());
    rules.push(allow("web", "absent", 80)["ingress"][0].clone());
    web["ingressDeny"] =
        json!([{"toPorts": [{"ports": [{"port": "6000", "endPort": 6015, "protocol": "TCP"}]}]}]);
    let texts = [("web", web), ("idle", allow("idle", "client", 80))];
    world.write(&texts.each_ref().map(|(name, spec)| (*name, spec.clone())), true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.pod(8, "client"));
    for subject in [&web, &client] {
        agent.policies.enforce(subject.clone());
        agent.policies.realized(subject.endpoint).await.unwrap();
    }
    let key = |endpoint_id, sec_label, dport: u16, prefix_len| datapath_abi::PolicyStatsKey {
        endpoint_id,
        pad1: 0,
        prefix_len,
        sec_label,
        egress: 0,
        protocol: 6,
        dport: dport.to_be(),
    };
    let value = |packets, bytes| datapath_abi::PolicyStatsValue { packets, bytes };
    world.fake.set_policy_counts([
        (key(7, client.identity, 80, 24), value(3, 300)),
        (key(7, 0, 6000, 20), value(2, 80)),
        // An endpoint that is gone, and a row of a policy that is no longer in force.
        (key(9, client.identity, 80, 24), value(100, 100)),
        (key(7, client.identity, 81, 24), value(100, 100)),
    ]);
    let (status, answer) = body(page(&agent, "policy-rules").call(Query::default()).await).await;
    assert_eq!((status, &answer["revision"]), (200, &json!(agent.policies.revision())));
    let found: Vec<_> = answer["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| {
            let text = |name: &str| rule[name].as_str().unwrap();
            let number = |name: &str| rule[name].as_u64().unwrap();
            (
                format!("{} {} {}", text("object"), text("path"), text("action")),
                number("endpoints"),
                number("packets"),
                number("bytes"),
            )
        })
        .collect();
    let expected = [
        ("cnp/shop/idle spec.ingress[0] allow", 0, 0, 0),
        ("cnp/shop/web spec.ingressDeny[0] deny", 1, 2, 80),
        ("cnp/shop/web spec.ingress[0] allow", 1, 3, 300),
        ("cnp/shop/web spec.ingress[1] allow", 1, 3, 300),
        ("cnp/shop/web spec.ingress[2] allow", 1, 0, 0),
    ];
    assert_eq!(
        found,
        expected.map(|(rule, endpoints, packets, bytes)| (rule.to_owned(), endpoints, packets, bytes))
    );
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rows_of_an_endpoint_are_listed_with_their_rules_as_in_cilium() {
    let mut world = World::new();
    let mut web = allow("web", "client", 80);
    web["ingressDeny"] =
        json!([{"toPorts": [{"ports": [{"port": "6000", "endPort": 6015, "protocol": "TCP"}]}]}]);
    web["log"] = json!({"value": "to web"});
    world.write(&[("web", web)], true);
    let agent = world.start().await;
    let (web, client) = (world.pod(7, "web"), world.pod(8, "client"));
    for subject in [&web, &client] {
        agent.policies.enforce(subject.clone());
        agent.policies.realized(subject.endpoint).await.unwrap();
    }
    let pod = ipcache::Pod { namespace: "shop".into(), name: "web-0".into() };
    let claim = ipcache::Claim {
        source: Source::Local,
        resource: "endpoint/7".into(),
        mapping: of_pod(web.identity, pod),
    };
    agent.hive.get::<IpcacheWriter>().apply([ipcache::Change::Upsert("10.0.0.7/32".parse().unwrap(), claim)]);

    let folder = tempfile::tempdir().unwrap();
    let engine = agent.hive.get::<hive_script::Engine>();
    let run = async |line: &str| {
        let state = hive_script::State::new(folder.path());
        let done = engine.session(state.clone()).line(line).await;
        done.map(|()| String::from_utf8(state.stdout()).unwrap()).map_err(|error| error.to_string())
    };
    let cnp = "k8s:io.cilium.k8s.policy.derived-from=CiliumNetworkPolicy k8s:io.cilium.k8s.policy.name=web \
               k8s:io.cilium.k8s.policy.namespace=shop k8s:io.cilium.k8s.policy.uid";
    let pad = |identity: u32| format!("{identity:<11}");
    let peer = pad(client.identity);
    let expected = format!(
        "ID: 7\tNamespace: shop\tName: web-0\tEntries:3\n\
         Direction   Identity   Proto+Port      Priority   ListenerPrio   Verdict   ProxyPort   Cookie   Origins\n\
         Ingress     0          TCP/6000-6015   0          0              deny      0           1        [{cnp}]\n\
         Ingress     {peer}TCP/80          0          254            allow     0           1        [{cnp}]\n\
         Egress      0          *               0          254            allow     0           0        \
         [reserved:io.cilium.policy.derived-from=allow-any-egress]\n\n"
    );
    assert_eq!(run("policy/mapstate/entries shop/web-0").await.unwrap(), expected);
    assert_eq!(run("policy/mapstate/entries 7").await.unwrap(), expected);
    let top = run("policy/mapstate/topk -n 1 -c 2 7").await.unwrap();
    let (heading, table) = top.split_once('\n').unwrap();
    assert_eq!(heading, "ID: 7\tNamespace: shop\tName: web-0\tEntries: 3 (may not sum)\tPolicies: 2");
    assert_eq!(table.lines().nth(1).unwrap(), format!("[{cnp}]   2"));
    let json: Value = serde_json::from_str(&run("policy/mapstate/entries -f json 7").await.unwrap()).unwrap();
    assert_eq!(
        (&json[0]["Name"], &json[0]["Entries"][1]["Identity"]),
        (&json!("web-0"), &json!(client.identity))
    );
    for (line, error) in [
        ("policy/mapstate/entries", "1 argument"),
        ("policy/mapstate/entries shop/absent", "no endpoint is of pod shop/absent"),
        ("policy/mapstate/topk 99", "endpoint 99 has no policy"),
        ("policy/mapstate/entries -f yaml 7", "unknown format"),
    ] {
        let found = run(line).await.unwrap_err();
        assert!(found.contains(error), "{found}");
    }
    agent.end().await;
}

/// Returns the mapping of a pod's address.
fn of_pod(identity: u32, pod: ipcache::Pod) -> Mapping {
    Mapping::identity(identity).at(ipcache::Location { pod: Some(pod), ..ipcache::Location::default() })
}
