//! Drop reasons: codes of drop events and of the metrics map (constants: drop_reason).

/// Invalid source mac.
pub const INVALID_SOURCE_MAC: u8 = 130;
/// Invalid destination mac.
pub const INVALID_DESTINATION_MAC: u8 = 131;
/// Invalid source ip.
pub const INVALID_SOURCE_IP: u8 = 132;
/// Policy denied.
pub const POLICY_DENIED: u8 = 133;
/// Invalid packet.
pub const INVALID_PACKET_DROPPED: u8 = 134;
/// CT: Truncated or invalid header.
pub const CT_TRUNCATED_OR_INVALID_HEADER: u8 = 135;
/// Fragmentation needed.
pub const FRAG_NEEDED: u8 = 136;
/// CT: Unknown L4 protocol.
pub const CT_UNKNOWN_L4_PROTOCOL: u8 = 137;
/// CT: Can't create entry from packet.
pub const CT_CANNOT_CREATE_ENTRY_FROM_PACKET: u8 = 138;
/// Unsupported L3 protocol.
pub const UNSUPPORTED_L3_PROTOCOL: u8 = 139;
/// Missed tail call.
pub const MISSED_TAIL_CALL: u8 = 140;
/// Error writing to packet.
pub const ERROR_WRITING_TO_PACKET: u8 = 141;
/// Unknown L4 protocol.
pub const UNKNOWN_L4_PROTOCOL: u8 = 142;
/// Unknown ICMPv4 code.
pub const UNKNOWN_ICMPV4_CODE: u8 = 143;
/// Unknown ICMPv4 type.
pub const UNKNOWN_ICMPV4_TYPE: u8 = 144;
/// Unknown ICMPv6 code.
pub const UNKNOWN_ICMPV6_CODE: u8 = 145;
/// Unknown ICMPv6 type.
pub const UNKNOWN_ICMPV6_TYPE: u8 = 146;
/// Error retrieving tunnel key.
pub const ERROR_RETRIEVING_TUNNEL_KEY: u8 = 147;
/// Error retrieving tunnel options.
pub const ERROR_RETRIEVING_TUNNEL_OPTIONS: u8 = 148;
/// Invalid Geneve option.
pub const INVALID_GENEVE_OPTION: u8 = 149;
/// Unknown L3 target address.
pub const UNKNOWN_L3_TARGET_ADDRESS: u8 = 150;
/// Stale or unroutable IP.
pub const STALE_OR_UNROUTABLE_IP: u8 = 151;
/// No matching local container found.
pub const NO_MATCHING_LOCAL_CONTAINER_FOUND: u8 = 152;
/// Error while correcting L3 checksum.
pub const ERROR_WHILE_CORRECTING_L3_CHECKSUM: u8 = 153;
/// Error while correcting L4 checksum.
pub const ERROR_WHILE_CORRECTING_L4_CHECKSUM: u8 = 154;
/// CT: Map insertion failed.
pub const CT_MAP_INSERTION_FAILED: u8 = 155;
/// Invalid IPv6 extension header.
pub const INVALID_IPV6_EXTENSION_HEADER: u8 = 156;
/// IP fragmentation not supported.
pub const IP_FRAGMENTATION_NOT_SUPPORTED: u8 = 157;
/// Service backend not found.
pub const SERVICE_BACKEND_NOT_FOUND: u8 = 158;
/// No tunnel/encapsulation endpoint (datapath BUG!).
pub const NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT: u8 = 160;
/// NAT 46/64 not enabled.
pub const FAILED_TO_INSERT_INTO_PROXYMAP: u8 = 161;
/// Reached EDT rate-limiting drop horizon.
pub const REACHED_EDT_RATE_LIMITING_DROP_HORIZON: u8 = 162;
/// Unknown connection tracking state.
pub const UNKNOWN_CONNECTION_TRACKING_STATE: u8 = 163;
/// Local host is unreachable.
pub const LOCAL_HOST_IS_UNREACHABLE: u8 = 164;
/// No configuration available to perform policy decision.
pub const NO_CONFIGURATION_AVAILABLE_TO_PERFORM_POLICY_DECISION: u8 = 165;
/// Unsupported L2 protocol.
pub const UNSUPPORTED_L2_PROTOCOL: u8 = 166;
/// No mapping for NAT masquerade.
pub const NO_MAPPING_FOR_NAT_MASQUERADE: u8 = 167;
/// Unsupported protocol for NAT masquerade.
pub const UNSUPPORTED_PROTOCOL_FOR_NAT_MASQUERADE: u8 = 168;
/// FIB lookup failed.
pub const FIB_LOOKUP_FAILED: u8 = 169;
/// Encapsulation traffic is prohibited.
pub const ENCAPSULATION_TRAFFIC_IS_PROHIBITED: u8 = 170;
/// Invalid identity.
pub const INVALID_IDENTITY: u8 = 171;
/// Unknown sender.
pub const UNKNOWN_SENDER: u8 = 172;
/// NAT not needed.
pub const NAT_NOT_NEEDED: u8 = 173;
/// Is a ClusterIP.
pub const IS_A_CLUSTERIP: u8 = 174;
/// First logical datagram fragment not found.
pub const FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND: u8 = 175;
/// Forbidden ICMPv6 message.
pub const FORBIDDEN_ICMPV6_MESSAGE: u8 = 176;
/// Denied by LB src range check.
pub const DENIED_BY_LB_SRC_RANGE_CHECK: u8 = 177;
/// Socket lookup failed.
pub const SOCKET_LOOKUP_FAILED: u8 = 178;
/// Socket assign failed.
pub const SOCKET_ASSIGN_FAILED: u8 = 179;
/// Proxy redirection not supported for protocol.
pub const PROXY_REDIRECTION_NOT_SUPPORTED_FOR_PROTOCOL: u8 = 180;
/// Policy denied by denylist.
pub const POLICY_DENY: u8 = 181;
/// VLAN traffic disallowed by VLAN filter.
pub const VLAN_FILTERED: u8 = 182;
/// Incorrect VNI from VTEP.
pub const INVALID_VNI: u8 = 183;
/// Failed to update or lookup TC buffer.
pub const INVALID_TC_BUFFER: u8 = 184;
/// No SID was found for the IP address.
pub const NO_SID: u8 = 185;
/// SRv6 state was removed during tail call.
pub const MISSING_SRV6_STATE: u8 = 186;
/// L3 translation from IPv4 to IPv6 failed (NAT46).
pub const NAT46: u8 = 187;
/// L3 translation from IPv6 to IPv4 failed (NAT64).
pub const NAT64: u8 = 188;
/// Authentication required.
pub const AUTH_REQUIRED: u8 = 189;
/// No conntrack map found.
pub const CT_NO_MAP_FOUND: u8 = 190;
/// No nat map found.
pub const SNAT_NO_MAP_FOUND: u8 = 191;
/// Invalid ClusterID.
pub const INVALID_CLUSTER_ID: u8 = 192;
/// Unsupported packet protocol for DSR encapsulation.
pub const UNSUPPORTED_PROTOCOL_FOR_DSR_ENCAP: u8 = 193;
/// No egress gateway found.
pub const NO_EGRESS_GATEWAY: u8 = 194;
/// Traffic is unencrypted.
pub const UNENCRYPTED_TRAFFIC: u8 = 195;
/// TTL exceeded.
pub const TTL_EXCEEDED: u8 = 196;
/// No node ID found.
pub const NO_NODE_ID: u8 = 197;
/// Rate limited.
pub const RATE_LIMITED: u8 = 198;
/// IGMP handled.
pub const IGMP_HANDLED: u8 = 199;
/// IGMP subscribed.
pub const IGMP_SUBSCRIBED: u8 = 200;
/// Multicast handled.
pub const MULTICAST_HANDLED: u8 = 201;
/// Host datapath not ready.
pub const HOST_NOT_READY: u8 = 202;
/// Endpoint policy program not available.
pub const EP_NOT_READY: u8 = 203;
/// No Egress IP configured.
pub const NO_EGRESS_IP: u8 = 204;
/// Punt to proxy.
pub const PUNT_PROXY: u8 = 205;

