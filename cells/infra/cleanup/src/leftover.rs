//! A leftover and its removal.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bpf::tc::Tc;
use bpf::{Direction, Link, unpin};
use devices::rtnetlink::Rule;
use devices::{Netlink, NetlinkError, Route, TABLE_LOCAL};

use ::iptables::ipset::kernel::Sets;

use crate::error::Error;
use crate::iptables::Chains;

/// How often a set is tried to be destroyed, and the interval.
const SET_ATTEMPTS: u32 = 20;
const SET_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A kernel object or file left by an agent. `Display` names it in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leftover {
    /// An interface, with its addresses, its routes and the programs attached to it.
    Interface {
        /// Its name.
        name: String,
        /// Its interface index.
        index: u32,
    },
    /// A pinned link of a program to an interface or a cgroup.
    Link(PathBuf),
    /// A tc filter on an interface that remains, and its clsact qdisc if that has no other filter.
    Filter {
        /// The filter's name.
        name: String,
        /// The interface's name.
        interface: String,
        /// The interface's index.
        index: u32,
        /// The hook it is attached to.
        direction: Direction,
        /// Its priority.
        priority: u16,
    },
    /// The table of nftables.
    Rule,
    /// Chains of Cilium in one table of iptables, and the rules that jump to them.
    Chains(Chains),
    /// A set of addresses; kept while rules of others use it.
    Set(&'static str),
    /// A policy routing rule of Cilium. The one for local addresses is moved back to priority 0.
    RoutingRule(Rule),
    /// A route in a table of Cilium's proxies.
    Route(Route),
    /// A pinned map or program.
    Pin(PathBuf),
    /// A file or socket.
    File(PathBuf),
    /// A folder with its content.
    Tree(PathBuf),
    /// A folder that is empty once all leftovers before it are removed; kept if it is not.
    Folder(PathBuf),
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Leftover::Interface { name, .. } => write!(f, "interface {name}"),
            Leftover::Link(path) => write!(f, "link {}", path.display()),
            Leftover::Filter { name, interface, direction, .. } => {
                let direction = if *direction == Direction::Ingress { "ingress" } else { "egress" };
                write!(f, "tc filter {name} at {direction} of {interface}")
            }
            Leftover::Rule => write!(f, "nftables table inet {}", loader::RULE_TABLE),
            Leftover::Chains(chains) => chains.fmt(f),
            Leftover::Set(name) => write!(f, "ipset {name}"),
            Leftover::RoutingRule(rule) => rule.fmt(f),
            Leftover::Route(Route { key, .. }) => write!(f, "route {} in table {}", key.dst, key.table),
            Leftover::Pin(path) => write!(f, "pin {}", path.display()),
            Leftover::File(path) => write!(f, "file {}", path.display()),
            Leftover::Tree(path) => write!(f, "folder {} with its content", path.display()),
            Leftover::Folder(path) => write!(f, "folder {}", path.display()),
        }
    }
}

impl Leftover {
    /// Whether it is a program, a link or a map of the kernel (`--bpf-state`).
    pub fn is_bpf(&self) -> bool {
        matches!(self, Leftover::Link(_) | Leftover::Filter { .. } | Leftover::Pin(_))
    }

    /// Returns its path, if it is on a file system.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Leftover::Link(path)
            | Leftover::Pin(path)
            | Leftover::File(path)
            | Leftover::Tree(path)
            | Leftover::Folder(path) => Some(path),
            Leftover::Interface { .. }
            | Leftover::Filter { .. }
            | Leftover::Rule
            | Leftover::Chains(_)
            | Leftover::Set(_)
            | Leftover::RoutingRule(_)
            | Leftover::Route(_) => None,
        }
    }

    /// Removes it; idempotent.
    pub fn remove(&self) -> Result<(), Error> {
        match self {
            Leftover::Interface { name, index } => remove_interface(name, *index),
            Leftover::Link(path) => remove_link(path),
            Leftover::Filter { index, direction, priority, .. } => {
                remove_filter(*index, *direction, *priority)
            }
            Leftover::Rule => loader::remove_rule().map_err(Error::Rule),
            Leftover::Chains(chains) => chains.remove(),
            Leftover::Set(name) => remove_set(name),
            Leftover::RoutingRule(rule) => remove_rule(rule),
            Leftover::Route(route) => absent(Netlink::open()?.delete_listed_route(route)),
            Leftover::Pin(path) => Ok(unpin(path).map(drop)?),
            Leftover::File(path) => gone(fs::remove_file(path), "remove file", path),
            Leftover::Tree(path) => gone(fs::remove_dir_all(path), "remove folder", path),
            Leftover::Folder(path) => match fs::remove_dir(path) {
                Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
                other => gone(other, "remove folder", path),
            },
        }
    }
}

fn remove_interface(name: &str, index: u32) -> Result<(), Error> {
    let mut nl = Netlink::open()?;
    // The index may have been reused for another interface by now.
    if nl.find_link(name)?.is_none_or(|link| link.index != index) {
        return Ok(());
    }
    absent(nl.delete_link(index))
}

/// Destroys a set. The kernel frees rules that were just removed a moment later, and the sets that they use with them.
fn remove_set(name: &str) -> Result<(), Error> {
    let mut sets = Sets::open().map_err(Error::Set)?;
    for attempt in 0..SET_ATTEMPTS {
        if sets.destroy(name).map_err(Error::Set)? {
            return Ok(());
        }
        if attempt + 1 < SET_ATTEMPTS {
            std::thread::sleep(SET_RETRY_INTERVAL);
        }
    }
    tracing::warn!(set = name, "The set is kept, as rules of others use it");
    Ok(())
}

fn remove_rule(rule: &Rule) -> Result<(), Error> {
    let mut nl = Netlink::open()?;
    if rule.table == TABLE_LOCAL {
        // Add the rule at its place first: without a local rule this node would be unreachable in between.
        match nl.add_rule(&Rule { priority: 0, ..*rule }) {
            Err(e) if !e.is_exists() => return Err(e.into()),
            _ => {}
        }
    }
    absent(nl.delete_rule(rule))
}

/// Treats `ENOENT`, `ENODEV` and the like as success, so that removal is idempotent.
fn absent(removed: Result<(), NetlinkError>) -> Result<(), Error> {
    match removed {
        Err(e) if !e.is_not_found() => Err(e.into()),
        _ => Ok(()),
    }
}

fn remove_link(path: &Path) -> Result<(), Error> {
    if let Ok(link) = Link::open(path) {
        // Unpinning alone would leave the program attached until the kernel frees the link, which is deferred.
        // Detaching fails if the interface is gone: such a link is detached already.
        let _ = link.detach();
    }
    Ok(unpin(path).map(drop)?)
}

fn remove_filter(index: u32, direction: Direction, priority: u16) -> Result<(), Error> {
    let tc = Tc::new()?;
    tc.detach(index, direction, priority)?;
    if tc.is_clsact_empty(index)? {
        tc.remove_clsact(index)?;
    }
    Ok(())
}

fn gone(result: io::Result<()>, action: &'static str, path: &Path) -> Result<(), Error> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(Error::File { action, path: path.to_owned(), source }),
        Ok(()) => Ok(()),
    }
}
