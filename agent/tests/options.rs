//! Configurations that were written for a Cilium 1.20 agent start this one.

use std::collections::BTreeMap;
use std::fs;

use hive::config::{Foreign, Kind};
use hive::{Hive, HiveBuilder, HiveError, Setting};
use tempfile::TempDir;

/// Keys and values that the chart of Cilium 1.20 renders with default values.
const CHART: &str = include_str!("data/chart.tsv");

/// Keys of the chart that Cilium's operator and other programs read, not the agent.
const OF_OTHERS: [&str; 19] = [
    "cilium-endpoint-gc-interval",
    "cluster-pool-ipv4-cidr",
    "cluster-pool-ipv4-mask-size",
    "clustermesh-default-global-namespace",
    "clustermesh-enable-endpoint-sync",
    "clustermesh-enable-mcs-api",
    "clustermesh-mcs-api-install-crds",
    "custom-cni-conf",
    "enable-metrics",
    "identity-gc-interval",
    "identity-heartbeat-timeout",
    "nodes-gc-interval",
    "operator-api-serve-addr",
    "operator-prometheus-serve-addr",
    "remove-cilium-node-taints",
    "set-cilium-is-up-condition",
    "set-cilium-node-taints",
    "synchronize-k8s-nodes",
    "unmanaged-pod-watcher-interval",
];

/// Options of the chart's defaults that belong to features that this agent does not have.
const WITHOUT_EFFECT: [&str; 1] = ["vtep-mask"];

fn chart() -> BTreeMap<&'static str, &'static str> {
    CHART.lines().map(|line| line.split_once('\t').unwrap_or((line, ""))).collect()
}

fn on_folder(options: &BTreeMap<&str, &str>) -> (TempDir, HiveBuilder) {
    let folder = TempDir::new().unwrap();
    for (key, value) in options {
        fs::write(folder.path().join(key), value).unwrap();
    }
    let builder = Hive::builder(agent::cells())
        .foreign(agent::known_options())
        .config_files()
        .args([format!("--config-dir={}", folder.path().display())]);
    (folder, builder)
}

#[test]
fn every_key_of_the_chart_is_accounted_for() {
    let (_folder, builder) = on_folder(&chart());
    let hive = builder.build().unwrap();
    let settings = hive.settings();
    let unknown: Vec<&str> = settings.unknown().iter().map(|unknown| unknown.key.as_str()).collect();
    assert_eq!(unknown, OF_OTHERS);
    let missing: Vec<&Setting> = settings.unused().iter().filter(|setting| !setting.is_default()).collect();
    assert_eq!(missing.iter().map(|setting| setting.key.as_str()).collect::<Vec<_>>(), WITHOUT_EFFECT);
    for (key, value) in chart().into_iter().filter(|(key, _)| !OF_OTHERS.contains(key)) {
        let setting = settings.get(key).or(settings.unused().iter().find(|setting| setting.key == key));
        let source = setting.unwrap_or_else(|| panic!("{key} is lost")).source.to_string();
        assert!(source.ends_with(key), "{key}: {value} came from {source}");
    }
}

/// Each typed key with an invalid value is rejected by name, all in one error.
#[test]
fn wrong_values_of_the_chart_are_named() {
    let known: BTreeMap<String, Foreign> =
        agent::known_options().map(|option| (option.name.clone(), option)).collect();
    let mut wrong = chart();
    wrong.retain(|key, _| known.get(*key).is_some_and(|o| !matches!(o.kind, Kind::Text | Kind::Strings)));
    wrong.values_mut().for_each(|value| *value = "perhaps");
    assert!(wrong.len() > 100, "{}", wrong.len());
    let (_folder, builder) = on_folder(&wrong);
    let Err(HiveError::Config(errors)) = builder.build() else { panic!("taken") };
    assert_eq!(errors.len(), wrong.len());
    for (key, error) in wrong.keys().zip(&errors) {
        let error = error.to_string();
        assert!(error.contains(&format!("/{key}: option {key}: \"perhaps\" is not ")), "{error}");
    }
}

/// Options of the load balancer with values other than the defaults.
const LOAD_BALANCER: &str = "\
    bpf-lb-map-max=70000 bpf-lb-service-map-max=70001 bpf-lb-service-backend-map-max=70002 bpf-lb-rev-nat-map-max=70003 \
    bpf-lb-affinity-map-max=70004 bpf-lb-source-range-map-max=70005 bpf-lb-maglev-map-max=70006 \
    bpf-sock-rev-map-max=70007 node-port-range=31000,31999 bpf-lb-algorithm=maglev bpf-lb-algorithm-annotation=true \
    bpf-lb-mode=dsr bpf-lb-mode-annotation=true bpf-lb-dsr-dispatch=geneve bpf-lb-acceleration=native bpf-lb-external-clusterip=true \
    bpf-lb-source-range-all-types=true enable-health-check-nodeport=false enable-health-check-loadbalancer-ip=true \
    enable-service-topology=true enable-dynamic-source-lookup-nodeport=true lb-pressure-metrics-interval=0s \
    lb-sock-terminate-all-protos=true lb-init-wait-timeout=2m lb-reflector-wait-time=1ms lb-retry-backoff-min=2s \
    lb-retry-backoff-max=3s lb-state-file=/run/lb.yaml lb-state-file-interval=2s bpf-lb-maglev-table-size=251 \
    bpf-lb-maglev-hash-seed=AAAAAAAAAAAAAAAA fixed-zone-mapping=a=1,b=2 enable-lb-ipam=false \
    default-lb-service-ipam=nodeipam enable-ipip-termination=true enable-nat46x64-gateway=true bpf-lb-nat46x64=true lrp-address-matcher-cidrs=169.254.0.0/16 nodeport-addresses=192.0.2.0/24";

