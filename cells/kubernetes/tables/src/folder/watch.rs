//! The kernel's events, mapped to files to read and scans.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use file_watch::{Unwaited, WAY};
use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask};

use super::file::is_manifest;

/// Events of the folder and its files, except unlinked files that are still open.
const FILES: WatchMask = WAY
    .union(WatchMask::MODIFY)
    .union(WatchMask::CLOSE_WRITE)
    .union(WatchMask::ATTRIB)
    .union(WatchMask::EXCL_UNLINK);

/// The size of the buffer for reading events, in bytes.
const EVENT_BUFFER: usize = 16 << 10;

/// Events after which a watched folder is no longer at its path.
const LOST: EventMask =
    EventMask::DELETE_SELF.union(EventMask::MOVE_SELF).union(EventMask::IGNORED).union(EventMask::UNMOUNT);

/// The object that an event of a name concerns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Concern {
    /// The path to the folder of manifests.
    Folder,
    /// A file in the folder that is a link.
    File(String),
}

/// The watched places, and the files that are being written.
pub(crate) struct Watch {
    inotify: Unwaited<Inotify>,
    buffer: Vec<u8>,
    places: HashMap<WatchDescriptor, PathBuf>,
    concerns: HashMap<PathBuf, HashMap<OsString, HashSet<Concern>>>,
    folder: Option<PathBuf>,
    writing: HashSet<String>,
    /// The pending work.
    todo: Todo,
}

/// The work that events cause.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Todo {
    /// Files to read now.
    pub(crate) read: BTreeSet<String>,
    /// Scan the folder: read changed files.
    pub(crate) scan: bool,
    /// Scan the folder: read all files.
    pub(crate) all: bool,
}

/// The paths to watch.
#[derive(Default)]
pub(crate) struct Wanted {
    /// The folder of manifests, if it exists.
    pub(crate) folder: Option<PathBuf>,
    /// The names to watch in other folders, with the concerns of their events.
    pub(crate) steps: Vec<(PathBuf, OsString, Concern)>,
}

impl Watch {
    pub(crate) fn new(inotify: Inotify) -> Watch {
        Watch {
            inotify: Unwaited::new(inotify),
            buffer: vec![0; EVENT_BUFFER],
            places: HashMap::new(),
            concerns: HashMap::new(),
            folder: None,
            writing: HashSet::new(),
            todo: Todo::default(),
        }
    }

