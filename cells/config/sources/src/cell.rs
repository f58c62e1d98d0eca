//! Wiring: options, table, the job that follows the objects.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::future::ready;
use futures::stream::{BoxStream, select_all};
use hive::prelude::*;
use k8s_types::{Selection, Source, SourceError, WatchEvent};
use statedb::{Query, RwTable, TableSpec as _};

use crate::Error;
use crate::config::SourcesConfig;
use crate::objects::{Change, Objects};
use crate::row::ClusterConfig;
use crate::spec::{ConfigSource, SourceKind};

/// The maximum number of events in one transaction.
const BATCH: usize = 256;

/// Provides the table `cilium-configs`, filled from the hive's sources of cluster objects, and the options that name
/// the objects.
pub fn cell() -> Cell {
    let cells = [config::<SourcesConfig>(), statedb::table::<ClusterConfig>(), invoke(follow)];
    module("config-sources", "The configuration as cluster objects have it", cells)
}

#[derive(Params)]
struct Parts {
    config: Config<SourcesConfig>,
    sources: Group<Arc<dyn Source>>,
    table: Arc<RwTable<ClusterConfig>>,
    jobs: JobGroup,
}

/// The events of all views, each with the view's index.
type Events = BoxStream<'static, (usize, Result<WatchEvent, SourceError>)>;

fn follow(p: Parts) -> Result<(), Error> {
    let (named, overrides) = match p.config.enable_dynamic_config {
        true => p.config.parse()?,
        false => Default::default(),
    };
    let mut objects = Objects::new(named.clone(), overrides);
    let mut streams: Vec<(usize, Arc<dyn Source>, Selection)> = Vec::new();
    for (index, named) in named.iter().enumerate() {
        for source in p.sources.iter().filter(|source| source.has(named.kind.kind())) {
            streams.push((objects.add(index), source.clone(), selection(named)));
        }
    }
    let table = p.table;
    let (initializer, _) = table.transact(|w| w.register_initializer("config-sources"));
    if streams.is_empty() {
        table.transact(|w| initializer.done(w));
        return Ok(());
    }
    let mut initializer = Some(initializer);
    p.jobs
        .one_shot("config-sources", move |cx: JobCx| async move {
            let streams = streams.into_iter().map(|(view, source, selection)| -> Events {
                let reported = source.reports_errors();
                let events =
                    source.watch(selection).filter(move |event| ready(!(reported && event.is_err())));
                events.map(move |event| (view, event)).boxed()
            });
            let mut events = select_all(streams).ready_chunks(BATCH);
            while let Some(Some(batch)) = cx.token().run_until_cancelled(events.next()).await {
                for (view, event) in batch {
                    take(&mut objects, view, event);
                }
                let mut rows = objects.rows();
                table.transact(|w| {
                    w.retain(|row| rows.get(&row.key()).is_some_and(|wanted| wanted == row));
                    rows.retain(|key, _| w.get(Query::primary(key.clone())).is_none());
                    for row in std::mem::take(&mut rows).into_values() {
                        w.insert(row);
                    }
                    if objects.is_complete()
                        && let Some(initializer) = initializer.take()
                    {
                        initializer.done(w);
                    }
                });
                match objects.status() {
                    (_, errors) if !errors.is_empty() => {
                        cx.health.degraded("Objects with configuration cannot be read", errors.join("; "));
                    }
                    (there, _) => cx.health.ok(format!("Following {there} objects with configuration")),
                }
            }
            if let Some(initializer) = initializer {
                initializer.abandon();
            }
            Ok(())
        })
        .add();
    Ok(())
}

fn take(objects: &mut Objects, view: usize, event: Result<WatchEvent, SourceError>) {
    let object = objects.source(view).to_string();
    match event.map(|event| objects.take(view, event)) {
        Ok(Change::Quiet) => {}
        Ok(Change::Refused(error)) => {
            tracing::error!(object, error, "Configuration cannot be read, what the object said before stays");
        }
        Ok(Change::InvalidKeys(keys)) => {
            tracing::warn!(object, keys = keys.join(","), "Keys that cannot be options are left out");
        }
        Err(error) => objects.fail(view, error.to_string()),
    }
}

/// Returns the selection of a single object.
fn selection(source: &ConfigSource) -> Selection {
    let selection = Selection::all(source.kind.kind()).named(&source.name);
    match source.kind {
        SourceKind::Node => selection,
        _ => selection.in_namespace(&source.namespace),
    }
}
