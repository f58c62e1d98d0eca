//! Desired routes on the kernel of a network namespace, with owners and sources that scripts name.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ::routes::{DesiredRoute, Hop, Routes};
use anyhow::{Context, bail, ensure};
use devices::Device;
use hive::prelude::*;
use hive_command::{Call, Command, Output};
use ipnetwork::IpNetwork;
use local_node::StateConfig;
use parking_lot::Mutex;
use serde::Deserialize;
use statedb::{Initializer, Table};

/// The log of routes of a hive is that of its successor.
pub(super) const DEFAULTS: &[&str] = &["--state-dir=$WORK/state"];

pub(super) fn cells() -> Vec<Cell> {
    vec![
        devices::cell(),
        ::routes::cell(),
        module("state", "The state folder", [config::<StateConfig>()]),
        module("health", "The table", status::table()),
        module("desired-routes-test", "Owners and sources of routes", [provide(commands)]),
    ]
}

/// Owners and sources by their names in scripts.
#[derive(Default)]
struct Named {
    owners: Vec<String>,
    initializers: BTreeMap<String, Initializer<DesiredRoute>>,
}

fn commands(routes: Arc<Routes>, devices: Arc<Table<Device>>) -> Members<Command> {
    let named: Arc<Mutex<Named>> = Arc::default();
    let command = |name: &str, takes: &'static str, summary: &'static str, run: Run| {
        let (routes, devices, named) = (Arc::clone(&routes), Arc::clone(&devices), Arc::clone(&named));
        let run = move |call: Call| {
            let result = run(&routes, &devices, &mut named.lock(), &call);
            async move { result.map(|()| Output::none()) }
        };
        Command::new(name, summary, run).takes(takes)
    };
    Members(vec![
        command("add-owner", "name", "register an owner of routes", |_, _, named, call| {
            let [name] = call.exactly()?;
            if !named.owners.iter().any(|known| known == name) {
                named.owners.push(name.to_owned());
            }
            Ok(())
        }),
        command(
            "add-route",
            "owner file",
            "desire the route that a file describes",
            |routes, devices, named, call| {
                let [owner, file] = call.exactly()?;
                ensure!(named.owners.iter().any(|known| known == owner), "owner {owner:?} is not registered");
                let text = String::from_utf8(call.read(file)?)?;
                let route: RouteFile = yaml_values::from_str(&text).with_context(|| file.to_owned())?;
                routes.upsert(owner, [route.desired(devices).with_context(|| file.to_owned())?]);
                Ok(())
            },
        ),
        command("remove-owner", "name", "remove an owner with its routes", |routes, _, named, call| {
            let [name] = call.exactly()?;
            ensure!(named.owners.iter().any(|known| known == name), "owner {name:?} is not registered");
            named.owners.retain(|known| known != name);
            routes.remove_owner(name);
            Ok(())
        }),
        command("add-initializer", "name", "register a source of routes", |routes, _, named, call| {
            let [name] = call.exactly()?;
            named.initializers.insert(name.to_owned(), routes.register_initializer(name));
            Ok(())
        }),
        command("finish-initializer", "name", "declare a source complete", |routes, _, named, call| {
            let [name] = call.exactly()?;
            let Some(initializer) = named.initializers.remove(name) else { bail!("no initializer {name:?}") };
            routes.finish(initializer);
            Ok(())
        }),
    ])
}

type Run = fn(&Routes, &Table<Device>, &mut Named, &Call) -> anyhow::Result<()>;

/// A route as a file describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct RouteFile {
    table: u32,
    prefix: String,
    priority: u32,
    /// 0 for the default.
    admin_distance: u8,
    nexthop: Option<IpAddr>,
    src: Option<IpAddr>,
    device: Option<String>,
    /// The device by its index.
    device_if_index: Option<u32>,
    multi_path: Vec<PathFile>,
    mtu: u32,
    scope: u8,
    r#type: u8,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathFile {
    device: Option<String>,
    nexthop: Option<IpAddr>,
}

impl RouteFile {
    fn desired(self, devices: &Table<Device>) -> anyhow::Result<DesiredRoute> {
        let prefix: IpNetwork = self.prefix.parse().with_context(|| format!("prefix {:?}", self.prefix))?;
        let by_index = self.device_if_index.filter(|_| self.device.is_none());
        let device = match by_index {
            None => self.device,
            Some(index) => {
                let found = devices
                    .get(&devices.snapshot(), Device::by_index(index))
                    .map(|device| device.name.clone());
                Some(found.with_context(|| format!("no device with index {index}"))?)
            }
        };
        let mut route = DesiredRoute::new(prefix)
            .table(self.table)
            .priority(self.priority)
            .mtu(self.mtu)
            .scope(self.scope)
            .kind(self.r#type);
        if self.admin_distance != 0 {
            route = route.admin_distance(self.admin_distance);
        }
        if let Some(src) = self.src {
            route = route.src(src);
        }
        if self.nexthop.is_some() || device.is_some() {
            route = route.hop(Hop::new(self.nexthop, device.as_deref()));
        }
        for path in self.multi_path {
            route = route.hop(Hop::new(path.nexthop, path.device.as_deref()));
        }
        Ok(route)
    }
}
