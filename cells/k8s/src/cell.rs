//! The wiring: tables, a job for each folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hive::prelude::*;
use local_node::StateConfig;
use memory::MemoryLimit;
use state_file::Rewrite;
use statedb::RwTable;

use crate::config::K8sConfig;
use crate::faults::Numbers;
use crate::folder::{self, Folder, Keep, Memory, Report, SourceMetrics, follow, records};
use crate::object::Kind;
use crate::source_file::SourceFile;
use crate::sources::Sources;
use crate::writer::Objects;
use crate::{Error, Namespace, Pod, PolicyObject};

/// Tables `k8s-namespaces`, `k8s-pods`, `k8s-policies` and `k8s-sources`, filled from the folders that the options name;
/// `Arc<Objects>` for further sources, `Arc<Sources>` for whoever misses an object.
pub fn cell() -> Cell {
    module(
        "k8s",
        "Cluster objects",
        [
            config::<K8sConfig>(),
            supply(folder::versions()),
            statedb::table::<Namespace>(),
            statedb::table::<Pod>(),
            statedb::table::<PolicyObject>(),
            statedb::table::<SourceFile>(),
            provide(objects),
            supply(Arc::new(Sources::default())),
            provide(numbers),
            invoke(folders),
        ],
    )
}

fn objects(
    namespaces: Arc<RwTable<Namespace>>,
    pods: Arc<RwTable<Pod>>,
    policies: Arc<RwTable<PolicyObject>>,
) -> Arc<Objects> {
    Arc::new(Objects::new(namespaces, pods, policies))
}

/// What the tables count, wherever they are.
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
    objects: Arc<Objects>,
    sources: Arc<Sources>,
    files: Arc<RwTable<SourceFile>>,
    limit: Option<Arc<MemoryLimit>>,
    metrics: Option<Arc<metrics::Metrics>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
    health: Health,
}

fn folders(p: FolderParams) -> Result<(), Error> {
    let numbers = SourceMetrics::default();
    if let Some(metrics) = &p.metrics {
        numbers.register(metrics);
    }
    let limit = p.limit.clone().unwrap_or_default();
    let sources: [(&'static str, &str, &'static [Kind]); 2] = [
        ("cluster-folder", &p.config.cluster_folder, &Kind::ALL),
        ("static-cnp-path", &p.config.static_cnp_path, &Kind::POLICIES),
    ];
    for (option, value, accepted) in sources {
        let Some(path) = folder(option, value)? else { continue };
        let writer = p.objects.source(option);
        let health = p.health.scope(option);
        let report = Report::new(option, value, accepted, p.files.clone(), health, numbers.clone());
        let (memory, keep) = match &p.state {
            Some(state) => remember(&p, option, &path, &state.state()),
            None => (Memory::default(), Keep::default()),
        };
        let folder = Folder::new(path, accepted, writer, report, memory, keep, limit.clone());
        let questions = p.sources.join();
        p.jobs.one_shot(option, move |cx| follow(folder, questions, cx));
    }
    Ok(())
}

/// What is kept of a folder for the next run: whether it was there, and what its files said.
fn remember(p: &FolderParams, option: &str, path: &Path, state: &Path) -> (Memory, Keep) {
    let memory = Memory::new(state.join(option), path.to_owned());
    let (noted, before) = (memory.clone(), memory.clone());
    memory.rewrite_by(Rewrite::new(&p.jobs, &p.health, &format!("state-of-{option}"), move || noted.write()));
    p.lifecycle.hook(format!("state-of-{option}")).on_start(move |_| async move { Ok(before.restore()?) });
    let records = records(state.join("manifests").join(option));
    records.run(&format!("last-good-of-{option}"), &p.lifecycle, &p.jobs, &p.health);
    (memory, Keep::new(records))
}

/// The folder that an option names. It need not be there, but it must not be something else.
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
