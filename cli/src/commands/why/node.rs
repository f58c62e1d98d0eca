//! The flow that a question names, and the settings of this node that decide about its path.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, bail};
use api_models::StatusResponse;
use datapath_abi::{identity, lxc_flag};
use serde_json::Value;

use super::entries::{Entries as _, Pinned};
use super::path::{self, DirectReturn, Flow, Masquerade, NoBackend, NodeFacts, Origin, Path};
use super::{Answer, Party, WhyOptions};
use crate::client::Agent;

/// Returns the path of the packets by the maps of this node; `None` if this process may not read them, or without an
/// address of both ends.
pub(super) fn path_of(
    agent: &mut Agent,
    options: &WhyOptions,
    answers: &[&Answer],
) -> anyhow::Result<Option<Path>> {
    let Some(entries) = Pinned::open() else { return Ok(None) };
    let Some(protocol) = number(&options.target.protocol) else { return Ok(None) };
    let addresses = |text: &str, party: Option<&Party>| -> Vec<IpAddr> {
        let known = party.into_iter().flat_map(|party| &party.addresses);
        text.parse().into_iter().chain(known.filter_map(|ip| ip.parse().ok())).collect()
    };
    let sources = addresses(&options.source, answers.first().map(|answer| &answer.source));
    let destinations = match options.destination.parse() {
        Ok(address) => vec![address],
        Err(_) => addresses("", answers.first().map(|answer| &answer.destination)),
    };
    let pairs = destinations.iter().flat_map(|to| sources.iter().map(move |from| (*from, *to)));
    let Some((source, to)) = pairs.into_iter().find(|(from, to)| from.is_ipv4() == to.is_ipv4()) else {
        return Ok(None);
    };
    let local = entries.endpoint(source)?;
    let identity = entries.ipcache(source)?.map(|info| info.sec_identity);
    let origin = match local {
        Some(info) if info.flags & lxc_flag::HOST == 0 => Origin::Pod,
        None if identity != Some(identity::HOST) => Origin::Network,
        _ => Origin::Host,
    };
    let destination = SocketAddr::new(to, options.target.port);
    let flow = Flow { origin, source, sport: options.source_port, destination, protocol };
    let status: StatusResponse = agent.get("/healthz").context("cannot get the node's status")?;
    let answer = agent.call_plain("GET", "/statedb/dump/configuration")?;
    if answer.status != 200 {
        bail!("cannot get the options: {}", answer.words());
    }
    let options: Value = serde_json::from_slice(&answer.body).context("cannot decode the options")?;
    let facts = NodeFacts { no_backend: no_backend(&options), ..facts(&status) };
    path::explain(&flow, &facts, &entries).map(Some)
}

/// Returns the response to packets to services without backends, from the table of options: rows of each source, with
/// the value in force. Options that no source has are at their defaults.
fn no_backend(options: &Value) -> NoBackend {
    let rows = options["configuration"].as_array().map_or(&[][..], Vec::as_slice);
    let running = |name: &str| {
        let row = rows.iter().find(|row| row["Key"]["Name"] == name)?;
        row["Running"].as_str()
    };
    if running("enable-no-service-endpoints-routable") == Some("false") {
        NoBackend::Route
    } else if running("service-no-backend-response") == Some("drop") {
        NoBackend::Drop
    } else {
        NoBackend::Reject
    }
}

/// Returns what the programs were loaded with, as the agent's status has it.
fn facts(status: &StatusResponse) -> NodeFacts {
    let replacement = status.kube_proxy_replacement.clone().unwrap_or_default();
    let features = replacement.features.clone().unwrap_or_default();
    let host_sockets = features.socket_lb.is_some_and(|socket_lb| socket_lb.enabled);
    let routing = status.routing.clone().unwrap_or_default();
    let masquerade = status.masquerading.clone().unwrap_or_default();
    let families = masquerade.enabled_protocols.clone().unwrap_or_default();
    let mode_of = |enabled| match (enabled && masquerade.enabled, masquerade.mode.as_str()) {
        (false, _) => Masquerade::Off,
        (true, "BPF") => Masquerade::Bpf,
        (true, _) => Masquerade::Iptables,
    };
    let node_port = features.node_port.unwrap_or_default();
    let translation = features.nat46x64.unwrap_or_default();
    NodeFacts {
        host_sockets,
        pod_sockets: host_sockets && !features.bpf_socket_lb_hostns_only,
        nodeport: replacement.mode == "True",
        maglev: node_port.algorithm == "Maglev",
        translates: translation.enabled,
        is_gateway: translation.gateway.is_some_and(|gateway| gateway.enabled),
        direct_return: match (node_port.mode.as_str(), node_port.dsr_mode.as_str()) {
            ("DSR", _) => DirectReturn::All,
            (_, "") => DirectReturn::Off,
            _ => DirectReturn::ByService,
        },
        has_outer_headers: node_port.dsr_mode == "IPIP",
        tunnel: routing.inter_host_routing_mode == "Tunnel",
        bypasses_stack: routing.intra_host_routing_mode == "BPF",
        masquerade: [mode_of(families.ipv4), mode_of(families.ipv6)],
        ip_masq_agent: masquerade.ip_masq_agent,
        no_backend: NoBackend::default(),
    }
}

/// Returns the number of a protocol in the packet.
fn number(protocol: &str) -> Option<u8> {
    match protocol {
        "tcp" => Some(6),
        "udp" => Some(17),
        "sctp" => Some(132),
        "icmp" => Some(1),
        "icmpv6" => Some(58),
        other => other.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn direct_return_and_its_headers_are_those_of_the_status() {
        let of = |mode: &str, dispatch: &str| {
            let node_port = json!({"mode": mode, "dsrMode": dispatch});
            let replacement = json!({"mode": "True", "features": {"nodePort": node_port}});
            let status = json!({"kube-proxy-replacement": replacement});
            let facts = facts(&serde_json::from_value(status).unwrap());
            (facts.direct_return, facts.has_outer_headers)
        };
        assert_eq!(of("SNAT", ""), (DirectReturn::Off, false));
        assert_eq!(of("DSR", "IP Option/Extension"), (DirectReturn::All, false));
        assert_eq!(of("DSR", "IPIP"), (DirectReturn::All, true));
        assert_eq!(of("Hybrid", "IPIP"), (DirectReturn::ByService, true));
        assert_eq!(of("SNAT", "IPIP"), (DirectReturn::ByService, true), "services choose by annotation");
    }

    #[test]
    fn the_response_without_backends_is_that_of_the_running_options() {
        let of = |rows: &[(&str, &str)]| {
            let row = |(name, running): &(&str, &str)| json!({"Key": {"Name": name, "Source": "folder"}, "Value": "other", "Running": running});
            no_backend(&json!({"configuration": rows.iter().map(row).collect::<Vec<_>>()}))
        };
        let response = "service-no-backend-response";
        assert_eq!(of(&[]), NoBackend::Reject);
        assert_eq!(of(&[("enable-ipv4", "true"), (response, "drop")]), NoBackend::Drop);
        assert_eq!(of(&[(response, "reject")]), NoBackend::Reject);
        let routed = ("enable-no-service-endpoints-routable", "false");
        assert_eq!(of(&[(response, "drop"), routed]), NoBackend::Route);
        assert_eq!(no_backend(&Value::Null), NoBackend::Reject);
    }
}
