//! The frontend in the IP header: an option of IPv4, a destination options header of IPv6, as Cilium has them.

use crate::monitor::drop::Drop;
use crate::nat::Socket;
use crate::nodeport::dsr::Dsr;
use crate::nodeport::dsr::geneve;
use crate::packet::family::Family as _;
use crate::packet::headers::{Ipv4Header, Ipv6Header, fold};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_LEN, Skb};
use datapath_abi::{file, slot};

const FILE: u8 = file::NODEPORT;

/// Type and length of the IPv4 option: copied into fragments, class "control" (RFC 791).
const IPV4_OPTION: [u8; 2] = [0x9a, 8];
const IPV4_OPTION_LEN: usize = 8;
/// The longest IPv4 header, in words.
const MAX_WORDS: u8 = 15;

/// The protocol number of destination options (RFC 8200, 4.6).
const DESTINATION_OPTIONS: u8 = 60;
/// Type of the IPv6 option: hosts that do not know it skip it (RFC 8200, 4.2).
const IPV6_OPTION: u8 = 0x1b;
/// Length of the IPv6 option behind type and length: address, port, padding.
const IPV6_OPTION_LEN: u8 = 20;

/// The destination options header with the frontend.
#[repr(C)]
#[derive(Clone, Copy)]
struct Extension {
    next_header: u8,
    /// In units of eight bytes, without the first one.
    len: u8,
    kind: u8,
    option_len: u8,
    address: [u32; 4],
    port: u16,
    pad: u16,
}
const _: () = assert!(size_of::<Extension>() == 24);

impl Dsr for V4 {
    const TOO_BIG_SLOT: u32 = slot::IPV4_NODEPORT_DSR_TOO_BIG;
    const OPTION_LEN: u16 = IPV4_OPTION_LEN as u16;
    #[cfg(feature = "xdp")]
    const TUNNEL_OPTION_LEN: u16 = size_of::<geneve::Option4>() as u16;

    #[inline(always)]
    fn length(header: &Ipv4Header) -> u16 {
        u16::from_be(header.len)
    }

    /// The option is the first one.
    #[inline(always)]
    fn insert_option(skb: Skb, frontend: Socket<u32>) -> Result<(), Drop> {
        let Some(header) = Self::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
        // SAFETY: `header` checked the bounds; nothing moves the packet in between.
        let ip = unsafe { &mut *header };
        const ADDED_WORDS: u8 = (IPV4_OPTION_LEN / 4) as u8;
        if (ip.version_ihl & 0xf) + ADDED_WORDS > MAX_WORDS {
            return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
        }
        let first = u16::from_ne_bytes([ip.version_ihl, ip.tos]);
        ip.version_ihl += ADDED_WORDS;
        let lengthened = u16::from_ne_bytes([ip.version_ihl, ip.tos]);
        let len = (u16::from_be(ip.len) + Self::OPTION_LEN).to_be();
        // Port and address are in the byte order of little-endian machines, not in that of the wire.
        let address = frontend.address.swap_bytes();
        let option = [
            u16::from_ne_bytes(IPV4_OPTION),
            frontend.port.swap_bytes(),
            address as u16,
            (address >> 16) as u16,
        ];
        let added = [option[0], option[1], option[2], option[3], lengthened, len, !first, !ip.len];
        let mut sum = u32::from(!ip.checksum);
        for word in added {
            sum += u32::from(word);
        }
        (ip.len, ip.checksum) = (len, !fold(sum));
        // The header's checksum compensates for all of it in the device's sum.
        if !skb.widen(Self::OPTION_LEN) || !skb.store_quietly(OPTION_OFFSET, &option) {
            return Err(drop_here!(ERROR_WRITING_TO_PACKET));
        }
        Ok(())
    }

    #[inline(always)]
    fn named(skb: Skb, header: &Ipv4Header) -> Option<Socket<u32>> {
        const WORDS: u8 = ((size_of::<Ipv4Header>() + IPV4_OPTION_LEN) / 4) as u8;
        if header.version_ihl & 0xf < WORDS {
            return None;
        }
        let option = skb.read::<[u16; IPV4_OPTION_LEN / 2]>(OPTION_OFFSET)?;
        if option[0] != u16::from_ne_bytes(IPV4_OPTION) {
            return None;
        }
        let address = u32::from(option[2]) | u32::from(option[3]) << 16;
        Some(Socket { address: address.swap_bytes(), port: option[1].swap_bytes() })
    }

