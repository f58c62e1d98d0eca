//! Layers as text, `Name\t{Field=value ...}`. The text is for people.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Layer, LayerKind, TUNNEL_LEN, array, be16, be32, icmp, vni};

impl Layer<'_> {
    /// Returns the layer's text.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { kind, header, payload } = *self;
        let name = match kind {
            LayerKind::Ethernet => "Ethernet",
            LayerKind::Ipv4 => "IPv4",
            LayerKind::Ipv6 => "IPv6",
            LayerKind::Tcp => "TCP",
            LayerKind::Udp => "UDP",
            LayerKind::Sctp => "SCTP",
            LayerKind::Icmpv4 => "ICMPv4",
            LayerKind::Icmpv6 => "ICMPv6",
            LayerKind::Vrrp => "VRRPv2",
            LayerKind::Igmp => "IGMP",
            LayerKind::Vxlan => "VXLAN",
            LayerKind::Geneve => "Geneve",
        };
        let fields = match kind {
            LayerKind::Ethernet => ethernet(header),
            LayerKind::Ipv4 => ipv4(header),
            LayerKind::Ipv6 => ipv6(header),
            LayerKind::Tcp => tcp(header),
            LayerKind::Udp => udp(header),
            LayerKind::Sctp => sctp(header),
            LayerKind::Icmpv4 => format!(
                "TypeCode={} Checksum={} Id={} Seq={}",
                icmp::text(false, header[0], header[1]),
                be16(header, 2),
                be16(header, 4),
                be16(header, 6)
            ),
            LayerKind::Icmpv6 => {
                format!("TypeCode={} Checksum={}", icmp::text(true, header[0], header[1]), be16(header, 2))
            }
            LayerKind::Vrrp => vrrp(header),
            LayerKind::Igmp => {
                format!("Type={} GroupAddress={}", header[0], Ipv4Addr::from(array::<4>(header, 4)))
            }
            LayerKind::Vxlan => vxlan(header),
            LayerKind::Geneve => geneve(header),
        };
        format!("{name}\t{{Contents={} Payload={} {fields}}}", listed(header), listed(payload))
    }
}

fn ethernet(header: &[u8]) -> String {
    format!(
        "SrcMAC={} DstMAC={} EthernetType={} Length=0",
        mac(array(header, 6)),
        mac(array(header, 0)),
        ether_type(be16(header, 12))
    )
}

fn ipv4(header: &[u8]) -> String {
    let fragment = be16(header, 6);
    let flags = [(0x8000, "Evil"), (0x4000, "DF"), (0x2000, "MF")];
    let flags: Vec<&str> =
        flags.iter().filter(|(bit, _)| fragment & bit != 0).map(|(_, name)| *name).collect();
    format!(
        "Version=4 IHL={} TOS={} Length={} Id={} Flags={} FragOffset={} TTL={} Protocol={} Checksum={} SrcIP={} \
         DstIP={} Options={} Padding=[]",
        header[0] & 15,
        header[1],
        be16(header, 2),
        be16(header, 4),
        flags.join("|"),
        fragment & 0x1fff,
        header[8],
        protocol(header[9]),
        be16(header, 10),
        Ipv4Addr::from(array::<4>(header, 12)),
        Ipv4Addr::from(array::<4>(header, 16)),
        options(header),
    )
}

fn ipv6(header: &[u8]) -> String {
    format!(
        "Version=6 TrafficClass={} FlowLabel={} Length={} NextHeader={} HopLimit={} SrcIP={} DstIP={} HopByHop=nil",
        be16(header, 0) >> 4 & 0xff,
        be32(header, 0) & 0xf_ffff,
        be16(header, 4),
        protocol(header[6]),
        header[7],
        Ipv6Addr::from(array::<16>(header, 8)),
        Ipv6Addr::from(array::<16>(header, 24)),
    )
}

/// Formats the options behind the 20 bytes that headers of IPv4 and TCP have at least.
fn options(header: &[u8]) -> String {
    match header.len() {
        ..=20 => "[]".to_owned(),
        len => format!("[..{}..]", len - 20),
    }
}

