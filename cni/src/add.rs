//! ADD: requests addresses from the agent, creates a pair of interfaces, and an endpoint in the agent.

use crate::agent::{
    ADD_PATIENCE, AddressPair, Agent, AgentConfig, DatapathConfiguration, Endpoint, EndpointRequest,
    IpamAnswer,
};
use crate::chain;
use crate::config::NetworkConfig;
use crate::delegate;
use crate::error::Error;
use crate::invocation::{Invocation, PodArgs};
use crate::link::{Links, PairSpec};
use crate::log::Log;
use crate::netns::{self, NetNs};
use crate::plan::{self, AddressPlan, Mac};
use crate::result::AddResult;
use crate::sysctl;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;

/// IPAM modes of the agent in which the node needs no routes and rules for cloud interfaces.
const PLAIN_IPAM_MODES: [&str; 5] = ["", "kubernetes", "cluster-pool", "multi-pool", "crd"];
const DELEGATED: &str = "delegated-plugin";

/// Attaches a pod: addresses, interfaces, endpoint. Returns the result for the runtime; a failure leaves nothing behind.
pub(crate) fn run(invocation: &Invocation, config: &NetworkConfig, log: &mut Log) -> Result<String, Error> {
    let pod = invocation.pod()?;
    config.check_chaining()?;
    if config.is_chained() {
        return chain::run(invocation, config, &pod, log);
    }
    if config.prev_result.is_some() {
        let reason = "a previous result is given, but chaining-mode names no plugin to chain to".into();
        return Err(Error::InvalidConfig { key: "prevResult", reason });
    }
    let netns = NetNs::open(invocation.netns())?;
    let mut agent = Agent::new(&invocation.agent);
    let agent_config = agent.config(ADD_PATIENCE)?;
    check_modes(&agent_config, config)?;
    let ipam = allocate(&mut agent, &agent_config, invocation, config, &pod)?;
    log.debug(&format!("addresses: {:?}", ipam.address));
    let host_interface = plan::host_interface(&invocation.attachment());
    let attachment = Attachment {
        invocation,
        netns: &netns,
        agent_config: &agent_config,
        pod: &pod,
        host_interface: &host_interface,
    };
    let result = attachment.make(&mut agent, &ipam, config, log);
    if result.is_err() {
        if let Err(error) = Links::here().and_then(|mut links| links.remove_by_name(&host_interface)) {
            log.warning(&format!("{error}"));
        }
        release_addresses(&mut agent, &agent_config, invocation, config, &ipam, log);
    }
    result
}

/// Rejects node configurations that need features which the plugin lacks.
fn check_modes(agent: &AgentConfig, config: &NetworkConfig) -> Result<(), Error> {
    let refuse = |reason| Err(Error::Agent { action: "serve the agent's configuration", reason });
    if agent.datapath_mode != "veth" {
        return refuse(format!("datapath-mode {:?} is not supported, veth is", agent.datapath_mode));
    }
    if agent.ipam_mode == DELEGATED {
        if config.ipam_plugin().is_none() {
            let reason = "ipam.type is missing, the agent's ipam mode is delegated-plugin".into();
            return Err(Error::InvalidConfig { key: "ipam", reason });
        }
    } else if !PLAIN_IPAM_MODES.contains(&agent.ipam_mode.as_str()) {
        return refuse(format!("ipam mode {:?} is not supported", agent.ipam_mode));
    }
    Ok(())
}

/// Allocates addresses: by the plugin of the configuration if the agent delegates that, else by the agent.
fn allocate(
    agent: &mut Agent,
    agent_config: &AgentConfig,
    invocation: &Invocation,
    config: &NetworkConfig,
    pod: &PodArgs,
) -> Result<IpamAnswer, Error> {
    match config.ipam_plugin() {
        Some(plugin) if agent_config.ipam_mode == DELEGATED => {
            let address = delegate::add(plugin, invocation, config)
                .inspect_err(|_| drop(delegate::run(plugin, "DEL", invocation, config)))?;
            Ok(IpamAnswer {
                address,
                host_addressing: agent_config.addressing.clone(),
                ..IpamAnswer::default()
            })
        }
        _ => agent.allocate(&format!("{}/{}", pod.namespace, pod.name)),
    }
}

