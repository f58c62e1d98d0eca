//! The maps of sockets that were translated to a backend when they connected, by socket and backend.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use bpf::RawMap;
use maps::Maps;

type Open = dyn Fn(&str) -> anyhow::Result<Option<RawMap>> + Send + Sync;

const V4: &str = "cilium_lb4_reverse_sk";
const V6: &str = "cilium_lb6_reverse_sk";

/// Sockets that were translated to a backend: `cilium_lb4_reverse_sk` and `cilium_lb6_reverse_sk`.
pub struct ReverseSockets {
    open: Box<Open>,
    v4: OnceLock<Option<RawMap>>,
    v6: OnceLock<Option<RawMap>>,
}

impl ReverseSockets {
    /// Returns maps that this function opens by name on first use; a node may have only one family.
    ///
    /// Keys: 8 bytes cookie of the socket, the backend's address (4 or 16 bytes), its port big-endian, 2 bytes 0.
    /// Values: the frontend's address, port and id, big-endian.
    pub fn new(
        open: impl Fn(&str) -> anyhow::Result<Option<RawMap>> + Send + Sync + 'static,
    ) -> ReverseSockets {
        ReverseSockets { open: Box::new(open), v4: OnceLock::new(), v6: OnceLock::new() }
    }

    /// Returns the node's pinned maps.
    pub(crate) fn pinned(maps: Arc<Maps>) -> ReverseSockets {
        ReverseSockets::new(move |name| Ok(maps.shared(name)?))
    }

    fn map(&self, v4: bool) -> anyhow::Result<Option<&RawMap>> {
        let (slot, name) = if v4 { (&self.v4, V4) } else { (&self.v6, V6) };
        if slot.get().is_none() {
            // Another thread may have opened it in the meantime: both refer to the same map.
            let _opened = slot.set((self.open)(name)?);
        }
        Ok(slot.get().and_then(Option::as_ref))
    }

    /// Whether the maps are empty.
    pub(crate) fn is_empty(&self) -> anyhow::Result<bool> {
        for v4 in [true, false] {
            if let Some(map) = self.map(v4)?
                && !map.is_empty()?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the frontend that a socket with this cookie was connected to when it was translated to this backend.
    pub(crate) fn frontend(&self, cookie: u64, backend: SocketAddr) -> anyhow::Result<Option<SocketAddr>> {
        let Some(map) = self.map(backend.is_ipv4())? else { return Ok(None) };
        let mut key = cookie.to_ne_bytes().to_vec();
        match backend.ip() {
            IpAddr::V4(ip) => key.extend(ip.octets()),
            IpAddr::V6(ip) => key.extend(ip.octets()),
        }
        key.extend(backend.port().to_be_bytes());
        key.resize(map.layout().key_size as usize, 0);
        let mut value = vec![0; map.value_len()];
        if !map.lookup(&key, &mut value)? {
            return Ok(None);
        }
        let port = |at: usize| u16::from_be_bytes([value[at], value[at + 1]]);
        Ok(Some(match value.first_chunk::<16>().filter(|_| backend.is_ipv6()) {
            Some(ip) => SocketAddr::new(Ipv6Addr::from(*ip).into(), port(16)),
            None => SocketAddr::new(Ipv4Addr::new(value[0], value[1], value[2], value[3]).into(), port(4)),
        }))
    }
}

impl std::fmt::Debug for ReverseSockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReverseSockets")
    }
}
