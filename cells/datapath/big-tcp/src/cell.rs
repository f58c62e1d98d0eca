//! The wiring: options, the check at the start, the job, the status.

use std::sync::Arc;

use api::StatusSource;
use api_models::{Ipv4BigTcp, Ipv6BigTcp};
use devices::Device;
use hive::Settings;
use hive::prelude::*;
use maps::FamilyConfig;
use masquerade::MasqueradeConfig;
use statedb::Table;
use tunnel::{Family, Tunnel};

use crate::config::BigTcpConfig;
use crate::job::Sizes;
use crate::limits::Families;
use crate::{BigTcp, Error};

/// Keeps the maximum sizes of segments; provides [`BigTcp`].
pub fn cell() -> Cell {
    module(
        "big-tcp",
        "Maximum sizes of segments",
        [config::<BigTcpConfig>(), provide(new_big_tcp), provide(status)],
    )
}

#[derive(Params)]
struct BigTcpParams {
    config: Config<BigTcpConfig>,
    families: Config<FamilyConfig>,
    masquerade: Config<MasqueradeConfig>,
    tunnel: Arc<Tunnel>,
    settings: Arc<Settings>,
    devices: Arc<Table<Device>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

/// Hooks and jobs are of the constructor, so that cells which need the sizes start after them.
fn new_big_tcp(p: BigTcpParams) -> Result<Arc<BigTcp>, Error> {
    let config = BigTcpConfig {
        enable_ipv4_big_tcp: p.config.enable_ipv4_big_tcp && p.families.enable_ipv4,
        enable_ipv6_big_tcp: p.config.enable_ipv6_big_tcp && p.families.enable_ipv6,
    };
    let limits = Arc::new(BigTcp::default());
    let mut sizes = Sizes { families: Families::default(), devices: p.devices, limits: Arc::clone(&limits) };
    if !config.enable_ipv4_big_tcp && !config.enable_ipv6_big_tcp {
        p.jobs.one_shot("sizes", move |cx: JobCx| sizes.run(cx)).add();
        return Ok(limits);
    }
    let get = |name: &str| p.settings.get(name).map(|setting| setting.value.as_str());
    let iptables = p.families.enable_ipv4 && p.masquerade.is_in_iptables(Family::Ipv4)
        || p.families.enable_ipv6 && p.masquerade.is_in_iptables(Family::Ipv6);
    config.check(iptables, get)?;
    let uses_dsr = get("bpf-lb-mode").is_some_and(|mode| mode != "snat");
    let dispatches_geneve = uses_dsr && get("bpf-lb-dsr-dispatch") == Some("geneve");
    let (tunnel, jobs) = (p.tunnel, p.jobs);
    p.lifecycle
        .hook("sizes")
        .on_start(move |_| async move {
            sizes.families = hive::blocking(move || config.probe(&tunnel, dispatches_geneve)).await?;
            // Before the agent serves its API: pods get the sizes when they are made.
            sizes.devices_complete().await;
            let (indexes, _) = sizes.observe(&sizes.devices.snapshot());
            // The job tries again and reports a failure.
            let _ = sizes.apply(indexes).await;
            jobs.one_shot("sizes", move |cx: JobCx| sizes.run(cx)).add();
            Ok(())
        })
        .add();
    Ok(limits)
}

/// Returns the part of `GET /healthz` about segments.
fn status(limits: Arc<BigTcp>) -> Member<StatusSource> {
    Member(StatusSource::new("big-tcp", move |status| {
        let limits = limits.limits();
        let (v4, v6) = (limits.ipv4, limits.ipv6);
        status.ipv4_big_tcp = Some(Ipv4BigTcp {
            max_gro: v4.gro.into(),
            max_gso: v4.gso.into(),
            enabled: limits.is_ipv4_enabled,
        });
        status.ipv6_big_tcp = Some(Ipv6BigTcp {
            max_gro: v6.gro.into(),
            max_gso: v6.gso.into(),
            enabled: limits.is_ipv6_enabled,
        });
    }))
}
