//! The options as typed values, validated once, with errors that list valid values.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::{Ipv4Network, Ipv6Network};

use crate::{Error, IpamMode, LocalNodeConfig};

/// An option that is set, or derived by the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice<T> {
    Auto,
    Set(T),
}

/// The validated options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) enable_ipv4: bool,
    pub(crate) enable_ipv6: bool,
    pub(crate) ipv4_node: Choice<Ipv4Addr>,
    pub(crate) ipv6_node: Choice<Ipv6Addr>,
    pub(crate) ipv4_range: Choice<Ipv4Network>,
    pub(crate) ipv6_range: Choice<Ipv6Network>,
    pub(crate) ipv6_cluster_base: Ipv6Network,
    pub(crate) service_loopback_ipv4: Ipv4Addr,
    pub(crate) service_loopback_ipv6: Ipv6Addr,
    pub(crate) local_router_ipv4: Option<Ipv4Addr>,
    pub(crate) local_router_ipv6: Option<Ipv6Addr>,
    pub(crate) cluster_name: String,
    pub(crate) cluster_id: u32,
}

/// Length of a node's range in the automatic IPv6 plan.
pub(crate) const IPV6_NODE_PREFIX: u8 = 96;

impl Settings {
    pub(crate) fn new(config: &LocalNodeConfig, enable_ipv4: bool, enable_ipv6: bool) -> Result<Self, Error> {
        if !enable_ipv4 && !enable_ipv6 {
            return Err(Error::NoFamily);
        }
        let base: Ipv6Network = value(
            "ipv6-cluster-alloc-cidr",
            &config.ipv6_cluster_alloc_cidr,
            "an IPv6 prefix of length 64, for instance f00d::/64",
        )?;
        if base.prefix() != 64 {
            return Err(Error::Option {
                option: "ipv6-cluster-alloc-cidr",
                value: config.ipv6_cluster_alloc_cidr.clone(),
                expected: "an IPv6 prefix of length 64, for instance f00d::/64",
            });
        }
        check_cluster(config)?;
        check_ipam(config.ipam)?;
        Ok(Self {
            enable_ipv4,
            enable_ipv6,
            ipv4_node: choice(
                "ipv4-node",
                &config.ipv4_node,
                "an IPv4 address, for instance 192.168.1.5, or auto",
            )?,
            ipv6_node: choice(
                "ipv6-node",
                &config.ipv6_node,
                "an IPv6 address, for instance fd00::5, or auto",
            )?,
            ipv4_range: range_v4(&config.ipv4_range)?,
            ipv6_range: range_v6(&config.ipv6_range)?,
            ipv6_cluster_base: base,
            service_loopback_ipv4: value(
                "ipv4-service-loopback-address",
                &config.ipv4_service_loopback_address,
                "an IPv4 address, for instance 169.254.42.1",
            )?,
            service_loopback_ipv6: value(
                "ipv6-service-loopback-address",
                &config.ipv6_service_loopback_address,
                "an IPv6 address, for instance fe80::1",
            )?,
            local_router_ipv4: router(
                "local-router-ipv4",
                &config.local_router_ipv4,
                enable_ipv4.then_some(config.ipam),
                "an IPv4 address, for instance 169.254.23.0",
            )?,
            local_router_ipv6: router(
                "local-router-ipv6",
                &config.local_router_ipv6,
                enable_ipv6.then_some(config.ipam),
                "an IPv6 address, for instance fd00::1",
            )?,
            cluster_name: config.cluster_name.clone(),
            cluster_id: config.cluster_id,
        })
    }
}

fn range_v4(text: &str) -> Result<Choice<Ipv4Network>, Error> {
    let (option, expected) =
        ("ipv4-range", "an IPv4 prefix of length 8 to 30, for instance 10.244.0.0/24, or auto");
    match prefix(option, text, expected)? {
        Choice::Set((IpAddr::V4(ip), length @ 8..=30)) => {
            network(option, text, expected, Ipv4Network::new(ip, length))
        }
        Choice::Set(_) => Err(wrong(option, text, expected)),
        Choice::Auto => Ok(Choice::Auto),
    }
}

fn range_v6(text: &str) -> Result<Choice<Ipv6Network>, Error> {
    let (option, expected) =
        ("ipv6-range", "an IPv6 prefix of length 8 to 126, for instance fd00:10:244::/112, or auto");
    match prefix(option, text, expected)? {
        Choice::Set((IpAddr::V6(ip), length @ 8..=126)) => {
            network(option, text, expected, Ipv6Network::new(ip, length))
        }
        Choice::Set(_) => Err(wrong(option, text, expected)),
        Choice::Auto => Ok(Choice::Auto),
    }
}

/// Parses a prefix with an explicit length: `IpNetwork` would parse a bare address as a range of one.
fn prefix(option: &'static str, text: &str, expected: &'static str) -> Result<Choice<(IpAddr, u8)>, Error> {
    if text == "auto" {
        return Ok(Choice::Auto);
    }
    let parsed = text.split_once('/').and_then(|(ip, length)| Some((ip.parse().ok()?, length.parse().ok()?)));
    parsed.map(Choice::Set).ok_or_else(|| wrong(option, text, expected))
}

fn network<N, E>(
    option: &'static str,
    text: &str,
    expected: &'static str,
    network: Result<N, E>,
) -> Result<Choice<N>, Error> {
    let network = network.map_err(|_| wrong(option, text, expected))?;
    Ok(Choice::Set(network))
}