/// Invalid values of them, rejected at the start.
const WRONG: &str = "\
    bpf-lb-map-max=-1 bpf-sock-rev-map-max=x node-port-range=2,1 bpf-lb-algorithm=hash bpf-lb-mode=direct \
    bpf-lb-dsr-dispatch=gre bpf-lb-rss-ipv4-src-cidr=fd00::/64 bpf-lb-rss-ipv6-src-cidr=fd00::/64 enable-ipip-termination=perhaps bpf-lb-acceleration=fast enable-dynamic-source-lookup-nodeport=perhaps lb-pressure-metrics-interval=soon \
    lb-reflector-wait-time=0s lb-state-file=/run/lb.toml bpf-lb-maglev-table-size=16000 bpf-lb-maglev-hash-seed=short \
    fixed-zone-mapping=a=0 enable-nat46x64-gateway=perhaps enable-lb-ipam=perhaps default-lb-service-ipam=dhcp lrp-address-matcher-cidrs=x";

#[test]
fn options_of_the_load_balancer_are_declared_and_checked() {
    let pairs = |text: &'static str| text.split_whitespace().map(|word| word.split_once('=').unwrap());
    let (_folder, builder) = on_folder(&pairs(LOAD_BALANCER).collect());
    let hive = builder.build().unwrap();
    assert_eq!(hive.settings().unknown(), []);
    for (key, value) in pairs(LOAD_BALANCER) {
        let setting = hive.settings().get(key).unwrap_or_else(|| panic!("no cell declares {key}"));
        assert!(!setting.is_default(), "{key}={value}");
    }
    for (key, value) in pairs(WRONG) {
        let (_folder, builder) = on_folder(&[(key, value)].into());
        let Err(error) = builder.build() else { panic!("{key}={value} is taken") };
        assert!(error.to_string().contains(&format!("option {key}")), "{key}={value}: {error}");
    }
}

/// Options of the cells have the types and defaults of Cilium's options of the same names.
#[test]
fn declared_options_are_those_of_the_original() {
    let hive = Hive::builder(agent::cells()).build().unwrap();
    let declared: BTreeMap<&str, &Setting> = hive.settings().iter().map(|s| (s.key.as_str(), s)).collect();
    let known = agent::known_options().fold(Hive::builder([]).foreign(agent::known_options()), |hive, o| {
        let zero = match o.kind {
            Kind::Bool => "false",
            Kind::Duration => "0s",
            Kind::Text | Kind::Strings | Kind::Map => "",
            _ => "0",
        };
        hive.set(o.name, if o.default.is_empty() { zero } else { &o.default })
    });
    let known = known.build().unwrap();
    let mut differ = vec![];
    for theirs in known.settings().unused() {
        let Some(ours) = declared.get(theirs.key.as_str()) else { continue };
        // Unsigned here, signed in Cilium: only the rejection of negative values differs.
        let kind = |kind| match kind {
            Kind::Int(_) | Kind::Uint(_) => "number",
            kind => kind.name(),
        };
        if (kind(ours.kind), &ours.default) != (kind(theirs.kind), &theirs.default) {
            differ.push(theirs.key.as_str());
        }
    }
    // In Cilium an empty `bpf-root` selects the folder that is the default here.
    assert_eq!(differ, ["bpf-root"]);
}

