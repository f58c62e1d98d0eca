//! Writes of the reconciler for one endpoint: its record, its datapath, its claims on the ipcache.
//!
//! The record is written before anything else and removed last, so every endpoint in the kernel has a record on disk,
//! and a start after a crash at any step finds all of the endpoint's state.

use std::net::IpAddr;
use std::sync::Arc;

use datapath_abi::ep_flag;
use datapath_api::{Datapath, EndpointDatapath};
use identity::Identities;
use ipam::Ipam;
use ipcache::{Change, Claim, IpcacheWriter, Location, Mapping, Pod, Source};
use policy::Policies;
use reconciler::OpResult;

use crate::model::endpoint::Endpoint;
use crate::model::id::EndpointId;
use crate::model::mac::Mac;
use crate::model::record::Record;
use crate::restore::files::StateFolder;

/// Returns the node's address of the family of an address, if it has one.
pub(crate) type HostIp = Arc<dyn Fn(IpAddr) -> Option<IpAddr> + Send + Sync>;

/// The cells and files that hold an endpoint's state.
pub(crate) struct Targets {
    pub(crate) datapath: Arc<dyn Datapath>,
    pub(crate) ipcache: IpcacheWriter,
    pub(crate) identities: Identities,
    pub(crate) policies: Policies,
    pub(crate) ipam: Ipam,
    pub(crate) files: StateFolder,
    /// For the ipcache claims, which the REST API reports.
    pub(crate) host_ip: HostIp,
}

impl Targets {
    /// Writes the record and attaches the datapath; the interface stays down.
    pub(crate) fn attach(&self, record: &Record) -> OpResult {
        self.files.save(record)?;
        if record.is_host() {
            self.datapath.attach_host(record.id, record.options.map.flags())?;
        } else if record.has_interface() {
            self.datapath.attach(&datapath(record))?;
        }
        Ok(())
    }

    /// Sets the interface up, if the endpoint has one.
    pub(crate) fn bring_up(&self, record: &Record) -> OpResult {
        if record.has_interface() {
            self.datapath.up(&datapath(record))?;
        }
        Ok(())
    }

    /// Returns the claims that map the endpoint's addresses to its identity.
    pub(crate) fn claims(&self, record: &Record) -> impl Iterator<Item = Change> + use<'_> {
        let pod = (!record.k8s_pod_name.is_empty()).then(|| {
            let (namespace, name) = (record.k8s_namespace.as_str(), record.k8s_pod_name.as_str());
            Pod { namespace: namespace.into(), name: name.into() }
        });
        let (identity, resource) = (record.identity(), resource(record));
        let addresses: Vec<IpAddr> = record.addresses().collect();
        addresses.into_iter().map(move |address| {
            let host_ip = (self.host_ip)(address);
            let at = Location { host_ip, tunnel: None, pod: pod.clone() };
            let mapping = Mapping::identity(identity).at(at);
            let claim = Claim { source: Source::Local, resource: resource.as_str().into(), mapping };
            Change::Upsert(address.into(), claim)
        })
    }

    /// Removes the endpoint's state. Packets are dropped from the first step on; the record is removed last, so that
    /// the next start finds the remaining state if the agent is killed in between.
    pub(crate) fn remove(&self, record: &Record) -> OpResult {
        self.policies.forget(record.id);
        self.datapath.detach(record.id)?;
        let resource = resource(record);
        self.ipcache.apply(
            record
                .addresses()
                .map(|address| Change::Delete(address.into(), Source::Local, resource.as_str().into())),
        );
        self.identities.release_all(&Endpoint::user(record.id));
        if record.owns_addresses() {
            for address in record.addresses() {
                self.ipam.release_endpoint(address, record.id);
            }
        }
        self.files.remove(EndpointId(record.id))?;
        Ok(())
    }
}

/// Returns the endpoint's name as the owner of ipcache claims.
fn resource(record: &Record) -> String {
    format!("endpoint/{}", record.id)
}

/// Returns the datapath's view of the record.
pub(crate) fn datapath(record: &Record) -> EndpointDatapath {
    let octets = |mac: Option<Mac>| mac.map_or([0; 6], |mac| mac.0);
    let unchecked =
        if record.datapath_configuration.disable_sip_verification { ep_flag::SOURCE_CHECK } else { 0 };
    EndpointDatapath {
        id: record.id,
        identity: record.identity(),
        ifindex: record.if_index,
        ifname: record.if_name.clone(),
        mac: octets(record.mac),
        node_mac: octets(record.node_mac),
        ipv4: record.ipv4,
        ipv6: record.ipv6,
        flags: record.options.map.flags() & !unchecked,
        netns_cookie: u32::try_from(record.netns_cookie).unwrap_or_default(),
        parent_ifindex: record.parent_if_index,
    }
}
