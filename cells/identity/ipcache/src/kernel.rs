//! Conversions between rows and entries of `cilium_ipcache_v2`.

use std::net::IpAddr;

use datapath_abi::{
    IpcacheKey, RemoteEndpointInfo, ipcache_flag, ipv4_from_word, ipv4_word, ipv6_from_words, ipv6_words,
};
use ipnetwork::IpNetwork;

use crate::entry::{Location, Mapping};

/// Returns the map's key of a prefix.
pub(crate) fn key(prefix: IpNetwork) -> IpcacheKey {
    IpcacheKey::new(prefix.network(), prefix.prefix())
}

/// Returns the prefix of a key; `None` for entries of other clusters or of an unknown family.
pub(crate) fn prefix(key: &IpcacheKey) -> Option<IpNetwork> {
    let bits = u8::try_from(key.bits()).ok()?;
    (key.cluster_id == 0).then(|| key.ip()).flatten().and_then(|ip| IpNetwork::new(ip, bits).ok())
}

/// Returns the map's value of a mapping.
pub(crate) fn value(mapping: &Mapping) -> RemoteEndpointInfo {
    let (tunnel_endpoint, tunnel_flags) = match mapping.tunnel() {
        None => ([0; 4], 0),
        Some(IpAddr::V4(v4)) => ([ipv4_word(v4), 0, 0, 0], ipcache_flag::HAS_TUNNEL_ENDPOINT),
        Some(IpAddr::V6(v6)) => {
            (ipv6_words(v6), ipcache_flag::HAS_TUNNEL_ENDPOINT | ipcache_flag::IPV6_TUNNEL_ENDPOINT)
        }
    };
    let skip = if mapping.skip_tunnel { ipcache_flag::SKIP_TUNNEL } else { 0 };
    RemoteEndpointInfo {
        sec_identity: mapping.identity,
        tunnel_endpoint,
        pad: 0,
        key: mapping.encrypt_key,
        flags: tunnel_flags | skip,
    }
}

/// Returns the mapping that a value of the map encodes.
pub(crate) fn mapping(value: &RemoteEndpointInfo) -> Mapping {
    let has = |flag| value.flags & flag != 0;
    let tunnel =
        has(ipcache_flag::HAS_TUNNEL_ENDPOINT).then(|| match has(ipcache_flag::IPV6_TUNNEL_ENDPOINT) {
            true => IpAddr::V6(ipv6_from_words(value.tunnel_endpoint)),
            false => IpAddr::V4(ipv4_from_word(value.tunnel_endpoint[0])),
        });
    let mapping = Mapping {
        skip_tunnel: has(ipcache_flag::SKIP_TUNNEL),
        encrypt_key: value.key,
        ..Mapping::identity(value.sec_identity)
    };
    mapping.at(Location { tunnel, ..Location::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath_abi::Pod as _;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Rows of a real agent (reference samples/bpf/dump/cilium_ipcache_v2.jsonl).
    #[test]
    fn entries_are_encoded_as_by_cilium() {
        for (prefix, identity, k, v) in [
            (
                "10.99.0.1/32",
                1,
                "40000000000000010a630001000000000000000000000000",
                "010000000000000000000000000000000000000000000000",
            ),
            (
                "192.0.2.0/24",
                16777217,
                "3800000000000001c0000200000000000000000000000000",
                "010000010000000000000000000000000000000000000000",
            ),
            (
                "0.0.0.0/0",
                2,
                "200000000000000100000000000000000000000000000000",
                "020000000000000000000000000000000000000000000000",
            ),
        ] {
            let network: IpNetwork = prefix.parse().unwrap();
            assert_eq!(hex(key(network).as_bytes()), k);
            assert_eq!(hex(value(&Mapping::identity(identity)).as_bytes()), v);
        }
    }

    #[test]
    fn encoding_round_trips() {
        for tunnel in [None, Some("10.0.0.1"), Some("fd00::9")] {
            let mapping_in = Mapping { skip_tunnel: true, encrypt_key: 3, ..Mapping::identity(70000) };
            let tunnel = tunnel.map(|t| t.parse().unwrap());
            let mapping_in = mapping_in.at(Location { tunnel, ..Location::default() });
            assert_eq!(mapping(&value(&mapping_in)), mapping_in);
        }
        for text in ["10.0.0.0/8", "fd00::/64", "::/0"] {
            let network: IpNetwork = text.parse().unwrap();
            assert_eq!(prefix(&key(network)), Some(network));
        }
        let other_cluster = IpcacheKey { cluster_id: 2, ..key("10.0.0.0/8".parse().unwrap()) };
        assert_eq!(prefix(&other_cluster), None);
    }
}
