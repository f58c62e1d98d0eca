//! Types of option values: each is parsed from text once, with the options.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hive::config::{FlagValue, Kind, Parsed};

use crate::lbmap::maglev::TABLE_SIZES;

/// The owner of the addresses of load balancers without a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FlagValue)]
pub enum ServiceIpam {
    /// Pools of the cluster.
    LbIpam,
    /// Addresses of nodes.
    NodeIpam,
    /// Neither.
    None,
}

/// The mode of replies from backends on other nodes to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FlagValue)]
pub enum LbMode {
    /// Through this node.
    #[default]
    Snat,
    /// Directly to the client.
    Dsr,
    /// Directly for TCP, through this node for other protocols.
    Hybrid,
}

/// The encoding of the service's address in packets that DSR sends to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FlagValue)]
pub enum DsrDispatch {
    /// In an IP option or extension header.
    Opt,
    /// In an outer IP header.
    Ipip,
    /// In a Geneve option.
    Geneve,
}

/// The mode of programs that handle services before the kernel's stack (XDP).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FlagValue)]
pub enum Acceleration {
    /// None.
    #[default]
    Disabled,
    /// By the drivers of all devices.
    Native,
    /// By the drivers that can.
    #[flag(name = "best-effort")]
    BestEffort,
    /// By the kernel, whatever the driver.
    #[flag(name = "testing-only")]
    TestingOnly,
}

/// The ports reserved for NodePort services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePortRange {
    first: u16,
    last: u16,
}

impl NodePortRange {
    /// Returns the ports.
    pub fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl FlagValue for NodePortRange {
    const KIND: Kind = Vec::<String>::KIND;
    const ZERO: &'static str = "30000,32767";
    const EXPECTED: Option<&'static str> =
        Some("the first and the last port of a range (such as 30000,32767)");

    fn take(value: &Parsed<'_>) -> Result<NodePortRange, String> {
        let texts = Vec::<String>::take(value)?;
        let ports: Option<Vec<u16>> = texts.iter().map(|port| port.trim().parse().ok()).collect();
        match ports.as_deref() {
            Some(&[first, last]) if 0 < first && first < last => Ok(NodePortRange { first, last }),
            _ => Err(String::new()),
        }
    }

    fn render(&self) -> String {
        format!("{},{}", self.first, self.last)
    }
}

/// Ids of zones by name, each from 1 to 255.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneIds(BTreeMap<String, u8>);

impl ZoneIds {
    /// Returns the ids.
    pub fn ids(&self) -> &BTreeMap<String, u8> {
        &self.0
    }
}

impl FlagValue for ZoneIds {
    const KIND: Kind = BTreeMap::<String, String>::KIND;
    const ZERO: &'static str = "";
    const EXPECTED: Option<&'static str> =
        Some("a list of zones, each with an id of its own from 1 to 255 (such as zone-a=1,zone-b=2)");

    fn take(value: &Parsed<'_>) -> Result<ZoneIds, String> {
        let mut used = BTreeSet::new();
        let id = |(zone, text): (String, String)| {
            let id = text.trim().parse().ok().filter(|id| *id != 0 && used.insert(*id));
            match (zone.trim(), id) {
                ("", _) | (_, None) => Err(format!("{zone}={text}")),
                (zone, Some(id)) => Ok((zone.to_owned(), id)),
            }
        };
        BTreeMap::<String, String>::take(value)?.into_iter().map(id).collect::<Result<_, _>>().map(ZoneIds)
    }

    fn render(&self) -> String {
        self.0.iter().map(|(zone, id)| format!("{zone}={id}")).collect::<Vec<_>>().join(",")
    }
}

/// The number of positions of a Maglev table: one of [`TABLE_SIZES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaglevTableSize(u32);

impl MaglevTableSize {
    /// Returns the size, if a table can have it.
    pub fn new(size: u32) -> Option<MaglevTableSize> {
        TABLE_SIZES.contains(&size).then_some(MaglevTableSize(size))
    }

    /// Returns the number of positions.
    pub fn positions(self) -> u32 {
        self.0
    }
}

impl FlagValue for MaglevTableSize {
    const KIND: Kind = u32::KIND;
    const ZERO: &'static str = "16381";
    const EXPECTED: Option<&'static str> =
        Some("251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521 or 131071");

    fn take(value: &Parsed<'_>) -> Result<MaglevTableSize, String> {
        MaglevTableSize::new(u32::take(value)?).ok_or_else(String::new)
    }

    fn render(&self) -> String {
        self.0.render()
    }
}

/// The seed of Maglev tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaglevSeed([u8; 12]);

impl MaglevSeed {
    /// Parses a seed from base64 with padding.
    pub fn from_base64(text: &str) -> Option<MaglevSeed> {
        BASE64_STANDARD.decode(text).ok()?.try_into().ok().map(MaglevSeed)
    }

    /// Returns the seed of the hash of backends: the first four bytes. The other bytes seed the hash of packets.
    pub(crate) fn of_backends(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }
}

impl FlagValue for MaglevSeed {
    const KIND: Kind = Kind::Parsed("12 bytes in base64 (such as head -c12 /dev/urandom | base64 prints)");
    const ZERO: &'static str = "JLfvgnHc2kaSUFaI";

    fn take(value: &Parsed<'_>) -> Result<MaglevSeed, String> {
        MaglevSeed::from_base64(value.text()).ok_or_else(String::new)
    }

    fn render(&self) -> String {
        BASE64_STANDARD.encode(self.0)
    }
}

/// The path of a state file; its suffix determines the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFilePath(PathBuf);

impl AsRef<Path> for StateFilePath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl FlagValue for StateFilePath {
    const KIND: Kind = Kind::Text;
    const ZERO: &'static str = "/run/cilium/services.yaml";
    const EXPECTED: Option<&'static str> = Some("a file whose name ends in .yaml, .yml or .json");

    fn take(value: &Parsed<'_>) -> Result<StateFilePath, String> {
        let path = PathBuf::take(value)?;
        let suffix = path.extension().and_then(|suffix| suffix.to_str()).unwrap_or_default();
        match ["yaml", "yml", "json"].contains(&suffix) {
            true => Ok(StateFilePath(path)),
            false => Err(String::new()),
        }
    }

    fn render(&self) -> String {
        self.0.display().to_string()
    }
}

/// The value of label `service.kubernetes.io/service-proxy-name` of the handled services; empty for those without it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceProxyName(String);

impl ServiceProxyName {
    /// Returns the value of the label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FlagValue for ServiceProxyName {
    const KIND: Kind = Kind::Text;
    const ZERO: &'static str = "";
    const EXPECTED: Option<&'static str> =
        Some("the value of a label: at most 63 letters, digits, '-', '_' and '.'");

    fn take(value: &Parsed<'_>) -> Result<ServiceProxyName, String> {
        let text = value.text();
        let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
        let valid = text.len() <= 63
            && text.chars().all(inside)
            && ends(text.chars().next())
            && ends(text.chars().last());
        if valid { Ok(ServiceProxyName(text.to_owned())) } else { Err(String::new()) }
    }

    fn render(&self) -> String {
        self.0.clone()
    }
}
