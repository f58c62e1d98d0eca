//! The kernel settings that the host's side needs, all of them of the network namespace.

use maps::FamilyConfig;
use sysctl::{Name, Setting};

use crate::interfaces::host::{HOST_DEVICE, NET_DEVICE};

/// Returns the settings in the order of their writes: forwarding is on, and replies may arrive by other devices than
/// requests were sent by. With devices that add outer headers the kernel makes none of its own for each namespace.
/// Proxies without rules of iptables (`is_ruleless`) need late demultiplexing: the stack drops packets of their
/// connections that it is to forward to the interfaces of pods, where the programs redirect them.
pub(crate) fn settings(families: &FamilyConfig, has_ipip: bool, is_ruleless: bool) -> Vec<Setting> {
    let mut all: Vec<(&[&str], u8)> = vec![(&["net", "ipv4", "conf", "all", "rp_filter"], 0)];
    if families.enable_ipv4 {
        all.push((&["net", "ipv4", "ip_forward"], 1));
        all.push((&["net", "ipv4", "conf", "all", "forwarding"], 1));
    }
    if families.enable_ipv6 {
        all.push((&["net", "ipv6", "conf", "all", "disable_ipv6"], 0));
        all.push((&["net", "ipv6", "conf", "all", "forwarding"], 1));
    }
    if is_ruleless {
        all.push((&["net", "ipv4", "ip_early_demux"], 0));
    }
    let mut settings: Vec<Setting> = all
        .into_iter()
        .filter_map(|(name, value)| Some(Setting::new(Name::new(name.to_vec()).ok()?, value)))
        .collect();
    for device in [HOST_DEVICE, NET_DEVICE] {
        let v4 = [("forwarding", 1), ("rp_filter", 0), ("accept_local", 1), ("send_redirects", 0)];
        let v4 = v4.into_iter().filter(|_| families.enable_ipv4).map(|(key, value)| ("ipv4", key, value));
        let v6 = families.enable_ipv6.then_some(("ipv6", "forwarding", 1));
        for (family, key, value) in v4.chain(v6) {
            settings.extend(
                Name::new(["net", family, "conf", device, key]).map(|name| Setting::new(name, value)),
            );
        }
    }
    // Sysctls that the kernel lacks, or does not let a namespace set, are optional.
    settings.extend(
        Name::new(["net", "ipv4", "fib_multipath_use_neigh"]).map(|name| Setting::new(name, 1).optional()),
    );
    if has_ipip {
        let name = Name::new(["net", "core", "fb_tunnels_only_for_init_net"]);
        settings.extend(name.map(|name| Setting::new(name, 2).optional()));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_of_the_namespace_and_of_enabled_families() {
        let both = settings(&FamilyConfig { enable_ipv4: true, enable_ipv6: true }, false, false);
        let names: Vec<String> = both.iter().map(|s| s.name.to_string()).collect();
        assert!(names.iter().all(|n| n.starts_with("net.ipv4.") || n.starts_with("net.ipv6.")), "{names:?}");
        assert!(names.contains(&"net.ipv4.conf.cilium_host.accept_local".to_owned()));
        let v6 = settings(&FamilyConfig { enable_ipv4: false, enable_ipv6: true }, false, false);
        assert!(!v6.iter().any(|s| s.name.to_string() == "net.ipv4.ip_forward"));
        let with_devices = settings(&FamilyConfig { enable_ipv4: false, enable_ipv6: true }, true, false);
        let last = with_devices.last().unwrap();
        assert_eq!(last.name.to_string(), "net.core.fb_tunnels_only_for_init_net");
        assert_eq!(with_devices.len(), v6.len() + 1);
        let ruleless = settings(&FamilyConfig { enable_ipv4: false, enable_ipv6: true }, false, true);
        let demux = ruleless.iter().find(|s| s.name.to_string() == "net.ipv4.ip_early_demux").unwrap();
        assert_eq!((demux.value.as_str(), ruleless.len()), ("0", v6.len() + 1));
    }
}
