//! Contradictions among options, and probes of the kernel.

use devices::Netlink;
use devices::rtnetlink::{TunnelKind, TunnelSpec};
use tunnel::{Protocol, Tunnel};

use crate::Error;
use crate::config::BigTcpConfig;
use crate::limits::{Families, LEGACY};

/// The name and port of a device that exists for a moment: the port is none of a tunnel (`tcpmux`).
const PROBE: &str = "cilium_probe";
const PROBE_PORT: u16 = 1;

impl BigTcpConfig {
    /// Returns the first option that is on, for messages.
    fn option(&self) -> &'static str {
        if self.enable_ipv4_big_tcp { "enable-ipv4-big-tcp" } else { "enable-ipv6-big-tcp" }
    }

    /// Checks the other options, which `get` returns by their names.
    pub(crate) fn check<'o>(
        &self,
        is_masqueraded_by_iptables: bool,
        get: impl Fn(&str) -> Option<&'o str>,
    ) -> Result<(), Error> {
        let is = |name: &str, value: &str| get(name) == Some(value);
        let uses_dsr = get("bpf-lb-mode").is_some_and(|mode| mode != "snat");
        const LEGACY_ROUTING: &str = "packets go through the host's stack then, which needs BPF host routing";
        let contradictions = [
            (
                uses_dsr && is("bpf-lb-dsr-dispatch", "ipip"),
                "bpf-lb-dsr-dispatch=ipip",
                "packets with an outer header of IP are not segmented",
            ),
            (is("enable-ipsec", "true"), "enable-ipsec=true", "packets that are encrypted are not segmented"),
            (is("enable-host-legacy-routing", "true"), "enable-host-legacy-routing=true", LEGACY_ROUTING),
            (is("kube-proxy-replacement", "false"), "kube-proxy-replacement=false", LEGACY_ROUTING),
            (is("enable-endpoint-routes", "true"), "enable-endpoint-routes=true", LEGACY_ROUTING),
            (is_masqueraded_by_iptables, "enable-bpf-masquerade=false", LEGACY_ROUTING),
        ];
        match contradictions.into_iter().find(|(is_so, ..)| *is_so) {
            Some((_, other, reason)) => Err(Error::Contradiction { option: self.option(), other, reason }),
            None => Ok(()),
        }
    }

    /// Returns the families that the kernel can. Blocks.
    ///
    /// # Errors
    /// A tunnel is in use, of which the kernel's devices send no larger segments.
    pub(crate) fn probe(&self, tunnel: &Tunnel, dispatches_geneve: bool) -> Result<Families, Error> {
        let mut netlink = Netlink::open()?;
        let loopback = netlink.segments()?.into_iter().find(|link| link.name == "lo");
        let (v6, v4) = loopback.map_or((false, false), |lo| (lo.tso_max.is_some(), lo.ipv4.is_some()));
        let families =
            Families { ipv4: self.enable_ipv4_big_tcp && v4, ipv6: self.enable_ipv6_big_tcp && v6 };
        for (is_off, option, release) in [
            (self.enable_ipv4_big_tcp && !v4, "enable-ipv4-big-tcp", "6.3"),
            (self.enable_ipv6_big_tcp && !v6, "enable-ipv6-big-tcp", "5.19"),
        ] {
            if is_off {
                tracing::warn!(
                    option,
                    "The kernel has no segments of more than 64 KiB: it needs Linux {release}"
                );
            }
        }
        let (kind, name, other) = match (tunnel.is_tunnel(), tunnel.protocol) {
            (true, Protocol::Vxlan) => (TunnelKind::Vxlan, "vxlan", "routing-mode=tunnel"),
            (true, Protocol::Geneve) => (TunnelKind::Geneve, "geneve", "routing-mode=tunnel"),
            (false, _) if dispatches_geneve => (TunnelKind::Geneve, "geneve", "bpf-lb-dsr-dispatch=geneve"),
            (false, _) => return Ok(families),
        };
        if families.is_any() {
            let size = tunnel_size(&mut netlink, kind)?;
            if size <= LEGACY {
                return Err(Error::Tunnel { option: self.option(), other, kind: name, size });
            }
        }
        Ok(families)
    }
}

/// Returns the largest segment of a tunnel device, by a device that is deleted again.
fn tunnel_size(netlink: &mut Netlink, kind: TunnelKind) -> Result<u32, Error> {
    if let Some(left) = netlink.find_link(PROBE)? {
        netlink.delete_link(left.index)?;
    }
    let link = netlink.add_tunnel(&TunnelSpec {
        name: PROBE,
        kind,
        port: PROBE_PORT,
        source_ports: (0, 0),
        zero_checksum_receive: false,
        mtu: None,
        mac: None,
        index: None,
    })?;
    let found = netlink.segments().map(|links| links.into_iter().find(|found| found.index == link.index));
    netlink.delete_link(link.index)?;
    Ok(found?.and_then(|link| link.tso_max).unwrap_or(LEGACY))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn contradictions_name_both_options() {
        let config = BigTcpConfig { enable_ipv4_big_tcp: false, enable_ipv6_big_tcp: true };
        let error = |iptables: bool, options: &[(&str, &'static str)]| {
            let options: BTreeMap<&str, &'static str> = options.iter().copied().collect();
            let result = config.check(iptables, |name| options.get(name).copied());
            result.map_err(|error| error.to_string()).err()
        };
        assert_eq!(
            error(false, &[("kube-proxy-replacement", "true"), ("bpf-lb-dsr-dispatch", "ipip")]),
            None
        );
        for (options, other) in [
            (vec![("bpf-lb-mode", "dsr"), ("bpf-lb-dsr-dispatch", "ipip")], "bpf-lb-dsr-dispatch=ipip"),
            (vec![("enable-ipsec", "true")], "enable-ipsec=true"),
            (vec![("enable-host-legacy-routing", "true")], "enable-host-legacy-routing=true"),
            (vec![("kube-proxy-replacement", "false")], "kube-proxy-replacement=false"),
            (vec![("enable-endpoint-routes", "true")], "enable-endpoint-routes=true"),
        ] {
            let text = error(false, &options).unwrap();
            let start = format!("option enable-ipv6-big-tcp: true is impossible with {other}: ");
            assert!(text.starts_with(&start) && text.ends_with("or remove enable-ipv6-big-tcp"), "{text}");
        }
        assert!(error(true, &[]).unwrap().contains("enable-bpf-masquerade=false"));
    }
}
