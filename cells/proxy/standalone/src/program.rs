//! The proxy's wiring, for a process of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::ensure;
use dns_proxy::{Directory, DnsProxyConfig};
use fqdn_names::FqdnConfig;
use hive::prelude::*;
use maps::FamilyConfig;
use metrics::Metrics;
use proxy_ports::ProxyConfig;

use crate::client;
use crate::remote::Remote;
use crate::server;

/// Returns the cells of a standalone proxy, which reads the agent's options.
pub fn program() -> Cell {
    let cells = [
        config::<ProxyConfig>(),
        config::<DnsProxyConfig>(),
        config::<FqdnConfig>(),
        config::<FamilyConfig>(),
        invoke(start),
    ];
    module("standalone-dns-proxy", "DNS proxy that outlives the agent", cells)
}

#[derive(Params)]
struct StartParams {
    proxy: Config<ProxyConfig>,
    dns: Config<DnsProxyConfig>,
    names: Config<FqdnConfig>,
    families: Config<FamilyConfig>,
    jobs: JobGroup,
}

fn start(p: StartParams) {
    let families = [p.families.enable_ipv4, p.families.enable_ipv6];
    let remote = Arc::new(Remote::new(p.names.tofqdns_proxy_response_max_delay));
    let agent = server::address(p.proxy.standalone_dns_proxy_server_port);
    let connected = remote.clone();
    let run = move |cx: JobCx| async move {
        client::run(connected, agent, families, cx).await;
        Ok(())
    };
    p.jobs.one_shot("agent", run).add();
    let (is_enabled, port) = (p.proxy.enable_standalone_dns_proxy, p.proxy.tofqdns_proxy_port);
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let enabled = loopback.into_iter().zip(families).filter(|(_, is_enabled)| *is_enabled);
    let addresses: Vec<IpAddr> = enabled.map(|(address, _)| address).collect();
    let config = (*p.dns).clone();
    p.jobs
        .one_shot("serve", move |cx: JobCx| async move {
            ensure!(is_enabled, "enable-standalone-dns-proxy=false: the agent has a DNS proxy of its own");
            cx.health.ok("Waits for the policies of the agent");
            if cx.token().run_until_cancelled(remote.ready.notified()).await.is_none() {
                return Ok(());
            }
            let directory: Arc<dyn Directory> = remote;
            let metrics = Metrics::default();
            dns_proxy::serve_standalone(&addresses, port, directory, config, &metrics, &cx).await
        })
        .shutdown_on_error()
        .add();
}
