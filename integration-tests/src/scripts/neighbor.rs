//! Neighbour entries on the kernel of a network namespace, for forwardable addresses that scripts insert.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::neighbors::{ForwardableIp, ForwardableIps, Upkeep, kernel_can_manage};
use anyhow::Context;
use hive::prelude::*;
use hive_command::{Call, Command, Output};
use hive_script::{Condition, Retry};
use parking_lot::Mutex;
use statedb::Initializer;

pub(super) const DEFAULTS: &[&str] = &["--enable-l2-neigh-discovery=true"];

pub(super) const RETRY: Retry = Retry { first: Duration::from_millis(10), most: Duration::from_millis(500) };

/// The side that keeps entries resolved, which the cell finds out by itself outside of tests.
#[derive(hive::Config)]
struct UpkeepConfig {
    /// Let the kernel keep neighbour entries resolved
    #[flag(default = false)]
    use_kernel_managed_arp_ping: bool,
}

pub(super) fn cells() -> Vec<Cell> {
    let upkeep = |config: Config<UpkeepConfig>| {
        Arc::new(if config.use_kernel_managed_arp_ping { Upkeep::Kernel } else { Upkeep::Agent })
    };
    let condition = || {
        let summary = "the kernel can keep neighbour entries resolved";
        Member(Condition::new("kernel-can-manage-arp-ping", summary, |_| Ok(kernel_can_manage())))
    };
    vec![
        devices::cell(),
        ::metrics::cell(),
        ::neighbors::control_plane(),
        module("health", "The table", status::table()),
        module(
            "neighbor-test",
            "Sources of forwardable addresses",
            [config::<UpkeepConfig>(), provide(upkeep), provide(condition), provide(commands)],
        ),
    ]
}

fn commands(ips: Arc<ForwardableIps>) -> Members<Command> {
    let named: Arc<Mutex<BTreeMap<String, Initializer<ForwardableIp>>>> = Arc::default();
    let (register_ips, register_named) = (Arc::clone(&ips), Arc::clone(&named));
    let register = move |call: Call| {
        let result = call.exactly().map(|[name]| {
            register_named.lock().insert(name.to_owned(), register_ips.register_initializer(name));
            Output::none()
        });
        async move { result }
    };
    let finish = move |call: Call| {
        let result = call.exactly().and_then(|[name]| {
            let initializer =
                named.lock().remove(name).with_context(|| format!("no initializer {name:?}"))?;
            ips.finish(initializer);
            Ok(Output::none())
        });
        async move { result }
    };
    Members(vec![
        Command::new("forwardable-ip/register-initializer", "register a source of addresses", register)
            .takes("name"),
        Command::new("forwardable-ip/finish-initializer", "declare a source complete", finish).takes("name"),
    ])
}
