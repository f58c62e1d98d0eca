//! The search for leftovers, in the order of their removal.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ::iptables::ipset::NODE_SETS;
use ::iptables::ipset::kernel::Sets;
use bpf::tc::Tc;
use bpf::{Direction, is_bpffs, names_in};
use daemon_config::Instance;
use devices::rtnetlink::Rule;
use devices::{Link, Netlink, Route, TABLE_LOCAL};
use loader::is_pod_interface;
use maps::OWN_MAPS;

use crate::error::Error;
use crate::iptables;
use crate::leftover::Leftover;

/// Name prefix of interfaces of the host: `cilium_host`, `cilium_net`, and Cilium's `cilium_vxlan` and others.
const HOST_INTERFACES: &str = "cilium_";
/// The host side of Cilium's health endpoint.
const HEALTH_INTERFACE: &str = "lxc_health";
/// Name prefix of programs of this datapath and of Cilium's, and so of their tc filters.
const PROGRAMS: &str = "cil_";
/// Name prefix of shared maps.
const MAPS: &str = "cilium_";
/// Folders of pinned policy maps and of programs for the next run; the rest of `cilium/` are pinned links.
const NO_LINKS: [&str; 2] = ["cilium/policy_maps", "cilium/programs"];
/// Routing tables of Cilium's proxies: to the proxy, and back from it.
const PROXY_TABLES: [u32; 2] = [2004, 2005];
/// Bits of the mark that Cilium routes by; below, marks with their tables: proxies, IPsec, WireGuard.
const MARK_MASK: u32 = 0xf00;
const MARKS: [(u32, u32); 5] =
    [(0x200, PROXY_TABLES[0]), (0xa00, PROXY_TABLES[1]), (0xd00, 200), (0xe00, 200), (0xe00, 201)];
/// The rule for local addresses after Cilium has moved it, so that the rules of its proxies precede it.
const MOVED_LOCAL: Rule =
    Rule { ipv6: false, priority: 100, mark: 0, mask: 0, from: None, to: None, table: TABLE_LOCAL };
/// Files and sockets that agents create in their run folder.
const RUN_FILES: [&str; 6] =
    ["cilium.sock", "health.sock", "hubble.sock", "monitor1_2.sock", "shell.sock", "cilium.pid"];
/// Folders that agents create there, removed with their content.
const RUN_TREES: [&str; 3] = ["deleteQueue", "envoy", "state"];

/// The paths of an agent's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The bpf file system (`bpf-root`).
    pub bpf_root: PathBuf,
    /// The run folder (`state-dir`).
    pub run: PathBuf,
    /// The socket of the REST API (`socket-path`).
    pub socket: PathBuf,
}

impl Places {
    /// Returns an error if an agent runs here.
    pub fn check_free(&self) -> Result<(), Error> {
        match Instance::holder(&self.run)? {
            Some(holder) => Err(Error::Running { folder: self.run.clone(), pid: holder.pid }),
            None => Ok(()),
        }
    }
}

/// Returns all leftovers of an agent, in the order in which they must be removed. Changes nothing.
pub fn find(places: &Places) -> Result<Vec<Leftover>, Error> {
    let mut nl = Netlink::open()?;
    let links = nl.links()?;
    // Filters of an interface vanish with it, so only those of remaining interfaces are listed.
    let (going, staying): (Vec<&Link>, Vec<&Link>) = links.iter().partition(|link| is_ours(link));
    let mut found = interfaces(&going, is_pod_side);
    found.extend(pinned_links(&places.bpf_root)?);
    found.extend(filters(&staying)?);
    found.extend(interfaces(&going, |link| !is_pod_side(link)));
    if loader::has_rule().map_err(Error::Rule)? {
        found.push(Leftover::Rule);
    }
    found.extend(iptables::find().into_iter().map(Leftover::Chains));
    // Sets after the rules that use them.
    found.extend(sets());
    // Rules before the routes of the tables they lead to.
    found.extend(nl.rules()?.into_iter().filter_map(routing_rule));
    let of_proxies = |route: &Route| {
        PROXY_TABLES.contains(&route.key.table) && going.iter().all(|link| link.index != route.key.link_index)
    };
    found.extend(nl.routes()?.into_iter().filter(of_proxies).map(Leftover::Route));
    found.extend(pins(&places.bpf_root)?);
    found.extend(files(places)?);
    Ok(found)
}

