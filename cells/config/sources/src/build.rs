//! `build-config`: merges the configuration of this node, from all objects that contribute to it, into a folder.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use hive::prelude::*;
use k8s_types::cilium::CiliumNodeConfig;
use k8s_types::core::Node;
use k8s_types::{Kind, Resource, Selection, Source, WatchEvent, decode};
use tokio::time::{Instant, timeout_at};

use crate::object::{ObjectOptions, read};
use crate::resolve::{Part, for_node, merge};
use crate::spec::{ConfigSource, Overrides, SourceKind};
use crate::{Error, folder};

/// The default name of the ConfigMap.
const CONFIG_MAP: &str = "cilium-config";

/// Options of `build-config`.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Build config")]
pub struct BuildConfig {
    /// Folder for the agent's --config-dir
    #[flag(default = "/tmp/cilium/config-map")]
    pub dest: PathBuf,
    /// Name of this node; empty for $K8S_NODE_NAME
    #[flag(default = "")]
    pub node_name: String,
    /// Sources, of which later ones override earlier ones: config-map:[NAMESPACE/]NAME,
    /// cilium-node-config:NAMESPACE[/NAME], node:NAME; empty for config-map:cilium-config,cilium-node-config; a source
    /// without a namespace is read from $CILIUM_K8S_NAMESPACE
    #[flag(default = "")]
    pub source: Vec<String>,
    /// The only keys that sources after the first may change
    #[flag(default = "")]
    pub allow_config_keys: Vec<String>,
    /// Keys that sources after the first must not change; without effect beside allow-config-keys
    #[flag(default = "")]
    pub deny_config_keys: Vec<String>,
    /// How long the API server may take
    #[flag(default = "1m")]
    pub timeout: Duration,
}

/// The environment variables of the pod.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// `CILIUM_K8S_NAMESPACE`.
    pub namespace: String,
    /// `K8S_NODE_NAME`.
    pub node: String,
}

impl Surroundings {
    /// Reads the variables of this process.
    pub fn of_process() -> Surroundings {
        let variable = |name| std::env::var(name).unwrap_or_default();
        Surroundings { namespace: variable("CILIUM_K8S_NAMESPACE"), node: variable("K8S_NODE_NAME") }
    }
}

/// Returns the cell that writes the configuration folder from the hive's sources of cluster objects and then stops the
/// hive. Runs in a separate hive, before the agent starts.
pub fn build(surroundings: Surroundings) -> Cell {
    let cells = [config::<BuildConfig>(), supply(Arc::new(surroundings)), invoke(start)];
    module("build-config", "Resolves the configuration of this node", cells)
}

#[derive(Params)]
struct Parts {
    config: Config<BuildConfig>,
    surroundings: Arc<Surroundings>,
    sources: Group<Arc<dyn Source>>,
    shutdown: Shutdowner,
    jobs: JobGroup,
}

fn start(p: Parts) -> Result<(), Error> {
    let Parts { config, surroundings, sources, shutdown, jobs } = p;
    let node = Some(&config.node_name).filter(|name| !name.is_empty()).unwrap_or(&surroundings.node).clone();
    let specs = specs(&config.source, &surroundings.namespace, &node)?;
    let (allow_config_keys, deny_config_keys) =
        (config.allow_config_keys.clone(), config.deny_config_keys.clone());
    let overrides = Overrides { allow_config_keys, deny_config_keys };
    jobs.one_shot("build-config", move |cx: JobCx| async move {
        let reader = Reader { sources: sources.0, node, deadline: Instant::now() + config.timeout };
        let work = async {
            let resolved = merge(reader.read_all(specs).await?, &overrides);
            for note in resolved.notes {
                tracing::warn!("{note}");
            }
            let (dest, keys) = (config.dest.clone(), resolved.values.len());
            let changed = hive::blocking(move || folder::write(&dest, &resolved.values)).await?;
            let folder = config.dest.display();
            tracing::info!(%folder, keys, changed, "The configuration of this node is complete");
            Ok::<(), Error>(())
        };
        match cx.token().run_until_cancelled(work).await {
            Some(Err(error)) => shutdown.shutdown_with_code(error, 1),
            Some(Ok(())) => shutdown.shutdown(),
            None => {}
        }
        Ok(())
    })
    .add();
    Ok(())
}

