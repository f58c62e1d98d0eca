//! The frontend in an option of a Geneve tunnel (RFC 8926), as Cilium has it.

use crate::nat::Socket;
#[cfg(not(feature = "xdp"))]
use crate::packet::skb::Skb;

/// Class and type of the option. Receivers that do not know it drop the packet: the type is a critical one.
const CLASS: u16 = 0x014bu16.to_be();
const KIND: u8 = 0x81;

/// The option: a header, and the frontend in network byte order.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TunnelOption<A> {
    class: u16,
    kind: u8,
    /// In units of four bytes, without the header.
    len: u8,
    address: A,
    port: u16,
    pad: u16,
}

pub(crate) type Option4 = TunnelOption<u32>;
pub(crate) type Option6 = TunnelOption<[u32; 4]>;
const _: () = assert!(size_of::<Option4>() == 12 && size_of::<Option6>() == 24);

impl<A: Copy + Default> TunnelOption<A> {
    const LEN: u8 = (size_of::<Self>() / 4 - 1) as u8;

    #[inline(always)]
    pub(crate) fn new(frontend: Socket<A>) -> Self {
        let Socket { address, port } = frontend;
        Self { class: CLASS, kind: KIND, len: Self::LEN, address, port, pad: 0 }
    }

    /// Returns the frontend in the only option of the packet's tunnel.
    #[cfg(not(feature = "xdp"))]
    #[inline(always)]
    pub(crate) fn read(skb: Skb) -> Option<Socket<A>> {
        let mut option = Self { class: 0, kind: 0, len: 0, address: A::default(), port: 0, pad: 0 };
        if !skb.tunnel_option(&mut option)
            || option.class != CLASS
            || option.kind != KIND
            || option.len != Self::LEN
        {
            return None;
        }
        Some(Socket { address: option.address, port: option.port })
    }
}
