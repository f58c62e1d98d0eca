//! Options: flags, variables, a file, a folder. An accepted value is printed, and its printed form parses to the same
//! value.

use std::fs;
use std::path::Path;

use hive::prelude::*;
use hive::{Hive, HiveError};

use crate::input::{parts, scratch, text};

/// Words of the command line by line, variables by line, a configuration file, a folder as lines `key=value`.
pub(crate) fn run(data: &[u8]) {
    let [words, variables, file, folder] = parts(data);
    let (words, variables, folder) = (text(words), text(variables), text(folder));
    let scratch = scratch();
    let place = scratch.path();
    let mut args: Vec<String> = words.lines().map(str::to_owned).collect();
    if !file.is_empty() {
        let path = place.join("config.yaml");
        fs::write(&path, file).unwrap();
        args.insert(0, format!("--config={}", path.display()));
    } else if !folder.is_empty() {
        let path = place.join("folder");
        write(&path, &folder);
        args.insert(0, format!("--config-dir={}", path.display()));
    }
    let variables: Vec<(&str, &str)> = variables.lines().filter_map(|line| line.split_once('=')).collect();
    match build(&args, &variables) {
        Ok(hive) => again(&hive, &args),
        Err(error @ HiveError::Config(_)) => assert!(!error.to_string().is_empty()),
        Err(other) => panic!("not a fault of the configuration: {other}"),
    }
}

fn build(args: &[String], variables: &[(&str, &str)]) -> Result<Hive, HiveError> {
    Hive::builder(module("options", "The options of all cells", options()))
        .args(args.iter().cloned())
        .env("CILIUM_", variables.iter().copied())
        .config_files()
        .foreign(agent::known_options())
        .build()
}

/// Writes the files of a folder; keys that are not valid file names are skipped.
fn write(path: &Path, lines: &str) {
    fs::create_dir_all(path).unwrap();
    for (key, value) in lines.lines().filter_map(|line| line.split_once('=')) {
        if !key.is_empty() && key.len() < 200 && key != "." && key != ".." && !key.contains(['/', '\0']) {
            fs::write(path.join(key), value).unwrap();
        }
    }
}

/// Passes every option's printed value as input: nothing is refused and all values are printed as before.
fn again(hive: &Hive, args: &[String]) {
    let shown = |hive: &Hive| -> Vec<(String, String)> {
        hive.settings()
            .iter()
            .filter(|setting| !["config", "config-dir"].contains(&setting.key.as_str()))
            .map(|setting| (setting.key.clone(), setting.value.clone()))
            .collect()
    };
    let first = shown(hive);
    let builder = Hive::builder(module("options", "The options of all cells", options()));
    let set = first.iter().fold(builder, |builder, (key, value)| builder.set(key, value));
    let second = set.build().unwrap_or_else(|error| panic!("{args:?}: {error}"));
    assert_eq!(shown(&second), first, "{args:?}");
}

/// Returns the options of all cells, without the cells.
fn options() -> Vec<Cell> {
    vec![
        config::<api::ApiConfig>(),
        config::<auth::AuthConfig>(),
        config::<conntrack_gc::ConntrackGcConfig>(),
        config::<nat_stats::NatStatsConfig>(),
        config::<proxy_ports::ProxyConfig>(),
        config::<dns_proxy::DnsProxyConfig>(),
        config::<fqdn_names::FqdnConfig>(),
        config::<daemon_config::CniConfig>(),
        config::<devices::DevicesConfig>(),
        config::<devices::NodeAddressConfig>(),
        config::<endpoints::EndpointsConfig>(),
        config::<status::HealthConfig>(),
        config::<identity::IdentityConfig>(),
        config::<k8s_tables::K8sConfig>(),
        config::<loader::LoaderConfig>(),
        config::<loader::ConntrackConfig>(),
        config::<loader::ServicesConfig>(),
        config::<local_node::LocalNodeConfig>(),
        config::<local_node::StateConfig>(),
        config::<maps::ClockConfig>(),
        config::<maps::FamilyConfig>(),
        config::<maps::MapsConfig>(),
        config::<metrics::MetricsConfig>(),
        config::<policy::PolicyConfig>(),
        config::<loadbalancer::ServicesConfig>(),
        config::<sysctl::SysctlConfig>(),
    ]
}