/// Refuses the mode that needs interfaces of a cloud.
fn check_ipam(mode: IpamMode) -> Result<(), Error> {
    match mode {
        IpamMode::Eni => Err(Error::UnsupportedIpam { mode: mode.name() }),
        _ => Ok(()),
    }
}

/// Validates name and id of the cluster by Cilium's rules.
fn check_cluster(config: &LocalNodeConfig) -> Result<(), Error> {
    let name = &config.cluster_name;
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let valid = (1..=32).contains(&name.len())
        && name.chars().all(|c| good(c) || c == '-')
        && name.starts_with(good)
        && name.ends_with(good);
    if !valid {
        return Err(wrong(
            "cluster-name",
            name,
            "1 to 32 lower-case letters, digits and hyphens, the first and last no hyphen",
        ));
    }
    if !matches!(config.max_connected_clusters, 255 | 511) {
        return Err(wrong(
            "max-connected-clusters",
            &config.max_connected_clusters.to_string(),
            "255 or 511",
        ));
    }
    if config.cluster_id > config.max_connected_clusters {
        return Err(wrong(
            "cluster-id",
            &config.cluster_id.to_string(),
            "a number up to max-connected-clusters, 0 for no cluster mesh",
        ));
    }
    if config.cluster_id != 0 && name == crate::DEFAULT_CLUSTER {
        return Err(wrong("cluster-name", name, "a name of its own for a cluster that has a cluster-id"));
    }
    Ok(())
}

fn choice<T: std::str::FromStr>(
    option: &'static str,
    text: &str,
    expected: &'static str,
) -> Result<Choice<T>, Error> {
    match text {
        "auto" => Ok(Choice::Auto),
        text => value(option, text, expected).map(Choice::Set),
    }
}

/// The router's address of an option; none without the family, whose mode `ipam` is.
fn router<T: std::str::FromStr>(
    option: &'static str,
    text: &str,
    ipam: Option<IpamMode>,
    expected: &'static str,
) -> Result<Option<T>, Error> {
    match (ipam, text) {
        (Some(IpamMode::DelegatedPlugin), "") => Err(Error::NoRouter { option }),
        (None, _) | (_, "") => Ok(None),
        (Some(_), text) => value(option, text, expected).map(Some),
    }
}

fn value<T: std::str::FromStr>(option: &'static str, text: &str, expected: &'static str) -> Result<T, Error> {
    text.parse().map_err(|_| wrong(option, text, expected))
}

fn wrong(option: &'static str, value: &str, expected: &'static str) -> Error {
    Error::Option { option, value: value.to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(change: impl FnOnce(&mut LocalNodeConfig)) -> String {
        let mut config = LocalNodeConfig::default();
        change(&mut config);
        Settings::new(&config, true, true).unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_valid() {
        let settings = Settings::new(&LocalNodeConfig::default(), true, true).unwrap();
        assert_eq!(settings.ipv4_range, Choice::Auto);
        assert_eq!(settings.cluster_name, "default");
    }

    #[test]
    fn errors_name_option_value_and_remedy() {
        assert_eq!(
            error(|c| c.ipv4_range = "10.0.0.0/33".into()),
            "option ipv4-range: '10.0.0.0/33' is wrong; give an IPv4 prefix of length 8 to 30, for instance 10.244.0.0/24, or auto"
        );
        assert_eq!(
            error(|c| c.ipv4_range = "10.0.0.0".into()),
            "option ipv4-range: '10.0.0.0' is wrong; give an IPv4 prefix of length 8 to 30, for instance 10.244.0.0/24, or auto"
        );
        assert_eq!(
            error(|c| c.ipv6_range = "10.0.0.0/24".into()),
            "option ipv6-range: '10.0.0.0/24' is wrong; give an IPv6 prefix of length 8 to 126, for instance fd00:10:244::/112, or auto"
        );
        assert_eq!(
            error(|c| c.ipv4_node = "fd00::1".into()),
            "option ipv4-node: 'fd00::1' is wrong; give an IPv4 address, for instance 192.168.1.5, or auto"
        );
        assert_eq!(
            error(|c| c.cluster_name = "East".into()),
            "option cluster-name: 'East' is wrong; give 1 to 32 lower-case letters, digits and hyphens, the first and last no hyphen"
        );
        assert_eq!(
            error(|c| c.cluster_id = 256),
            "option cluster-id: '256' is wrong; give a number up to max-connected-clusters, 0 for no cluster mesh"
        );
        assert_eq!(
            error(|c| c.cluster_id = 3),
            "option cluster-name: 'default' is wrong; give a name of its own for a cluster that has a cluster-id"
        );
        assert_eq!(
            error(|c| c.ipam = IpamMode::DelegatedPlugin),
            "option local-router-ipv4 is not set: with ipam=delegated-plugin this agent allocates no address; give the router one, for instance 169.254.23.0"
        );
        assert_eq!(
            error(|c| c.ipam = IpamMode::Eni),
            "option ipam: 'eni' is not supported: this agent manages no interfaces of AWS; use cluster-pool, multi-pool, kubernetes, crd or delegated-plugin"
        );
        assert_eq!(
            Settings::new(&LocalNodeConfig::default(), false, false).unwrap_err().to_string(),
            "options enable-ipv4 and enable-ipv6 are both false: enable at least one"
        );
    }
}
