//! Layers of a packet, as far as its captured bytes go.
//!
//! Uses nothing; `icmp` has the names of types and codes, `headers` the headers as values for programs.

mod headers;
mod icmp;

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use headers::{Frame, Headers, TransportHeader};

/// The first layer of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum First {
    /// An Ethernet header.
    #[default]
    Ethernet,
    /// An IP header: the device has no Ethernet headers.
    Ip,
}

/// A tunnel in which a packet travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "protocols")]
pub enum Tunnel {
    Vxlan,
    Geneve,
}

/// A kind of layer, in the order of JSON keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "protocols")]
pub enum LayerKind {
    Ethernet,
    Ipv4,
    Ipv6,
    Tcp,
    Udp,
    Sctp,
    Icmpv4,
    Icmpv6,
    Vrrp,
    Igmp,
    Vxlan,
    Geneve,
}

/// A layer: its kind and its text, `Name\t{Field=value ...}`. The text is for people.
pub type Layer = (LayerKind, String);

/// Layers of a packet, without those of packets inside of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    /// Texts of the layers, from the outermost.
    pub texts: Vec<Layer>,
    /// MAC addresses of source and destination, and the EtherType.
    pub l2: Option<([u8; 6], [u8; 6], u16)>,
    /// Addresses of source and destination.
    pub l3: Option<(IpAddr, IpAddr)>,
    /// The transport protocol.
    pub l4: Option<Transport>,
}

/// A transport protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP, UDP or SCTP, with the flags of TCP that summaries have.
    Ports {
        /// `tcp`, `udp` or `sctp`.
        name: &'static str,
        /// The source port.
        src: u16,
        /// The destination port.
        dst: u16,
        /// `SYN, ACK, RST, FIN`, those that are set.
        flags: String,
    },
    /// The protocol with a description.
    Other(String),
}

/// A packet, and that inside of a tunnel's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// The inner or only packet.
    pub layers: Layers,
    /// The outer packet of a tunnel.
    pub outer: Option<(Tunnel, Layers)>,
    /// Whether a header is truncated or invalid.
    pub malformed: bool,
}

const ETHERNET_LEN: usize = 14;
const TUNNEL_LEN: usize = 8;

impl Packet {
    /// Reads a packet. With `tunnel`, the payload of UDP is that tunnel's.
    #[must_use]
    pub fn parse(first: First, tunnel: Option<Tunnel>, bytes: &[u8]) -> Self {
        let mut outer = Layers::default();
        let inner = match parse(first, bytes, &mut outer) {
            Err(Malformed) => return Self { layers: outer, outer: None, malformed: true },
            Ok(payload) => payload.zip(tunnel),
        };
        let Some((payload, tunnel)) = inner else {
            return Self { layers: outer, outer: None, malformed: false };
        };
        let mut layers = Layers::default();
        let malformed = match tunnel_payload(tunnel, payload, &mut outer) {
            Some(frame) => parse(First::Ethernet, frame, &mut layers).is_err(),
            None => true,
        };
        Self { layers, outer: Some((tunnel, outer)), malformed }
    }

    /// Returns the connection in a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let inner = match self.layers.summary() {
            Some(line) => line,
            None if self.malformed => "[error]".to_owned(),
            None => "[unknown]".to_owned(),
        };
        match &self.outer {
            None => inner,
            Some((tunnel, outer)) => {
                let name = match tunnel {
                    Tunnel::Vxlan => "vxlan",
                    Tunnel::Geneve => "geneve",
                };
                let ends = outer.ends().unwrap_or_default();
                format!("{inner} [tunnel {ends} {name}]")
            }
        }
    }
}

impl Layers {
    /// Returns `sIP:sport -> dIP:dport` or `sIP -> dIP`.
    fn ends(&self) -> Option<String> {
        let (src, dst) = self.l3?;
        Some(match &self.l4 {
            Some(Transport::Ports { src: sport, dst: dport, .. }) => {
                format!("{} -> {}", socket(src, *sport), socket(dst, *dport))
            }
            _ => format!("{src} -> {dst}"),
        })
    }

