//! The job that makes the health endpoint, and makes it again when it is lost.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use datapath_abi::identity::HEALTH;
use devices::{Device, NetlinkError};
use endpoints::{Endpoint, EndpointId, Endpoints, Mac, OpLabels, Record, SecurityLabel, State};
use hive::Backoff;
use hive::prelude::*;
use ipam::{Address, Ipam};
use local_node::{LocalNode, LocalNodeStore};
use maps::FamilyConfig;
use statedb::Table;
use sysctl::{Name, Setting, Sysctl};
use tokio::sync::watch;
use tunnel::{MtuConfig, Tunnel};

use super::addresses::{self, OWNER};
use super::link::{self, HOST_LINK, LinkSpec, Pair};
use super::namespace::EndpointNamespace;

/// The backoff for an endpoint that cannot be made.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The cells that hold parts of the endpoint.
pub(crate) struct HealthEndpoint {
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) ipam: Arc<Ipam>,
    pub(crate) addresses: Arc<Table<Address>>,
    pub(crate) store: Arc<LocalNodeStore>,
    pub(crate) devices: Arc<Table<Device>>,
    pub(crate) sysctl: Arc<Sysctl>,
    pub(crate) tunnel: Arc<Tunnel>,
    pub(crate) mtu: MtuConfig,
    pub(crate) families: FamilyConfig,
    /// Its addresses while it takes packets.
    pub(crate) served: watch::Sender<Vec<IpAddr>>,
}

