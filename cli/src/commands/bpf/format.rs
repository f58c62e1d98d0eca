//! Entries of the pinned maps in the format of Cilium's tools.

use datapath_abi::{
    EndpointInfo, PolicyKey, RemoteEndpointInfo, ipcache_flag, ipv4_from_word, ipv6_from_words, lxc_flag,
    mac_from_word,
};
use std::net::IpAddr;

pub(crate) fn endpoint(info: &EndpointInfo) -> String {
    if info.flags & lxc_flag::HOST != 0 {
        return "(localhost)".to_owned();
    }
    let EndpointInfo { lxc_id, sec_id, flags, ifindex, parent_ifindex, rt_info, .. } = info;
    let (mac, node_mac) = (mac(info.mac), mac(info.node_mac));
    format!(
        "id={lxc_id:<5} sec_id={sec_id:<5} flags=0x{flags:04X} ifindex={ifindex:<3} mac={mac} nodemac={node_mac} \
         parent_ifindex={parent_ifindex:<3} rt_info:{rt_info}"
    )
}

pub(crate) fn remote_endpoint(info: &RemoteEndpointInfo) -> String {
    let tunnel: IpAddr = if info.flags & ipcache_flag::IPV6_TUNNEL_ENDPOINT == 0 {
        ipv4_from_word(info.tunnel_endpoint[0]).into()
    } else {
        ipv6_from_words(info.tunnel_endpoint).into()
    };
    let words = ipcache_flag::LABELS.iter().filter(|(bit, _)| info.flags & bit != 0).map(|(_, word)| *word);
    let words: Vec<_> = words.collect();
    let flags = if words.is_empty() { "<none>".to_owned() } else { words.join(",") };
    let RemoteEndpointInfo { sec_identity, key, .. } = info;
    format!("identity={sec_identity} encryptkey={key} tunnelendpoint={tunnel} flags={flags}")
}

fn mac(word: u64) -> String {
    mac_from_word(word).map(|byte| format!("{byte:02X}")).join(":")
}

/// Formats `ANY`, `TCP`, `80/TCP`, `80-81/TCP`.
pub(crate) fn port_and_protocol(key: &PolicyKey) -> String {
    const PROTOCOL_BITS: u32 = 8;
    let protocol = protocol(key.protocol);
    let first = u16::from_be(key.dport);
    match prefix_length(key).checked_sub(PROTOCOL_BITS) {
        None | Some(0) => protocol,
        Some(port_bits @ 1..16) => format!("{first}-{}/{protocol}", first | (0xffff >> port_bits)),
        Some(_) => format!("{first}/{protocol}"),
    }
}

/// Returns the name of an IP protocol.
pub(crate) fn protocol(number: u8) -> String {
    match number {
        0 => "ANY".to_owned(),
        1 => "ICMP".to_owned(),
        2 => "IGMP".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        58 => "ICMPv6".to_owned(),
        112 => "VRRP".to_owned(),
        132 => "SCTP".to_owned(),
        other => other.to_string(),
    }
}

/// Returns the prefix length of the key after identity and direction, in bits.
pub(crate) fn prefix_length(key: &PolicyKey) -> u32 {
    key.prefixlen.saturating_sub(PolicyKey::STATIC_BITS)
}

pub(crate) fn direction(key: &PolicyKey) -> &'static str {
    if key.egress & 1 == 0 { "Ingress" } else { "Egress" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath_abi::Pod as _;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
    }

    /// Bytes from the maps of a running Cilium 1.20 agent.
    #[test]
    fn rows_of_a_live_agent() {
        let row = "090000000000520900000000000000006ea7d1db66a50000be5e2823aba60000c0190000000000000000000000000000";
        let info = EndpointInfo::from_bytes(&bytes(row)).unwrap();
        assert_eq!(
            endpoint(&info),
            "id=2386  sec_id=6592  flags=0x0000 ifindex=9   mac=6E:A7:D1:DB:66:A5 nodemac=BE:5E:28:23:AB:A6 parent_ifindex=0   rt_info:0"
        );
        let row = "010000010000000000000000000000000000000000000000";
        let info = RemoteEndpointInfo::from_bytes(&bytes(row)).unwrap();
        assert_eq!(
            remote_endpoint(&info),
            "identity=16777217 encryptkey=0 tunnelendpoint=0.0.0.0 flags=<none>"
        );
        let key = PolicyKey::from_bytes(&bytes("400000000100000100060050")).unwrap();
        assert_eq!(
            (direction(&key), port_and_protocol(&key).as_str(), prefix_length(&key)),
            ("Ingress", "80/TCP", 24)
        );
        let key = PolicyKey::from_bytes(&bytes("280000000200000001000000")).unwrap();
        assert_eq!(
            (direction(&key), port_and_protocol(&key).as_str(), prefix_length(&key)),
            ("Egress", "ANY", 0)
        );
    }

    #[test]
    fn port_ranges() {
        let key =
            PolicyKey { prefixlen: 40 + 8 + 15, protocol: 17, dport: 80u16.to_be(), ..PolicyKey::default() };
        assert_eq!(port_and_protocol(&key), "80-81/UDP");
        let key = PolicyKey { prefixlen: 48, protocol: 6, ..PolicyKey::default() };
        assert_eq!(port_and_protocol(&key), "TCP");
    }
}
