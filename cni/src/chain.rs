//! ADD behind another plugin, which has created the interface and configured it: the agent gets an endpoint for it.
//!
//! The modes aws-cni, azure, flannel and generic-veth are one: they differ in the plugin before, not in what is done here.

use crate::agent::{ADD_PATIENCE, AddressPair, Agent, AgentConfig, DatapathConfiguration, EndpointRequest};
use crate::config::NetworkConfig;
use crate::error::Error;
use crate::invocation::{Invocation, PodArgs};
use crate::link::{Links, Veth};
use crate::log::Log;
use crate::netns::{self, NetNs};
use crate::plan::{self, Mac};
use crate::result;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The interface of the pod as the plugin before has left it.
struct Interface {
    veth: Veth,
    addresses: Vec<IpAddr>,
    netns_cookie: u64,
}

pub(crate) fn run(
    invocation: &Invocation,
    config: &NetworkConfig,
    pod: &PodArgs,
    log: &mut Log,
) -> Result<String, Error> {
    let mut previous = config.previous_result()?;
    let netns = NetNs::open(invocation.netns())?;
    let mut agent = Agent::new(&invocation.agent);
    let agent_config = agent.config(ADD_PATIENCE)?;
    let mtu = config.route_mtu || agent_config.route_mtu_for_chaining;
    let mtu = u32::try_from(agent_config.route_mtu).ok().filter(|size| mtu && *size > 0);
    let (interface, mut container) = netns.enter(|| {
        let mut links = Links::here()?;
        let interface = inspect(&mut links, invocation)?;
        if let Some(mtu) = mtu {
            links.set_route_mtu(interface.veth.index, &interface.veth.name, mtu)?;
        }
        Ok((interface, links))
    })?;
    let host = host_end(&mut Links::here()?, &interface.veth)?;
    let addressing = addressing(&agent_config, &interface, &previous)?;
    log.debug(&format!("{} is the peer of {}, with {addressing:?}", host.name, interface.veth.name));

    let sandbox = invocation.netns().file_name().unwrap_or_default().to_string_lossy();
    let request = EndpointRequest {
        addressing,
        container_id: &invocation.container_id,
        container_interface_name: &interface.veth.name,
        container_netns_path: format!("/var/run/cilium/netns/{sandbox}"),
        datapath_configuration: DatapathConfiguration::chained(),
        host_mac: host.mac.map_or_else(String::new, |mac| mac.to_string()),
        interface_index: host.index,
        interface_name: &host.name,
        k8s_namespace: &pod.namespace,
        k8s_pod_name: &pod.name,
        k8s_uid: &pod.uid,
        mac: interface.veth.mac.map_or_else(String::new, |mac| mac.to_string()),
        netns_cookie: interface.netns_cookie.to_string(),
        properties: BTreeMap::new(),
        state: "waiting-for-identity",
        sync_build_endpoint: true,
    };
    let attachment = invocation.attachment();
    let endpoint = agent.create_endpoint(&attachment, &request)?;
    // The interface is the other plugin's, which removes it after a failure; the endpoint is this one's.
    if let Some(mac) =
        Mac::parse(&endpoint.status.networking.mac).filter(|mac| interface.veth.mac != Some(*mac))
    {
        container
            .set_mac(interface.veth.index, &interface.veth.name, mac)
            .inspect_err(|_| drop(agent.delete_attachment(&attachment)))?;
        replace_mac(&mut previous, &interface.veth.name, mac);
    }
    previous["cniVersion"] = config.version().as_str().into();
    Ok(result::pretty(&previous))
}

