//! The watch of one path.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use futures::{FutureExt, StreamExt};
use inotify::{Event, EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};

use crate::resolve::{Way, resolve};
use crate::unwaited::Unwaited;

/// Events of a folder that can change how a path through it resolves.
pub const WAY: WatchMask = WatchMask::CREATE
    .union(WatchMask::MOVE)
    .union(WatchMask::DELETE)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::MOVE_SELF)
    .union(WatchMask::ONLYDIR);

/// Events of [`WAY`] and changes of files: CLOSE_WRITE reports a file only once it is written completely.
const FILES: WatchMask = WAY.union(WatchMask::CLOSE_WRITE).union(WatchMask::ATTRIB);

/// Events after which a watched folder no longer is at its path.
const LOST: EventMask = EventMask::DELETE_SELF.union(EventMask::MOVE_SELF).union(EventMask::UNMOUNT);

/// Maximum number of passes over a path that keeps changing while it is resolved.
const MAX_PASSES: usize = 8;

/// Size in bytes of the buffer for one read of events.
const BUFFER_SIZE: usize = 4096;

/// A watch of a file, or of a folder with its files, and of everything their paths depend on.
pub struct FileWatch {
    events: Unwaited<EventStream<Vec<u8>>>,
    places: HashMap<WatchDescriptor, PathBuf>,
    wanted: HashMap<PathBuf, Wanted>,
    /// Events of folders in which files matter.
    files: WatchMask,
}

/// The events of interest in a folder.
#[derive(Default)]
struct Wanted {
    /// Whether every name matters.
    all: bool,
    names: HashSet<OsString>,
    /// Whether the content of files matters, not only the entries of the folder.
    files: bool,
}

impl FileWatch {
    /// Returns a watch without a path. Fails if the limit of inotify instances is reached (sysctl
    /// `fs.inotify.max_user_instances`).
    pub fn new() -> io::Result<FileWatch> {
        let events = Unwaited::new(Inotify::init()?.into_event_stream(vec![0; BUFFER_SIZE])?);
        Ok(FileWatch { events, places: HashMap::new(), wanted: HashMap::new(), files: FILES })
    }

    /// Reports each write to a file as well, not only its close: for callers that debounce writes.
    pub fn with_writes(mut self) -> FileWatch {
        self.files |= WatchMask::MODIFY;
        self
    }

    /// Watches the path as it resolves now, existing or not. To be called again after each change, before the path is
    /// read: then each change after the read is reported.
    pub fn follow(&mut self, path: &Path) -> io::Result<()> {
        let path = std::path::absolute(path)?;
        // A folder may have changed after it was resolved and before its watch was added: resolve again until a pass
        // adds no watch.
        for _ in 0..MAX_PASSES {
            self.wanted = wanted(&path);
            if !self.place()? {
                break;
            }
        }
        Ok(())
    }

    /// Waits until something may have changed.
    pub async fn changed(&mut self) -> io::Result<()> {
        let mut matched = false;
        while !matched {
            let Some(event) = self.events.next().await else { return Err(io::ErrorKind::BrokenPipe.into()) };
            matched |= self.matters(&event?);
            while let Some(Some(event)) = self.events.next().now_or_never() {
                matched |= self.matters(&event?);
            }
        }
        Ok(())
    }

    /// Adds and removes inotify watches. Returns whether a folder was added: its earlier changes were missed.
    fn place(&mut self) -> io::Result<bool> {
        let (mut places, mut added) = (HashMap::new(), false);
        for (path, wanted) in &self.wanted {
            let mask = if wanted.files { self.files } else { WAY };
            match self.events.watches().add(path, mask) {
                Ok(descriptor) => {
                    added |= self.places.get(&descriptor) != Some(path);
                    places.insert(descriptor, path.clone());
                }
                // Deleted since it was resolved: the watch of its parent reports that.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(error) => return Err(error),
            }
        }
        for descriptor in self.places.keys().filter(|descriptor| !places.contains_key(*descriptor)) {
            // Fails if the kernel has removed the watch with its deleted folder.
            let _ = self.events.watches().remove(descriptor.clone());
        }
        self.places = places;
        Ok(added)
    }