    fn summary(&self) -> Option<String> {
        let Some(mut line) = self.ends() else {
            let (src, dst, kind) = self.l2?;
            return Some(format!("{} -> {} {}", mac(src), mac(dst), ether_type(kind)));
        };
        match &self.l4 {
            None => {}
            Some(Transport::Ports { name, flags, .. }) => {
                let _ = write!(line, " {name}");
                if !flags.is_empty() {
                    let _ = write!(line, " {flags}");
                }
            }
            Some(Transport::Other(text)) => {
                let _ = write!(line, " {text}");
            }
        }
        Some(line)
    }
}

/// Returns address and port, an IPv6 address in brackets.
pub(crate) fn socket(ip: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(ip, port).to_string()
}

/// Returns a MAC address with colons.
pub(crate) fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

fn ether_type(kind: u16) -> String {
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

/// A header is truncated or invalid.
struct Malformed;

/// Returns the big-endian number at an offset; the caller has checked the length.
fn be16(bytes: &[u8], offset: usize) -> u16 {
    bytes.get(offset..offset + 2).map_or(0, |two| u16::from(two[0]) << 8 | u16::from(two[1]))
}

fn be32(bytes: &[u8], offset: usize) -> u32 {
    u32::from(be16(bytes, offset)) << 16 | u32::from(be16(bytes, offset + 2))
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes.get(offset..offset + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

/// Formats bytes as lists of more than four items are: by their number.
fn listed(bytes: &[u8]) -> String {
    match bytes.len() {
        0..=4 => format!("{bytes:?}"),
        len => format!("[..{len}..]"),
    }
}

/// Returns the beginning of a layer's text.
fn layer(name: &str, contents: &[u8], payload: &[u8]) -> String {
    format!("{name}\t{{Contents={} Payload={}", listed(contents), listed(payload))
}

fn split(bytes: &[u8], len: usize) -> Result<(&[u8], &[u8]), Malformed> {
    bytes.split_at_checked(len).ok_or(Malformed)
}

/// Reads the layers of a packet into `out`. Returns the payload of UDP.
fn parse<'a>(first: First, bytes: &'a [u8], out: &mut Layers) -> Result<Option<&'a [u8]>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    match first {
        First::Ethernet => {
            let (header, payload) = split(bytes, ETHERNET_LEN)?;
            let (dst, src, kind) = (array(header, 0), array(header, 6), be16(header, 12));
            out.l2 = Some((src, dst, kind));
            let text = layer("Ethernet", header, payload);
            out.texts.push((
                LayerKind::Ethernet,
                format!(
                    "{text} SrcMAC={} DstMAC={} EthernetType={} Length=0}}",
                    mac(src),
                    mac(dst),
                    ether_type(kind)
                ),
            ));
            match kind {
                0x0800 => ipv4(payload, out),
                0x86dd => ipv6(payload, out),
                _ => Ok(None),
            }
        }
        First::Ip => match bytes[0] >> 4 {
            4 => ipv4(bytes, out),
            6 => ipv6(bytes, out),
            _ => Err(Malformed),
        },
    }
}

fn ipv4<'a>(bytes: &'a [u8], out: &mut Layers) -> Result<Option<&'a [u8]>, Malformed> {
    let (fixed, _) = split(bytes, 20)?;
    let (version, words) = (fixed[0] >> 4, fixed[0] & 15);
    if version != 4 || words < 5 {
        return Err(Malformed);
    }
    let (header, rest) = split(bytes, usize::from(words) * 4)?;
    let length = be16(header, 2);
    // Padding of short frames and of the event is no payload; zero is the length of packets that were segmented.
    let payload =
        usize::from(length).checked_sub(header.len()).and_then(|len| rest.get(..len)).unwrap_or(rest);
    let fragment = be16(header, 6);
    let flags = [(0x8000, "Evil"), (0x4000, "DF"), (0x2000, "MF")];
    let flags: Vec<&str> =
        flags.iter().filter(|(bit, _)| fragment & bit != 0).map(|(_, name)| *name).collect();
    let (src, dst) = (Ipv4Addr::from(array::<4>(header, 12)), Ipv4Addr::from(array::<4>(header, 16)));
    let options = if words > 5 { format!("[..{}..]", header.len() - 20) } else { "[]".to_owned() };
    let text = format!(
        "{} Version=4 IHL={words} TOS={} Length={length} Id={} Flags={} FragOffset={} TTL={} Protocol={} Checksum={} \
         SrcIP={src} DstIP={dst} Options={options} Padding=[]}}",
        layer("IPv4", header, payload),
        header[1],
        be16(header, 4),
        flags.join("|"),
        fragment & 0x1fff,
        header[8],
        protocol(header[9]),
        be16(header, 10),
    );
    out.texts.push((LayerKind::Ipv4, text));
    out.l3 = Some((src.into(), dst.into()));
    // Other fragments than the first have no transport header.
    if fragment & 0x1fff != 0 { Ok(None) } else { transport(header[9], payload, out) }
}

