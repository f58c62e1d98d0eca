//! The commands and files of an archive. Uses nothing.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// Commands of this program.
const OWN: &[&str] = &[
    "version",
    "status --verbose",
    "status -o json",
    "config -a",
    "endpoint list",
    "endpoint list -o json",
    "identity list",
    "identity list -o json",
    "ip list -n",
    "ip list -n -o json",
    "node list",
    "node list -o json",
    "nodeid list",
    "fqdn cache list",
    "fqdn cache list -o json",
    "fqdn names",
    "service list",
    "service list -o json",
    "lrp list",
    "lrp list -o json",
    "map list --verbose",
    "policy get",
    "policy selectors",
    "policy selectors -o json",
    "statedb",
    "shell -- health/history",
    "debuginfo",
    "encrypt status",
    "cgroups list -o json",
    "map events cilium_ipcache_v2",
    "map events cilium_lxc",
    "metrics list",
    "health status",
    "health status -o json",
    "hubble status",
    "bpf auth list",
    "bpf endpoint list",
    "bpf ipcache list",
    "bpf metrics list",
    "bpf policy get --all --numeric",
    "bpf ct list global --time-diff",
    "bpf ipmasq list",
    "bpf nat list",
    "bpf nodeid list",
    "bpf frag list",
    "bpf config list",
    "bpf socknat list",
    "bpf fs show",
    "bpf lb list",
    "bpf lb list --backends",
    "bpf lb list --frontends",
    "bpf lb list --revnat",
    "bpf lb list --source-ranges",
];

/// Commands of the host; those that are not installed are left out.
const HOST: &[&str] = &[
    "hostname",
    "uname -a",
    "uptime",
    "ps auxfw",
    "dmesg --time-format=iso",
    "sysctl -a",
    "lsmod",
    "ip -details -statistics link",
    "ip address",
    "ip rule",
    "ip -6 rule",
    "ip -4 route show table all",
    "ip -6 route show table all",
    "ip -4 neighbour",
    "ip -6 neighbour",
    "ip xfrm policy",
    // Without the keys.
    "ip -statistics xfrm state list nokeys",
    "tc -details -statistics qdisc show",
    "ss -tupanei",
    "iptables-save -c",
    "ip6tables-save -c",
    "nft list ruleset",
    "ipset list",
    "bpftool map show",
    "bpftool prog show",
    "bpftool net show",
];

/// Files of the host, as far as they exist.
const FILES: &[&str] = &[
    "/proc/mounts",
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/loadavg",
    "/proc/net/softnet_stat",
    "/proc/net/xfrm_stat",
    "/proc/sys/net/core/bpf_jit_enable",
    "/etc/resolv.conf",
];

/// Something to collect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// The output of a program.
    Command {
        /// How the command is named in the archive.
        title: String,
        program: OsString,
        arguments: Vec<String>,
    },
    /// A file, below this path of the archive.
    File { path: PathBuf, to: PathBuf },
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { title, .. } => f.write_str(title),
            Self::File { path, .. } => write!(f, "cat {}", path.display()),
        }
    }
}

/// Everything to collect.
#[derive(Debug)]
pub(super) struct Plan(Vec<Item>);

impl Plan {
    /// Returns the plan for the agent at this address, with endpoints below this folder.
    pub(super) fn new(host: Option<&str>, state: &Path) -> Plan {
        let own = std::env::current_exe().map_or_else(|_| "apiary".into(), PathBuf::into_os_string);
        let own = OWN.iter().map(|line| {
            let mut arguments = words(line);
            // The shell's and the health API's sockets are not the agent's.
            let of_agent = !["shell", "metrics", "health", "hubble"].contains(&arguments[0].as_str());
            arguments.splice(
                0..0,
                host.filter(|_| of_agent).into_iter().flat_map(|host| ["-H".into(), host.into()]),
            );
            Item::Command { title: format!("cilium-dbg {line}"), program: own.clone(), arguments }
        });
        let installed = HOST.iter().map(|line| {
            let mut words = words(line);
            let program = words.remove(0).into();
            Item::Command { title: (*line).to_owned(), program, arguments: words }
        });
        let files = FILES.iter().map(|path| Item::File {
            path: path.into(),
            to: Path::new("conf").join(path.trim_start_matches('/').replace('/', "-")),
        });
        Plan(own.chain(installed).chain(files).chain(endpoints(state)).collect())
    }

    #[cfg(test)]
    pub(super) fn of(items: impl IntoIterator<Item = Item>) -> Plan {
        Plan(items.into_iter().collect())
    }

    pub(super) fn items(&self) -> &[Item] {
        &self.0
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Returns the records of endpoints, `STATE/ID/ep_config.json` and others beside them.
fn endpoints(state: &Path) -> Vec<Item> {
    let mut items = Vec::new();
    for entry in files_below(state) {
        let to = Path::new("state");
        if entry.is_dir() {
            let below = entry.file_name().unwrap_or_default().to_owned();
            let files = files_below(&entry).into_iter().filter(|path| is_plain(path));
            items.extend(files.map(|path| {
                let name = path.file_name().unwrap_or_default().to_owned();
                Item::File { path, to: to.join(&below).join(name) }
            }));
        } else if is_plain(&entry) {
            let name = entry.file_name().unwrap_or_default().to_owned();
            items.push(Item::File { path: entry, to: to.join(name) });
        }
    }
    items
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Whether it is a text of the agent: no link, which could lead anywhere, and no object file.
fn is_plain(path: &Path) -> bool {
    let is_text =
        path.extension().is_some_and(|end| ["json", "txt", "yaml", "h"].iter().any(|text| end == *text));
    is_text && std::fs::symlink_metadata(path).is_ok_and(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::commands::Arguments;

    #[test]
    fn own_commands_exist() {
        for item in Plan::new(Some("unix:///a.sock"), Path::new("/nonexistent")).items() {
            let Item::Command { title, arguments, .. } = item else { continue };
            if title.starts_with("cilium-dbg ") {
                let words = std::iter::once("apiary").chain(arguments.iter().map(String::as_str));
                Arguments::try_parse_from(words).unwrap_or_else(|error| panic!("{title}: {error}"));
            }
        }
    }

    #[test]
    fn links_and_objects_of_the_state_folder_stay_out() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = folder.path().join("7");
        std::fs::create_dir(&endpoint).unwrap();
        std::fs::write(endpoint.join("ep_config.json"), "{}").unwrap();
        std::fs::write(endpoint.join("bpf_lxc.o"), "").unwrap();
        std::os::unix::fs::symlink("/etc/shadow", endpoint.join("x.json")).unwrap();
        let found = endpoints(folder.path());
        let expected =
            Item::File { path: endpoint.join("ep_config.json"), to: "state/7/ep_config.json".into() };
        assert_eq!(found, [expected]);
    }
}
