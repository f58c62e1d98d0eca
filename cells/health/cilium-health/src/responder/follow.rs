//! Listeners that follow the addresses of the node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hive::JobHandle;
use hive::prelude::*;
use http_server::Pool;
use local_node::LocalNode;
use maps::FamilyConfig;
use statedb::Table;
use tokio::sync::watch;

use super::addresses::addresses;
use super::listener::{Listener, Listening};

/// The responder.
pub(crate) struct Responder {
    pub(crate) node: Table<LocalNode>,
    pub(crate) families: FamilyConfig,
    pub(crate) port: u16,
    pub(crate) jobs: JobGroup,
    pub(crate) health: Health,
    pub(crate) state: watch::Sender<Listening>,
}

impl Responder {
    /// Keeps a listener on each address until the job is cancelled.
    pub(crate) async fn follow(self, cx: JobCx) -> anyhow::Result<()> {
        let pool = Pool::default();
        let mut running: BTreeMap<IpAddr, JobHandle> = BTreeMap::new();
        loop {
            let snapshot = self.node.snapshot();
            let watch = self.node.watch(&snapshot);
            let row = self.node.get(&snapshot, LocalNode::query()).map(|row| &**row);
            let desired = addresses(row, &self.families);
            // First those that end: all addresses and one of them cannot be listened on at the same time.
            let gone: Vec<IpAddr> = running.keys().filter(|ip| !desired.contains(ip)).copied().collect();
            for ip in gone {
                let Some(job) = running.remove(&ip) else { continue };
                job.stop().await;
                self.health.child(&format!("job-{}", name(ip))).close();
                self.state.send_modify(|state| state.remove(ip));
            }
            self.state.send_modify(|state| state.expect(&desired));
            for ip in desired {
                running.entry(ip).or_insert_with(|| {
                    let (pool, state) = (pool.clone(), self.state.clone());
                    let listener = Listener { ip, port: self.port, pool, state };
                    self.jobs.one_shot(name(ip), move |cx: JobCx| listener.serve(cx)).add()
                });
            }
            cx.health.ok(format!("{} addresses", running.len()));
            drop(snapshot);
            tokio::select! {
                () = watch.changed() => {}
                () = cx.cancelled() => return Ok(()),
            }
        }
    }
}

/// Returns the name of the job that serves an address: there is one of a family, or the one that stands for all.
fn name(ip: IpAddr) -> &'static str {
    match ip {
        IpAddr::V6(ip) if ip.is_unspecified() => "responder-all",
        IpAddr::V6(_) => "responder-ipv6",
        IpAddr::V4(_) => "responder-ipv4",
    }
}
