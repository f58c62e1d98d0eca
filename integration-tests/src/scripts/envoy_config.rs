//! Envoy configurations beside the load balancer: the client of xDS accepts everything and records it, rules of iptables
//! lead to ports as soon as something listens there.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use envoy_api::Types;
use envoy_api::reflect::DynamicMessage;
use envoy_proxy::Kind;
use envoy_proxy::testing::Recorder;
use hive::prelude::*;
use hive_command::{Call, Command, Output};
use hive_script::Retry;
use local_node::LocalNodeStore;
use proxy_ports::{Proxies, ProxyPort};
use serde_json::Value;

use super::loadbalancer;

pub(super) const RETRY: Retry = Retry { first: Duration::from_millis(100), most: Duration::from_secs(1) };

/// The port that scripts expect.
pub(super) const DEFAULTS: &[&str] = &[
    "--enable-envoy-config",
    "--external-envoy-proxy",
    "--envoy-secrets-namespace=cilium-secrets",
    "--proxy-portrange-min=1000",
    "--proxy-portrange-max=1000",
    "--lb-test-fault-probability=0",
];

/// The sections of expected resources, by the names of their kinds.
const KINDS: [(&str, Kind, &str); 5] = [
    ("listener", Kind::Listeners, "envoy.config.listener.v3.Listener"),
    ("route", Kind::Routes, "envoy.config.route.v3.RouteConfiguration"),
    ("clusters", Kind::Clusters, "envoy.config.cluster.v3.Cluster"),
    ("endpoints", Kind::Endpoints, "envoy.config.endpoint.v3.ClusterLoadAssignment"),
    ("secret", Kind::Secrets, "envoy.extensions.transport_sockets.tls.v3.Secret"),
];
const COUNT: &str = "policy-trigger-count";

pub(super) fn cells() -> Vec<Cell> {
    let mut cells = loadbalancer::cells(loadbalancer::maps());
    cells.extend([
        proxy_ports::cell(),
        envoy_proxy::testing::recorder(),
        envoy_config::cell(),
        module(
            "envoy-config-fixture",
            "Commands of scripts, and rules",
            [provide(labels), provide(ingress), provide(compare), provide(refuse), invoke(lead)],
        ),
    ]);
    cells
}

/// Acts as rules of iptables do.
fn lead(proxies: Arc<Proxies>, jobs: JobGroup) {
    jobs.one_shot("rules", move |cx: JobCx| async move {
        let table = proxies.ports();
        loop {
            let snapshot = table.snapshot();
            let listening = table.all(&snapshot).filter(|row: &&_| row.state.is_listening());
            let port = |row: &ProxyPort| (row.name.clone(), row.port);
            let listening: BTreeMap<_, _> = listening.map(|row| port(row)).collect();
            let watch = table.watch(&snapshot);
            proxies.set_reachable(&listening);
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = watch.changed() => {}
            }
        }
    })
    .add();
}

fn labels(node: Arc<LocalNodeStore>) -> Member<Command> {
    let set = Command::new("set-node-labels", "replace the labels of the node", move |call: Call| {
        let node = node.clone();
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
    Member(set.takes("[key=value...]"))
}

fn ingress(node: Arc<LocalNodeStore>) -> Member<Command> {
    let help = "replace the ingress addresses of the node";
    let set = Command::new("set-ingress-addresses", help, move |call: Call| {
        let node = node.clone();
        async move {
            let addresses: Vec<IpAddr> =
                call.args.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
            node.update(|node| {
                (node.ingress_ipv4, node.ingress_ipv6) = (None, None);
                for address in addresses {
                    match address {
                        IpAddr::V4(address) => node.ingress_ipv4 = Some(address),
                        IpAddr::V6(address) => node.ingress_ipv6 = Some(address),
                    }
                }
            });
            Ok(Output::none())
        }
    });
    Member(set.takes("[address...]"))
}

fn compare(recorder: Arc<Recorder>) -> Member<Command> {
    let compare =
        Command::new("envoy/cmp", "compare the resources that Envoy has with a file", move |call: Call| {
            let recorder = recorder.clone();
            async move {
                let [file] = call.exactly()?;
                let expected = String::from_utf8(call.read(file)?)?;
                let types = Types::load()?;
                let (expected, actual) = (expected_of(&expected, &types)?, actual_of(&recorder, &types)?);
                for (name, value) in &expected {
                    ensure!(actual.contains_key(name), "{name} is missing");
                    let found = &actual[name];
                    ensure!(found == value, "{name} differs: {found:#} instead of {value:#}");
                }
                let more = actual.keys().find(|name| !expected.contains_key(*name));
                ensure!(more.is_none(), "{} is not expected", more.map(String::as_str).unwrap_or_default());
                Ok(Output::none())
            }
        });
    Member(compare.takes("file"))
}

fn refuse(recorder: Arc<Recorder>) -> Member<Command> {
    let help = "refuse resources of a kind with a text, or accept all again";
    let refuse = Command::new("envoy/refuse", help, move |call: Call| {
        let recorder = recorder.clone();
        async move {
            let refusal = match &call.args[..] {
                [] => None,
                [kind, words @ ..] => {
                    let known = KINDS.into_iter().find(|(section, ..)| section == kind);
                    let (_, kind, _) = known.with_context(|| format!("{kind}: is no kind of resources"))?;
                    Some((kind, words.join(" ")))
                }
            };
            recorder.refuse(refusal);
            Ok(Output::none())
        }
    });
    Member(refuse.takes("[kind text...]"))
}

/// Returns the sections of a file: a line `KIND:NAME:`, then a message as text, indented.
fn expected_of(text: &str, types: &Types) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut sections: Vec<(&str, String)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("  "), sections.last_mut()) {
            (Some(content), Some((_, text))) => {
                text.push_str(content);
                text.push('\n');
            }
            (None, _) if !line.trim().is_empty() => {
                let name =
                    line.trim_end().strip_suffix(':').with_context(|| format!("{line}: is no section"))?;
                sections.push((name, String::new()));
            }
            _ => {}
        }
    }
    let value = |(name, text): (&str, String)| {
        if name == COUNT {
            let count: u64 = text.trim().parse().context(COUNT)?;
            return Ok((name.to_owned(), count.into()));
        }
        let (kind, _) = name.split_once(':').with_context(|| format!("{name}: is not KIND:NAME"))?;
        let Some((_, _, of)) = KINDS.into_iter().find(|(known, ..)| *known == kind) else {
            bail!("{kind}: is no kind of resources");
        };
        let descriptor = types.descriptor(of).with_context(|| of.to_owned())?;
        let message =
            DynamicMessage::parse_text_format(descriptor, &text).with_context(|| name.to_owned())?;
        Ok((name.to_owned(), serde_json::to_value(&message)?))
    };
    sections.into_iter().map(value).collect()
}

/// Returns what the client has, by the same names.
fn actual_of(recorder: &Recorder, types: &Types) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut found = BTreeMap::from([(COUNT.to_owned(), recorder.listener_changes().into())]);
    for (section, kind, of) in KINDS {
        for bytes in &*recorder.received(kind) {
            let descriptor = types.descriptor(of).with_context(|| of.to_owned())?;
            let value = serde_json::to_value(DynamicMessage::decode(descriptor, &**bytes)?)?;
            let name = ["name", "clusterName"].iter().find_map(|field| value.get(field)?.as_str());
            found.insert(format!("{section}:{}", name.unwrap_or_default()), value.clone());
        }
    }
    Ok(found)
}
