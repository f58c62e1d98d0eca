//! Records that cannot be read: quarantined, and reported in health until an operator or the runtime has resolved them.
//!
//! All traffic of such a record's pod, if it still exists, is denied: only the kernel has state of it, which is removed
//! by the first prune. A note is stored with the record, so that every run reports it and the pod's addresses go to no
//! other pod. The record is resolved when its interface is gone, as after the pod's deletion by the runtime.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use datapath_api::EndpointDatapath;
use hive::{Health, JobCx};
use ipam::Ipam;
use serde::{Deserialize, Serialize};
use state_file::{Schema, StateFile};
use tokio::sync::oneshot;

use crate::links::{Link, LinkSource, Links};
use crate::restore::files::StateFolder;
use crate::restore::plan::Ignored;

/// Interval of checks whether damaged records are resolved.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The note's name, in the quarantined directory.
const NOTE: &str = "damaged.json";

/// A record that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damaged {
    /// Where its directory is now.
    directory: PathBuf,
    note: Note,
}

/// A damaged record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// The directory's name: the endpoint's id, if that can be parsed.
    endpoint: String,
    /// The error of the record.
    problem: String,
    /// The interface that the kernel has for the id.
    interface: Option<Interface>,
    /// The addresses that the kernel has for it.
    addresses: Vec<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Interface {
    index: u32,
    mac: Option<[u8; 6]>,
}

impl Schema for Note {
    const VERSION: u32 = 1;
    const HOLDS: &'static str = "which pod has no record";
}

impl Interface {
    fn is(&self, link: &Link) -> bool {
        link.index == self.index && (self.mac.is_none() || link.mac.map(|mac| mac.0) == self.mac)
    }
}

impl Damaged {
    /// Quarantines a directory and leaves a note in it. `known`: the kernel's endpoints.
    pub(crate) fn quarantine(files: &StateFolder, ignored: &Ignored, known: &[EndpointDatapath]) -> Damaged {
        let Ignored { directory: endpoint, problem } = ignored;
        let id: Option<u16> = endpoint.parse().ok();
        let known = known.iter().find(|known| Some(known.id) == id);
        let mac = |known: &EndpointDatapath| Some(known.node_mac).filter(|mac| *mac != [0; 6]);
        let mut note = Note {
            endpoint: endpoint.clone(),
            problem: problem.clone(),
            interface: known.map(|known| Interface { index: known.ifindex, mac: mac(known) }),
            addresses: known.into_iter().flat_map(EndpointDatapath::addresses).collect(),
        };
        let directory = match files.quarantine(endpoint) {
            Ok(kept) => {
                if let Err(error) = StateFile::new(kept.join(NOTE)).store(&note) {
                    tracing::warn!(%error, "The next run will not report this damaged record");
                }
                kept
            }
            Err(error) => {
                note.problem = format!("{problem}; not quarantined: {error}");
                files.root().join(endpoint)
            }
        };
        let interface = note.interface.as_ref().map(|interface| interface.index);
        tracing::error!(
            endpoint, problem = note.problem, interface, kept = %directory.display(),
            "The record of an endpoint is damaged; its pod, if it is still there, is denied wholly until it is deleted"
        );
        Damaged { directory, note }
    }

    /// Returns the records that previous runs have quarantined and that are unresolved.
    pub(crate) fn quarantined(files: &StateFolder, links: &Links) -> Vec<Damaged> {
        let load = |directory: PathBuf| {
            let note = StateFile::new(directory.join(NOTE)).load();
            note.unwrap_or_else(|error| {
                tracing::debug!(%error, "No note beside a quarantined record");
                None
            })
            .map(|note| Damaged { directory, note })
        };
        let quarantined = files.quarantined().into_iter().filter_map(load);
        quarantined.filter(|damaged| damaged.is_open(links)).collect()
    }

    /// Reserves the addresses for the pod.
    pub(crate) fn reserve(&self, ipam: &Ipam) {
        let owner = format!("endpoint {} [record damaged]", self.note.endpoint);
        for ip in &self.note.addresses {
            if let Err(error) = ipam.hand_over(*ip, None, &owner, self.id()) {
                tracing::warn!(%ip, %error, "Unable to keep the address of a pod with a damaged record");
            }
        }
    }

    fn release(&self, ipam: &Ipam) {
        for ip in &self.note.addresses {
            ipam.release_endpoint(*ip, self.id());
        }
    }

    fn id(&self) -> u16 {
        self.note.endpoint.parse().unwrap_or_default()
    }

    /// Whether it is unresolved: the directory and the pod's interface are still there.
    fn is_open(&self, links: &Links) -> bool {
        let interface = self.note.interface.as_ref();
        self.directory.symlink_metadata().is_ok()
            && interface.is_none_or(|interface| links.values().any(|link| interface.is(link)))
    }

    fn text(&self) -> String {
        let Note { endpoint, problem, interface, .. } = &self.note;
        let of = interface.as_ref().map(|interface| format!(" (interface {})", interface.index));
        format!(
            "endpoint {endpoint}{}: {problem}; kept as {}; its pod is denied wholly: delete it, so that it is created again, \
             or remove the directory if there is none",
            of.unwrap_or_default(),
            self.directory.display()
        )
    }
}

/// The job `damaged-records`.
pub(crate) struct ReportDamaged {
    /// The records that the start has found.
    pub(crate) damaged: oneshot::Receiver<Vec<Damaged>>,
    pub(crate) links: Arc<LinkSource>,
    pub(crate) ipam: Arc<Ipam>,
    pub(crate) health: Health,
}

impl ReportDamaged {
    /// Reports damaged records in health until none is left; releases the addresses of resolved ones.
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        let ReportDamaged { damaged, links, ipam, health } = self;
        let mut damaged = damaged.await.unwrap_or_default();
        while !damaged.is_empty() {
            let texts: Vec<String> = damaged.iter().map(Damaged::text).collect();
            health.degraded(format_args!("{} records are damaged", texts.len()), texts.join("; "));
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = cx.cancelled() => return Ok(()),
            }
            let links = links.clone();
            match hive::blocking(move || links.list()).await {
                Ok(links) => damaged.retain(|damaged| {
                    let is_open = damaged.is_open(&links);
                    if !is_open {
                        damaged.release(&ipam);
                    }
                    is_open
                }),
                Err(error) => tracing::debug!(%error, "Unable to list links"),
            }
        }
        health.ok("Records can be read");
        Ok(())
    }
}
