//! Network namespaces of pods: files of a folder.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::diag::Diag;

/// The agent's own namespace, which is skipped.
const OWN: &str = "/proc/self/ns/net";

/// Namespaces that could not be inspected: their number, and the cause of the first one.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    pub(crate) count: usize,
    pub(crate) first: Option<String>,
}

impl Closed {
    fn add(&mut self, path: &Path, error: &io::Error) {
        self.count += 1;
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => "; the agent needs CAP_SYS_ADMIN for it",
            _ => "",
        };
        self.first.get_or_insert_with(|| format!("{}: {error}{remedy}", path.display()));
    }
}

/// Calls `visit` with each namespace of the folder but the agent's own, each once. A missing folder has none; files
/// that are not (or no longer) namespaces are skipped.
pub(crate) fn each(folder: &Path, mut visit: impl FnMut(Diag)) -> Closed {
    let mut closed = Closed::default();
    let files = match fs::read_dir(folder) {
        Ok(files) => files,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                closed.add(folder, &error);
            }
            return closed;
        }
    };
    let inode = |file: &fs::Metadata| (file.dev(), file.ino());
    let mut seen: HashSet<(u64, u64)> = fs::metadata(OWN).iter().map(inode).collect();
    for path in files.flatten().map(|file| file.path()) {
        let opened = File::open(&path).and_then(|file| Ok((inode(&file.metadata()?), file)));
        let (id, file) = match opened {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                closed.add(&path, &error);
                continue;
            }
        };
        if !seen.insert(id) {
            continue;
        }
        match inside(&file) {
            Ok(diag) => visit(diag),
            // The namespace of the file was unmounted.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => closed.add(&path, &error),
        }
    }
    closed
}

/// Opens a socket in the namespace, in a temporary thread: threads of the runtime must never change their namespace.
fn inside(namespace: &File) -> io::Result<Diag> {
    std::thread::scope(|scope| {
        let enter = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Diag::open()
        };
        scope.spawn(enter).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