/// Finds the pod's interface: the one that the runtime has named if it is a veth, else the first veth.
fn inspect(links: &mut Links, invocation: &Invocation) -> Result<Interface, Error> {
    let mut veths = links.veths()?;
    veths.sort_by_key(|veth| (veth.name != invocation.interface, veth.index));
    let Some(veth) = veths.into_iter().next() else {
        return Err(Error::NoVeth { netns: invocation.netns().to_owned() });
    };
    let addresses = links.addresses(veth.index, &veth.name)?.into_iter().map(|(address, _)| address);
    let addresses = addresses.filter(|address| !is_link_local(*address)).collect();
    Ok(Interface { veth, addresses, netns_cookie: netns::cookie() })
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Finds the host's end by the index that the pod's end names. An index is unique in one namespace only: the found link must
/// name the pod's end as well, or the peer is in a third namespace.
fn host_end(links: &mut Links, container: &Veth) -> Result<Veth, Error> {
    let missing = || Error::NoPeer { interface: container.name.clone(), index: container.peer };
    let peer = container.peer.ok_or_else(missing)?;
    let host = links.veths()?.into_iter().find(|veth| veth.index == peer);
    host.filter(|veth| veth.peer == Some(container.index)).ok_or_else(missing)
}

/// Chooses an address of each family that the node has enabled: the first of the previous result that the interface has,
/// else the interface's first.
fn addressing(config: &AgentConfig, interface: &Interface, previous: &Value) -> Result<AddressPair, Error> {
    let named: Vec<IpAddr> = previous_addresses(previous)?;
    let families = [(&config.addressing.ipv4, true), (&config.addressing.ipv6, false)];
    let [ipv4, ipv6] = families.map(|(family, v4)| {
        let mut present = interface.addresses.iter().filter(|address| address.is_ipv4() == v4).peekable();
        family.as_ref().filter(|family| family.enabled)?;
        let first = present.peek().copied();
        present.find(|address| named.contains(address)).or(first).map(IpAddr::to_string)
    });
    if ipv4.is_none() && ipv6.is_none() {
        return Err(Error::NoChainedAddress { interface: interface.veth.name.clone() });
    }
    let text = Option::unwrap_or_default;
    Ok(AddressPair { ipv4: text(ipv4), ipv6: text(ipv6), ..AddressPair::default() })
}

/// Returns the addresses of a result of any version.
fn previous_addresses(previous: &Value) -> Result<Vec<IpAddr>, Error> {
    let new = previous["ips"].as_array().into_iter().flatten().map(|ip| &ip["address"]);
    let old = [&previous["ip4"]["ip"], &previous["ip6"]["ip"]];
    let all = new.chain(old).filter_map(Value::as_str);
    all.map(|text| plan::parse(text, "prevResult")).collect()
}

/// Replaces the MAC address of the pod's interface in a result.
fn replace_mac(result: &mut Value, name: &str, mac: Mac) {
    let interfaces = result["interfaces"].as_array_mut().into_iter().flatten();
    for interface in interfaces {
        let is_inside = interface["sandbox"].as_str().is_some_and(|sandbox| !sandbox.is_empty());
        if interface["name"] == name && is_inside {
            interface["mac"] = mac.to_string().into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn interface(addresses: &[&str]) -> Interface {
        let veth = Veth { index: 2, name: "eth0".into(), mac: None, peer: Some(9) };
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Interface { veth, addresses, netns_cookie: 0 }
    }

    fn both() -> AgentConfig {
        let config = json!({"addressing": {"ipv4": {"enabled": true}, "ipv6": {"enabled": true}}});
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn addresses_of_the_result_come_first_where_the_interface_has_them() {
        let pod = interface(&["10.1.0.4", "10.1.0.5", "fd01::5"]);
        let choose = |previous: Value| {
            let pair = addressing(&both(), &pod, &previous).unwrap();
            [pair.ipv4, pair.ipv6]
        };
        let named = |address: &str| json!({"ips": [{"address": address}]});
        assert_eq!(choose(named("10.1.0.5/24")), ["10.1.0.5", "fd01::5"]);
        assert_eq!(choose(named("10.1.0.9/24")), ["10.1.0.4", "fd01::5"], "of another interface");
        assert_eq!(choose(json!({"ip4": {"ip": "10.1.0.5/24"}})), ["10.1.0.5", "fd01::5"]);
        assert_eq!(choose(json!({})), ["10.1.0.4", "fd01::5"]);
        let error = addressing(&both(), &pod, &named("10.1.0")).unwrap_err();
        insta::assert_snapshot!(error, @r#"invalid address "10.1.0" in prevResult"#);
    }

    #[test]
    fn disabled_families_get_no_address() {
        let config: AgentConfig =
            serde_json::from_value(json!({"addressing": {"ipv6": {"enabled": true}, "ipv4": {}}})).unwrap();
        let pair = addressing(&config, &interface(&["10.1.0.4", "fd01::5"]), &json!({})).unwrap();
        assert_eq!((pair.ipv4.as_str(), pair.ipv6.as_str()), ("", "fd01::5"));
        let error = addressing(&config, &interface(&["10.1.0.4"]), &json!({})).unwrap_err();
        insta::assert_snapshot!(error, @r#"the plugin before has left no address of a family that the node has enabled on "eth0""#);
    }

    #[test]
    fn only_the_pods_end_gets_another_mac() {
        let mut result = json!({"interfaces": [
            {"name": "eth0", "mac": "a"}, {"name": "eth0", "mac": "b", "sandbox": "/n"}, {"name": "x", "sandbox": "/n"},
        ]});
        replace_mac(&mut result, "eth0", Mac::local([0; 6]));
        assert_eq!(result["interfaces"][0]["mac"], "a");
        assert_eq!(result["interfaces"][1]["mac"], "02:00:00:00:00:00");
        assert_eq!(result["interfaces"][2]["mac"], Value::Null);
        let mut old = json!({"ip4": {"ip": "10.1.0.5/24"}});
        replace_mac(&mut old, "eth0", Mac::local([0; 6]));
        assert_eq!(old["ip4"]["ip"], "10.1.0.5/24");
    }
}
