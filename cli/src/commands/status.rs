//! `status`: the state of the agent and its parts, one line a part.

use crate::client::Agent;
use crate::output::{Output, align, table, time};
use anyhow::{Context as _, bail};
use api_models::{
    BpfMapStatus, ControllerStatus, EncryptionStatus, HubbleStatus, IpamStatus, KubeProxyReplacement,
    Masquerading, ProxyStatus, Status, StatusResponse,
};
use clap::Args;
use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

#[derive(Debug, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "these are the switches of the original's command line")]
pub(crate) struct StatusOptions {
    /// Only print a one-line status message
    #[arg(long)]
    pub(crate) brief: bool,
    /// Everything: all addresses, controllers, nodes, redirects, maps
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Show all allocated addresses, not just count
    #[arg(long)]
    pub(crate) all_addresses: bool,
    /// Show all clusters
    #[arg(long)]
    pub(crate) all_clusters: bool,
    /// Show all nodes, not just localhost
    #[arg(long)]
    pub(crate) all_nodes: bool,
    /// Time in which the agent has to respond
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = go_duration::parse)]
    pub(crate) timeout: Duration,
    /// Show all controllers, not just failing
    #[arg(long)]
    pub(crate) all_controllers: bool,
    /// Show all health status, not just failing
    #[arg(long)]
    pub(crate) all_health: bool,
    /// Show all redirects
    #[arg(long)]
    pub(crate) all_redirects: bool,
    /// If set, a lost connection to Kubernetes makes the status a failure
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub(crate) require_k8s_connectivity: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Prints the status. Returns exit code 1 if the agent reports a failure or does not respond.
pub(crate) fn run(
    agent: &mut Agent,
    options: &StatusOptions,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    agent.limit(options.timeout);
    let brief = options.brief.to_string();
    let kubernetes = options.require_k8s_connectivity.to_string();
    let headers = [("brief", brief.as_str()), ("require-k8s-connectivity", kubernetes.as_str())];
    let answer = match agent.call("GET", "/healthz", &headers, None) {
        Ok(answer) => answer,
        Err(_) if options.brief => bail!("cilium: daemon unreachable"),
        Err(error) => return Err(error),
    };
    if answer.status != 200 {
        bail!(answer.words());
    }
    let status: StatusResponse =
        serde_json::from_slice(&answer.body).context("the status cannot be decoded")?;
    if options.output.write(&status, out)? {
        return Ok(ExitCode::SUCCESS);
    }
    let healthy =
        status.cilium.as_ref().is_none_or(|cilium| matches!(cilium.state.as_str(), "Ok" | "Disabled"));
    if options.brief {
        writeln!(out, "{}", in_brief(&status))?;
    } else {
        let mut text = Report { status: &status, options, now: SystemTime::now() }.text();
        if healthy {
            text +=
                &cluster_health(agent, &status, options.verbose || options.all_health || options.all_nodes);
        }
        table(&text, 2, out)?;
    }
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Formats a status without details.
pub(crate) fn text(status: &StatusResponse) -> String {
    let options = StatusOptions { require_k8s_connectivity: true, ..StatusOptions::default() };
    Report { status, options: &options, now: SystemTime::now() }.text()
}

/// Formats the connectivity to nodes, where the agent probes them.
fn cluster_health(agent: &Agent, status: &StatusResponse, all: bool) -> String {
    let health = status.cluster.as_ref().and_then(|cluster| cluster.cilium_health.as_ref());
    match health.filter(|health| health.state != "Disabled") {
        None => "Cluster health:\t\tProbe disabled\n".to_owned(),
        Some(_) => super::health::cluster_health(agent, all)
            .unwrap_or_else(|| "Cluster health:\t\tNot available: health.sock does not answer\n".to_owned()),
    }
}

/// Returns `OK`, or the first failure.
fn in_brief(status: &StatusResponse) -> String {
    let bad = |state: &str| matches!(state, "Warning" | "Failure");
    let part = |name: &str, part: Option<&Status>| {
        part.filter(|part| bad(&part.state)).map(|part| format!("{name}: {}", part.msg))
    };
    let kubernetes = status.kubernetes.as_ref().filter(|part| bad(&part.state));
    let health = status.cluster.as_ref().and_then(|cluster| cluster.cilium_health.as_ref());
    let controllers = || {
        status.controllers.iter().find_map(|controller| {
            let message = &controller.status.as_ref()?.last_failure_msg;
            (!message.is_empty()).then(|| format!("controller {}: {message}", controller.name))
        })
    };
    let wrong = part("kvstore", status.kvstore.as_ref())
        .or_else(|| kubernetes.map(|part| format!("kubernetes: {}", part.msg)))
        .or_else(|| part("cilium", status.cilium.as_ref()))
        .or_else(|| part("cilium-health", health))
        .or_else(controllers);
    wrong.map_or_else(|| "OK".to_owned(), |wrong| format!("error in {wrong}"))
}

/// The long form.
struct Report<'a> {
    status: &'a StatusResponse,
    options: &'a StatusOptions,
    now: SystemTime,
}

