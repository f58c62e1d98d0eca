//! Lists of the server, and the changes of peers.

use std::io::Write;

use clap::{Args, Subcommand, ValueEnum};
use grpc::Connection;
use hubble_api::observer::observer_client::ObserverClient;
use hubble_api::observer::{GetNamespacesRequest, GetNodesRequest, Namespace, Node};
use hubble_api::peer::peer_client::PeerClient;
use hubble_api::peer::{ChangeNotification, NotifyRequest};
use hubble_api::relay::NodeState;
use serde_json::{Value, json};

use super::{grouped, refused};
use crate::output::table;

#[derive(Debug, Args)]
pub(crate) struct ListOptions {
    /// Output format; wide is the table, too
    #[arg(short, long, default_value = "table")]
    output: ListOutput,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ListOutput {
    Json,
    Table,
    Wide,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ListCommand {
    /// List the nodes that a relay is connected to
    #[command(visible_alias = "node")]
    Nodes(ListOptions),
    /// List the namespaces of flows of the last hour
    #[command(visible_aliases = ["namespace", "ns"])]
    Namespaces(ListOptions),
}

#[derive(Debug, Subcommand)]
pub(crate) enum WatchCommand {
    /// Print the nodes of the cluster and their changes, as a relay follows them
    #[command(visible_alias = "peer")]
    Peers,
}

impl ListCommand {
    /// Prints the list.
    pub(super) async fn run(&self, connection: Connection, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut observer = ObserverClient::new(connection);
        let rows: Vec<String> = match self {
            Self::Nodes(options) => {
                let nodes = observer.get_nodes(GetNodesRequest {}).await.map_err(refused)?.into_inner().nodes;
                if options.output == ListOutput::Json {
                    let rows: Vec<_> = nodes.iter().map(node_json).collect();
                    return Ok(writeln!(out, "{:#}", Value::from(rows))?);
                }
                let head = ["NAME", "STATUS", "AGE", "FLOWS/S", "CURRENT/MAX-FLOWS"].map(str::to_owned);
                std::iter::once(head).chain(nodes.iter().map(node)).map(|row| row.join("\t")).collect()
            }
            Self::Namespaces(options) => {
                let request = observer.get_namespaces(GetNamespacesRequest {});
                let namespaces = request.await.map_err(refused)?.into_inner().namespaces;
                if options.output == ListOutput::Json {
                    let row = |row: Namespace| match row.cluster.as_str() {
                        "" => json!({"namespace": row.namespace}),
                        cluster => json!({"cluster": cluster, "namespace": row.namespace}),
                    };
                    let rows: Vec<_> = namespaces.into_iter().map(row).collect();
                    return Ok(writeln!(out, "{:#}", Value::from(rows))?);
                }
                let names = namespaces.into_iter().map(|row| row.namespace);
                std::iter::once("NAMESPACE".to_owned()).chain(names).collect()
            }
        };
        table(&rows.join("\n").replace(|c: char| c.is_control() && !"\t\n".contains(c), "\u{fffd}"), 0, out)?;
        Ok(())
    }
}

/// Returns a node in protobuf's form of JSON: 64-bit numbers are texts.
fn node_json(node: &Node) -> Value {
    json!({
        "name": node.name,
        "version": node.version,
        "address": node.address,
        "state": node.state().as_str_name(),
        "uptime_ns": node.uptime_ns.to_string(),
        "num_flows": node.num_flows.to_string(),
        "max_flows": node.max_flows.to_string(),
        "seen_flows": node.seen_flows.to_string(),
    })
}

/// Returns the columns of a node.
fn node(node: &Node) -> [String; 5] {
    let status = match node.state() {
        NodeState::NodeConnected => "Connected",
        NodeState::NodeUnavailable => "Unavailable",
        NodeState::NodeGone => "Gone",
        NodeState::NodeError => "Error",
        NodeState::UnknownNodeState => "Unknown",
    };
    let uptime = std::time::Duration::from_nanos(node.uptime_ns);
    #[expect(clippy::cast_precision_loss, reason = "a rate with two digits")]
    let rate = if uptime.is_zero() { 0.0 } else { node.seen_flows as f64 / uptime.as_secs_f64() };
    let age = go_duration::format(std::time::Duration::from_secs(uptime.as_secs()));
    let flows = format!("{}/{}", grouped(node.num_flows), grouped(node.max_flows));
    [node.name.clone(), status.to_owned(), age, format!("{rate:.2}"), flows]
}

impl WatchCommand {
    /// Prints changes as they happen.
    pub(super) async fn run(&self, connection: Connection, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut changes =
            PeerClient::new(connection).notify(NotifyRequest {}).await.map_err(refused)?.into_inner();
        while let Some(change) = changes.message().await.map_err(refused)? {
            writeln!(out, "{}", peer(&change))?;
            out.flush()?;
        }
        Ok(())
    }
}

/// Returns a change as a line, without control characters.
fn peer(change: &ChangeNotification) -> String {
    let tls = change.tls.as_ref();
    let server_name = tls.map(|tls| format!(" (TLS.ServerName: {})", tls.server_name)).unwrap_or_default();
    let kind = change.r#type().as_str_name();
    format!("{kind:<12} {} {}{server_name}", change.address, change.name)
        .replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use hubble_api::peer::Tls;

    use super::*;

    #[test]
    fn peers_and_nodes_are_rows() {
        let change = |tls| ChangeNotification {
            name: "peer1".to_owned(),
            address: "10.99.0.1:4244".to_owned(),
            r#type: 1,
            tls,
        };
        assert_eq!(peer(&change(None)), "PEER_ADDED   10.99.0.1:4244 peer1");
        let tls = Tls { server_name: "a.b\u{1b}".to_owned() };
        let expected = "PEER_ADDED   10.99.0.1:4244 peer1 (TLS.ServerName: a.b\u{fffd})";
        assert_eq!(peer(&change(Some(tls))), expected);
        let row = Node {
            name: "n1".to_owned(),
            state: 1,
            uptime_ns: 90_500_000_000,
            num_flows: 4095,
            max_flows: 4095,
            seen_flows: 181,
            ..Node::default()
        };
        assert_eq!(node(&row), ["n1", "Connected", "1m30s", "2.00", "4,095/4,095"].map(str::to_owned));
    }
}