fn ipv6<'a>(bytes: &'a [u8], out: &mut Layers) -> Result<Option<&'a [u8]>, Malformed> {
    let (header, rest) = split(bytes, 40)?;
    if header[0] >> 4 != 6 {
        return Err(Malformed);
    }
    let length = be16(header, 4);
    let payload = if length == 0 { rest } else { rest.get(..usize::from(length)).unwrap_or(rest) };
    let (src, dst) = (Ipv6Addr::from(array::<16>(header, 8)), Ipv6Addr::from(array::<16>(header, 24)));
    let text = format!(
        "{} Version=6 TrafficClass={} FlowLabel={} Length={length} NextHeader={} HopLimit={} SrcIP={src} DstIP={dst} \
         HopByHop=nil}}",
        layer("IPv6", header, payload),
        be16(header, 0) >> 4 & 0xff,
        be32(header, 0) & 0xf_ffff,
        protocol(header[6]),
        header[7],
    );
    out.texts.push((LayerKind::Ipv6, text));
    out.l3 = Some((src.into(), dst.into()));
    match skip_extensions(header[6], payload)? {
        Some((next, payload)) => transport(next, payload, out),
        None => Ok(None),
    }
}

/// Skips extension headers. Returns the protocol behind them and its bytes; `None` if the packet is a later fragment.
fn skip_extensions(mut next: u8, mut payload: &[u8]) -> Result<Option<(u8, &[u8])>, Malformed> {
    loop {
        let len = match next {
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 => 8 + 8 * usize::from(*payload.get(1).ok_or(Malformed)?),
            44 => {
                if be16(split(payload, 8)?.0, 2) & 0xfff8 != 0 {
                    return Ok(None);
                }
                8
            }
            _ => return Ok(Some((next, payload))),
        };
        let (extension, rest) = split(payload, len)?;
        (next, payload) = (extension[0], rest);
    }
}

fn transport<'a>(protocol: u8, bytes: &'a [u8], out: &mut Layers) -> Result<Option<&'a [u8]>, Malformed> {
    match protocol {
        1 | 58 => icmp::parse(protocol == 58, bytes, out)?,
        2 => {
            let (header, payload) = split(bytes, 8)?;
            let group = Ipv4Addr::from(array::<4>(header, 4));
            let text =
                format!("{} Type={} GroupAddress={group}}}", layer("IGMP", header, payload), header[0]);
            out.texts.push((LayerKind::Igmp, text));
            out.l4 = Some(Transport::Other(format!("igmp {} {group}", igmp_type(header[0]))));
        }
        6 => tcp(bytes, out)?,
        17 => {
            let (header, payload) = split(bytes, 8)?;
            let text = format!(
                "{} SrcPort={} DstPort={} Length={} Checksum={}}}",
                layer("UDP", header, payload),
                be16(header, 0),
                be16(header, 2),
                be16(header, 4),
                be16(header, 6)
            );
            out.texts.push((LayerKind::Udp, text));
            out.l4 = Some(ports("udp", header, String::new()));
            return Ok(Some(payload));
        }
        112 => {
            let (header, payload) = split(bytes, 8)?;
            let (kind, id, priority) = (header[0] & 15, header[1], header[2]);
            let kind = vrrp_type(kind);
            let text = format!(
                "{} Version={} Type={kind} VirtualRtrID={id} Priority={priority}}}",
                layer("VRRPv2", header, payload),
                header[0] >> 4
            );
            out.texts.push((LayerKind::Vrrp, text));
            out.l4 = Some(Transport::Other(format!("vrrp {kind} {id} {priority}")));
        }
        132 => {
            let (header, payload) = split(bytes, 12)?;
            let text = format!(
                "{} SrcPort={} DstPort={} VerificationTag={} Checksum={}}}",
                layer("SCTP", header, payload),
                be16(header, 0),
                be16(header, 2),
                be32(header, 4),
                be32(header, 8)
            );
            out.texts.push((LayerKind::Sctp, text));
            out.l4 = Some(ports("sctp", header, String::new()));
        }
        _ => {}
    }
    Ok(None)
}

