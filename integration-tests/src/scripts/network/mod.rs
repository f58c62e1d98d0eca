//! Commands on the network namespaces of a script: links, addresses, routes, sysctls (Cilium's `scriptnet`).

mod links;
mod routes;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use hive_command::{Call, Command, Flag, Output};
use parking_lot::Mutex;
use test_kit::NetNs;

/// Name of the namespace in which the hive runs.
const ROOT: &str = "root";

/// The namespaces of a script.
#[derive(Clone)]
pub(super) struct Network(Arc<Mutex<Namespaces>>);

struct Namespaces {
    current: String,
    all: BTreeMap<String, NetNs>,
}

impl Network {
    /// Returns the network of a script with its first namespace.
    pub(super) fn new(root: NetNs) -> Self {
        let all = BTreeMap::from([(ROOT.to_owned(), root)]);
        let namespaces = Namespaces { current: ROOT.to_owned(), all };
        Self(Arc::new(Mutex::new(namespaces)))
    }

    /// Returns the commands on it.
    pub(super) fn commands(&self) -> Vec<Command> {
        let own = [
            self.command("netns/create", "name", "create a network namespace", Self::create),
            self.command("netns/switch", "name", "make a network namespace the current one", Self::switch),
            self.command("netns/list", "", "list network namespaces", Self::list),
            self.command("addr/add", "cidr device", "add an address to a link", Self::add_address),
            self.command("sysctl/get", "name...", "print a setting of the kernel", Self::sysctl),
            self.command("sysctl/set", "name... value", "change a setting of the kernel", Self::set_sysctl),
        ];
        [own.into(), links::commands(self), routes::commands(self)].concat()
    }

    /// Returns a command that runs on a thread for blocking work and yields the text that `run` returns.
    fn command(
        &self,
        name: &'static str,
        takes: &'static str,
        summary: &'static str,
        run: fn(&Self, &Call) -> anyhow::Result<String>,
    ) -> Command {
        let network = self.clone();
        Command::new(name, summary, move |call| {
            let network = network.clone();
            hive::blocking(move || run(&network, &call).map(Output::text))
        })
        .takes(takes)
        .flag(Flag::text("netns", "network namespace, the current one by default"))
    }

    /// Returns the namespace that a call names.
    fn namespace(&self, call: &Call) -> anyhow::Result<NetNs> {
        self.named(call.flags.text("netns"))
    }

    /// Returns the namespace of a name; the current one of an empty name.
    fn named(&self, name: &str) -> anyhow::Result<NetNs> {
        let namespaces = self.0.lock();
        let name = if name.is_empty() { &namespaces.current } else { name };
        namespaces.all.get(name).cloned().with_context(|| format!("no network namespace {name:?}"))
    }

    fn create(&self, call: &Call) -> anyhow::Result<String> {
        let [name] = call.exactly()?;
        ensure!(!self.0.lock().all.contains_key(name), "there is a network namespace {name:?} already");
        let new = NetNs::detached()?;
        self.0.lock().all.insert(name.to_owned(), new);
        Ok(format!("Created network namespace {name:?}\n"))
    }

    fn switch(&self, call: &Call) -> anyhow::Result<String> {
        let [name] = call.exactly()?;
        self.named(name)?;
        name.clone_into(&mut self.0.lock().current);
        Ok(format!("Switched to network namespace {name:?}\n"))
    }

    fn list(&self, call: &Call) -> anyhow::Result<String> {
        let [] = call.exactly()?;
        Ok(self.0.lock().all.keys().map(|name| format!("{name}\n")).collect())
    }

    fn add_address(&self, call: &Call) -> anyhow::Result<String> {
        let [address, device] = call.exactly()?;
        // Without duplicate address detection, during which an address is not usable.
        let flags = if address.contains(':') { " nodad" } else { "" };
        self.namespace(call)?.ip(&format!("addr add {address} dev {device}{flags}"))?;
        Ok(format!("Added address {address} to interface {device}\n"))
    }

    fn sysctl(&self, call: &Call) -> anyhow::Result<String> {
        let value = self.namespace(call)?.sysctl(&key(call.at_least(1)?)?)?;
        Ok(format!("{value}\n"))
    }

    fn set_sysctl(&self, call: &Call) -> anyhow::Result<String> {
        let Some((value, name)) = call.at_least(2)?.split_last() else { bail!("no value") };
        self.namespace(call)?.set_sysctl(&key(name)?, value)?;
        Ok(format!("Set sysctl {} to {value}\n", name.join(".")))
    }
}

/// Returns the path of a setting below `/proc/sys`; only those of network namespaces belong to a script.
fn key(parts: &[String]) -> anyhow::Result<String> {
    let path = parts.join("/");
    let plain = Path::new(&path).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    ensure!(plain && path.starts_with("net/"), "{path}: not a setting of a network namespace");
    Ok(path)
}