/// Returns the sets of nodes' addresses. A kernel without sets has none.
fn sets() -> Vec<Leftover> {
    let Ok(mut sets) = Sets::open() else { return Vec::new() };
    let found = NODE_SETS.into_iter().filter(|set| sets.exists(set).unwrap_or(false));
    found.map(Leftover::Set).collect()
}

fn is_pod_side(link: &Link) -> bool {
    is_pod_interface(link) || link.name == HEALTH_INTERFACE
}

fn is_ours(link: &Link) -> bool {
    is_pod_side(link) || link.name.starts_with(HOST_INTERFACES)
}

fn interfaces(links: &[&Link], which: impl Fn(&Link) -> bool) -> Vec<Leftover> {
    let chosen = links.iter().filter(|link| which(link));
    chosen.map(|link| Leftover::Interface { name: link.name.clone(), index: link.index }).collect()
}

fn routing_rule(rule: Rule) -> Option<Leftover> {
    let by_mark = rule.mask == MARK_MASK && MARKS.contains(&(rule.mark, rule.table));
    let moved = rule == Rule { ipv6: rule.ipv6, ..MOVED_LOCAL };
    (by_mark || moved).then_some(Leftover::RoutingRule(rule))
}

fn pinned_links(root: &Path) -> Result<Vec<Leftover>, Error> {
    if !is_bpffs(root) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    walk(&root.join("cilium"), &mut |path, folder| {
        if !folder && !has_no_links(root, &path) {
            found.push(Leftover::Link(path));
        }
    })?;
    Ok(found)
}

fn filters(links: &[&Link]) -> Result<Vec<Leftover>, Error> {
    let tc = Tc::new()?;
    let mut found = Vec::new();
    for link in links {
        for direction in [Direction::Ingress, Direction::Egress] {
            let filters = match tc.filters(link.index, direction) {
                Err(e) if e.is_not_found() => continue,
                filters => filters?,
            };
            found.extend(filters.into_iter().filter(|filter| filter.name.starts_with(PROGRAMS)).map(
                |filter| Leftover::Filter {
                    name: filter.name,
                    interface: link.name.clone(),
                    index: link.index,
                    direction,
                    priority: filter.priority,
                },
            ));
        }
    }
    Ok(found)
}

fn pins(root: &Path) -> Result<Vec<Leftover>, Error> {
    if !is_bpffs(root) {
        return Ok(Vec::new());
    }
    let globals = root.join("tc/globals");
    let ours = |name: &String| {
        name.starts_with(MAPS) || OWN_MAPS.iter().any(|own| name.strip_prefix(own).is_some_and(is_suffix))
    };
    let names = names_in(&globals)?.into_iter().filter(ours);
    let mut found: Vec<Leftover> = names.map(|name| Leftover::Pin(globals.join(name))).collect();
    // Parents before their children; reversed below, so that inner folders are emptied first.
    let mut folders = vec![root.join("tc"), globals, root.join("cilium")];
    walk(&root.join("cilium"), &mut |path, folder| {
        if folder {
            folders.push(path);
        } else if has_no_links(root, &path) {
            found.push(Leftover::Pin(path));
        }
    })?;
    let links = pinned_links(root)?;
    let folders = emptied(folders.into_iter().rev(), links.iter().chain(&found))?;
    found.extend(folders);
    Ok(found)
}

fn has_no_links(root: &Path, path: &Path) -> bool {
    NO_LINKS.iter().any(|folder| path.starts_with(root.join(folder)))
}

