//! The wiring.

use std::sync::Arc;

use hive::prelude::*;
use k8s_tables::Row;
use k8s_types::{Kind, Source};
use k8s_writer::Writer;
use operator_definitions::Registered;
use operator_election::Leadership;
use operator_policy_status::{PolicyObject, engine_settings};
use statedb::Table;

use crate::SecretSyncConfig;
use crate::job::{SecretSync, Tables};

/// Copies the secrets that policies name. A cell of the leader; needs [`operator_policy_status::tables`].
pub fn cell() -> Cell {
    let cells = [config::<SecretSyncConfig>(), invoke(start)];
    module("secret-sync", "Copies of the secrets that policies name", cells)
}

#[derive(Params)]
struct SecretSyncParams {
    config: Config<SecretSyncConfig>,
    settings: Arc<hive::Settings>,
    namespaced: Arc<Table<Row<PolicyObject<false>>>>,
    clusterwide: Arc<Table<Row<PolicyObject<true>>>>,
    sources: Group<Arc<dyn Source>>,
    writer: Arc<Writer>,
    leadership: Arc<Leadership>,
    /// Objects can be read once their kinds are defined.
    _registered: Arc<Registered>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: SecretSyncParams) {
    if let Some(reason) = p.config.off() {
        p.health.ok(reason);
        return;
    }
    let Some(source) = p.sources.iter().find(|source| source.has(Kind::Secret)).cloned() else {
        p.health.ok("Off: there is no API server");
        return;
    };
    let sync = SecretSync::new(
        Tables { namespaced: p.namespaced, clusterwide: p.clusterwide },
        engine_settings(&p.settings),
        source,
        &p.config.policy_secrets_namespace,
        p.writer,
        Leadership::clone(&p.leadership),
    );
    p.jobs.one_shot("policies", move |cx: JobCx| sync.run(cx)).add();
}
