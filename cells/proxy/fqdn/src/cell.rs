//! The wiring.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::{Operation, Route};
use dns_proxy::Directory;
use endpoints::{Endpoint, EndpointId, NameRecords};
use hive::prelude::*;
use identity::{Identity, Prefixes};
use ipcache::{Entry, IpcacheWriter};
use jiff::{SignedDuration, Timestamp};
use local_node::LocalNode;
use maps::{FamilyConfig, Maps};
use metrics::Metrics;
use policy::PeerSelector;
use proxy_ports::Proxies;
use statedb::Table;

use crate::book::Book;
use crate::config::FqdnConfig;
use crate::directory::{NameDirectory, Shared, Tables};
use crate::job::{Job, Realized};
use crate::lookups::DnsNames;
use crate::record::{self, WriteRecords};
use crate::rest;

/// The interval of collections, as in Cilium.
const COLLECTION_INTERVAL: Duration = Duration::from_secs(60);

/// Provides `Arc<dyn Directory>` and `Arc<DnsNames>`, serves the operations under `/fqdn`.
pub fn cell() -> Cell {
    module(
        "fqdn-names",
        "DNS names to identities",
        [
            config::<FqdnConfig>(),
            provide_private(shared),
            provide(directory),
            provide(names),
            provide(routes),
        ],
    )
}

fn names(shared: Arc<Shared>) -> Arc<DnsNames> {
    Arc::new(DnsNames(shared))
}

fn shared(config: Config<FqdnConfig>, metrics: Arc<Metrics>) -> Arc<Shared> {
    let shared = Shared::new(Book::new(config.limits()));
    shared.counters.register(&metrics);
    Arc::new(shared)
}

#[derive(Params)]
struct DirectoryParams {
    config: Config<FqdnConfig>,
    families: Config<FamilyConfig>,
    records: Option<Arc<NameRecords>>,
    shared: Arc<Shared>,
    endpoints: Arc<Table<Endpoint>>,
    selectors: Arc<Table<PeerSelector>>,
    proxies: Arc<Proxies>,
    prefixes: Arc<Prefixes>,
    ipcache_table: Arc<Table<Entry>>,
    identities: Arc<Table<Identity>>,
    node: Arc<Table<LocalNode>>,
    ipcache: Arc<IpcacheWriter>,
    maps: Arc<Maps>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

fn directory(p: DirectoryParams) -> Arc<dyn Directory> {
    let tables = Tables {
        endpoints: p.endpoints.clone(),
        redirects: p.proxies.redirects(),
        selectors: p.selectors,
        ipcache: p.ipcache_table,
        identities: p.identities,
        node: p.node,
        families: [p.families.enable_ipv4, p.families.enable_ipv6],
    };
    if let Some(records) = p.records {
        let (names, shared) = ((*records).clone(), p.shared.clone());
        p.lifecycle
            .hook("restore-names")
            .on_start(move |_| async move {
                let current = shared.clone();
                let restore = |restored| {
                    for (EndpointId(endpoint), names) in restored {
                        let history = record::history(endpoint, &names);
                        shared.book.lock().restore(endpoint, history, names.rules);
                    }
                };
                names.take_over(restore, move |id| current.book.lock().recorded(id.0));
                Ok(())
            })
            .add();
        let (shared, tables) = (p.shared.clone(), tables.clone());
        let job = WriteRecords { shared, tables, records: (*records).clone() };
        p.jobs.one_shot("records", move |cx: JobCx| job.run(cx)).add();
    }
    let job = Job {
        shared: p.shared.clone(),
        tables: tables.clone(),
        allocator: p.prefixes,
        initializer: Some(p.ipcache.register("fqdn-names")),
        ipcache: p.ipcache,
        preallocate: p.config.tofqdns_preallocate_identities,
        realized: Realized::default(),
    };
    p.jobs.one_shot("identities", move |cx: JobCx| job.run(cx)).add();
    let (shared, endpoints, maps) = (p.shared.clone(), p.endpoints, p.maps);
    p.jobs
        .timer("collect", COLLECTION_INTERVAL, move |_| {
            collect(shared.clone(), endpoints.clone(), maps.clone())
        })
        .add();
    let max_delay = p.config.tofqdns_proxy_response_max_delay;
    Arc::new(NameDirectory { shared: p.shared, tables, max_delay })
}

/// Removes names that have expired, unless their addresses have connections, and those of endpoints that are gone.
async fn collect(
    shared: Arc<Shared>,
    endpoints: Arc<Table<Endpoint>>,
    maps: Arc<Maps>,
) -> anyhow::Result<()> {
    let known: HashSet<IpAddr> = {
        let book = shared.book.lock();
        book.names().all().all_addresses().collect()
    };
    if known.is_empty() {
        return Ok(());
    }
    let connected = hive::blocking(move || -> anyhow::Result<BTreeSet<IpAddr>> {
        let mut connected = BTreeSet::new();
        for name in conntrack_gc::MAPS {
            if let Some(map) = maps.shared(name)? {
                connected.extend(conntrack_gc::ends_among(&map, |address| known.contains(&address))?);
            }
        }
        Ok(connected)
    });
    let connected = connected.await?;
    endpoints.wait_initialized().await;
    let snapshot = endpoints.snapshot();
    let removed = shared.change(|book| {
        book.retain_endpoints(|id| endpoints.get(&snapshot, Endpoint::by_id(EndpointId(id))).is_some());
        book.collect(Timestamp::now(), |address| connected.contains(&address))
    });
    if removed > 0 {
        shared.counters.collected.inc_by(removed as u64);
        tracing::debug!(removed, "DNS names have expired");
    }
    Ok(())
}

/// Returns the operations. With the directory: names of the previous run are read before the API serves, so that a
/// request to remove names removes these as well.
fn routes(shared: Arc<Shared>, _directory: Arc<dyn Directory>) -> Members<Route> {
    let cache = |operation| {
        let shared = shared.clone();
        Route::new(operation, move |request| {
            let next = Timestamp::now()
                .saturating_add(SignedDuration::try_from(COLLECTION_INTERVAL).unwrap_or_default());
            let next = next.unwrap_or(Timestamp::MAX);
            std::future::ready(rest::cache(&shared.book.lock(), &request, next))
        })
    };
    let (lookups, lookups_of) = (cache(Operation::GetFqdnCache), cache(Operation::GetFqdnCacheID));
    let (cleared, listed) = (shared.clone(), shared.clone());
    Members(vec![
        lookups,
        lookups_of,
        Route::new(Operation::DeleteFqdnCache, move |request| {
            std::future::ready(cleared.change(|book| rest::clear(book, &request)))
        }),
        Route::new(Operation::GetFqdnNames, move |_| std::future::ready(rest::names(&listed.book.lock()))),
    ])
}