/// The first code of the table.
pub const FIRST: u8 = 130;

/// The names that Cilium prints for drop reasons; empty where it has none.
const LABELS: [&str; 77] = [
    "Invalid source mac",
    "Invalid destination mac",
    "Invalid source ip",
    "Policy denied",
    "Invalid packet",
    "CT: Truncated or invalid header",
    "Fragmentation needed",
    "CT: Unknown L4 protocol",
    "CT: Can't create entry from packet",
    "Unsupported L3 protocol",
    "Missed tail call",
    "Error writing to packet",
    "Unknown L4 protocol",
    "Unknown ICMPv4 code",
    "Unknown ICMPv4 type",
    "Unknown ICMPv6 code",
    "Unknown ICMPv6 type",
    "Error retrieving tunnel key",
    "Error retrieving tunnel options",
    "Invalid Geneve option",
    "Unknown L3 target address",
    "Stale or unroutable IP",
    "No matching local container found",
    "Error while correcting L3 checksum",
    "Error while correcting L4 checksum",
    "CT: Map insertion failed",
    "Invalid IPv6 extension header",
    "IP fragmentation not supported",
    "Service backend not found",
    "",
    "No tunnel/encapsulation endpoint (datapath BUG!)",
    "NAT 46/64 not enabled",
    "Reached EDT rate-limiting drop horizon",
    "Unknown connection tracking state",
    "Local host is unreachable",
    "No configuration available to perform policy decision",
    "Unsupported L2 protocol",
    "No mapping for NAT masquerade",
    "Unsupported protocol for NAT masquerade",
    "FIB lookup failed",
    "Encapsulation traffic is prohibited",
    "Invalid identity",
    "Unknown sender",
    "NAT not needed",
    "Is a ClusterIP",
    "First logical datagram fragment not found",
    "Forbidden ICMPv6 message",
    "Denied by LB src range check",
    "Socket lookup failed",
    "Socket assign failed",
    "Proxy redirection not supported for protocol",
    "Policy denied by denylist",
    "VLAN traffic disallowed by VLAN filter",
    "Incorrect VNI from VTEP",
    "Failed to update or lookup TC buffer",
    "No SID was found for the IP address",
    "SRv6 state was removed during tail call",
    "L3 translation from IPv4 to IPv6 failed (NAT46)",
    "L3 translation from IPv6 to IPv4 failed (NAT64)",
    "Authentication required",
    "No conntrack map found",
    "No nat map found",
    "Invalid ClusterID",
    "Unsupported packet protocol for DSR encapsulation",
    "No egress gateway found",
    "Traffic is unencrypted",
    "TTL exceeded",
    "No node ID found",
    "Rate limited",
    "IGMP handled",
    "IGMP subscribed",
    "Multicast handled",
    "Host datapath not ready",
    "Endpoint policy program not available",
    "No Egress IP configured",
    "Punt to proxy",
    "No device",
];

/// Returns the name that Cilium prints for a drop reason; `None` for a code without a name (it prints the code).
pub fn label(code: u8) -> Option<&'static str> {
    let label = LABELS.get(usize::from(code.checked_sub(FIRST)?)).copied()?;
    if label.is_empty() { None } else { Some(label) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_their_codes() {
        assert_eq!(label(INVALID_SOURCE_IP), Some("Invalid source ip"));
        assert_eq!(label(TTL_EXCEEDED), Some("TTL exceeded"));
        assert_eq!(label(EP_NOT_READY), Some("Endpoint policy program not available"));
        assert_eq!(label(PUNT_PROXY), Some("Punt to proxy"));
        assert_eq!(label(206), Some("No device"));
        assert_eq!(label(159), None);
        assert_eq!(label(129), None);
        assert_eq!(label(207), None);
    }
}