impl Report<'_> {
    /// Formats lines with tabs; parts that the agent does not report are left out.
    fn text(&self) -> String {
        let mut text = String::new();
        self.cluster(&mut text);
        self.agent(&mut text);
        self.datapath(&mut text);
        text += &self.controllers();
        text += &self.services();
        text
    }

    /// Formats the agent's connections.
    fn cluster(&self, text: &mut String) {
        let status = self.status;
        if let Some(Status { state, msg }) = &status.kvstore {
            let _ = writeln!(text, "KVStore:\t{state}\t{msg}");
        }
        if let Some(kubernetes) = &status.kubernetes {
            let _ = writeln!(text, "Kubernetes:\t{}\t{}", kubernetes.state, kubernetes.msg);
            if kubernetes.state != "Disabled" {
                let mut versions = kubernetes.k8s_api_versions.to_vec();
                versions.sort();
                let _ = writeln!(text, "Kubernetes APIs:\t[\"{}\"]", versions.join("\", \""));
            }
        }
        if let Some(replacement) = &status.kube_proxy_replacement {
            let _ = writeln!(
                text,
                "KubeProxyReplacement:\t{}\t{}",
                replacement.mode,
                served_devices(replacement)
            );
        }
        if let Some(firewall) = &status.host_firewall {
            let devices = match firewall.mode.as_str() {
                "Disabled" => String::new(),
                _ => format!("\t[{}]", firewall.devices.join(", ")),
            };
            let _ = writeln!(text, "Host firewall:\t{}{devices}", firewall.mode);
        }
        if let Some(srv6) = &status.srv6 {
            let state = if srv6.enabled {
                format!("Enabled\t[encap-mode: {}]", srv6.srv6_encap_mode)
            } else {
                "Disabled".into()
            };
            let _ = writeln!(text, "SRv6:\t{state}");
        }
        if let Some(chaining) = &status.cni_chaining {
            let _ = writeln!(text, "CNI Chaining:\t{}", chaining.mode);
        }
        if let Some(file) = &status.cni_file {
            let _ = writeln!(text, "CNI Config file:\t{}", file.msg);
        }
    }

    /// Formats the agent's own state and its address pools.
    fn agent(&self, text: &mut String) {
        let status = self.status;
        if let Some(Status { state, msg }) = &status.cilium {
            let _ = writeln!(text, "Cilium:\t{state}   {msg}");
        }
        if !status.stale.is_empty() {
            let probes: Vec<_> =
                status.stale.iter().map(|(probe, since)| format!("{probe:?} since {}", since.0)).collect();
            let _ = writeln!(text, "Stale status:\t{}", probes.join(", "));
        }
        match &status.node_monitor {
            Some(monitor) => {
                let (cpus, pages, size) = (monitor.cpus, monitor.npages, monitor.pagesize);
                let _ = writeln!(
                    text,
                    "NodeMonitor:\tListening for events on {cpus} CPUs with {pages}x{size} of shared memory"
                );
                if monitor.lost != 0 || monitor.unknown != 0 {
                    let _ = writeln!(
                        text,
                        "\t{} events lost, {} unknown notifications",
                        monitor.lost, monitor.unknown
                    );
                }
            }
            None => text.push_str("NodeMonitor:\tDisabled\n"),
        }
        if let Some(Status { state, msg }) =
            status.cluster.as_ref().and_then(|cluster| cluster.cilium_health.as_ref())
        {
            let _ = writeln!(text, "Cilium health daemon:\t{state}\t{msg}");
        }
        if let Some(ipam) = &status.ipam {
            *text += &self.addresses(ipam);
        }
        if let Some(mesh) = &status.cluster_mesh {
            let ready = mesh.clusters.iter().filter(|cluster| cluster.ready).count();
            let _ = writeln!(text, "ClusterMesh:\t{ready}/{} remote clusters ready", mesh.clusters.len());
        }
    }

    fn addresses(&self, ipam: &IpamStatus) -> String {
        let mut text = format!("IPAM:\t{}\n", ipam.status);
        if self.options.verbose || self.options.all_addresses {
            text += "Allocated addresses:\n";
            let mut lines: Vec<_> =
                ipam.allocations.iter().map(|(ip, owner)| format!("  {ip} ({owner})\n")).collect();
            lines.sort();
            text += &lines.concat();
        }
        text
    }

    /// Formats the datapath's modes.
    fn datapath(&self, text: &mut String) {
        let status = self.status;
        let big_tcp = |enabled: bool, gro: i64, gso: i64| match (enabled, gro == gso) {
            (false, _) => "Disabled".to_owned(),
            (true, true) => format!("Enabled\t[{gso}]"),
            (true, false) => format!("Enabled\t[{gro}, {gso}]"),
        };
        if let Some(big) = &status.ipv4_big_tcp {
            let _ = writeln!(text, "IPv4 BIG TCP:\t{}", big_tcp(big.enabled, big.max_gro, big.max_gso));
        }
        if let Some(big) = &status.ipv6_big_tcp {
            let _ = writeln!(text, "IPv6 BIG TCP:\t{}", big_tcp(big.enabled, big.max_gro, big.max_gso));
        }
        if let Some(bandwidth) = &status.bandwidth_manager {
            let control = bandwidth.congestion_control.to_uppercase();
            let state = match bandwidth.enabled {
                true => format!("EDT with BPF [{control}] [{}]", bandwidth.devices.join(", ")),
                false => "Disabled".to_owned(),
            };
            let _ = writeln!(text, "BandwidthManager:\t{state}");
        }
        if let Some(routing) = &status.routing {
            let tunnel = match routing.inter_host_routing_mode.as_str() {
                "Tunnel" => format!(" [{}]", routing.tunnel_protocol),
                _ => String::new(),
            };
            let (network, host) = (&routing.inter_host_routing_mode, &routing.intra_host_routing_mode);
            let _ = writeln!(text, "Routing:\tNetwork: {network}{tunnel}\tHost: {host}");
        }
        match status.attach_mode.as_str() {
            "" => {}
            "tcx" => text.push_str("Attach Mode:\tTCX\n"),
            _ => text.push_str("Attach Mode:\tLegacy TC\n"),
        }
        if !status.datapath_mode.is_empty() {
            let _ = writeln!(text, "Device Mode:\t{}", status.datapath_mode);
        }
        if let Some(masquerading) = &status.masquerading {
            let _ = writeln!(text, "Masquerading:\t{}", self.masquerading(masquerading));
        }
        if let Some(clock) = status.clock_source.as_ref().filter(|_| self.options.verbose) {
            let hertz =
                if clock.mode == "jiffies" { format!("\t[{} Hz]", clock.hertz) } else { String::new() };
            let _ = writeln!(text, "Clock Source for BPF:\t{}{hertz}", clock.mode);
        }
    }

    fn masquerading(&self, masquerading: &Masquerading) -> String {
        let word = |enabled| if enabled { "Enabled" } else { "Disabled" };
        let Some(families) = &masquerading.enabled_protocols else {
            return word(masquerading.enabled).to_owned();
        };
        if !families.ipv4 && !families.ipv6 {
            return word(false).to_owned();
        }
        let mut how = match (masquerading.mode.as_str(), masquerading.ip_masq_agent) {
            ("BPF", true) => "BPF (ip-masq-agent)".to_owned(),
            ("BPF", false) => "BPF".to_owned(),
            _ => "IPTables".to_owned(),
        };
        if let Some(replacement) =
            self.status.kube_proxy_replacement.as_ref().filter(|_| masquerading.mode == "BPF")
        {
            let devices: Vec<_> = replacement.device_list.iter().map(|device| device.name.as_str()).collect();
            let _ = write!(how, "\t[{}]\t", devices.join(", "));
            let ranges = [
                (families.ipv4, &masquerading.snat_exclusion_cidr_v4),
                (families.ipv6, &masquerading.snat_exclusion_cidr_v6),
            ];
            let ranges = ranges.into_iter().filter(|(enabled, range)| *enabled && !range.is_empty());
            how += &ranges.map(|(_, range)| range.as_str()).collect::<Vec<_>>().join(" ");
        }
        format!("{how} [IPv4: {}, IPv6: {}]", word(families.ipv4), word(families.ipv6))
    }

    /// Formats the number of successful controllers, and the failing ones (or all of them).
    fn controllers(&self) -> String {
        let all = &self.status.controllers;
        if all.is_empty() {
            return String::new();
        }
        let failing = |controller: &&ControllerStatus| {
            controller.status.as_ref().is_some_and(|status| status.consecutive_failure_count > 0)
        };
        let healthy = all.len() - all.iter().filter(failing).count();
        let mut text = format!("Controller Status:\t{healthy}/{} healthy\n", all.len());
        let shown =
            all.iter().filter(|one| self.options.verbose || self.options.all_controllers || failing(one));
        let mut lines: Vec<_> = shown.filter_map(|controller| self.controller(controller)).collect();
        if !lines.is_empty() {
            lines.sort();
            lines.insert(0, "  Name\tLast success\tLast error\tCount\tMessage\n".to_owned());
            text += &align(&lines.concat(), 0);
        }
        text
    }

    fn controller(&self, controller: &ControllerStatus) -> Option<String> {
        let status = controller.status.as_ref()?;
        let success = time::since(&status.last_success_timestamp.0, self.now);
        let failure = time::since(&status.last_failure_timestamp.0, self.now);
        let count = status.consecutive_failure_count;
        let message = if status.last_failure_msg.is_empty() { "no error" } else { &status.last_failure_msg };
        Some(format!("  {}\t{success}\t{failure}\t{count}\t{message}\t\n", controller.name))
    }

    /// Formats the features of the datapath.
    fn services(&self) -> String {
        let status = self.status;
        let mut text = match &status.proxy {
            Some(proxy) => self.proxy(proxy),
            None => "Proxy Status:\tNo managed proxy redirect\n".to_owned(),
        };
        match &status.identity_range {
            Some(range) => {
                let (min, max) = (range.min_identity, range.max_identity);
                let _ = writeln!(text, "Global Identity Range:\tmin {min}, max {max}");
            }
            None => text.push_str("Global Identity Range:\tUnknown\n"),
        }
        if let Some(hubble) = &status.hubble {
            text += &self.hubble(hubble);
        }
        if let Some(replacement) = status.kube_proxy_replacement.as_ref().filter(|_| self.options.verbose) {
            text += &replacement_details(replacement);
        }
        if let Some(maps) = status.bpf_maps.as_ref().filter(|_| self.options.verbose) {
            text += &bpf_maps(maps);
        }
        if let Some(encryption) = &status.encryption {
            text += &encryption_line(encryption);
        }
        text
    }

    fn proxy(&self, proxy: &ProxyStatus) -> String {
        let ProxyStatus { ip, total_redirects, port_range, envoy_deployment_mode, .. } = proxy;
        let mut text = format!(
            "Proxy Status:\tOK, ip {ip}, {total_redirects} redirects active on ports {port_range}, Envoy: \
             {envoy_deployment_mode}\n"
        );
        if (self.options.verbose || self.options.all_redirects) && *total_redirects > 0 {
            let line = |redirect: &api_models::ProxyRedirect| {
                format!("  {}\t{}\t{}\n", redirect.proxy, redirect.name, redirect.proxy_port)
            };
            let mut lines: Vec<_> = proxy.redirects.iter().map(line).collect();
            lines.sort();
            text += &align(&("  Protocol\tRedirect\tProxy Port\n".to_owned() + &lines.concat()), 0);
        }
        text
    }

    fn hubble(&self, hubble: &HubbleStatus) -> String {
        let mut fields = vec![format!("{} {}", hubble.state, hubble.msg).trim_end().to_owned()];
        if let Some(observer) = &hubble.observer {
            let mut numbers = Vec::new();
            let (current, max) = (observer.current_flows, observer.max_flows);
            if max > 0 {
                #[expect(clippy::cast_precision_loss, reason = "a percentage with two digits")]
                let used = current as f64 / max as f64 * 100.0;
                numbers.push(format!("Current/Max Flows: {current}/{max} ({used:.2}%)"));
            }
            let uptime = observer.uptime.0.as_secs_f64();
            if uptime > 0.0 {
                #[expect(clippy::cast_precision_loss, reason = "a rate with two digits")]
                let rate = observer.seen_flows as f64 / uptime;
                numbers.push(format!("Flows/s: {rate:.2}"));
            }
            fields.push(numbers.join(", "));
        }
        if let Some(metrics) = &self.status.hubble_metrics {
            fields.push(format!("Metrics: {}", metrics.state));
        }
        format!("Hubble:\t{}\n", fields.join("\t"))
    }
}

