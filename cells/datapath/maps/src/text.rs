//! Keys and values of map entries, formatted as in the REST API's map dumps.

use std::net::IpAddr;

use bpf::RawMap;
use datapath_abi::{
    DeviceValue, EndpointInfo, EndpointKey, IpcacheKey, Pod, PolicyEntry, PolicyKey, RemoteEndpointInfo,
    ipcache_flag, ipv4_from_word, ipv6_from_words, lxc_flag,
};

use crate::{POLICY_PREFIX, lb_text};

/// A map entry as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowText {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

/// How the REST API lists the entries of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Entry by entry.
    Rows,
    /// Entry by entry, each with the action `sync`, for maps that the agent reconciles.
    Synced,
    /// As an empty list, independent of the map's entries.
    Empty,
    /// As `null`.
    Null,
}

/// Returns how Cilium's API lists the map of that name.
pub fn shown(name: &str) -> Shown {
    match name {
        "cilium_lxc" | "cilium_ipcache_v2" => Shown::Synced,
        "cilium_devices" | "cilium_runtime_config" => Shown::Rows,
        "cilium_node_map_v2"
        | "cilium_policystats"
        | "cilium_metrics"
        | "cilium_skip_lb4"
        | "cilium_skip_lb6"
        | "cilium_l2_responder_v4"
        | "cilium_l2_responder_v6" => Shown::Null,
        "cilium_lb4_maglev" | "cilium_lb6_maglev" | "cilium_lb4_reverse_sk" | "cilium_lb6_reverse_sk" => {
            Shown::Empty
        }
        lb if lb.starts_with("cilium_lb") => Shown::Rows,
        policy if policy.starts_with(POLICY_PREFIX) => Shown::Rows,
        _ => Shown::Empty,
    }
}

/// Formats the entries of a map, in the kernel's order; skips those that cannot be decoded.
pub fn rows(map: &RawMap) -> bpf::Result<Vec<RowText>> {
    let (keys, values) = map.entries()?;
    let layout = map.layout();
    let pairs = keys.chunks_exact(layout.key_size as usize).zip(values.chunks_exact(map.value_len()));
    Ok(pairs.filter_map(|(key, value)| row(map.name(), key, value)).collect())
}

/// Formats an entry of the map of that name; `None` if it cannot be decoded.
pub(crate) fn row(name: &str, key: &[u8], value: &[u8]) -> Option<RowText> {
    let (key, value) = match name {
        "cilium_lxc" => {
            let key = EndpointKey::from_bytes(key)?;
            (format!("{}:{}", key.ip()?, key.cluster_id), endpoint(&EndpointInfo::from_bytes(value)?))
        }
        "cilium_ipcache_v2" => {
            let key = IpcacheKey::from_bytes(key)?;
            (format!("{}/{}", key.ip()?, key.bits()), remote(&RemoteEndpointInfo::from_bytes(value)?))
        }
        "cilium_devices" => {
            let device = DeviceValue::from_bytes(value)?;
            let text = format!("{} {}", mac(&device.mac.to_ne_bytes(), false), device.l3 & 1);
            (u32::from_bytes(key)?.to_string(), text)
        }
        "cilium_runtime_config" => {
            let key = match u32::from_bytes(key)? {
                0 => "UTimeOffset",
                1 => "AgentLiveness",
                _ => "Unknown",
            };
            (key.to_owned(), u64::from_bytes(value)?.to_string())
        }
        _ if name.starts_with(POLICY_PREFIX) => {
            let (key, value) = (PolicyKey::from_bytes(key)?, PolicyEntry::from_bytes(value)?);
            (policy_key(&key), policy_value(&value))
        }
        _ => lb_text::row(name, key, value)?,
    };
    Some(RowText { key, value })
}

fn endpoint(info: &EndpointInfo) -> String {
    if info.flags & lxc_flag::HOST != 0 {
        return "(localhost)".to_owned();
    }
    format!(
        "id={:<5} sec_id={:<5} flags=0x{:04x} ifindex={:<3} mac={} nodemac={} parent_ifindex={:<3} rt_info:{}",
        info.lxc_id,
        info.sec_id,
        info.flags,
        info.ifindex,
        mac(&info.mac.to_ne_bytes(), true),
        mac(&info.node_mac.to_ne_bytes(), true),
        info.parent_ifindex,
        info.rt_info,
    )
}

fn remote(info: &RemoteEndpointInfo) -> String {
    let tunnel: IpAddr = match info.flags & ipcache_flag::IPV6_TUNNEL_ENDPOINT {
        0 => ipv4_from_word(info.tunnel_endpoint[0]).into(),
        _ => ipv6_from_words(info.tunnel_endpoint).into(),
    };
    let words: Vec<&str> =
        ipcache_flag::LABELS.iter().filter(|(bit, _)| info.flags & bit != 0).map(|(_, word)| *word).collect();
    let flags = if words.is_empty() { "<none>".to_owned() } else { words.join(",") };
    let (identity, key) = (info.sec_identity, info.key);
    format!("identity={identity} encryptkey={key} tunnelendpoint={tunnel} flags={flags}")
}

