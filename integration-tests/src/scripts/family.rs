//! The families: cells, fixtures and times of the scripts of one folder.

use std::path::Path;
use std::time::Duration;

use hive::Cell;
use hive_script::Retry;
use statedb::age::Fixed;

use super::{
    desired_devices, desired_routes, devices_controller, dynamic_config, envoy_config, example, exporter,
    health, healthserver, k8s, k8s_tables, loadbalancer, metrics, neighbor, policy, redirectpolicy, subnet,
};

/// The environment of a family of scripts.
pub struct Family {
    /// Its name, as `--family` has it.
    pub name: &'static str,
    /// The folders of Cilium's sources in front of `/testdata/`.
    pub folders: &'static [&'static str],
    /// The cells under test with their fixture.
    pub cells: fn() -> Vec<Cell>,
    /// Whether the first line of a script holds flags.
    pub flags: bool,
    /// Flags that are set before those of the script.
    pub defaults: &'static [&'static [&'static str]],
    /// The waits of a section that is repeated.
    pub retry: Retry,
    /// How long a script may take.
    pub deadline: Duration,
    /// The clock of all that it shows; none for the true one.
    pub clock: Option<Fixed>,
    /// The isolation of each script.
    pub isolation: Isolation,
}

/// The isolation of a script from others, beside its own hive and folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Nothing.
    None,
    /// A network namespace with commands on it; the hive can be built again. Needs root.
    Network,
    /// A network namespace and a BPF file system. Needs root.
    Sandbox,
}

const DEFAULT_RETRY: Retry = Retry { first: Duration::from_millis(100), most: Duration::from_millis(500) };

/// Scripts of families without a deadline of their own get this.
const LONG: Duration = Duration::from_secs(60);

const SHORT: Duration = Duration::from_secs(10);

/// 2000-01-01T10:30:00Z, and everything is a minute old.
const TABLES_CLOCK: Fixed = Fixed { now: Duration::from_secs(946_722_600), age: Duration::from_secs(60) };