fn served_devices(replacement: &KubeProxyReplacement) -> String {
    if replacement.mode == "Disabled" || replacement.device_list.is_empty() {
        return String::new();
    }
    let device = |device: &api_models::ServedDevice| {
        let direct = if device.name == replacement.direct_routing_device { " (Direct Routing)" } else { "" };
        format!("{} {}{direct}", device.name, device.ip.join(" "))
    };
    format!("[{}]", replacement.device_list.iter().map(device).collect::<Vec<_>>().join(", "))
}

/// Formats how services are translated, by kind of service.
fn replacement_details(replacement: &KubeProxyReplacement) -> String {
    let features = replacement.features.clone().unwrap_or_default();
    let word = |enabled| if enabled { "Enabled" } else { "Disabled" };
    let switch =
        |switch: &Option<api_models::Switch>| word(switch.as_ref().is_some_and(|switch| switch.enabled));
    let mut text = format!("KubeProxyReplacement Details:\n  Status:\t{}\n", replacement.mode);
    let _ = writeln!(text, "  Socket LB:\t{}", switch(&features.socket_lb));
    let _ = writeln!(text, "  Socket LB Tracing:\t{}", switch(&features.socket_lb_tracing));
    let coverage = if features.bpf_socket_lb_hostns_only { "Hostns-only" } else { "Full" };
    let _ = writeln!(text, "  Socket LB Coverage:\t{coverage}");
    let devices = served_devices(replacement);
    if !devices.is_empty() {
        let _ = writeln!(text, "  Devices:\t{}", devices.trim_matches(['[', ']']));
    }
    let port = features.node_port.clone().filter(|port| port.enabled);
    if let Some(port) = &port {
        let _ = writeln!(text, "  Mode:\t{}", port.mode);
        if !port.dsr_mode.is_empty() {
            let _ = writeln!(text, "    DSR Dispatch Mode:\t{}", port.dsr_mode);
        }
        let table = if port.algorithm == "Maglev" {
            format!(" (Table Size: {})", port.lut_size)
        } else {
            String::new()
        };
        let _ = writeln!(text, "  Backend Selection:\t{}{table}", port.algorithm);
    }
    let _ = writeln!(text, "  Session Affinity:\t{}", switch(&features.session_affinity));
    let nat = features.nat46x64.as_ref().is_some_and(|nat| nat.enabled);
    let _ = writeln!(text, "  NAT46/64 Support:\t{}", word(nat));
    if let Some(port) = &port {
        let _ = writeln!(text, "  XDP Acceleration:\t{}", port.acceleration);
    }
    let range = port.as_ref().map(|port| format!(" (Range: {}-{}) ", port.port_min, port.port_max));
    let served = word(port.is_some());
    let _ = writeln!(text, "  Services:\n  - ClusterIP:\tEnabled");
    let _ = writeln!(text, "  - NodePort:\t{served}{}", range.unwrap_or_default());
    let _ = writeln!(text, "  - LoadBalancer:\t{served} ");
    let _ = writeln!(text, "  - externalIPs:\t{} ", switch(&features.external_ips));
    let _ = writeln!(text, "  - HostPort:\t{}", switch(&features.host_port));
    if !features.annotations.is_empty() {
        text += "  Annotations:\n";
        text.extend(features.annotations.iter().map(|annotation| format!("  - {annotation}\n")));
    }
    text
}