/// Returns the sources of the option with defaults filled in; a CiliumNodeConfig without a name means all in its
/// namespace.
fn specs(options: &[String], namespace: &str, node: &str) -> Result<Vec<ConfigSource>, Error> {
    let usual = ["config-map", "cilium-node-config"].map(str::to_owned);
    let named: Vec<&String> = options.iter().filter(|option| !option.is_empty()).collect();
    let options = if named.is_empty() { usual.iter().collect() } else { named };
    options.into_iter().map(|option| spec(option, namespace, node)).collect()
}

fn spec(option: &str, namespace: &str, node: &str) -> Result<ConfigSource, Error> {
    let wrong = |reason: &'static str| Error::Source { value: option.to_owned(), reason };
    let (kind, place) = option.split_once(':').unwrap_or((option, ""));
    let kind = match kind {
        "config-map" => SourceKind::ConfigMap,
        "cilium-node-config" => SourceKind::CiliumNodeConfig,
        "node" => SourceKind::Node,
        _ => return Err(wrong("it is none of config-map, cilium-node-config and node")),
    };
    let (own_namespace, name) = match (place.split_once('/'), kind) {
        (Some((namespace, name)), _) => (namespace, name),
        (None, SourceKind::CiliumNodeConfig) => (place, ""),
        (None, SourceKind::ConfigMap | SourceKind::Node) => ("", place),
    };
    let (namespace, name) = match kind {
        SourceKind::Node => ("", Some(name).filter(|name| !name.is_empty()).unwrap_or(node)),
        _ => (Some(own_namespace).filter(|own| !own.is_empty()).unwrap_or(namespace), name),
    };
    let name = if kind == SourceKind::ConfigMap && name.is_empty() { CONFIG_MAP } else { name };
    if namespace.is_empty() && kind != SourceKind::Node {
        return Err(wrong("it has no namespace; say KIND:NAMESPACE/NAME or set CILIUM_K8S_NAMESPACE"));
    }
    if name.is_empty() && kind == SourceKind::Node {
        return Err(wrong("it has no name; say node:NAME, or set --node-name or K8S_NODE_NAME"));
    }
    Ok(ConfigSource { kind, namespace: namespace.to_owned(), name: name.to_owned() })
}

/// Reads objects, with a timeout.
struct Reader {
    sources: Vec<Arc<dyn Source>>,
    node: String,
    deadline: Instant,
}

impl Reader {
    async fn read_all(&self, specs: Vec<ConfigSource>) -> Result<Vec<Vec<Part>>, Error> {
        let mut all = Vec::new();
        for spec in specs {
            let parts = match (spec.kind, spec.name.is_empty()) {
                (SourceKind::CiliumNodeConfig, true) => self.node_configs(&spec).await?,
                _ => self.one(spec.clone()).await?,
            };
            let keys: usize = parts.iter().map(|(_, options)| options.values.len()).sum();
            tracing::info!(source = %spec, objects = parts.len(), keys, "Read");
            all.push(parts);
        }
        Ok(all)
    }

    /// Returns the object that `source` names. A node must exist, other kinds are optional.
    async fn one(&self, source: ConfigSource) -> Result<Vec<Part>, Error> {
        let selection = Selection::all(source.kind.kind()).named(&source.name);
        let selection = match source.kind {
            SourceKind::Node => selection,
            _ => selection.in_namespace(&source.namespace),
        };
        let objects = self.list(selection, &source.to_string()).await?;
        let read = |json: &Bytes| read(source.kind, json);
        let options = objects.iter().map(read).collect::<Result<Vec<ObjectOptions>, _>>();
        let options = options.map_err(|refusal| source_error(&source, refusal))?;
        match options.into_iter().find(|options| source.is(&options.key)) {
            Some(options) => Ok(vec![(source, options)]),
            None if source.kind == SourceKind::Node => Err(source_error(&source, "there is no such node")),
            None => {
                tracing::warn!("{source} is not there; the configuration is made without it");
                Ok(vec![])
            }
        }
    }