/// All families.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "desired-devices",
        folders: &["pkg/datapath/linux/device/reconciler", "pkg/datapath/linux/device/scripttest"],
        cells: desired_devices::cells,
        flags: true,
        defaults: &[desired_devices::DEFAULTS],
        retry: DEFAULT_RETRY,
        deadline: LONG,
        clock: None,
        isolation: Isolation::Network,
    },
    Family {
        name: "desired-routes",
        folders: &["pkg/datapath/linux/route/reconciler", "pkg/datapath/linux/route/reconciler/scripttest"],
        cells: desired_routes::cells,
        flags: true,
        defaults: &[desired_routes::DEFAULTS],
        retry: DEFAULT_RETRY,
        deadline: LONG,
        clock: None,
        isolation: Isolation::Network,
    },
    Family {
        name: "devices",
        folders: &["pkg/datapath/linux", "pkg/datapath/linux/devices_controller"],
        cells: devices_controller::cells,
        flags: true,
        defaults: &[],
        retry: DEFAULT_RETRY,
        deadline: LONG,
        clock: None,
        isolation: Isolation::Network,
    },
    Family {
        name: "dynamic-config",
        folders: &["pkg/dynamicconfig"],
        cells: dynamic_config::cells,
        flags: true,
        defaults: &[],
        retry: DEFAULT_RETRY,
        deadline: SHORT,
        clock: None,
        isolation: Isolation::None,
    },
    Family {
        name: "envoy-config",
        folders: &["pkg/ciliumenvoyconfig"],
        cells: envoy_config::cells,
        flags: true,
        defaults: &[loadbalancer::DEFAULTS, envoy_config::DEFAULTS],
        retry: envoy_config::RETRY,
        deadline: SHORT,
        clock: None,
        isolation: Isolation::None,
    },
    Family {
        name: "example",
        folders: &["contrib/examples/script", "examples/script"],
        cells: example::cells,
        flags: false,
        defaults: &[],
        retry: DEFAULT_RETRY,
        deadline: LONG,
        clock: None,
        isolation: Isolation::None,
    },
    Family {
        name: "exporter",
        folders: &["pkg/hubble/exporter", "pkg/hubble/exporter/test"],
        cells: exporter::cells,
        flags: false,
        defaults: &[],
        retry: DEFAULT_RETRY,
        deadline: SHORT,
        clock: None,
        isolation: Isolation::None,
    },
    Family {
        name: "health",
        folders: &["pkg/hive/health"],
        cells: health::cells,
        flags: false,
        defaults: &[],
        retry: DEFAULT_RETRY,
        deadline: LONG,
        clock: None,
        isolation: Isolation::None,
    },
    Family {
        name: "healthserver",
        folders: &["pkg/loadbalancer/healthserver"],
        cells: || healthserver::cells(loadbalancer::maps()),
        flags: true,
        defaults: &[loadbalancer::DEFAULTS, healthserver::DEFAULTS, healthserver::FAULTLESS],
        retry: loadbalancer::RETRY,
        deadline: SHORT,
        clock: None,
        isolation: Isolation::None,
    },
    // The same without the kernel, on maps that fail now and then; needs no root.
    Family {
        name: "healthserver-fake",
        folders: &[],
        cells: || healthserver::cells(loadbalancer::fake_maps()),
        flags: true,
        defaults: &[loadbalancer::DEFAULTS, healthserver::DEFAULTS],
        retry: loadbalancer::RETRY,
        deadline: SHORT,
        clock: None,
        isolation: Isolation::None,
    },
    Family {
        name: "ipam",
        folders: &["pkg/ipam/podippool"],
        cells: k8s_tables::pool_cells,
        flags: false,
        defaults: &[],
        retry: DEFAULT_RETRY,
        deadline: LONG,
        clock: Some(TABLES_CLOCK),
        isolation: Isolation::None,
    },
    Family {
        name: "k8s",
        folders: &["pkg/k8s/client/testutils"],
        cells: k8s::cells,
        flags: false,
        defaults: &[],
        retry: DEFAULT_RETRY,
        deadline: SHORT,
        clock: None,
        isolation: Isolation::None,
    },
    Family {
        name: "loadbalancer",
        folders: &["pkg/loadbalancer/tests"],
        cells: || loadbalancer::cells(loadbalancer::maps()),
        flags: true,
        defaults: &[loadbalancer::DEFAULTS],
        retry: loadbalancer::RETRY,
        deadline: SHORT,
        clock: None,
        isolation: Isolation::None,
    },
    // The same without the kernel; needs no root.
    Family {
        name: "loadbalancer-fake",
        folders: &[],
        cells: || loadbalancer::cells(loadbalancer::fake_maps()),
        flags: true,
        defaults: &[loadbalancer::DEFAULTS],
        retry: loadbalancer::RETRY,
        deadline: SHORT,
        clock: None,
        isolation: Isolation::None,
    },
    Family {
        name: "metrics",
        folders: &["pkg/metrics"],
        cells: metrics::cells,
        flags: false,
        defaults: &[],
        retry: DEFAULT_RETRY,
        deadline: LONG,
        clock: None,
        isolation: Isolation::None,
    },
    Family {
        name: "neighbor",
        folders: &["pkg/datapath/neighbor", "pkg/datapath/neighbor/test"],
        cells: neighbor::cells,
        flags: true,
        defaults: &[neighbor::DEFAULTS],
        retry: neighbor::RETRY,
        deadline: LONG,
        clock: None,
        isolation: Isolation::Network,
    },
    Family {
        name: "policy",
        folders: &["pkg/policy/test"],
        cells: policy::cells,
        flags: true,
        defaults: &[policy::DEFAULTS],
        retry: DEFAULT_RETRY,
        deadline: LONG,
        clock: None,
        isolation: Isolation::None,
    },
    Family {
        name: "redirectpolicy",
        folders: &["pkg/loadbalancer/redirectpolicy"],
        cells: redirectpolicy::cells,
        flags: true,
        defaults: &[redirectpolicy::DEFAULTS],
        retry: redirectpolicy::RETRY,
        deadline: SHORT,
        clock: None,
        isolation: Isolation::None,
    },
    // The same without the kernel, on maps that fail; needs no root.
    Family {
        name: "redirectpolicy-fake",
        folders: &[],
        cells: redirectpolicy::fake_cells,
        flags: true,
        defaults: &[redirectpolicy::FAKE_DEFAULTS],
        retry: redirectpolicy::RETRY,
        deadline: SHORT,
        clock: None,
        isolation: Isolation::None,
    },
    Family {
        name: "subnet",
        folders: &["pkg/subnet"],
        cells: subnet::cells,
        flags: true,
        defaults: &[subnet::DEFAULTS],
        retry: subnet::RETRY,
        deadline: LONG,
        clock: None,
        isolation: Isolation::Sandbox,
    },
    Family {
        name: "tables",
        folders: &["daemon/k8s", "pkg/k8s/tables"],
        cells: k8s_tables::cells,
        flags: false,
        defaults: &[],
        retry: DEFAULT_RETRY,
        deadline: SHORT,
        clock: Some(TABLES_CLOCK),
        isolation: Isolation::None,
    },
];

/// The family of a name.
#[must_use]
pub fn family_of(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// The family of a script: by the part of its path before `/testdata/`, else by the folder that it is in.
#[must_use]
pub fn family_of_path(script: &Path) -> Option<&'static Family> {
    let path = script.to_str()?;
    if let Some((folder, _)) = path.rsplit_once("/testdata/") {
        let ends = |known: &&str| format!("/{folder}").ends_with(&format!("/{known}"));
        return FAMILIES.iter().find(|family| family.folders.iter().any(ends));
    }
    family_of(script.parent()?.file_name()?.to_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(path: &str) -> Option<&'static str> {
        family_of_path(Path::new(path)).map(|family| family.name)
    }

    #[test]
    fn folders_tell_the_family() {
        assert_eq!(name("/src/pkg/metrics/testdata/x.txtar"), Some("metrics"));
        assert_eq!(name("pkg/hive/health/testdata/deep/x.txtar"), Some("health"));
        assert_eq!(name("/scripts/example/x.txtar"), Some("example"));
        assert_eq!(name("/src/mypkg/metrics/testdata/x.txtar"), None);
        assert_eq!(name("/scripts/nosuch/x.txtar"), None);
        assert_eq!(name("x.txtar"), None);
    }
}