    fn matters(&self, event: &Event<OsString>) -> bool {
        // After an overflow it is unknown what has changed.
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            return true;
        }
        // Events queued before their watch was removed are ignored.
        let Some(wanted) = self.places.get(&event.wd).and_then(|place| self.wanted.get(place)) else {
            return false;
        };
        match &event.name {
            Some(name) => wanted.all || wanted.names.contains(name),
            None => event.mask.intersects(LOST),
        }
    }
}

/// Returns the folders and names that the path and the files in it depend on.
fn wanted(path: &Path) -> HashMap<PathBuf, Wanted> {
    let mut wanted: HashMap<PathBuf, Wanted> = HashMap::new();
    let mut add = |way: Way, files: bool| {
        let last = way.steps.len();
        for (step, (folder, name)) in (1..).zip(way.steps) {
            let wanted = wanted.entry(folder).or_default();
            wanted.names.insert(name);
            wanted.files |= files && step == last;
        }
        way.end
    };
    let end = resolve(path);
    let is_file = end.end.as_ref().is_ok_and(|end| end.is_file());
    let Ok(end) = add(end, is_file) else { return wanted };
    if end.is_dir() {
        let listing = std::fs::read_dir(&end).into_iter().flatten().flatten();
        for entry in listing.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink())) {
            // The missing target of a dangling link is watched as well: it may be created.
            let _ = add(resolve(&entry.path()), true);
        }
        let folder = wanted.entry(end).or_default();
        (folder.all, folder.files) = (true, true);
    }
    wanted
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn reports_change(watch: &mut FileWatch) -> bool {
        timeout(Duration::from_millis(300), watch.changed()).await.is_ok()
    }

    #[tokio::test]
    async fn files_of_a_folder() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("config");
        let mut watch = FileWatch::new().unwrap();
        watch.follow(&folder).unwrap();
        fs::write(root.path().join("other"), "x").unwrap();
        assert!(!reports_change(&mut watch).await, "a file beside it is none of it");
        for change in [
            &|| fs::create_dir(&folder).unwrap(),
            &|| fs::write(folder.join("debug"), "true").unwrap(),
            &|| fs::write(folder.join("debug"), "false").unwrap(),
            &|| fs::remove_file(folder.join("debug")).unwrap(),
            &|| fs::rename(&folder, root.path().join("away")).unwrap(),
            &|| fs::rename(root.path().join("away"), &folder).unwrap(),
        ] as [&dyn Fn(); 6]
        {
            watch.follow(&folder).unwrap();
            change();
            assert!(reports_change(&mut watch).await);
        }
        watch.follow(&folder).unwrap();
        assert!(!reports_change(&mut watch).await);
    }

    #[tokio::test]
    async fn a_mounted_config_map() {
        let root = tempfile::tempdir().unwrap();
        let write = |data: &str, value: &str| {
            fs::create_dir(root.path().join(data)).unwrap();
            fs::write(root.path().join(data).join("debug"), value).unwrap();
            symlink(data, root.path().join("..next")).unwrap();
            fs::rename(root.path().join("..next"), root.path().join("..data")).unwrap();
        };
        write("..1", "true");
        symlink("..data/debug", root.path().join("debug")).unwrap();
        let mut watch = FileWatch::new().unwrap();
        watch.follow(root.path()).unwrap();
        assert!(!reports_change(&mut watch).await);
        write("..2", "false");
        assert!(reports_change(&mut watch).await);
        watch.follow(root.path()).unwrap();
        fs::write(root.path().join("..2/debug"), "true").unwrap();
        assert!(reports_change(&mut watch).await, "the file behind the links");
    }

    #[tokio::test]
    async fn one_file() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("c.yaml");
        let mut watch = FileWatch::new().unwrap();
        watch.follow(&path).unwrap();
        fs::write(&path, "a: 1").unwrap();
        assert!(reports_change(&mut watch).await);
        watch.follow(&path).unwrap();
        while reports_change(&mut watch).await {}
        fs::write(&path, "a: 2").unwrap();
        assert!(reports_change(&mut watch).await);
        fs::write(root.path().join("other"), "x").unwrap();
        while reports_change(&mut watch).await {}
        fs::write(root.path().join("other"), "x").unwrap();
        assert!(!reports_change(&mut watch).await);
    }
}
