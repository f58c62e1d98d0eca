//! Layouts of packet headers, and their checksums.

/// IPv4 header without options (RFC 791).
#[repr(C)]
pub(crate) struct Ipv4Header {
    pub(crate) version_ihl: u8,
    pub(crate) tos: u8,
    pub(crate) len: u16,
    pub(crate) id: u16,
    pub(crate) fragment: u16,
    pub(crate) ttl: u8,
    pub(crate) protocol: u8,
    pub(crate) checksum: u16,
    pub(crate) source: u32,
    pub(crate) destination: u32,
}

/// IPv6 header (RFC 8200).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ipv6Header {
    pub(crate) version_class_flow: u32,
    pub(crate) payload_len: u16,
    pub(crate) next_header: u8,
    pub(crate) hop_limit: u8,
    pub(crate) source: [u32; 4],
    pub(crate) destination: [u32; 4],
}

/// A MAC address in a packet, which is only aligned to two bytes.
pub(crate) type Mac = [u16; 3];

/// Ethernet header.
#[repr(C)]
pub(crate) struct EthHeader {
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
    pub(crate) protocol: u16,
}

/// Converts a MAC address from the format of map values.
#[inline(always)]
pub(crate) fn mac(word: u64) -> Mac {
    [word as u16, (word >> 16) as u16, (word >> 32) as u16]
}

/// Returns a checksum after the change of one 16-bit word (RFC 1624, equation 3).
#[inline(always)]
pub(crate) fn checksum_changed(checksum: u16, from: u16, to: u16) -> u16 {
    !fold(u32::from(!checksum) + u32::from(!from) + u32::from(to))
}

/// Folds a sum of 16-bit words to 16 bits, adding its carries.
#[inline(always)]
pub(crate) fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
