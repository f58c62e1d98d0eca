//! Desired devices on the kernel of a network namespace, with owners and sources that scripts name.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::desired_devices::{DesiredDevice, DesiredDevices};
use anyhow::{Context, bail};
use hive::prelude::*;
use hive_command::{Call, Command, Output};
use local_node::StateConfig;
use parking_lot::Mutex;
use serde::Deserialize;
use statedb::Initializer;

/// The log of devices of a hive is that of its successor.
pub(super) const DEFAULTS: &[&str] = &["--state-dir=$WORK/state"];

pub(super) fn cells() -> Vec<Cell> {
    vec![
        devices::cell(),
        ::desired_devices::cell(),
        module("state", "The state folder", [config::<StateConfig>()]),
        module("health", "The table", status::table()),
        module("desired-devices-test", "Owners and sources of devices", [provide(commands)]),
    ]
}

type Sources = BTreeMap<String, Initializer<DesiredDevice>>;
type Run = fn(&DesiredDevices, &mut Sources, &Call) -> anyhow::Result<()>;

fn commands(devices: Arc<DesiredDevices>) -> Members<Command> {
    let sources: Arc<Mutex<Sources>> = Arc::default();
    let command = |name: &str, takes: &'static str, summary: &'static str, run: Run| {
        let (devices, sources) = (Arc::clone(&devices), Arc::clone(&sources));
        let run = move |call: Call| {
            let result = run(&devices, &mut sources.lock(), &call);
            async move { result.map(|()| Output::none()) }
        };
        Command::new(name, summary, run).takes(takes)
    };
    Members(vec![
        command("add-device", "owner file", "desire the device that a file describes", |devices, _, call| {
            let [owner, file] = call.exactly()?;
            let text = String::from_utf8(call.read(file)?)?;
            let device: DeviceFile = yaml_values::from_str(&text).with_context(|| file.to_owned())?;
            let DeviceFile { name, parentname, vlanid } = device;
            let device = DesiredDevice::vlan(&name, &parentname, vlanid).with_context(|| file.to_owned())?;
            Ok(devices.upsert(owner, device)?)
        }),
        command("remove-owner", "name", "remove an owner with its devices", |devices, _, call| {
            let [name] = call.exactly()?;
            devices.remove_owner(name);
            Ok(())
        }),
        command("add-initializer", "name", "register a source of devices", |devices, sources, call| {
            let [name] = call.exactly()?;
            sources.insert(name.to_owned(), devices.register_initializer(name));
            Ok(())
        }),
        command("finish-initializer", "name", "declare a source complete", |devices, sources, call| {
            let [name] = call.exactly()?;
            let Some(initializer) = sources.remove(name) else { bail!("no initializer {name:?}") };
            devices.finish(initializer);
            Ok(())
        }),
    ])
}

/// A VLAN device as a file describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceFile {
    name: String,
    parentname: String,
    vlanid: u16,
}
