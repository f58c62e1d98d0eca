//! Jobs besides the watches: heartbeat, credentials, definitions, and timeouts of the initial sync.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use file_watch::FileWatch;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hive::{JobCx, Shutdowner};
use k8s_types::WatchEvent;
use tokio::time::Instant;

use crate::definitions::{Definitions, Versions};
use crate::follow::version;
use crate::link::Link;
use crate::scan::key;
use crate::source::Connection;
use crate::target::Target;

/// The timeout of the version request if no heartbeat is configured.
const VERSION: Duration = Duration::from_secs(30);

/// The retry interval for credentials that were refused or could not be read.
const RELOAD_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The quiet time before changed files are read: they are often written in several steps.
const FILE_DEBOUNCE: Duration = Duration::from_millis(200);

/// Requests the version if no byte was received for `limit`. If the request fails, closes all connections, and switches
/// to the next server if there is one.
pub(crate) async fn heartbeat(link: Arc<Link>, limit: Duration) -> Result<()> {
    let known = matches!(link.status(), Ok(Some(_)));
    let within = if limit.is_zero() { VERSION } else { limit };
    if known && (limit.is_zero() || link.silence() < limit) {
        link.identify(within).await;
        return Ok(());
    }
    let lease = link.lease();
    match link.version(&lease, within).await {
        Ok(_) => link.identify(within).await,
        Err(_) if known => link.abandon(&lease),
        Err(_) => {}
    }
    Ok(())
}

/// Reads credentials again when their files change, and when a server has refused them.
pub(crate) async fn follow_credentials(link: Arc<Link>, cx: JobCx) -> Result<()> {
    let mut watches: Vec<FileWatch> = Vec::new();
    let mut followed = Vec::new();
    let mut last = Instant::now();
    loop {
        let files = link.files();
        watches.truncate(files.len());
        while watches.len() < files.len() {
            watches.push(FileWatch::new()?);
        }
        for (watch, file) in watches.iter_mut().zip(&files) {
            watch.follow(file)?;
        }
        // If a file changed between the read and the watch, it is read again.
        if files == followed {
            let mut changes: FuturesUnordered<_> = watches.iter_mut().map(FileWatch::changed).collect();
            tokio::select! {
                Some(changed) = changes.next() => changed?,
                () = suspected(&link, last + RELOAD_RETRY_INTERVAL) => {}
                () = ending(link.valid_for()) => {}
                () = cx.cancelled() => return Ok(()),
            }
            drop(changes);
            if cx.token().run_until_cancelled(tokio::time::sleep(FILE_DEBOUNCE)).await.is_none() {
                return Ok(());
            }
        }
        let is_new = files != followed;
        followed = files;
        last = Instant::now();
        let reload = link.clone();
        match hive::blocking(move || reload.reload()).await {
            Ok(true) => {
                tracing::info!("Credentials for the API server are read again");
                cx.health.ok("read again");
            }
            Ok(false) if is_new => {}
            Ok(false) => cx.health.ok("unchanged"),
            Err(error) => {
                if cx.health.degraded_anew("The previous credentials are used", &error) {
                    tracing::warn!(%error, "Cannot read credentials for the API server, the previous ones are used");
                }
                link.suspect.notify_one();
            }
        }
    }
}

/// Waits until a server has refused the credentials, or they could not be read, and at least until `earliest`.
async fn suspected(link: &Link, earliest: Instant) {
    link.suspect.notified().await;
    tokio::time::sleep_until(earliest).await;
}

/// Waits until the credentials are about to expire, if they do.
async fn ending(valid_for: Option<Duration>) {
    match valid_for {
        // A tenth of the lifetime early, which leaves time for another attempt; expired ones are retried at an
        // interval.
        Some(time) => tokio::time::sleep((time - time / 10).max(RELOAD_RETRY_INTERVAL)).await,
        None => std::future::pending().await,
    }
}

/// Keeps the set of defined kinds up to date.
pub(crate) async fn follow_definitions(connection: Connection, cx: JobCx) -> Result<()> {
    let mut events = connection.follow(Target::definitions());
    let mut versions = Versions::new();
    let mut listed = false;
    while let Some(Some(event)) = cx.token().run_until_cancelled(events.next()).await {
        match event {
            Ok(WatchEvent::Restart) => {
                versions.clear();
                listed = false;
            }
            Ok(WatchEvent::Listed) => listed = true,
            Ok(WatchEvent::Applied { json, .. }) => {
                let name = key(&json).name;
                connection.definitions.set_age(&name, &json, jiff::Timestamp::now());
                versions.insert(name, version(&json).unwrap_or_default().into());
            }
            Ok(WatchEvent::Deleted(key)) => {
                versions.remove(&key.name);
            }
            // The watch reports its errors itself.
            Ok(WatchEvent::Progress | WatchEvent::Unreadable { .. }) | Err(_) => continue,
        }
        if listed {
            connection.definitions.are(&versions);
            let missing = connection.definitions.missing();
            match missing.is_empty() {
                true => cx.health.ok("all needed are there"),
                false => cx.health.degraded("Definitions are missing", missing.join(", ")),
            }
        }
    }
    Ok(())
}

/// Stops the agent if required kinds are not defined in time.
pub(crate) async fn wait_for_definitions(
    definitions: Definitions,
    limit: Duration,
    shutdown: Shutdowner,
    cx: JobCx,
) -> Result<()> {
    let mut changes = definitions.changes();
    let complete = changes.wait_for(|known| known.is_some() && definitions.missing().is_empty());
    tokio::select! {
        _ = complete => return Ok(()),
        () = tokio::time::sleep(limit) => {}
        () = cx.cancelled() => return Ok(()),
    }
    let missing = definitions.missing();
    let error = anyhow!(
        "after {limit:?} (option crd-wait-timeout) the cluster still has no definition of {}: does Cilium's operator run, \
         and may the agent list customresourcedefinitions?",
        missing.join(", ")
    );
    shutdown.shutdown_with(anyhow!("{error}"));
    Err(error)
}

/// Stops the agent if objects are not listed and nothing is received until the timeout.
pub(crate) async fn wait_for_lists(
    connection: Connection,
    limit: Duration,
    shutdown: Shutdowner,
    cx: JobCx,
) -> Result<()> {
    loop {
        let watches = connection.watches.all();
        let late: Vec<_> = watches
            .iter()
            .filter(|watch| !watch.is_listed_or_excused())
            .map(|watch| watch.name.clone())
            .collect();
        let silence = watches.iter().map(|watch| watch.age()).min().unwrap_or_default();
        if late.is_empty() && !watches.is_empty() {
            return Ok(());
        }
        if !late.is_empty() && silence >= limit {
            let why =
                connection.link.status().err().unwrap_or_else(|| "the API server sends nothing".to_owned());
            let error = anyhow!(
                "nothing has come from the API server for {limit:?} (option k8s-sync-timeout) and not all objects were \
                 listed ({}): {why}",
                late.join(", ")
            );
            shutdown.shutdown_with(anyhow!("{error}"));
            return Err(error);
        }
        let wait = if late.is_empty() { limit } else { limit.saturating_sub(silence) };
        tokio::select! {
            () = tokio::time::sleep(wait.clamp(Duration::from_millis(100), Duration::from_secs(5))) => {}
            () = cx.cancelled() => return Ok(()),
        }
    }
}
