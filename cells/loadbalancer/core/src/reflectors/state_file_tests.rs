use super::*;

const BOTH: Families = Families { v4: true, v6: true };

fn faults(text: &str) -> Vec<String> {
    parse(text.as_bytes(), BOTH).unwrap_err()
}

#[test]
fn an_empty_file_has_no_services() {
    for text in ["", "\n", "# nothing\n", "services: []\nendpoints: []\n", "services:\nendpoints:\n", "{}"] {
        assert_eq!(parse(text.as_bytes(), BOTH).unwrap(), State::default(), "{text:?}");
    }
}

#[test]
fn json_and_yaml_have_the_same_content() {
    let yaml = "services:\n- metadata: {name: web, namespace: app}\n  spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n";
    let json = r#"{"services": [{"metadata": {"name": "web", "namespace": "app"},
                   "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}]}"#;
    let state = parse(yaml.as_bytes(), BOTH).unwrap();
    assert_eq!(parse(json.as_bytes(), BOTH).unwrap(), state);
    assert_eq!(state.services[0].1[0].address.to_string(), "10.96.0.1:80/TCP");
}

#[test]
fn every_error_has_line_path_and_remedy() {
    assert_eq!(faults("services: [oops\nendpoints: {}\n").len(), 1);
    assert_eq!(faults("- a\n"), ["line 1: expected an object with services and endpoints"]);
    assert_eq!(faults("services: {}\nservice: []\n"), ["line 1: services: expected a list"]);
    assert_eq!(
        faults("services: []\n---\nservices: []\n"),
        ["line 3: is a second document; join both into one"]
    );
    let text = "services:\n- metadata: {name: web}\n  spec:\n    clusterIP: 10.96.0\n    ports:\n    - port: 80\n    - port: 0\n\
                - metadata: {name: web}\n- metadata: {name: web}\n\
                endpoints:\n- metadata: {name: a}\n  addressType: IPv4\n";
    assert_eq!(
        faults(text),
        [
            "line 7: services[0].spec.ports[1].port: expected a whole number from 1 to 65535, found 0",
            "line 4: services[0].spec.clusterIP: \"10.96.0\" is wrong; give an IPv4 or IPv6 address, or None",
            "line 9: services[2]: service default/web is given twice; remove one",
            "line 11: endpoints[0].metadata.labels: names no service; add label kubernetes.io/service-name",
        ]
    );
}

#[test]
fn json_read_object_by_object_equals_the_whole_document() {
    let text = r#"{"endpoints": [
        {"metadata": {"name": "a", "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
         "ports": [{"port": 8080}], "endpoints": [{"addresses": ["10.0.0.2"]}, {"addresses": ["10.0.0.1"], "zone": null}]},
        {"metadata": {"name": "b", "namespace": null, "labels": {"kubernetes.io/service-name": "w\u0065b"}},
         "addressType": "IPv4", "ports": [{"port": 8080, "name": "http"}], "endpoints": [{"addresses": ["10.0.0.3"]}]}],
      "services": [{"kind": "Service", "metadata": {"name": "web"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}},
        {"metadata": {"name": "web", "namespace": "app", "annotations": {"service.cilium.io/type": "nothing"}}}]}"#;
    // With a document marker it is parsed as YAML.
    let document = format!("---\n{text}");
    assert_eq!(parse_json(document.as_bytes(), BOTH), None);
    let state = parse(document.as_bytes(), BOTH).unwrap();
    assert_eq!((state.services.len(), state.backends.len()), (2, 3));
    assert_eq!(state.services[0].0.name.to_string(), "default/web");
    let Loaded { state: of_json, invalid_fields } = parse_json(text.as_bytes(), BOTH).unwrap();
    assert_eq!((of_json, invalid_fields.len()), (state, 1));
    assert!(invalid_fields[0].starts_with("services[1].metadata.annotations[\"service.cilium.io/type\"]: "));
}