/// Returns the name of an IP protocol, or its number if it is not one of these.
pub fn protocol_name(number: u8) -> String {
    match number {
        1 => "ICMP".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        58 => "ICMPv6".to_owned(),
        132 => "SCTP".to_owned(),
        other => other.to_string(),
    }
}

fn policy_key(key: &PolicyKey) -> String {
    let direction = if key.egress == 0 { "Ingress" } else { "Egress" };
    let bits = key.prefixlen.saturating_sub(PolicyKey::STATIC_BITS);
    let protocol = protocol_name(key.protocol);
    let port = u16::from_be(key.dport);
    let traffic = match bits {
        0 => "ANY".to_owned(),
        1..=8 => protocol,
        24.. => format!("{port}/{protocol}"),
        range => format!("{port}-{}/{protocol}", port | (0xffff >> (range - 8))),
    };
    format!("{direction}: {} {traffic}", key.sec_label)
}

fn policy_value(entry: &PolicyEntry) -> String {
    format!("{} {}", u16::from_be(entry.proxy_port), entry.lpm_prefix_length())
}

fn mac(bytes: &[u8], upper: bool) -> String {
    let parts: Vec<String> =
        bytes[..6].iter().map(|b| if upper { format!("{b:02X}") } else { format!("{b:02x}") }).collect();
    parts.join(":")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    }

    fn text(name: &str, key: &str, value: &str) -> (String, String) {
        let row = row(name, &bytes(key), &bytes(value)).unwrap();
        (row.key, row.value)
    }

    /// Bytes of the maps and output of the API, captured from one running Cilium 1.20 agent.
    #[test]
    fn rows_read_as_cilium_prints_them() {
        assert_eq!(
            text(
                "cilium_lxc",
                "0af439c900000000000000000000000001000000",
                "06000000000087000000000000000000de21c33db9580000b2355bbaaaaf000004000000000000000000000000000000",
            ),
            (
                "10.244.57.201:0".into(),
                "id=135   sec_id=4     flags=0x0000 ifindex=6   mac=DE:21:C3:3D:B9:58 \
                 nodemac=B2:35:5B:BA:AA:AF parent_ifindex=0   rt_info:0"
                    .into()
            )
        );
        assert_eq!(
            text(
                "cilium_lxc",
                "0a63000100000000000000000000000001000000",
                "000000000000000001000000000000000000000000000000000000000000000000000000000000000000000000000000",
            ),
            ("10.99.0.1:0".into(), "(localhost)".into())
        );
        assert_eq!(
            text("cilium_devices", "02000000", "86265c9a729b00000000000000000000"),
            ("2".into(), "86:26:5c:9a:72:9b 0".into())
        );
        assert_eq!(
            text("cilium_policy_v2_00135", "280000000000000001000000", "0000000001ffffff00000000"),
            ("Egress: 0 ANY".into(), "0 0".into())
        );
        assert_eq!(
            text("cilium_runtime_config", "01000000", "ea4cfa624c020000"),
            ("AgentLiveness".into(), "2527101340906".into())
        );
    }

    #[test]
    fn policy_rows_name_protocol_port_and_range() {
        let key = |bits, protocol, port: u16| PolicyKey {
            prefixlen: PolicyKey::STATIC_BITS + bits,
            sec_label: 16_777_217,
            egress: 0,
            protocol,
            dport: port.to_be(),
        };
        assert_eq!(policy_key(&key(24, 6, 80)), "Ingress: 16777217 80/TCP");
        assert_eq!(policy_key(&key(8, 17, 0)), "Ingress: 16777217 UDP");
        assert_eq!(policy_key(&key(22, 6, 80)), "Ingress: 16777217 80-83/TCP");
    }

    #[test]
    fn ipcache_rows_name_tunnel_and_flags() {
        let info = RemoteEndpointInfo { sec_identity: 2, flags: 3, ..RemoteEndpointInfo::default() };
        assert_eq!(
            remote(&info),
            "identity=2 encryptkey=0 tunnelendpoint=0.0.0.0 flags=skiptunnel,hastunnel"
        );
        let key = IpcacheKey::v4(Ipv4Addr::new(192, 0, 2, 0), 24);
        let row = row("cilium_ipcache_v2", key.as_bytes(), RemoteEndpointInfo::default().as_bytes()).unwrap();
        assert_eq!(row.key, "192.0.2.0/24");
    }
}
