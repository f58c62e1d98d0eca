//! Wiring: tables, a job for each folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::Page;
use hive::prelude::*;
use k8s_types::cilium::{CiliumCIDRGroup, CiliumIdentity, CiliumNode};
use k8s_types::core::{ClusterNetworkPolicy, EndpointSlice, Namespace, NetworkPolicy, Node, Pod, Service};
use k8s_types::{Kind, Selection, Source};
use local_node::{NodeName, StateConfig};
use memory_limit::MemoryLimit;
use state_file::Rewrite;
use statedb::{RwTable, Table};

use crate::config::{K8sConfig, KindsConfig};
use crate::folder::{self, Folder, Keep, Manifests, Memory, Report, SourceMetrics, follow, records};
use crate::in_memory_source::InMemorySource;
use crate::numbers::Numbers;
use crate::page::page;
use crate::policy::{PolicyKind, PolicyObject};
use crate::source_file::SourceFile;
use crate::sources::Sources;
use crate::table::{Reflecting, optional, selected, table};

use crate::Error;

/// Kinds that are read from `static-cnp-path`.
const POLICIES: &[Kind] = &[Kind::CiliumNetworkPolicy, Kind::CiliumClusterwideNetworkPolicy];

/// Provides the folders of the options as sources, the table `k8s-sources`, and [`tables`].
pub fn cell() -> Cell {
    let folders = module(
        "k8s",
        "Cluster objects",
        [
            config::<K8sConfig>(),
            supply(folder::versions()),
            statedb::table::<SourceFile>(),
            supply(Arc::new(Sources::default())),
            provide(numbers),
            provide(folders),
        ],
    );
    bundle([folders, tables()])
}

/// Provides the tables of the kinds that an agent reads, filled from all sources of the hive.
pub fn tables() -> Cell {
    module(
        "k8s-tables",
        "Tables of cluster objects",
        [
            config::<KindsConfig>(),
            table::<Namespace>(),
            pods(),
            selected::<Node, _>(this_node),
            table::<Service>(),
            table::<EndpointSlice>(),
            optional::<NetworkPolicy, _>(|kinds: Config<KindsConfig>| kinds.enable_k8s_networkpolicy),
            optional::<ClusterNetworkPolicy, _>(|kinds: Config<KindsConfig>| {
                kinds.enable_k8s_cluster_network_policy
            }),
            table::<CiliumCIDRGroup>(),
            table::<CiliumNode>(),
            table::<CiliumIdentity>(),
            statedb::table::<PolicyObject>(),
            provide(policy_pages),
            invoke(policies),
        ],
    )
}

/// Provides the table `k8s-pods`, with the pods of this node.
pub fn pods() -> Cell {
    selected::<Pod, _>(|node: Option<Arc<NodeName>>| {
        Selection::all(Kind::Pod).with_fields(&format!("spec.nodeName={}", name(node.as_deref())))
    })
}

fn this_node(node: Option<Arc<NodeName>>) -> Selection {
    Selection::all(Kind::Node).named(&name(node.as_deref()))
}

fn name(node: Option<&NodeName>) -> String {
    let own = || NodeName::of_this_node().ok();
    node.cloned().or_else(own).map(|node| node.to_string()).unwrap_or_default()
}

fn policies(table: Arc<RwTable<PolicyObject>>, sources: Reflecting) {
    for kind in [PolicyKind::CiliumNetworkPolicy, PolicyKind::CiliumClusterwideNetworkPolicy] {
        let name = format!("k8s-{}", kind.kind().plural());
        sources.reflect(&table, &name, Selection::all(kind.kind()));
    }
}

/// Returns the pages that list the policies, one for each kind.
fn policy_pages(table: Arc<Table<PolicyObject>>) -> Members<Page> {
    Members(vec![
        page("k8s-ciliumnetworkpolicies", Kind::CiliumNetworkPolicy, (*table).clone()),
        page("k8s-ciliumclusterwidenetworkpolicies", Kind::CiliumClusterwideNetworkPolicy, (*table).clone()),
    ])
}

