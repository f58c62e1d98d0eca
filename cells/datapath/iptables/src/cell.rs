//! The wiring: options, the job that keeps the rules, the status of masquerading.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::StatusSource;
use api_models::{Masquerading, MasqueradingProtocols};
use datapath_api::HostMark;
use hive::Settings;
use hive::prelude::*;
use local_node::{LocalNode, LocalNodeConfig};
use maps::FamilyConfig;
use masquerade::{BpfMasquerading, MasqueradeConfig};
use node_manager::Node;
use proxy_ports::{Proxies, RuleReader};
use reconciler::Reconciler;
use statedb::{RwTable, Table};
use tokio_util::sync::CancellationToken;
use tunnel::{EndpointRoutesConfig, Tunnel};

use crate::backend::{Tools, may_have_chains};
use crate::config::IptablesConfig;
use crate::desired::{alloc_cidr, missing_interfaces, needs_set};
use crate::ipset::SetEntry;
use crate::ipset::nodes::Follow;
use crate::ipset::reconcile::Members;
use crate::job::{Job, Tables};
use crate::no_track::{NoTrack, NoTrackRules};
use crate::program::Runner;
use crate::rules::{Family, saved_proxies};
use crate::saved::Saved;
use crate::{Error, no_conntrack};

/// Keeps the rules of iptables; provides [`HostMark`].
pub fn cell() -> Cell {
    module(
        "iptables",
        "Rules of iptables",
        [
            config::<IptablesConfig>(),
            provide(|| Arc::new(HostMark::default())),
            provide(rule_reader),
            statedb::table::<SetEntry>(),
            statedb::table::<NoTrack>(),
            provide(NoTrackRules::of),
            provide(status),
            invoke(start),
            invoke(start_sets),
        ],
    )
}

#[derive(Params)]
struct RuleParams {
    config: Config<IptablesConfig>,
    settings: Arc<Settings>,
    masquerade: Config<MasqueradeConfig>,
    masquerading: Arc<BpfMasquerading>,
    families: Config<FamilyConfig>,
    tunnel: Arc<Tunnel>,
    endpoint_routes: Config<EndpointRoutesConfig>,
    node_config: Option<Config<LocalNodeConfig>>,
    tables: Tables,
    host_mark: Arc<HostMark>,
    proxies: Option<Arc<Proxies>>,
    jobs: JobGroup,
    health: Health,
}

#[derive(Params)]
struct SetParams {
    config: Config<IptablesConfig>,
    masquerade: Config<MasqueradeConfig>,
    families: Config<FamilyConfig>,
    tunnel: Arc<Tunnel>,
    nodes: Arc<Table<Node>>,
    entries: Arc<RwTable<SetEntry>>,
    jobs: JobGroup,
}

fn start(p: RuleParams) -> Result<(), Error> {
    let replaces_kube_proxy =
        p.settings.get("kube-proxy-replacement").is_some_and(|option| option.value == "true");
    let untracked_range =
        no_conntrack::untracked_range(&p.config, &p.masquerade, &p.families, &p.tunnel, replaces_kube_proxy)?;
    let families = enabled(&p.families);
    let is_masquerading = families.iter().any(|family| p.masquerade.is_in_iptables(family.ip()));
    if p.config.install_iptables_rules
        && is_masquerading
        && let Some(missing) = p.node_config.and_then(|node| missing_interfaces(node.ipam, &p.masquerade))
    {
        tracing::warn!(reason = missing, "Packets of pods are not masqueraded");
        p.health.child("masquerade").degraded("Packets of pods are not masqueraded", missing);
    }
    let needs_rules = |proxies: &&Arc<Proxies>| !proxies.config().is_assigned_by_programs();
    if let Some(proxies) = p.proxies.as_ref().filter(needs_rules).filter(|_| !p.config.install_iptables_rules)
    {
        proxies.set_without_rules();
    }
    let job = Job {
        config: (*p.config).clone(),
        masquerade: (*p.masquerade).clone(),
        masquerading: p.masquerading,
        tunnel: p.tunnel,
        has_endpoint_routes: p.endpoint_routes.enable_endpoint_routes,
        families,
        untracked_range,
        tables: p.tables,
        host_mark: p.host_mark,
        proxies: p.proxies,
    };
    p.jobs.one_shot("rules", move |cx: JobCx| job.run(cx)).add();
    Ok(())
}

