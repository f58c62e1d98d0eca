//! Metrics of the features that options choose: `cilium_feature_*` of groups without a cell of their own.

use hive::Settings;
use metrics::Metrics;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// A gauge that is 1 for the chosen values of its labels.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    name: &'static str,
    help: &'static str,
    labels: Vec<(&'static str, String)>,
}

/// Switches by feature: its name, the option, its help.
const SWITCHES: [(&str, &str, &str); 4] = [
    (
        "controlplane_cilium_endpoint_slices_enabled",
        "enable-cilium-endpoint-slice",
        "Whether endpoints are in slices",
    ),
    (
        "datapath_endpoint_routes_enabled",
        "enable-endpoint-routes",
        "Whether pods have routes by their own interfaces",
    ),
    (
        "network_policies_non_defaultdeny_policies_enabled",
        "enable-non-default-deny-policies",
        "Whether policies may leave the default verdict",
    ),
    ("network_policies_host_firewall_enabled", "enable-host-firewall", "Whether policies apply to the host"),
];

/// Returns the choices by the values of options and the release of the kernel.
fn choices(value: impl Fn(&str) -> String, release: &str) -> Vec<Choice> {
    let network = match (&*value("routing-mode"), &*value("tunnel-protocol")) {
        ("tunnel" | "hybrid", protocol) => format!("overlay-{protocol}"),
        _ => "direct-routing".to_owned(),
    };
    let families = match (&*value("enable-ipv4"), &*value("enable-ipv6")) {
        ("true", "true") => "ipv4-ipv6-dual-stack",
        ("true", _) => "ipv4-only",
        _ => "ipv6-only",
    };
    let kernel: String = release.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let of = |name, help, labels| Choice { name, help, labels };
    let mode = |value| vec![("mode", value)];
    let envoy = match (&*value("enable-l7-proxy"), &*value("external-envoy-proxy"), &*value("envoy-binary")) {
        ("true", "true", _) => Some("standalone"),
        ("true", _, binary) if !binary.is_empty() => Some("embedded"),
        _ => None,
    };
    let envoy = envoy.map(|kind| {
        of(
            "feature_adv_connect_and_lb_envoy_proxy_enabled",
            "The Envoy that gets policies: one of its own, or one that the agent starts",
            mode(kind.to_owned()),
        )
    });
    let others = [
        of(
            "feature_controlplane_identity_allocation",
            "Where identities are allocated",
            mode(value("identity-allocation-mode")),
        ),
        of("feature_controlplane_ipam", "How addresses are allocated", mode(value("ipam"))),
        of(
            "feature_datapath_chaining_enabled",
            "The plugin that this one is chained to",
            mode(value("cni-chaining-mode")),
        ),
        of(
            "feature_datapath_config",
            "The mode of the datapath",
            vec![
                ("configured_mode", value("datapath-mode")),
                // The only one that the agent has.
                ("operational_mode", "veth".to_owned()),
            ],
        ),
        of(
            "feature_datapath_internet_protocol",
            "Families of pods",
            vec![("address_family", families.to_owned())],
        ),
        of("feature_datapath_kernel_version", "Version of the kernel", vec![("version", kernel)]),
        of("feature_datapath_network", "How packets travel between nodes", mode(network)),
    ];
    envoy.into_iter().chain(others).collect()
}

/// Registers the metrics.
pub(crate) fn register(metrics: &Metrics, settings: &Settings, release: &str) {
    let value = |key: &str| settings.get(key).map(|setting| setting.value.clone()).unwrap_or_default();
    for Choice { name, help, labels } in choices(value, release) {
        let gauge = Family::<Vec<(&'static str, String)>, Gauge>::default();
        gauge.get_or_create(&labels).set(1);
        metrics.register(name, help, gauge);
    }
    for (name, option, help) in SWITCHES {
        let is_on = value(option) == "true";
        metrics.register_feature(name, help, move || is_on);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_choose_the_values_that_cilium_exports() {
        let recorded = |key: &str| {
            let value = match key {
                "identity-allocation-mode" => "kvstore",
                "ipam" => "cluster-pool",
                "cni-chaining-mode" => "none",
                "enable-l7-proxy" => "true",
                "external-envoy-proxy" => "false",
                "envoy-binary" => "cilium-envoy",
                "datapath-mode" => "veth",
                "enable-ipv4" => "true",
                "enable-ipv6" => "false",
                "routing-mode" => "tunnel",
                "tunnel-protocol" => "vxlan",
                other => panic!("{other}"),
            };
            value.to_owned()
        };
        let lines: Vec<String> = choices(recorded, "6.18.44-fc-v857")
            .iter()
            .map(|choice| {
                let labels = choice.labels.iter().map(|(key, value)| format!("{key}={value}"));
                format!("{} {}", choice.name, labels.collect::<Vec<_>>().join(","))
            })
            .collect();
        let expected = [
            "feature_adv_connect_and_lb_envoy_proxy_enabled mode=embedded",
            "feature_controlplane_identity_allocation mode=kvstore",
            "feature_controlplane_ipam mode=cluster-pool",
            "feature_datapath_chaining_enabled mode=none",
            "feature_datapath_config configured_mode=veth,operational_mode=veth",
            "feature_datapath_internet_protocol address_family=ipv4-only",
            "feature_datapath_kernel_version version=6.18.44",
            "feature_datapath_network mode=overlay-vxlan",
        ];
        assert_eq!(lines, expected);
        let native = |key: &str| if key == "enable-ipv6" { "true" } else { "" }.to_owned();
        let labels: Vec<_> = choices(native, "7.1").into_iter().map(|choice| choice.labels).collect();
        assert_eq!(labels[4][0].1, "ipv6-only");
        assert_eq!(labels[6][0].1, "direct-routing");
        let hybrid = |key: &str| match key {
            "routing-mode" => "hybrid".to_owned(),
            "tunnel-protocol" => "geneve".to_owned(),
            _ => String::new(),
        };
        assert_eq!(choices(hybrid, "7.1")[6].labels[0].1, "overlay-geneve");
        let external = |key: &str| {
            let is_on = ["enable-l7-proxy", "external-envoy-proxy"].contains(&key);
            if is_on { "true" } else { "" }.to_owned()
        };
        assert_eq!(choices(external, "7.1")[0].labels, [("mode", "standalone".to_owned())]);
        let none = |key: &str| if key == "enable-l7-proxy" { "true" } else { "" }.to_owned();
        assert!(!choices(none, "7.1")[0].name.contains("envoy"), "without a binary there is no Envoy");
    }
}