/// Releases addresses after a failure; addresses that cannot be released expire.
fn release_addresses(
    agent: &mut Agent,
    agent_config: &AgentConfig,
    invocation: &Invocation,
    config: &NetworkConfig,
    ipam: &IpamAnswer,
    log: &mut Log,
) {
    let mut note = |result: Result<(), Error>| {
        if let Err(error) = result {
            log.warning(&format!("{error}"));
        }
    };
    match config.ipam_plugin() {
        Some(plugin) if agent_config.ipam_mode == DELEGATED => {
            note(delegate::run(plugin, "DEL", invocation, config).map(drop));
        }
        _ => {
            let AddressPair { ipv4, ipv4_pool_name, ipv6, ipv6_pool_name, .. } = &ipam.address;
            for (ip, pool) in [(ipv4, ipv4_pool_name), (ipv6, ipv6_pool_name)] {
                if !ip.is_empty() {
                    note(agent.release(ip, pool));
                }
            }
        }
    }
}

/// Inputs of one ADD.
struct Attachment<'a> {
    invocation: &'a Invocation,
    netns: &'a NetNs,
    agent_config: &'a AgentConfig,
    pod: &'a PodArgs,
    host_interface: &'a str,
}

impl Attachment<'_> {
    /// Creates the pair of interfaces, the pod's end configured and the node's end down, then the endpoint, and waits until
    /// packets reach the addresses. Returns the result for the runtime.
    fn make(
        &self,
        agent: &mut Agent,
        ipam: &IpamAnswer,
        config: &NetworkConfig,
        log: &mut Log,
    ) -> Result<String, Error> {
        let addresses = plan::addresses(self.agent_config, ipam)?;
        let [host_mac, mac] = random_macs()?;
        let (mut container, cookie) = self.netns.enter(|| self.prepare_namespace(&addresses, log))?;
        let mut host = Links::here()?;
        let host_index = self.create_pair(&mut host, host_mac, mac)?;
        sysctl::set(&format!("net/ipv4/conf/{}/rp_filter", self.host_interface), "0")?;
        let container_index = self.configure(&mut container, &addresses)?;

        let request = self.endpoint_request(ipam, &addresses, host_index, host_mac, mac, cookie);
        let attachment = self.invocation.attachment();
        let endpoint = agent.create_endpoint(&attachment, &request)?;
        // The endpoint exists from here on: a failure deletes it, so that the ADD leaves nothing behind.
        let mac = self
            .finish(&mut host, host_index, &mut container, container_index, &endpoint, mac)
            .and_then(|mac| {
                let mut addresses = addresses.iter();
                addresses
                    .try_for_each(|address| container.wait_local(&self.invocation.interface, address.ip))?;
                Ok(mac)
            })
            .inspect_err(|_| drop(agent.delete_attachment(&attachment)))?;

        let result = AddResult {
            host_interface: self.host_interface,
            host_mac: &host_mac.to_string(),
            interface: &self.invocation.interface,
            mac: &mac.to_string(),
            sandbox: self.invocation.netns(),
            addresses: &addresses,
        };
        Ok(result.to_json(config.version()))
    }

    /// Prepares the pod's namespace in a single visit; returns a netlink socket in the namespace, and the namespace's
    /// cookie.
    fn prepare_namespace(&self, addresses: &[AddressPlan], log: &mut Log) -> Result<(Links, u64), Error> {
        let mut links = Links::here()?;
        links.remove_by_name(&self.invocation.interface)?;
        if addresses.iter().any(|address| address.ip.is_ipv6())
            && let Err(error) = sysctl::set("net/ipv6/conf/all/disable_ipv6", "0")
        {
            log.warning(&format!("{error}"));
        }
        let config = self.agent_config;
        if !config.ip_local_reserved_ports.is_empty() {
            sysctl::append_reserved_ports(&config.ip_local_reserved_ports)?;
        }
        if !config.pmtud_mode.is_empty() {
            sysctl::set("net/ipv4/tcp_base_mss", "1024")?;
            sysctl::set("net/ipv4/tcp_mtu_probing", &config.pmtud_mode)?;
            sysctl::set("net/ipv4/tcp_mtu_probe_floor", "48")?;
        }
        if config.bbr_host_namespace_only {
            sysctl::set("net/ipv4/tcp_congestion_control", "cubic")?;
        }
        Ok((links, netns::cookie()))
    }

    /// Creates the pair. An existing interface with the name of the host's end is replaced: it belongs to an attachment
    /// whose namespace is being destroyed.
    fn create_pair(&self, host: &mut Links, host_mac: Mac, container_mac: Mac) -> Result<u32, Error> {
        let config = self.agent_config;
        let spec = PairSpec {
            host: self.host_interface,
            container: &self.invocation.interface,
            host_mac,
            container_mac,
            mtu: config.device_mtu,
            gro_max_size: config.gro_max_size,
            gso_max_size: config.gso_max_size,
            gro_ipv4_max_size: config.gro_ipv4_max_size,
            gso_ipv4_max_size: config.gso_ipv4_max_size,
        };
        match host.create_pair(&spec, self.netns.file()) {
            Err(Error::Link { source, .. }) if source.is_exists() => {
                host.remove_by_name(self.host_interface)?;
                host.create_pair(&spec, self.netns.file())
            }
            made => made,
        }
    }

    /// Gives the container's end an alternative name, sets it up, and adds its addresses and routes; its peer is still
    /// down, so no packet flows.
    fn configure(&self, container: &mut Links, addresses: &[AddressPlan]) -> Result<u32, Error> {
        let name = self.invocation.interface.as_str();
        let index = container.index(name)?.ok_or_else(|| Error::NoInterface { interface: name.into() })?;
        container.add_alternative_name(index, name, format!("cilium_cni:{name}"))?;
        container.set_up(index, name)?;
        for address in addresses {
            container.add_address(index, name, address)?;
            for route in &address.routes {
                container.add_route(index, name, route)?;
            }
        }
        Ok(index)
    }

    fn endpoint_request(
        &self,
        ipam: &IpamAnswer,
        addresses: &[AddressPlan],
        host_index: u32,
        host_mac: Mac,
        mac: Mac,
        netns_cookie: u64,
    ) -> EndpointRequest<'_> {
        let has = |v4: bool| addresses.iter().any(|address| address.ip.is_ipv4() == v4);
        let mut addressing = AddressPair::default();
        let mut properties = BTreeMap::new();
        if has(true) {
            addressing.ipv4.clone_from(&ipam.address.ipv4);
            addressing.ipv4_pool_name.clone_from(&ipam.address.ipv4_pool_name);
            addressing.ipv4_expiration_uuid.clone_from(&ipam.ipv4.expiration_uuid);
            if ipam.ipv4.skip_masquerade {
                properties.insert("property-skip-masquerade-v4", true);
            }
        }
        if has(false) {
            addressing.ipv6.clone_from(&ipam.address.ipv6);
            addressing.ipv6_pool_name.clone_from(&ipam.address.ipv6_pool_name);
            addressing.ipv6_expiration_uuid.clone_from(&ipam.ipv6.expiration_uuid);
            if ipam.ipv6.skip_masquerade {
                properties.insert("property-skip-masquerade-v6", true);
            }
        }
        let netns = self.invocation.netns().file_name().unwrap_or_default().to_string_lossy();
        EndpointRequest {
            addressing,
            container_id: &self.invocation.container_id,
            container_interface_name: &self.invocation.interface,
            container_netns_path: format!("/var/run/cilium/netns/{netns}"),
            datapath_configuration: DatapathConfiguration {
                external_ipam: self.agent_config.ipam_mode == DELEGATED,
                ..DatapathConfiguration::default()
            },
            host_mac: host_mac.to_string(),
            interface_index: host_index,
            interface_name: self.host_interface,
            k8s_namespace: &self.pod.namespace,
            k8s_pod_name: &self.pod.name,
            k8s_uid: &self.pod.uid,
            mac: mac.to_string(),
            netns_cookie: netns_cookie.to_string(),
            properties,
            state: "waiting-for-identity",
            sync_build_endpoint: true,
        }
    }

    /// Completes the attachment once the agent has the endpoint: gives the container's end the MAC that the agent
    /// chose, and sets the host's end up. The agent sets the host's end up as well; the repeated request is
    /// idempotent, and is there for agents that do not set it up.
    fn finish(
        &self,
        host: &mut Links,
        host_index: u32,
        container: &mut Links,
        container_index: u32,
        endpoint: &Endpoint,
        mac: Mac,
    ) -> Result<Mac, Error> {
        let assigned = &endpoint.status.networking.mac;
        let wanted = if assigned.is_empty() { mac } else { self.parse_mac(assigned)? };
        if wanted != mac {
            container.set_mac(container_index, &self.invocation.interface, wanted)?;
        }
        host.set_up(host_index, self.host_interface)?;
        container.wait_running(container_index, &self.invocation.interface)?;
        Ok(wanted)
    }

    fn parse_mac(&self, text: &str) -> Result<Mac, Error> {
        Mac::parse(text).ok_or_else(|| Error::Agent {
            action: "take over the endpoint's MAC address",
            reason: format!("{text:?} is none"),
        })
    }
}

fn random_macs() -> Result<[Mac; 2], Error> {
    let mut bytes = [0; 12];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|source| Error::Random { source })?;
    let [a, b, c, d, e, f, rest @ ..] = bytes;
    Ok([Mac::local([a, b, c, d, e, f]), Mac::local(rest)])
}
