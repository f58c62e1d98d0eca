//! Records that cannot be read: put aside, and told in health until a human or the runtime has dealt with them.
//!
//! The pod of such a record, if it is still there, is denied wholly: nothing is known of it any more. Its deletion by
//! the runtime takes the interface away, which ends the matter.

use std::path::PathBuf;
use std::time::Duration;

use hive::{Health, JobCx};
use loader::EndpointDatapath;

use crate::files::StateFolder;
use crate::restore::Ignored;
use crate::start::Links;

/// How often is looked whether the matter has ended.
const LOOK: Duration = Duration::from_secs(2);

/// A record that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damaged {
    /// Where its directory is now.
    kept: PathBuf,
    /// The interface that the kernel has for its number.
    interface: Option<u32>,
    text: String,
}

impl Damaged {
    /// Puts a directory aside. `known`: what the kernel has of endpoints.
    pub(crate) fn put_aside(files: &StateFolder, ignored: &Ignored, known: &[EndpointDatapath]) -> Damaged {
        let Ignored { directory, problem } = ignored;
        let id: Option<u16> = directory.parse().ok();
        let interface = known.iter().find(|known| Some(known.id) == id).map(|known| known.ifindex);
        let (kept, where_to) = match files.set_aside(directory) {
            Ok(kept) => (kept.clone(), format!("put aside as {}", kept.display())),
            Err(error) => (files.root().join(directory), format!("not put aside: {error}")),
        };
        tracing::error!(
            endpoint = directory, %problem, interface, kept = %kept.display(),
            "The record of an endpoint is damaged; its pod, if it is still there, is denied wholly until it is deleted"
        );
        let of = interface.map(|index| format!(" (interface {index})")).unwrap_or_default();
        let text = format!(
            "endpoint {directory}{of}: {problem}; {where_to}; its pod is denied wholly: delete it, so that it is made \
             anew, or remove the directory if there is none"
        );
        Damaged { kept, interface, text }
    }

    /// Whether somebody has yet to deal with it.
    fn is_open(&self, links: &Links) -> bool {
        let interface = |index| links.values().any(|link| link.index == index);
        self.kept.symlink_metadata().is_ok() && self.interface.is_none_or(interface)
    }
}

/// Tells health of damaged records until none is left.
pub(crate) async fn tell<E: std::fmt::Display>(
    mut damaged: Vec<Damaged>,
    links: impl Fn() -> Result<Links, E>,
    health: Health,
    cx: JobCx,
) {
    loop {
        if damaged.is_empty() {
            return health.ok("Records can be read");
        }
        let texts: Vec<&str> = damaged.iter().map(|damaged| &*damaged.text).collect();
        health.degraded(format_args!("{} records are damaged", texts.len()), texts.join("; "));
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = cx.cancelled() => return,
        }
        match links() {
            Ok(links) => damaged.retain(|damaged| damaged.is_open(&links)),
            Err(error) => tracing::debug!(%error, "Unable to list links"),
        }
    }
}