/// Why the endpoint could not be made.
#[derive(Debug, thiserror::Error)]
enum CreateError {
    #[error("no address for the health endpoint: {0}; see https://cilium.link/ipam-range-full")]
    Address(#[from] ipam::Error),
    #[error(transparent)]
    Link(#[from] NetlinkError),
    #[error(transparent)]
    Endpoint(#[from] endpoints::Refused),
}

/// The endpoint as it was made.
struct Made {
    id: EndpointId,
    pair: Pair,
    spec: LinkSpec,
}

impl HealthEndpoint {
    /// Keeps the endpoint until the job is cancelled. The namespace ends with the job.
    pub(crate) async fn follow(self, namespace: EndpointNamespace, cx: JobCx) -> anyhow::Result<()> {
        let token = cx.token().clone();
        token.run_until_cancelled(self.keep(namespace, &cx)).await;
        Ok(())
    }

    async fn keep(self, mut namespace: EndpointNamespace, cx: &JobCx) {
        let mut backoff = Backoff::exponential(RETRY.0, RETRY.1);
        // Other nodes know the addresses of the previous run.
        let mut before: Vec<IpAddr> = Vec::new();
        loop {
            let spec = self.spec(cx).await;
            if before.is_empty() {
                before = self.endpoints.previous_health().to_vec();
            }
            let created;
            (namespace, created) = self.create(namespace, spec, &before).await;
            let error = match created {
                Ok(made) => {
                    backoff.reset();
                    before = made.spec.addresses.iter().map(|(address, _)| *address).collect();
                    self.publish(&before);
                    cx.health.ok(format!("{} {before:?}", made.id));
                    let reason = self.lost(&made).await;
                    self.served.send_replace(Vec::new());
                    tracing::warn!(endpointID = made.id.0, reason, "The health endpoint is made again");
                    self.endpoints.remove_own(made.id).await;
                    continue;
                }
                Err(error) => error,
            };
            if cx.health.degraded_anew("Other nodes cannot probe the health endpoint of this one", &error) {
                tracing::warn!(%error, "The health endpoint cannot be made");
            }
            self.retry(backoff.next_wait().unwrap_or(RETRY.1)).await;
        }
    }

    /// Waits until the routers are known. Returns them with the MTUs, in a specification without addresses yet.
    async fn spec(&self, cx: &JobCx) -> LinkSpec {
        let table = self.store.table();
        loop {
            let snapshot = table.snapshot();
            let (node, watch) = table.get_watch(&snapshot, LocalNode::query());
            if let Some(routers) = addresses::routers(node.map(|node| &**node), &self.families) {
                let (mtu, route_mtu) = self.mtus();
                let addresses = routers.into_iter().map(|router| (router, router)).collect();
                return LinkSpec { addresses, mtu, route_mtu };
            }
            cx.health.ok("Waits for the addresses of the router");
            drop(snapshot);
            watch.changed().await;
        }
    }

    /// Returns the MTUs of the pair and of its routes.
    fn mtus(&self) -> (u32, u32) {
        let snapshot = self.devices.snapshot();
        let selected = self.devices.list(&snapshot, Device::by_selected(true));
        let mtu = self.mtu.device_mtu(&self.tunnel, selected.map(|device| &**device));
        (mtu, self.tunnel.route_mtu(mtu))
    }

    /// Makes the endpoint: addresses, link, then the row that the reconciler of endpoints attaches policy and programs to.
    async fn create(
        &self,
        mut namespace: EndpointNamespace,
        mut spec: LinkSpec,
        before: &[IpAddr],
    ) -> (EndpointNamespace, Result<Made, CreateError>) {
        let routers: Vec<IpAddr> = spec.addresses.iter().map(|(_, router)| *router).collect();
        spec.addresses = match addresses::allocate(&self.ipam, &routers, before) {
            Ok(allocated) => allocated,
            Err(error) => return (namespace, Err(error.into())),
        };
        let desired = spec.clone();
        let pair;
        (namespace, pair) = hive::blocking(move || {
            let pair = link::create(&mut namespace, &desired);
            (namespace, pair)
        })
        .await;
        let pair = match pair {
            Ok(pair) => pair,
            Err(error) => {
                for (address, _) in &spec.addresses {
                    self.ipam.release_endpoint(*address, 0);
                }
                return (namespace, Err(error.into()));
            }
        };
        if self.families.enable_ipv4 {
            self.accept_any_source().await;
        }
        let created = self.endpoints.create_own(self.record(&spec, pair)).await;
        (namespace, created.map(|row| Made { id: row.id(), pair, spec }).map_err(CreateError::from))
    }

    /// Disables the check of the reverse path: routes to the endpoint lead to `cilium_host`, not to its link.
    async fn accept_any_source(&self) {
        let name = Name::new(["net", "ipv4", "conf", HOST_LINK, "rp_filter"]);
        let Ok(name) = name else { return };
        if let Err(error) = self.sysctl.apply(vec![Setting::new(name, 0).optional()]).await {
            tracing::debug!(%error, "The check of the reverse path stays as it is");
        }
    }

    fn record(&self, spec: &LinkSpec, pair: Pair) -> Record {
        let pools = self.ipam.pools();
        let mut record = Record {
            if_name: HOST_LINK.to_owned(),
            if_index: pair.index,
            mac: Some(Mac(pair.mac)),
            node_mac: Some(Mac(pair.host_mac)),
            sec_label: Some(SecurityLabel::reserved(HEALTH, OWNER)),
            op_labels: OpLabels {
                orchestration_identity: SecurityLabel::reserved(HEALTH, OWNER).labels,
                ..OpLabels::default()
            },
            ..Record::default()
        };
        for (address, _) in &spec.addresses {
            let pool = pools.pool_of(*address).map(|pool| pool.to_string()).unwrap_or_default();
            match address {
                IpAddr::V4(address) => (record.ipv4, record.ipv4_pool) = (Some(*address), pool),
                IpAddr::V6(address) => (record.ipv6, record.ipv6_pool) = (Some(*address), pool),
            }
        }
        record
    }

    /// Publishes the addresses: in the table of nodes, and in the node's CiliumNode.
    fn publish(&self, addresses: &[IpAddr]) {
        self.store.update(|node| {
            (node.health_ipv4, node.health_ipv6) = (None, None);
            for address in addresses {
                match address {
                    IpAddr::V4(address) => node.health_ipv4 = Some(*address),
                    IpAddr::V6(address) => node.health_ipv6 = Some(*address),
                }
            }
        });
    }

    fn serve(&self, spec: &LinkSpec) {
        let addresses: Vec<IpAddr> = spec.addresses.iter().map(|(address, _)| *address).collect();
        self.served.send_if_modified(|served| {
            let is_new = *served != addresses;
            *served = addresses;
            is_new
        });
    }

    /// Waits until the endpoint is not as it was made any more. Returns the reason.
    async fn lost(&self, made: &Made) -> &'static str {
        let (rows, nodes) = (self.endpoints.table(), self.store.table());
        loop {
            let snapshot = rows.snapshot();
            let (row, row_changed) = rows.get_watch(&snapshot, Endpoint::by_id(made.id));
            let (node, node_changed) = nodes.get_watch(&snapshot, LocalNode::query());
            let (_, link_changed) = self.devices.get_watch(&snapshot, Device::by_name(HOST_LINK));
            let (_, devices_changed) = self.devices.list_watch(&snapshot, Device::by_selected(true));
            if row.is_none_or(|row| row.state.is_leaving()) {
                return "its row is gone";
            }
            // Its first regeneration attaches programs and policy.
            if row.is_some_and(|row| row.state == State::Ready && row.builds > 0) {
                self.serve(&made.spec);
            }
            let routers = addresses::routers(node.map(|node| &**node), &self.families);
            let has_routers = |routers: &Vec<IpAddr>| {
                made.spec.addresses.iter().map(|(_, router)| router).eq(routers.iter())
            };
            if routers.is_some_and(|routers| !has_routers(&routers)) {
                return "the router has another address";
            }
            if self.mtus() != (made.spec.mtu, made.spec.route_mtu) {
                return "the devices have another MTU";
            }
            // The table of devices may be late; an error of the kernel says nothing about the link.
            if let Ok(index) = hive::blocking(link::index).await
                && index != Some(made.pair.index)
            {
                return "its link is gone";
            }
            drop(snapshot);
            tokio::select! {
                () = row_changed.changed() => {}
                () = node_changed.changed() => {}
                () = link_changed.changed() => {}
                () = devices_changed.changed() => {}
            }
        }
    }

    /// Waits for the next attempt: for a time, or until addresses were released.
    async fn retry(&self, wait: Duration) {
        let released = self.addresses.watch(&self.addresses.snapshot());
        let released = async {
            released.changed().await;
            tokio::time::sleep(RETRY.0).await;
        };
        let _released_or_late = tokio::time::timeout(wait, released).await;
    }
}