fn vrrp_type(kind: u8) -> String {
    if kind == 1 { "VRRPv2 Advertisement".to_owned() } else { kind.to_string() }
}

fn igmp_type(kind: u8) -> String {
    match kind {
        0x11 => "IGMP Membership Query".to_owned(),
        0x12 => "IGMPv1 Membership Report".to_owned(),
        0x16 => "IGMPv2 Membership Report".to_owned(),
        0x17 => "Leave Group".to_owned(),
        0x22 => "IGMPv3 Membership Report".to_owned(),
        kind => kind.to_string(),
    }
}

fn ports(name: &'static str, header: &[u8], flags: String) -> Transport {
    Transport::Ports { name, src: be16(header, 0), dst: be16(header, 2), flags }
}

fn tcp(bytes: &[u8], out: &mut Layers) -> Result<(), Malformed> {
    let (fixed, _) = split(bytes, 20)?;
    let words = fixed[12] >> 4;
    if words < 5 {
        return Err(Malformed);
    }
    // Options may reach beyond the captured bytes.
    let len = (usize::from(words) * 4).min(bytes.len());
    let (header, payload) = bytes.split_at(len);
    let bits = u16::from(fixed[12] & 1) << 8 | u16::from(fixed[13]);
    let is = |bit: u16| bits & bit != 0;
    let options = if len > 20 { format!("[..{}..]", len - 20) } else { "[]".to_owned() };
    let text = format!(
        "{} SrcPort={} DstPort={} Seq={} Ack={} DataOffset={words} FIN={} SYN={} RST={} PSH={} ACK={} URG={} ECE={} \
         CWR={} NS={} Window={} Checksum={} Urgent={} Options={options} Padding=[] Multipath=false}}",
        layer("TCP", header, payload),
        be16(header, 0),
        be16(header, 2),
        be32(header, 4),
        be32(header, 8),
        is(1),
        is(2),
        is(4),
        is(8),
        is(16),
        is(32),
        is(64),
        is(128),
        is(256),
        be16(header, 14),
        be16(header, 16),
        be16(header, 18),
    );
    out.texts.push((LayerKind::Tcp, text));
    let flags = [(2, "SYN"), (16, "ACK"), (4, "RST"), (1, "FIN")];
    let flags: Vec<&str> = flags.iter().filter(|(bit, _)| is(*bit)).map(|(_, name)| *name).collect();
    out.l4 = Some(ports("tcp", header, flags.join(", ")));
    Ok(())
}

/// Reads the header of a tunnel; returns the frame inside.
fn tunnel_payload<'a>(tunnel: Tunnel, bytes: &'a [u8], out: &mut Layers) -> Option<&'a [u8]> {
    let (fixed, _) = bytes.split_at_checked(TUNNEL_LEN)?;
    let vni = be32(fixed, 4) >> 8;
    match tunnel {
        Tunnel::Vxlan => {
            let (header, frame) = bytes.split_at(TUNNEL_LEN);
            let text = format!(
                "{} ValidIDFlag={} VNI={vni} GBPExtension={} GBPDontLearn=false GBPApplied=false GBPGroupPolicyID={}}}",
                layer("VXLAN", header, frame),
                header[0] & 8 != 0,
                header[0] & 128 != 0,
                be16(header, 2)
            );
            out.texts.push((LayerKind::Vxlan, text));
            Some(frame)
        }
        Tunnel::Geneve => {
            let options = usize::from(fixed[0] & 0x3f) * 4;
            let (header, frame) = bytes.split_at_checked(TUNNEL_LEN + options)?;
            let text = format!(
                "{} Version={} OptionsLength={options} OAMPacket={} CriticalOption={} Protocol={} VNI={vni} Options={}}}",
                layer("Geneve", header, frame),
                fixed[0] >> 6,
                fixed[1] & 128 != 0,
                fixed[1] & 64 != 0,
                be16(fixed, 2),
                listed(&header[TUNNEL_LEN..])
            );
            out.texts.push((LayerKind::Geneve, text));
            Some(frame)
        }
    }
}