    /// Returns all CiliumNodeConfigs of a namespace that select this node.
    async fn node_configs(&self, source: &ConfigSource) -> Result<Vec<Part>, Error> {
        let namespace = &source.namespace;
        let configs: Vec<CiliumNodeConfig> =
            self.all_of(Selection::all(Kind::CiliumNodeConfig).in_namespace(namespace), source).await?;
        if configs.is_empty() {
            return Ok(vec![]);
        }
        if self.node.is_empty() {
            let reason = "whose labels are they for? Set --node-name or K8S_NODE_NAME";
            return Err(source_error(source, reason));
        }
        let node = ConfigSource { kind: SourceKind::Node, namespace: String::new(), name: self.node.clone() };
        let nodes: Vec<Node> = self.all_of(Selection::all(Kind::Node).named(&self.node), &node).await?;
        let Some(node) = nodes.iter().find(|node| node.metadata.name == self.node) else {
            return Err(source_error(&node, "there is no such node"));
        };
        for_node(configs, node, namespace)
            .map_err(|reason| Error::Read { object: source.to_string(), reason })
    }

    async fn all_of<T: Resource>(
        &self,
        selection: Selection,
        source: &ConfigSource,
    ) -> Result<Vec<T>, Error> {
        let objects = self.list(selection, &source.to_string()).await?;
        let decoded = objects.iter().map(|json| decode::<T>(json)).collect::<Result<Vec<T>, _>>();
        decoded.map_err(|refusal| source_error(source, refusal))
    }

    /// Lists the objects of all sources that support the kind. The sources retry failures until the timeout.
    async fn list(&self, selection: Selection, object: &str) -> Result<Vec<Bytes>, Error> {
        let sources: Vec<_> = self.sources.iter().filter(|source| source.has(selection.kind)).collect();
        if sources.is_empty() {
            return Err(Error::NoServer);
        }
        let mut all = Vec::new();
        for source in sources {
            let mut events = source.watch(selection.clone());
            let (mut listed, mut last) = (Vec::new(), "it does not answer".to_owned());
            loop {
                match timeout_at(self.deadline, events.next()).await {
                    Ok(Some(Ok(WatchEvent::Restart))) => listed.clear(),
                    Ok(Some(Ok(WatchEvent::Applied { json, .. }))) => listed.push(json),
                    Ok(Some(Ok(WatchEvent::Listed))) => break,
                    Ok(Some(Ok(WatchEvent::Unreadable { reason, .. }))) => {
                        return Err(Error::Read { object: object.to_owned(), reason });
                    }
                    Ok(Some(Ok(WatchEvent::Deleted(_) | WatchEvent::Progress))) => {}
                    Ok(Some(Err(error))) => {
                        last = error.to_string();
                        tracing::warn!(object, error = last, "Not read yet");
                    }
                    Ok(None) | Err(_) => return Err(Error::Read { object: object.to_owned(), reason: last }),
                }
            }
            all.append(&mut listed);
        }
        Ok(all)
    }
}

fn source_error(source: &ConfigSource, reason: impl ToString) -> Error {
    Error::Read { object: source.to_string(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(option: &str, namespace: &str) -> Result<String, String> {
        spec(option, namespace, "n1").map(|source| source.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn omitted_parts_of_a_source_default_as_in_cilium() {
        for (option, meant) in [
            ("config-map", "ConfigMap here/cilium-config"),
            ("config-map:other", "ConfigMap here/other"),
            ("config-map:there/other", "ConfigMap there/other"),
            ("cilium-node-config", "CiliumNodeConfig here/"),
            ("cilium-node-config:there", "CiliumNodeConfig there/"),
            ("cilium-node-config:there/one", "CiliumNodeConfig there/one"),
            ("node", "Node n1"),
            ("node:n2", "Node n2"),
        ] {
            assert_eq!(text(option, "here").as_deref(), Ok(meant), "{option}");
        }
        let usual = specs(&[], "here", "").unwrap();
        let usual: Vec<String> = usual.iter().map(ToString::to_string).collect();
        assert_eq!(usual, ["ConfigMap here/cilium-config", "CiliumNodeConfig here/"]);
        assert_eq!(
            text("config-map:a", "").unwrap_err(),
            "option source: \"config-map:a\" is wrong: it has no namespace; say KIND:NAMESPACE/NAME or set \
             CILIUM_K8S_NAMESPACE"
        );
        assert!(
            text("secret:a", "here").unwrap_err().contains("none of config-map, cilium-node-config and node")
        );
        assert!(spec("node", "here", "").unwrap_err().to_string().contains("--node-name"));
    }
}