    #[cfg(feature = "xdp")]
    #[inline(always)]
    fn store_tunnel_option(skb: Skb, offset: usize, frontend: Socket<u32>) -> bool {
        skb.store(offset, &geneve::Option4::new(frontend))
    }

    #[cfg(not(feature = "xdp"))]
    #[inline(always)]
    fn insert_into_tunnel(skb: Skb, frontend: Socket<u32>) -> bool {
        skb.set_tunnel_option(&geneve::Option4::new(frontend))
    }

    #[cfg(not(feature = "xdp"))]
    #[inline(always)]
    fn named_in_tunnel(skb: Skb) -> Option<Socket<u32>> {
        geneve::Option4::read(skb)
    }
}

/// The offset of the first option of IPv4.
const OPTION_OFFSET: usize = ETH_LEN + size_of::<Ipv4Header>();
/// The offset of the first extension header of IPv6.
const EXTENSION_OFFSET: usize = ETH_LEN + size_of::<Ipv6Header>();
/// The offset of payload length, next header and hop limit in the IPv6 header.
const LENGTH_OFFSET: usize = ETH_LEN + 4;

impl Dsr for V6 {
    const TOO_BIG_SLOT: u32 = slot::IPV6_NODEPORT_DSR_TOO_BIG;
    const OPTION_LEN: u16 = size_of::<Extension>() as u16;
    #[cfg(feature = "xdp")]
    const TUNNEL_OPTION_LEN: u16 = size_of::<geneve::Option6>() as u16;

    #[inline(always)]
    fn length(header: &Ipv6Header) -> u16 {
        u16::from_be(header.payload_len).saturating_add(size_of::<Ipv6Header>() as u16)
    }

    /// The extension header is the first one.
    #[inline(always)]
    fn insert_option(skb: Skb, frontend: Socket<[u32; 4]>) -> Result<(), Drop> {
        let Some(header) = Self::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
        // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
        let (next_header, hops, len) =
            unsafe { ((*header).next_header, (*header).hop_limit, (*header).payload_len) };
        let extension = Extension {
            next_header,
            len: (size_of::<Extension>() / 8 - 1) as u8,
            kind: IPV6_OPTION,
            option_len: IPV6_OPTION_LEN,
            address: frontend.address,
            port: frontend.port,
            pad: 0,
        };
        let len = (u16::from_be(len) + Self::OPTION_LEN).to_be();
        let words = [len, u16::from_ne_bytes([DESTINATION_OPTIONS, hops])];
        if !skb.widen(Self::OPTION_LEN)
            || !skb.store(LENGTH_OFFSET, &words)
            || !skb.store(EXTENSION_OFFSET, &extension)
        {
            return Err(drop_here!(ERROR_WRITING_TO_PACKET));
        }
        Ok(())
    }

    #[inline(always)]
    fn named(skb: Skb, header: &Ipv6Header) -> Option<Socket<[u32; 4]>> {
        if header.next_header != DESTINATION_OPTIONS {
            return None;
        }
        let nothing = [0; 4];
        let mut found =
            Extension { next_header: 0, len: 0, kind: 0, option_len: 0, address: nothing, port: 0, pad: 0 };
        if !skb.load(EXTENSION_OFFSET, &mut found)
            || usize::from(found.len) != size_of::<Extension>() / 8 - 1
            || found.kind != IPV6_OPTION
            || found.option_len != IPV6_OPTION_LEN
        {
            return None;
        }
        Some(Socket { address: found.address, port: found.port })
    }

    #[cfg(feature = "xdp")]
    #[inline(always)]
    fn store_tunnel_option(skb: Skb, offset: usize, frontend: Socket<[u32; 4]>) -> bool {
        skb.store(offset, &geneve::Option6::new(frontend))
    }

    #[cfg(not(feature = "xdp"))]
    #[inline(always)]
    fn insert_into_tunnel(skb: Skb, frontend: Socket<[u32; 4]>) -> bool {
        skb.set_tunnel_option(&geneve::Option6::new(frontend))
    }

    #[cfg(not(feature = "xdp"))]
    #[inline(always)]
    fn named_in_tunnel(skb: Skb) -> Option<Socket<[u32; 4]>> {
        geneve::Option6::read(skb)
    }
}
