//! The option, in Cilium's spelling, and what the kernel can do.

use hive::Settings;

/// Neighbour entries of other nodes. Changes take effect at the next start.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Datapath")]
pub struct NeighborConfig {
    /// Keep the neighbour entries of the next hops to other nodes resolved
    #[flag(default = false)]
    pub enable_l2_neigh_discovery: bool,
}

impl NeighborConfig {
    /// Whether entries are kept.
    pub(crate) fn is_on(&self, settings: &Settings) -> bool {
        self.is_on_with(settings.get("bpf-lb-acceleration").map(|setting| setting.value.as_str()))
    }

    /// Packets that XDP sends do not keep entries resolved: the kernel does not see them, and would send to an address of
    /// long ago.
    fn is_on_with(&self, acceleration: Option<&str>) -> bool {
        self.enable_l2_neigh_discovery || acceleration.is_some_and(|mode| mode != "disabled")
    }
}

/// The side that keeps entries resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// The kernel, by the flag `NTF_EXT_MANAGED`.
    Kernel,
    /// The agent, by using an entry (`NTF_USE`) when it is stale.
    Agent,
}

/// Whether the running kernel knows `NTF_EXT_MANAGED`, which came with Linux 5.16.
#[must_use]
pub fn kernel_can_manage() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|release| can_manage(release.trim_end()))
}

fn can_manage(release: &str) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xdp_needs_entries_as_well() {
        let is_on = |enable_l2_neigh_discovery, acceleration| {
            NeighborConfig { enable_l2_neigh_discovery }.is_on_with(acceleration)
        };
        assert!(is_on(true, None) && is_on(true, Some("disabled")));
        assert!(is_on(false, Some("native")) && is_on(false, Some("best-effort")));
        assert!(!is_on(false, None) && !is_on(false, Some("disabled")));
    }

    #[test]
    fn releases_of_the_kernel() {
        for release in ["5.16.0", "5.16-rc1", "6.1.0-13-amd64", "6.18.44", "10.0"] {
            assert!(can_manage(release), "{release}");
        }
        for release in ["5.15.0-91-generic", "5.4", "4.19.0", "", "x"] {
            assert!(!can_manage(release), "{release}");
        }
    }
}