fn tcp(header: &[u8]) -> String {
    let is = |byte: usize, bit: u8| header[byte] & bit != 0;
    format!(
        "SrcPort={} DstPort={} Seq={} Ack={} DataOffset={} FIN={} SYN={} RST={} PSH={} ACK={} URG={} ECE={} CWR={} NS={} \
         Window={} Checksum={} Urgent={} Options={} Padding=[] Multipath=false",
        be16(header, 0),
        be16(header, 2),
        be32(header, 4),
        be32(header, 8),
        header[12] >> 4,
        is(13, 1),
        is(13, 2),
        is(13, 4),
        is(13, 8),
        is(13, 16),
        is(13, 32),
        is(13, 64),
        is(13, 128),
        is(12, 1),
        be16(header, 14),
        be16(header, 16),
        be16(header, 18),
        options(header),
    )
}

fn udp(header: &[u8]) -> String {
    format!(
        "SrcPort={} DstPort={} Length={} Checksum={}",
        be16(header, 0),
        be16(header, 2),
        be16(header, 4),
        be16(header, 6)
    )
}

fn sctp(header: &[u8]) -> String {
    format!(
        "SrcPort={} DstPort={} VerificationTag={} Checksum={}",
        be16(header, 0),
        be16(header, 2),
        be32(header, 4),
        be32(header, 8)
    )
}

fn vrrp(header: &[u8]) -> String {
    format!(
        "Version={} Type={} VirtualRtrID={} Priority={}",
        header[0] >> 4,
        vrrp_type(header[0] & 15),
        header[1],
        header[2]
    )
}

fn vxlan(header: &[u8]) -> String {
    format!(
        "ValidIDFlag={} VNI={} GBPExtension={} GBPDontLearn=false GBPApplied=false GBPGroupPolicyID={}",
        header[0] & 8 != 0,
        vni(header),
        header[0] & 128 != 0,
        be16(header, 2)
    )
}

fn geneve(header: &[u8]) -> String {
    let options = &header[TUNNEL_LEN..];
    format!(
        "Version={} OptionsLength={} OAMPacket={} CriticalOption={} Protocol={} VNI={} Options={}",
        header[0] >> 6,
        options.len(),
        header[1] & 128 != 0,
        header[1] & 64 != 0,
        be16(header, 2),
        vni(header),
        listed(options)
    )
}

/// Returns address and port, an IPv6 address in brackets.
pub(crate) fn socket(ip: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(ip, port).to_string()
}

/// Returns a MAC address with colons.
pub(crate) fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

pub(super) fn ether_type(kind: u16) -> String {
    match kind {
        0x0800 => "IPv4".to_owned(),
        0x0806 => "ARP".to_owned(),
        0x86dd => "IPv6".to_owned(),
        0x8100 => "Dot1Q".to_owned(),
        0x88cc => "LinkLayerDiscovery".to_owned(),
        kind => format!("UnknownEthernetType({kind:#06x})"),
    }
}

fn protocol(number: u8) -> String {
    match number {
        0 => "IPv6HopByHop".to_owned(),
        1 => "ICMPv4".to_owned(),
        2 => "IGMP".to_owned(),
        4 => "IPv4".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        41 => "IPv6".to_owned(),
        43 => "IPv6Routing".to_owned(),
        44 => "IPv6Fragment".to_owned(),
        47 => "GRE".to_owned(),
        50 => "ESP".to_owned(),
        51 => "AH".to_owned(),
        58 => "ICMPv6".to_owned(),
        59 => "NoNextHeader".to_owned(),
        60 => "IPv6Destination".to_owned(),
        112 => "VRRP".to_owned(),
        132 => "SCTP".to_owned(),
        number => format!("{number}"),
    }
}

/// Formats bytes as lists of more than four items are: by their number.
fn listed(bytes: &[u8]) -> String {
    match bytes.len() {
        0..=4 => format!("{bytes:?}"),
        len => format!("[..{len}..]"),
    }
}

pub(super) fn vrrp_type(kind: u8) -> String {
    if kind == 1 { "VRRPv2 Advertisement".to_owned() } else { kind.to_string() }
}

pub(super) fn igmp_type(kind: u8) -> String {
    match kind {
        0x11 => "IGMP Membership Query".to_owned(),
        0x12 => "IGMPv1 Membership Report".to_owned(),
        0x16 => "IGMPv2 Membership Report".to_owned(),
        0x17 => "Leave Group".to_owned(),
        0x22 => "IGMPv3 Membership Report".to_owned(),
        kind => kind.to_string(),
    }
}