/// Registers the metrics of the tables.
fn numbers(metrics: Option<Arc<metrics::Metrics>>) -> Arc<Numbers> {
    let numbers = Numbers::default();
    if let Some(metrics) = metrics {
        numbers.register(&metrics);
    }
    Arc::new(numbers)
}

#[derive(Params)]
struct FolderParams {
    config: Config<K8sConfig>,
    state: Option<Config<StateConfig>>,
    node: Option<Arc<NodeName>>,
    sources: Arc<Sources>,
    files: Arc<RwTable<SourceFile>>,
    limit: Option<Arc<MemoryLimit>>,
    metrics: Option<Arc<metrics::Metrics>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
    health: Health,
}

fn folders(p: FolderParams) -> Result<Members<Arc<dyn Source>>, Error> {
    let mut shelves: Vec<Arc<dyn Source>> = Vec::new();
    let numbers = SourceMetrics::default();
    if let Some(metrics) = &p.metrics {
        numbers.register(metrics);
    }
    let limit = p.limit.clone().unwrap_or_default();
    let sources: [(&'static str, &str, &'static [Kind]); 2] = [
        ("cluster-folder", &p.config.cluster_folder, Kind::ALL),
        ("static-cnp-path", &p.config.static_cnp_path, POLICIES),
    ];
    for (option, value, accepted) in sources {
        let Some(path) = folder(option, value)? else { continue };
        let shelf = InMemorySource::new(option, accepted);
        shelves.push(Arc::new(shelf.clone()));
        let health = p.health.child(option);
        let report = Report::new(option, value, accepted, p.files.clone(), health, numbers.clone());
        let (memory, keep) = match &p.state {
            Some(state) => remember(&p, option, &path, &state.state()),
            None => (Memory::default(), Keep::default()),
        };
        let manifests = Manifests::new(option, accepted, &name(p.node.as_deref()));
        let folder = Folder::new(path, manifests, shelf, report, memory, keep, limit.clone());
        let requests = p.sources.join();
        p.jobs.one_shot(option, move |cx| follow(folder, requests, cx)).add();
    }
    Ok(Members(shelves))
}

/// Returns the records of a folder for the next run: whether it existed, and the objects of its files.
fn remember(p: &FolderParams, option: &str, path: &Path, state: &Path) -> (Memory, Keep) {
    let memory = Memory::new(state.join(option), path.to_owned());
    let (noted, before) = (memory.clone(), memory.clone());
    memory.rewrite_by(Rewrite::new(&p.jobs, &p.health, &format!("state-of-{option}"), move || noted.write()));
    p.lifecycle
        .hook(format!("state-of-{option}"))
        .on_start(move |_| async move { Ok(before.restore()?) })
        .add();
    let records = records(state.join("manifests").join(option));
    records.run(&format!("last-good-of-{option}"), &p.lifecycle, &p.jobs, &p.health);
    (memory, Keep::new(records))
}

/// Returns the folder that an option names. It may be missing, but must not be another type of file.
fn folder(option: &'static str, value: &str) -> Result<Option<PathBuf>, Error> {
    let path = Path::new(value);
    if value.is_empty() {
        return Ok(None);
    }
    let wrong = |reason| Error::Option { option, value: value.to_owned(), reason };
    if !path.is_absolute() {
        return Err(wrong("give an absolute path, for instance /etc/apiary/cluster"));
    }
    if path.metadata().is_ok_and(|metadata| !metadata.is_dir()) {
        return Err(wrong("it is a file; give a folder, whose files *.yaml, *.yml and *.json are read"));
    }
    Ok(Some(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_names_no_folder_is_refused() {
        let error = |value: &str| folder("cluster-folder", value).unwrap_err().to_string();
        assert_eq!(
            error("cluster"),
            "option cluster-folder: 'cluster' is wrong: give an absolute path, for instance /etc/apiary/cluster"
        );
        assert_eq!(
            error("/dev/null"),
            "option cluster-folder: '/dev/null' is wrong: it is a file; give a folder, whose files *.yaml, *.yml and \
             *.json are read"
        );
        assert_eq!(folder("cluster-folder", "").unwrap(), None);
        assert_eq!(folder("cluster-folder", "/not/there").unwrap(), Some("/not/there".into()));
    }
}