#[test]
fn every_line_of_the_table_is_an_option() {
    let lines = include_str!("../../cells/config/known-options/src/options.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = lines.map(|line| line.split('\t').next().unwrap()).collect();
    assert!(names.is_sorted());
    assert_eq!(agent::known_options().map(|option| option.name).collect::<Vec<_>>(), names);
    for Foreign { name, kind, default, .. } in agent::known_options().filter(|o| !o.default.is_empty()) {
        let option = Foreign::new(name.clone(), kind);
        let hive = Hive::builder([]).foreign([option]).set(&name, &default).build();
        assert!(hive.is_ok(), "{name}: {default:?} is not {}", kind.expected());
    }
}

/// The help text names the unit of each numeric option, and lists each option under a heading.
#[test]
fn the_help_text_has_units_and_headings() {
    let hive = Hive::builder(agent::cells()).config_files().build().unwrap();
    let units = [
        "entries", "bytes", "port", "number", "share", "priority", "size", "level", "requests", "metric",
        " id ",
    ];
    let mut heading = "";
    for line in hive.usage().lines().filter(|line| !line.is_empty()) {
        let Some(option) = line.strip_prefix("  --") else {
            heading = line.trim_end_matches(':');
            continue;
        };
        let mut words = option.split_whitespace();
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        let own = ["config", "config-dir"].contains(&name);
        assert_eq!(heading.is_empty(), own, "{option}");
        if ["int", "uint", "uint8", "uint16", "uint32", "float"].contains(&kind) {
            let help = option.to_lowercase();
            assert!(units.iter().any(|unit| help.contains(unit)), "{option}");
        }
    }
}

/// The documentation lists exactly the options that cells declare live.
#[test]
fn live_options_are_those_of_the_documentation() {
    let hive = Hive::builder(agent::cells()).build().unwrap();
    let live: Vec<&str> = hive.settings().iter().filter(|s| s.live).map(|s| s.key.as_str()).collect();
    let listed = include_str!("../../cells/config/daemon-config/src/lib.rs").lines();
    let listed = listed.filter_map(|line| line.strip_prefix("//! | `")?.split_once("` |"));
    let mut listed: Vec<&str> = listed.flat_map(|(names, _)| names.split("`, `")).collect();
    // Declared by the binary, not by `agent::cells`.
    let log = listed.iter().position(|name| *name == "log-opt").expect("log-opt is live");
    listed.remove(log);
    listed.sort_unstable();
    assert_eq!(listed, live);
}

/// Runs `agent preflight` on a file; returns its exit code and the parsed report.
fn preflight(option: &str, content: &str) -> (Option<i32>, serde_json::Value) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("input.yaml");
    fs::write(&file, content).unwrap();
    let argument = format!("--{option}={}", file.display());
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_agent"));
    let output = command.args(["preflight", &argument, "-o", "json"]).output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code(), report)
}

/// Returns the keys with an outcome.
fn keys<'r>(report: &'r serde_json::Value, outcome: &str) -> Vec<&'r str> {
    let keys = report["keys"].as_array().unwrap().iter().filter(|key| key["outcome"] == outcome);
    keys.map(|key| key["key"].as_str().unwrap()).collect()
}

/// The ConfigMap of Cilium's chart: what this agent and its operator read, and what nothing reads.
#[test]
fn preflight_judges_each_key_of_the_chart() {
    let lines = chart().into_iter().map(|(key, value)| format!("{key}: \"{value}\"\n"));
    let (code, report) = preflight("config-map", &lines.collect::<String>());
    assert_eq!((code, keys(&report, "refused")), (Some(0), vec![]));
    let unknown: Vec<&str> =
        OF_OTHERS.into_iter().filter(|key| !known_options::is_of_operator(key)).collect();
    assert_eq!(keys(&report, "unknown"), unknown);
    let not_built = |key: &&str| {
        let of_key = report["keys"].as_array().unwrap().iter().find(|found| found["key"] == **key).unwrap();
        of_key["reason"].as_str().unwrap().starts_with("is not built")
    };
    let ignored: Vec<&str> = keys(&report, "ignored").into_iter().filter(not_built).collect();
    assert_eq!(ignored, WITHOUT_EFFECT);
    let count = ["effective", "ignored", "unknown"].map(|outcome| keys(&report, outcome).len());
    assert_eq!(count.iter().sum::<usize>(), chart().len(), "{count:?}");
}

/// Values of another type, values that their option's check refuses, and values that a constructor refuses; the others
/// are judged all the same.
#[test]
fn preflight_refuses_what_a_start_refuses() {
    let content = "mtu: abc\nipam: eni\ndatapath-mode: netkit\nenable-vtep: 'true'\ndebug: 'true'\n";
    let (code, report) = preflight("config-map", content);
    assert_eq!((code, keys(&report, "refused")), (Some(1), vec!["datapath-mode", "ipam", "mtu"]));
    assert_eq!((keys(&report, "ignored"), keys(&report, "effective")), (vec!["enable-vtep"], vec!["debug"]));
    let reason = |at: usize| report["keys"][at]["reason"].as_str().unwrap();
    assert!(reason(3).contains("this agent manages no interfaces of AWS; use cluster-pool"), "{}", reason(3));

    let (code, report) = preflight(
        "values",
        "ipv4: {enabled: true}\nhubble: {enabled: true}\nclustermesh: {useAPIServer: true}\nautoDirectNodeRoutes: true\n",
    );
    assert_eq!((code, keys(&report, "refused")), (Some(1), vec!["clustermesh.useAPIServer"]));
    assert_eq!(keys(&report, "effective"), ["autoDirectNodeRoutes", "hubble.enabled", "ipv4.enabled"]);
}
