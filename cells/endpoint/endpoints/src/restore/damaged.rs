//! Records that cannot be read: put aside, and reported in health until a human or the runtime has dealt with them.
//!
//! The pod of such a record, if it is still there, is denied wholly: nothing is known of it any more but what the kernel
//! had, and that goes with the first prune. So a note stays beside the record: every run tells of it, and nobody else is
//! given the pod's addresses. The pod's deletion by the runtime takes the interface away, which ends the matter.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use datapath_api::EndpointDatapath;
use hive::{Health, JobCx};
use ipam::Ipam;
use serde::{Deserialize, Serialize};
use state_file::{Schema, StateFile};

use crate::restore::files::StateFolder;
use crate::restore::plan::Ignored;
use crate::restore::start::{Link, Links};

/// How often is looked whether the matter has ended.
const LOOK: Duration = Duration::from_secs(2);
/// The note's name, in the directory that was put aside.
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
    /// Puts a directory aside. `known`: what the kernel has of endpoints.
    pub(crate) fn put_aside(files: &StateFolder, ignored: &Ignored, known: &[EndpointDatapath]) -> Damaged {
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
                    tracing::warn!(%error, "The next run will not tell of this damaged record");
                }
                kept
            }
            Err(error) => {
                note.problem = format!("{problem}; not put aside: {error}");
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

    /// Records that previous runs have quarantined and that are still there.
    pub(crate) fn remembered(files: &StateFolder, links: &Links) -> Vec<Damaged> {
        let load = |directory: PathBuf| {
            let note = StateFile::new(directory.join(NOTE)).load();
            note.unwrap_or_else(|error| {
                tracing::debug!(%error, "No note of a record that was put aside");
                None
            })
            .map(|note| Damaged { directory, note })
        };
        let remembered = files.asides().into_iter().filter_map(load);
        remembered.filter(|damaged| damaged.is_open(links)).collect()
    }

    /// Keeps the addresses for the pod.
    pub(crate) fn reserve(&self, ipam: &Ipam) {
        let owner = format!("endpoint {} [record damaged]", self.note.endpoint);
        for ip in &self.note.addresses {
            if let Err(error) = ipam.hand_over(*ip, None, &owner, self.id()) {
                tracing::warn!(%ip, %error, "Unable to keep the address of a pod whose record is damaged");
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

    /// Whether it is still unresolved.
    fn is_open(&self, links: &Links) -> bool {
        let interface = self.note.interface.as_ref();
        self.directory.symlink_metadata().is_ok()
            && interface.is_none_or(|interface| links.values().any(|link| interface.is(link)))
    }

    fn text(&self) -> String {
        let Note { endpoint, problem, interface, .. } = &self.note;
        let of = interface.as_ref().map(|interface| format!(" (interface {})", interface.index));
        format!(
            "endpoint {endpoint}{}: {problem}; kept as {}; its pod is denied wholly: delete it, so that it is made anew, \
             or remove the directory if there is none",
            of.unwrap_or_default(),
            self.directory.display()
        )
    }
}

/// Reports damaged records in health until none is left; releases the addresses of resolved ones.
pub(crate) async fn tell<E: std::fmt::Display + Send + 'static>(
    mut damaged: Vec<Damaged>,
    links: impl Fn() -> Result<Links, E> + Clone + Send + 'static,
    ipam: &Ipam,
    health: Health,
    cx: JobCx,
) {
    loop {
        if damaged.is_empty() {
            return health.ok("Records can be read");
        }
        let texts: Vec<String> = damaged.iter().map(Damaged::text).collect();
        health.degraded(format_args!("{} records are damaged", texts.len()), texts.join("; "));
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = cx.cancelled() => return,
        }
        match hive::blocking(links.clone()).await {
            Ok(links) => damaged.retain(|damaged| {
                let open = damaged.is_open(&links);
                if !open {
                    damaged.release(ipam);
                }
                open
            }),
            Err(error) => tracing::debug!(%error, "Unable to list links"),
        }
    }
}
