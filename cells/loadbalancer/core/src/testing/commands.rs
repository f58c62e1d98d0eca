//! The commands `test/*` of scripts: external events of a load balancer, and the state of its reconciler.

use std::collections::HashSet;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, anyhow, bail, ensure};
use hive::prelude::*;
use hive_command::{Call, Command, Output};
use local_node::LocalNodeStore;

use crate::model::address::LbAddress;
use crate::model::name::ServiceName;
use crate::reconciler::balancer::Balancer;
use crate::reconciler::control::Control;
use crate::writer::services_writer::ServicesWriter;

/// Provides the commands `test/*` to a hive with [`control_plane()`](crate::control_plane) and a node with
/// `Arc<LocalNodeStore>`.
pub fn commands() -> Cell {
    module(
        "loadbalancer-test-commands",
        "Commands of scripts that test the load balancer",
        [provide(on_reconciler), provide(on_node), provide(on_writer)],
    )
}

fn on_reconciler(control: Arc<Control>, writer: Arc<ServicesWriter>) -> Members<Command> {
    let of = control.clone();
    let reset =
        Command::new("test/bpfops-reset", "restore the state from the maps, as after a restart", move |_| {
            let control = of.clone();
            async move {
                control.restart().await.map_err(|error| anyhow!(error))?;
                Ok(Output::none())
            }
        });
    let of = control.clone();
    let summary = Command::new("test/bpfops-summary", "sizes of the reconciler's state", move |_| {
        let control = of.clone();
        async move { Ok(Output::text(control.inspect(Balancer::summary).await?)) }
    });
    let wait = Command::new("test/init-wait", "wait until every frontend was tried once", move |_| {
        let (control, frontends) = (control.clone(), writer.frontends());
        async move {
            frontends.wait_initialized().await;
            let handle = control.running().await?.handle;
            handle.wait_until(frontends.revision(&frontends.snapshot())).await?;
            Ok(Output::none())
        }
    });
    Members(vec![reset, summary, wait])
}

fn on_node(node: Arc<LocalNodeStore>) -> Members<Command> {
    let of = node.clone();
    let labels = Command::new("test/set-node-labels", "replace the labels of the node", move |call: Call| {
        let node = of.clone();
        async move {
            let pair = |word: &String| {
                let (key, value) =
                    word.split_once('=').with_context(|| format!("{word}: is not KEY=VALUE"))?;
                anyhow::Ok((key.to_owned(), value.to_owned()))
            };
            let labels = call.args.iter().map(pair).collect::<Result<_, _>>()?;
            node.update(|node| node.labels = labels);
            Ok(Output::none())
        }
    });
    let ip =
        Command::new("test/set-node-ip", "replace the addresses of the node by one", move |call: Call| {
            let node = node.clone();
            async move {
                let [ip] = call.exactly()?;
                let ip: IpAddr = ip.parse().with_context(|| ip.to_owned())?;
                node.update(|node| {
                    (node.ipv4, node.ipv6) = match ip {
                        IpAddr::V4(ip) => (Some(ip), None),
                        IpAddr::V6(ip) => (None, Some(ip)),
                    };
                });
                Ok(Output::none())
            }
        });
    Members(vec![labels.takes("[key=value...]"), ip.takes("ip")])
}

fn on_writer(writer: Arc<ServicesWriter>) -> Members<Command> {
    let of = writer.clone();
    let health = "record the result of a health check of a backend";
    let update = Command::new("test/update-backend-health", health, move |call: Call| {
        let writer = of.clone();
        async move {
            let [service, address, healthy] = call.exactly()?;
            let (namespace, name) =
                service.split_once('/').with_context(|| format!("{service}: is not NAMESPACE/NAME"))?;
            let address: LbAddress = address.parse().with_context(|| address.to_owned())?;
            let healthy = match healthy {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                other => bail!("{other}: is neither true nor false"),
            };
            let mut txn = writer.write();
            let known =
                txn.set_health(&ServiceName::new(namespace, name), &address, healthy, SystemTime::now());
            ensure!(known, "{service} has no backend {address}");
            txn.commit();
            Ok(Output::none())
        }
    });
    let checked = "mark services with a value of this annotation as health-checked";
    let checks = Command::new("test/set-is-service-healthchecked", checked, move |call: Call| {
        let writer = writer.clone();
        async move {
            let [annotation] = call.exactly()?;
            let annotation = annotation.to_owned();
            writer.set_is_service_health_checked(move |service| {
                service.annotations.get(&annotation).is_some_and(|value| !value.is_empty())
            });
            Ok(Output::none())
        }
    });
    Members(vec![update.takes("namespace/name address true|false"), checks.takes("annotation")])
}

impl Balancer {
    /// Returns the sizes of the balancer's collections by Cilium's names.
    fn summary(&self) -> String {
        let mut text = String::new();
        for (name, count) in self.remembered() {
            let _ = writeln!(text, "{name}: {count}");
        }
        text
    }

    fn remembered(&self) -> [(&'static str, usize); 10] {
        let (known, restored): (Vec<_>, Vec<_>) =
            self.mirror.store.frontends().map(|(_, record)| record).partition(|record| !record.restored);
        let (used, unused) =
            self.mirror.store.backends.counts(|frontend| known.iter().any(|record| record.id == frontend));
        // An entry without a protocol counts as one of each. Cilium identifies expanded ports by family, protocol and
        // port.
        let at = |address: &LbAddress| (address.ip.is_ipv4(), address.protocol, address.port);
        let expanded: HashSet<_> = self.expansions.keys().map(at).collect();
        [
            ("serviceIDs", known.len()),
            (
                "restoredServiceIDs",
                restored.len() + 3 * (self.of_any_protocol.len() + self.restored_wildcards),
            ),
            ("backendIDs", used),
            ("restoredBackendIDs", unused),
            ("backendStates", used),
            ("backendReferences", known.len()),
            ("nodePortAddrByPort", expanded.len()),
            ("prevSourceRanges", known.len()),
            ("restoredQuarantines", self.quarantined.len()),
            ("wildcardReferences", self.mirror.store.wildcards().len()),
        ]
    }
}