/// Returns the folders that are empty once the leftovers in `going` are removed. `folders` lists inner ones first.
fn emptied<'a>(
    folders: impl Iterator<Item = PathBuf>,
    going: impl Iterator<Item = &'a Leftover>,
) -> Result<Vec<Leftover>, Error> {
    let mut paths: BTreeSet<PathBuf> = going.filter_map(Leftover::path).map(Path::to_owned).collect();
    let mut found = Vec::new();
    for folder in folders.filter(|folder| folder.is_dir()) {
        if names_in(&folder)?.iter().all(|name| paths.contains(&folder.join(name))) {
            paths.insert(folder.clone());
            found.push(Leftover::Folder(folder));
        }
    }
    Ok(found)
}

/// Whether the rest of a pin's name is empty or a suffix of an interrupted replacement.
fn is_suffix(rest: &str) -> bool {
    rest.is_empty() || rest == "_pending" || rest == "_next"
}

fn files(places: &Places) -> Result<Vec<Leftover>, Error> {
    let there = |path: &PathBuf| fs::symlink_metadata(path).is_ok();
    let mut paths: Vec<PathBuf> = RUN_FILES.iter().map(|name| places.run.join(name)).collect();
    if !paths.contains(&places.socket) {
        paths.insert(0, places.socket.clone());
    }
    let mut found: Vec<Leftover> =
        RUN_TREES.map(|name| places.run.join(name)).into_iter().filter(there).map(Leftover::Tree).collect();
    found.extend(paths.into_iter().filter(there).map(Leftover::File));
    let folders = [places.run.join("netns"), places.run.clone()];
    let folders = emptied(folders.into_iter(), found.iter())?;
    found.extend(folders);
    Ok(found)
}

/// Calls `seen` for each path below a folder, with whether it is a folder; a folder precedes its content.
fn walk(folder: &Path, seen: &mut impl FnMut(PathBuf, bool)) -> Result<(), Error> {
    for name in names_in(folder)? {
        let path = folder.join(name);
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        seen(path.clone(), is_folder);
        if is_folder {
            walk(&path, seen)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_files_in_the_run_folder_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        fs::create_dir_all(run.join("state/12")).unwrap();
        fs::create_dir_all(run.join("deleteQueue")).unwrap();
        for name in ["cilium.pid", "cilium.sock", "notes.txt", "state/12/ep_config.json"] {
            fs::write(run.join(name), "x").unwrap();
        }
        let places =
            Places { bpf_root: folder.path().join("bpf"), run: run.clone(), socket: run.join("cilium.sock") };
        let found = files(&places).unwrap();
        assert_eq!(
            found.iter().map(|f| f.to_string().replace(run.to_str().unwrap(), "RUN")).collect::<Vec<_>>(),
            [
                "folder RUN/deleteQueue with its content",
                "folder RUN/state with its content",
                "file RUN/cilium.sock",
                "file RUN/cilium.pid",
            ]
        );
        for leftover in &found {
            leftover.remove().unwrap();
            leftover.remove().expect("what is gone is no error");
        }
        assert_eq!(names_in(&run).unwrap(), ["notes.txt"]);
        fs::remove_file(run.join("notes.txt")).unwrap();
        assert_eq!(files(&places).unwrap(), [Leftover::Folder(run)]);
    }

    #[test]
    fn foreign_rules_are_kept() {
        let rule =
            |priority, mark, mask, table| Rule { ipv6: true, priority, mark, mask, table, ..Rule::default() };
        let going = [rule(9, 0x200, 0xf00, 2004), rule(10, 0xa00, 0xf00, 2005), rule(100, 0, 0, TABLE_LOCAL)];
        let staying = [
            rule(0, 0, 0, TABLE_LOCAL),
            rule(9, 0x200, 0xff00, 2004),
            rule(9, 0x300, 0xf00, 2004),
            rule(100, 0, 0, 254),
            rule(100, 1, 1, TABLE_LOCAL),
            rule(9, 0, 0, 2004),
        ];
        assert!(going.into_iter().all(|rule| routing_rule(rule) == Some(Leftover::RoutingRule(rule))));
        assert!(staying.into_iter().all(|rule| routing_rule(rule).is_none()));
    }

    #[test]
    fn pins_of_interrupted_replacements_are_found() {
        assert!(is_suffix("") && is_suffix("_pending") && is_suffix("_next") && !is_suffix("_of_somebody"));
    }
}
