//! The job that follows the file.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use file_watch::FileWatch;
use hive::prelude::*;
use maps::Maps;
use tokio::time::sleep;

use super::file::{self, FileError, Ranges};
use super::rows::{self, Families};
use crate::BpfMasquerading;

/// The interval of retries after the file or a map could not be read, written or watched.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A file of ranges to follow.
pub(crate) struct RangesFile {
    pub(crate) path: PathBuf,
    pub(crate) families: Families,
    pub(crate) maps: Arc<Maps>,
    pub(crate) masquerading: Arc<BpfMasquerading>,
}

impl RangesFile {
    /// Follows the file until the agent stops.
    pub(crate) async fn follow(self, cx: JobCx) -> anyhow::Result<()> {
        let endless = async {
            loop {
                let Err(unwatched) = self.follow_watched(&cx.health).await;
                self.apply(&cx.health).await;
                cx.health.degraded(
                    "Changes of the file of ip-masq-agent are not reported, it is polled",
                    unwatched,
                );
                sleep(RETRY_INTERVAL).await;
            }
        };
        cx.token().run_until_cancelled(endless).await;
        Ok(())
    }

    /// Follows the file until the kernel cannot report changes any more.
    async fn follow_watched(&self, health: &Health) -> io::Result<Infallible> {
        let mut watch = FileWatch::new()?;
        loop {
            // The watch is there before the file is read, so that no change is missed.
            watch.follow(&self.path)?;
            let is_done = self.apply(health).await;
            tokio::select! {
                changed = watch.changed() => changed?,
                // The recovery of a disk, or of a map, causes no event.
                () = sleep(RETRY_INTERVAL), if !is_done => {}
            }
        }
    }

    /// Reads the file and writes its ranges into the maps. A file that is refused changes nothing. Returns false if a
    /// later attempt may succeed with the same file.
    async fn apply(&self, health: &Health) -> bool {
        let (path, maps, families) = (self.path.clone(), self.maps.clone(), self.families);
        let applied = hive::blocking(move || {
            let ranges = file::read(&path).map_err(Refused::File)?;
            rows::write(&maps, families, &ranges.ranges).map_err(Refused::Maps)?;
            Ok(ranges)
        });
        let is_done = self.report(applied.await, health);
        self.masquerading.set_ranges();
        is_done
    }

    fn report(&self, applied: Result<Ranges, Refused>, health: &Health) -> bool {
        match applied {
            Ok(Ranges { ranges, unknown }) if unknown.is_empty() => {
                health.ok(format_args!("{} ranges", ranges.len()));
                true
            }
            Ok(Ranges { ranges, unknown }) => {
                let error = format!(
                    "{}: {}: unknown; a file has nonMasqueradeCIDRs, masqLinkLocal and masqLinkLocalIPv6",
                    self.path.display(),
                    hive::health::summarize(&unknown, hive::health::SHOWN, ", ")
                );
                let message = format!("{} ranges; keys of the file are passed over", ranges.len());
                if health.degraded_anew(message, &error) {
                    tracing::warn!(error, "Keys of the file of ip-masq-agent are passed over");
                }
                true
            }
            Err(Refused::File(error)) => {
                let message = "The file of ip-masq-agent is refused, the ranges stay as they were";
                if health.degraded_anew(message, &error) {
                    tracing::error!(%error, "{message}");
                }
                matches!(error, FileError::Wrong { .. })
            }
            Err(Refused::Maps(error)) => {
                let message = "Ranges of ip-masq-agent cannot be written";
                if health.degraded_anew(message, &error) {
                    tracing::error!(%error, "{message}");
                }
                false
            }
        }
    }
}

/// The reason why ranges are not applied.
enum Refused {
    File(FileError),
    Maps(maps::Error),
}