    /// Drains the kernel's events, so that `is_written` is up to date.
    pub(crate) fn drain(&mut self) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let drained = loop {
            match self.inotify.read_events(&mut buffer) {
                Ok(events) => {
                    events.for_each(|event| self.sort(&event));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.buffer = buffer;
        drained
    }

    /// Takes the pending work; files that are being written are deferred until they are closed.
    pub(crate) fn take(&mut self) -> Todo {
        let mut todo = std::mem::take(&mut self.todo);
        todo.read.retain(|file| !self.writing.contains(file));
        todo
    }

    /// Whether this file has pending events, or is being written.
    pub(crate) fn is_touched(&self, name: &str) -> bool {
        self.is_written(name) || self.todo.read.contains(name)
    }

    /// Whether there is no pending work.
    pub(crate) fn is_idle(&self) -> bool {
        self.todo == Todo::default()
    }

    /// Watches exactly these places. Returns true if one was added: changes before that were not reported, so the
    /// caller scans again.
    pub(crate) fn place(&mut self, wanted: Wanted) -> io::Result<bool> {
        let mut masks: HashMap<PathBuf, WatchMask> = HashMap::new();
        self.concerns.clear();
        for (folder, name, concern) in wanted.steps {
            let mask = if concern == Concern::Folder { WAY } else { FILES };
            *masks.entry(folder.clone()).or_insert(WAY) |= mask;
            self.concerns.entry(folder).or_default().entry(name).or_default().insert(concern);
        }
        if let Some(folder) = &wanted.folder {
            masks.insert(folder.clone(), FILES);
        }
        self.folder = wanted.folder;
        let mut places = HashMap::new();
        let mut added = false;
        for (path, mask) in masks {
            match self.inotify.watches().add(&path, mask) {
                // For a watched inode the kernel returns the same descriptor and replaces its mask.
                Ok(descriptor) => {
                    added |= self.places.get(&descriptor) != Some(&path);
                    places.insert(descriptor, path);
                }
                // It was removed meanwhile, which the watch of its parent reports.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
                Err(error) => return Err(error),
            }
        }
        for (descriptor, _) in self.places.drain().filter(|(descriptor, _)| !places.contains_key(descriptor))
        {
            // Fails if the kernel has removed the watch already.
            _ = self.inotify.watches().remove(descriptor);
        }
        self.places = places;
        Ok(added)
    }

    /// Whether this file is being written.
    pub(crate) fn is_written(&self, name: &str) -> bool {
        self.writing.contains(name)
    }

    fn sort(&mut self, event: &Event<&OsStr>) {
        // The kernel has dropped events, among them possibly the close of a written file: read everything.
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            self.writing.clear();
            self.todo.all = true;
            return;
        }
        // Ignores late events of removed watches.
        let Some(place) = self.places.get(&event.wd).cloned() else { return };
        let Some(name) = event.name else {
            if event.mask.intersects(LOST) {
                // An inotify watch follows the inode, not the path.
                if event.mask.contains(EventMask::MOVE_SELF) {
                    _ = self.inotify.watches().remove(event.wd.clone());
                }
                self.places.remove(&event.wd);
                self.todo.scan = true;
            }
            return;
        };
        for concern in self.concerns_of(&place, name) {
            match concern {
                Concern::Folder => self.todo.scan |= event.mask.intersects(moves()),
                Concern::File(file) => self.sort_one(&place.join(name), file, event.mask),
            }
        }
        if self.folder.as_ref() == Some(&place)
            && let Some(file) = name.to_str().filter(|name| is_manifest(name))
        {
            self.sort_one(&place.join(name), file.to_owned(), event.mask);
        }
    }

    fn concerns_of(&self, place: &Path, name: &OsStr) -> Vec<Concern> {
        let concerns = self.concerns.get(place).and_then(|names| names.get(name));
        concerns.into_iter().flatten().cloned().collect()
    }

    /// Handles an event at `path`, which is a file of the folder or a link on the path to one.
    fn sort_one(&mut self, path: &Path, file: String, mask: EventMask) {
        if mask.contains(EventMask::MODIFY) {
            // Not read before it is closed: the content may be incomplete.
            self.todo.read.remove(&file);
            self.writing.insert(file);
        } else if mask.contains(EventMask::CLOSE_WRITE) {
            self.writing.remove(&file);
            self.todo.read.insert(file);
        } else if mask.contains(EventMask::CREATE) {
            match is_new_file(path) {
                true => _ = self.writing.insert(file),
                false => self.todo.scan = true,
            }
        } else if mask.contains(EventMask::MOVED_TO) {
            self.writing.remove(&file);
            // The link has to be resolved again.
            self.todo.scan |= self.is_concern(path);
            self.todo.read.insert(file);
        } else if mask.intersects(moves()) {
            self.writing.remove(&file);
            self.todo.scan = true;
        } else if mask.contains(EventMask::ATTRIB) {
            // Permissions may have changed, so that a file can be read now, or no longer.
            self.todo.scan = true;
        }
    }

    fn is_concern(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink())
            || path
                .parent()
                .zip(path.file_name())
                .is_some_and(|(place, name)| !self.concerns_of(place, name).is_empty())
    }
}

fn moves() -> EventMask {
    EventMask::CREATE | EventMask::MOVED_FROM | EventMask::MOVED_TO | EventMask::DELETE
}

/// Whether a created name is a new file, which its writer has open. A link (symbolic or hard) is complete already.
fn is_new_file(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
}