/// Reads the ports of proxies from rules of the previous run, which all enabled families have.
fn rule_reader(config: Config<IptablesConfig>, families: Config<FamilyConfig>) -> Arc<RuleReader> {
    Arc::new(RuleReader::new(move || {
        if !config.install_iptables_rules || !may_have_chains() {
            return BTreeMap::new();
        }
        let runner = Runner::new(config.iptables_lock_timeout, CancellationToken::new());
        let saved = |family: Family| {
            Tools::choose(&runner, &[family]).and_then(|tools| runner.save(&tools.name(family)))
        };
        // Without the programs there is nothing to read, and the job reports it.
        let texts = enabled(&families).into_iter().filter_map(|family| saved(family).ok());
        texts.flat_map(|text| saved_proxies(&Saved::parse(&text))).collect()
    }))
}

/// Keeps the sets of nodes' addresses.
fn start_sets(p: SetParams) {
    let needs = |family: &Family| needs_set(&p.config, &p.masquerade, &p.tunnel, *family);
    let families: Vec<Family> = enabled(&p.families).into_iter().filter(needs).collect();
    if families.is_empty() {
        return;
    }
    let mut txn = p.entries.write();
    let initializer = txn.register_initializer("nodes");
    txn.commit();
    let (_, reconciler) = Reconciler::builder(RwTable::clone(&p.entries))
        .status(|entry: &SetEntry| &entry.status, |entry, status| entry.status = status)
        .batch_ops(Members)
        .build();
    p.jobs
        .one_shot("reconcile-sets", move |cx: JobCx| async move {
            reconciler.run_job(&cx).await;
            Ok(())
        })
        .add();
    let follow = Follow { families, nodes: p.nodes, entries: p.entries, initializer };
    p.jobs.one_shot("node-sets", move |cx: JobCx| follow.run(cx)).add();
}

fn enabled(families: &FamilyConfig) -> Vec<Family> {
    let is_enabled = |family: &Family| match family {
        Family::V4 => families.enable_ipv4,
        Family::V6 => families.enable_ipv6,
    };
    Family::ALL.into_iter().filter(is_enabled).collect()
}

/// Returns the part of `GET /healthz` about masquerading.
fn status(
    config: Config<IptablesConfig>,
    masquerade: Config<MasqueradeConfig>,
    families: Config<FamilyConfig>,
    nodes: Arc<Table<LocalNode>>,
) -> Member<StatusSource> {
    Member(StatusSource::new("masquerading", move |status| {
        let families = enabled(&families);
        let is_on = |family| {
            let is_installed = config.install_iptables_rules || masquerade.enable_bpf_masquerade;
            is_installed && families.contains(&family) && masquerade.is_enabled(family.ip())
        };
        let (ipv4, ipv6) = (is_on(Family::V4), is_on(Family::V6));
        if !ipv4 && !ipv6 {
            return;
        }
        let snapshot = nodes.snapshot();
        let node = nodes.get(&snapshot, LocalNode::query());
        let excluded = |family: Family| {
            let pods = node.and_then(|node| alloc_cidr(node, family));
            let range = masquerade.excluded_range(family.ip(), pods).filter(|_| is_on(family));
            range.map(|range| range.to_string()).unwrap_or_default()
        };
        status.masquerading = Some(Masquerading {
            enabled: true,
            enabled_protocols: Some(MasqueradingProtocols { ipv4, ipv6 }),
            mode: if masquerade.enable_bpf_masquerade { "BPF" } else { "iptables" }.to_owned(),
            ip_masq_agent: masquerade.enable_ip_masq_agent,
            snat_exclusion_cidr: excluded(Family::V4),
            snat_exclusion_cidr_v4: excluded(Family::V4),
            snat_exclusion_cidr_v6: excluded(Family::V6),
        });
    }))
}
