//! Parsing of objects.

use super::*;
use crate::config::RedirectConfig;
use crate::policy::Kind;

fn parse(spec: Value) -> Result<LocalRedirectPolicy, String> {
    LocalRedirectPolicy::parse(&object("p", spec), &Ranges::default()).map_err(|error| error.to_string())
}

#[test]
fn kinds_by_matcher_and_ports() {
    let (dns, web) = (port(53, "UDP", "DNS"), port(80, "TCP", "web"));
    let to = || vec![port(5300, "UDP", "dns")];
    let both = || vec![port(5300, "UDP", "dns"), port(8080, "TCP", "web")];
    for (spec, kind, frontends) in [
        (at_address("1.2.3.4", vec![dns.clone()], to()), Kind::AddressSingle, "1.2.3.4:53/UDP"),
        (at_address("fd00::1", vec![dns.clone()], to()), Kind::AddressSingle, "[fd00::1]:53/UDP"),
        (
            at_address("1.2.3.4", vec![dns.clone(), web.clone()], both()),
            Kind::AddressNamed,
            "1.2.3.4:53/UDP, 1.2.3.4:80/TCP",
        ),
        (of_service("s", vec![], to()), Kind::ServiceAll, ""),
        (of_service("s", vec![dns.clone()], to()), Kind::ServiceSingle, "invalid IP:53/UDP"),
        (
            of_service("s", vec![dns.clone(), web.clone()], both()),
            Kind::ServiceNamed,
            "invalid IP:53/UDP, invalid IP:80/TCP",
        ),
    ] {
        let policy = parse(spec).unwrap();
        let row = statedb::TableDisplay::row(&policy);
        assert_eq!((policy.kind(), row[4].as_str()), (kind, frontends));
        assert_eq!(policy.service_name().to_string(), "ns/p:local-redirect");
    }
    let policy = parse(at_address("1.2.3.4", vec![dns, web], both())).unwrap();
    let names: Vec<_> = policy.frontends().iter().map(|frontend| frontend.port_name.to_string()).collect();
    assert_eq!(names, ["dns", "web"], "in small letters");
}

#[test]
fn malformed_policies_are_reported_by_field() {
    let dns = || vec![port(53, "UDP", "")];
    let to = || vec![port(5300, "UDP", "")];
    let both = json!({
        "redirectFrontend": {
            "addressMatcher": {"ip": "1.2.3.4", "toPorts": dns()},
            "serviceMatcher": {"serviceName": "s", "namespace": "ns"},
        },
        "redirectBackend": {"localEndpointSelector": {}, "toPorts": to()},
    });
    let mut foreign = of_service("s", vec![], to());
    foreign["redirectFrontend"]["serviceMatcher"]["namespace"] = json!("other");
    let mut operator = of_service("s", vec![], to());
    operator["redirectBackend"]["localEndpointSelector"] =
        json!({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["a"]}]});
    let mut values = operator.clone();
    values["redirectBackend"]["localEndpointSelector"] =
        json!({"matchExpressions": [{"key": "app", "operator": "In"}]});
    for (spec, start) in [
        (json!({"redirectFrontend": {}, "redirectBackend": {}}), "spec.redirectFrontend: "),
        (both, "spec.redirectFrontend: "),
        (at_address("not-an-ip", dns(), to()), "spec.redirectFrontend.addressMatcher.ip: 'not-an-ip'"),
        (at_address("1.2.3.4", vec![], to()), "spec.redirectFrontend.addressMatcher.toPorts: "),
        (
            at_address("1.2.3.4", vec![port(0, "UDP", "")], to()),
            "spec.redirectFrontend.addressMatcher.toPorts[0].port: '0'",
        ),
        (
            at_address("1.2.3.4", vec![port(53, "ICMP", "")], to()),
            "spec.redirectFrontend.addressMatcher.toPorts[0].protocol: 'ICMP'",
        ),
        (
            at_address("1.2.3.4", vec![port(53, "UDP", "dns"), port(54, "UDP", "")], to()),
            "spec.redirectFrontend.addressMatcher.toPorts[1].name: ''",
        ),
        (
            at_address("1.2.3.4", vec![port(53, "UDP", "a--b"), port(54, "UDP", "b")], to()),
            "spec.redirectFrontend.addressMatcher.toPorts[0].name: 'a--b'",
        ),
        (of_service("", vec![], to()), "spec.redirectFrontend.serviceMatcher.serviceName: "),
        (foreign, "spec.redirectFrontend.serviceMatcher.namespace: 'other'"),
        (at_address("1.2.3.4", dns(), vec![]), "spec.redirectBackend.toPorts: "),
        (
            at_address("1.2.3.4", dns(), vec![port(5300, "TCP", "")]),
            "spec.redirectBackend.toPorts[0].protocol: TCP is not",
        ),
        (
            at_address("1.2.3.4", dns(), vec![port(5300, "UDP", ""), port(5301, "UDP", "b")]),
            "spec.redirectBackend.toPorts[0].name: ''",
        ),
        (operator, "spec.redirectBackend.localEndpointSelector.matchExpressions[0].operator: 'Like'"),
        (values, "spec.redirectBackend.localEndpointSelector.matchExpressions[0].values: 'In' has no values"),
    ] {
        let error = parse(spec.clone()).unwrap_err();
        assert!(error.starts_with(start), "{error}\n{spec}");
    }
}

#[test]
fn addresses_outside_the_prefixes_are_refused() {
    let config =
        RedirectConfig { lrp_address_matcher_cidrs: vec!["169.254.0.0/16".to_owned()], ..Default::default() };
    let ranges = config.ranges().unwrap();
    let policy = |ip| object("p", at_address(ip, vec![port(53, "UDP", "")], vec![port(53, "UDP", "")]));
    assert!(LocalRedirectPolicy::parse(&policy("169.254.1.1"), &ranges).is_ok());
    let error = LocalRedirectPolicy::parse(&policy("10.0.0.1"), &ranges).unwrap_err();
    assert_eq!(error.field, "spec.redirectFrontend.addressMatcher.ip");
    assert!(error.problem.contains("lrp-address-matcher-cidrs"), "{error}");
}

#[test]
fn selectors_are_formatted_as_in_cilium() {
    let mut spec = of_service("s", vec![], vec![port(53, "UDP", "")]);
    spec["redirectBackend"]["localEndpointSelector"] = json!({
        "matchLabels": {"b": "yy", "app": "x"},
        "matchExpressions": [{"key": "z", "operator": "NotIn", "values": ["p", "q"]}],
    });
    let expected = "&LabelSelector{MatchLabels:map[string]string{k8s:app: x,k8s:b: yy,},\
        MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:k8s:z,Operator:NotIn,Values:[p q],},},}";
    assert_eq!(statedb::TableDisplay::row(&parse(spec).unwrap())[5], expected);
}