#[test]
fn unknown_keys_are_reported_and_ignored() {
    let yaml = "comment: x\nservices:\n- metadata: {name: web, mood: good}\n  spec: {clusterIP: 10.96.0.1, ports: [{port: 80, hint: h}]}\n\
                endpointSlices: []\n";
    let Loaded { state, invalid_fields } = parse_all(yaml.as_bytes(), BOTH).unwrap();
    assert_eq!(state.services[0].1[0].address.to_string(), "10.96.0.1:80/TCP");
    let paths: Vec<&str> = invalid_fields.iter().filter_map(|text| text.split(": ").next()).collect();
    assert_eq!(
        paths,
        ["comment", "endpointSlices", "services[0].metadata.mood", "services[0].spec.ports[0].hint"]
    );
    let json = r#"{"services": [{"metadata": {"name": "web", "mood": "good"},
                   "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "hint": "h"}]}}]}"#;
    let of_json = parse_json(json.as_bytes(), BOTH).unwrap();
    assert_eq!((of_json.state, of_json.invalid_fields.len()), (state, 2));
}

#[test]
fn errors_of_json_are_reported_by_the_document_parser() {
    for text in [
        r#"{"services": [{"metadata": {"name": "a"}}, {"metadata": {"name": "a"}}]}"#,
        r#"{"services": [{"metadata": {"name": "a"}, "kind": "Pod"}]}"#,
        r#"{"services": [{"metadata": {}}]}"#,
        r#"{"services": [7]}"#,
        r#"{"endpoints": [{"metadata": {"name": "a"}, "addressType": "IPv4"}]}"#,
        r#"{"services": [], "services": []}"#,
        r#"{"services": []}{"services": []}"#,
        r#"{"services": [{"metadata": {"name": "a"}}]"#,
    ] {
        assert_eq!(parse_json(text.as_bytes(), BOTH), None, "{text}");
        assert!(!faults(text).is_empty(), "{text}");
    }
    assert_eq!(parse_json(b"{\"services\": null}", BOTH), None);
    assert_eq!(parse(b"{\"services\": null}", BOTH).unwrap(), State::default());
}

#[test]
fn disabled_families_are_skipped() {
    let text = "services:\n- metadata: {name: web}\n  spec: {clusterIPs: [10.96.0.1, 'fd00::1'], ports: [{port: 80}]}\n\
                endpoints:\n- metadata: {name: a, labels: {kubernetes.io/service-name: web}}\n  addressType: IPv6\n  \
                ports: [{port: 1}]\n  endpoints: [{addresses: ['fd00::2']}]\n";
    let state = parse(text.as_bytes(), Families { v4: true, v6: false }).unwrap();
    assert_eq!(state.services[0].1.len(), 1);
    assert_eq!(state.backends, []);
    assert_eq!(parse(text.as_bytes(), BOTH).unwrap().backends.len(), 1);
}

#[test]
fn headless_services_have_no_frontends_and_ports_need_numbers() {
    let text = "services:\n- metadata: {name: a}\n  spec: {clusterIP: None, ports: [{port: 80}]}\n\
                - metadata: {name: b, labels: {service.kubernetes.io/headless: ''}}\n  spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n\
                - metadata: {name: c}\n  spec: {type: ExternalName}\n\
                endpoints:\n- metadata: {name: a, labels: {kubernetes.io/service-name: a}}\n  addressType: IPv4\n  \
                ports: [{name: none}, {name: one, port: 1}, {port: 9999}]\n  endpoints: [{addresses: [192.192.192.192]}]\n";
    let state = parse(text.as_bytes(), BOTH).unwrap();
    assert!(state.services.iter().all(|(_, frontends)| frontends.is_empty()));
    let shown: Vec<String> = state.backends.iter().map(|backend| backend.address.to_string()).collect();
    assert_eq!(shown, ["192.192.192.192:1/TCP"]);
}

#[test]
fn weight_zero_is_maintenance() {
    let weighted = |weight: &str| {
        let text = format!(
            "endpoints:\n- metadata: {{name: a, labels: {{kubernetes.io/service-name: a}}, \
             annotations: {{service.cilium.io/weight: '{weight}'}}}}\n  addressType: IPv4\n  ports: [{{port: 1}}]\n  \
             endpoints: [{{addresses: [10.0.0.1]}}]\n"
        );
        let backend = parse(text.as_bytes(), BOTH).unwrap().backends.remove(0);
        (backend.weight, backend.state.name())
    };
    assert_eq!(
        [weighted("0"), weighted("7"), weighted("x")],
        [(0, "maintenance"), (7, "active"), (100, "active")]
    );
}