fn bpf_maps(maps: &BpfMapStatus) -> String {
    let ratio = maps.dynamic_size_ratio;
    let sizing =
        if ratio > 0.0 && ratio <= 1.0 { format!("on (ratio: {ratio:.6})") } else { "off".to_owned() };
    let lines: Vec<_> = maps.maps.iter().map(|map| format!("  {}\t{}\n", map.name, map.size)).collect();
    format!("BPF Maps:\tdynamic sizing: {sizing}\n")
        + &align(&("  Name\tSize\n".to_owned() + &lines.concat()), 0)
}

fn encryption_line(encryption: &EncryptionStatus) -> String {
    let details = match &encryption.wireguard {
        Some(wireguard) if encryption.msg.is_empty() => {
            let interface = |interface: &api_models::WireguardInterface| {
                let (name, key) = (&interface.name, &interface.public_key);
                format!(
                    "{name} (Pubkey: {key}, Port: {}, Peers: {})",
                    interface.listen_port, interface.peer_count
                )
            };
            let interfaces: Vec<_> = wireguard.interfaces.iter().map(interface).collect();
            format!("[NodeEncryption: {}, {}]", wireguard.node_encryption, interfaces.join(", "))
        }
        _ => encryption.msg.clone(),
    };
    format!("Encryption:\t{}\t{details}\n", encryption.mode)
}
