//! The ingress endpoint: the addresses from which the node's Envoy reaches backends, as an endpoint with the identity
//! `reserved:ingress`. It has neither an interface nor a policy map; Envoy enforces its policy.

use std::sync::Arc;
use std::time::SystemTime;

use datapath_abi::identity::INGRESS;
use hive::JobCx;
use labels::{Label, Labels};
use local_node::LocalNode;
use statedb::{Obj, Table};

use crate::model::endpoint::Endpoint;
use crate::model::op_labels::OpLabels;
use crate::model::options::Defaults;
use crate::model::record::{OptionMap, Record, SecurityLabel};
use crate::requests::service::Endpoints;

const LABEL: &str = "ingress";
const CREATED: &str = "endpoint creation";
const MOVED: &str = "other addresses of the ingress";

/// The job that keeps the ingress endpoint equal to the node's ingress addresses: without any there is none.
pub(crate) struct IngressEndpoint {
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) node: Table<LocalNode>,
    pub(crate) defaults: Defaults,
}

impl IngressEndpoint {
    /// Runs until the job is cancelled.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let table = self.endpoints.table();
        let restored = cx.token().run_until_cancelled(table.wait_initialized());
        if restored.await.is_none() {
            return Ok(());
        }
        loop {
            let snapshot = self.node.snapshot();
            let (node, changed) = self.node.get_watch(&snapshot, LocalNode::query());
            if let Some(node) = node {
                let reconciled = cx.token().run_until_cancelled(self.reconcile(node));
                match reconciled.await {
                    Some(Some(endpoint)) => cx.health.ok(format_args!("The ingress is endpoint {endpoint}")),
                    Some(None) => cx.health.ok("The node has no ingress addresses"),
                    None => return Ok(()),
                }
            }
            drop(snapshot);
            tokio::select! {
                () = changed.changed() => {}
                () = cx.cancelled() => return Ok(()),
            }
        }
    }

    /// Creates, changes or removes the endpoint. Returns its id.
    async fn reconcile(&self, node: &LocalNode) -> Option<u16> {
        let known = self.known();
        if node.ingress_ipv4.is_none() && node.ingress_ipv6.is_none() {
            if let Some(known) = known {
                self.endpoints.remove(known.id()).await;
            }
            return None;
        }
        let now = SystemTime::now();
        let Some(known) = known else {
            let options = OptionMap { map: self.defaults.now() };
            let id = self.endpoints.insert_own(record(Record { options, ..Record::default() }, node))?;
            self.endpoints.change(id, |row| row.triggered(CREATED, CREATED, now));
            return Some(id.0);
        };
        let desired = record((*known.record).clone(), node);
        if *known.record != desired {
            // The former addresses leave the ipcache with the endpoint that had them.
            self.endpoints.remove(known.id()).await;
            let id = self.endpoints.insert_own(desired)?;
            self.endpoints.change(id, |row| row.triggered(MOVED, MOVED, now));
            return Some(id.0);
        }
        Some(known.id().0)
    }

    fn known(&self) -> Option<Obj<Endpoint>> {
        let table = self.endpoints.table();
        let snapshot = table.snapshot();
        table.all(&snapshot).find(|row| row.record.is_ingress() && !row.state.is_leaving()).cloned()
    }
}

/// Returns the record with the addresses of the node.
fn record(before: Record, node: &LocalNode) -> Record {
    let labels: Labels = [Label::reserved(LABEL)].into_iter().collect();
    Record {
        ipv4: node.ingress_ipv4,
        ipv6: node.ingress_ipv6,
        op_labels: OpLabels { orchestration_identity: labels, ..OpLabels::default() },
        sec_label: Some(SecurityLabel::reserved(INGRESS, LABEL)),
        ..before
    }
}
