//! One path that is followed.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use futures::{FutureExt, StreamExt};
use inotify::{Event, EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};

use crate::resolve::{Way, resolve};

/// What changes the way to somewhere, of a folder on it.
pub const WAY: WatchMask = WatchMask::CREATE
    .union(WatchMask::MOVE)
    .union(WatchMask::DELETE)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::MOVE_SELF)
    .union(WatchMask::ONLYDIR);

/// Events of [`WAY`] and changes of files, the latter once the writer has closed them.
const FILES: WatchMask = WAY.union(WatchMask::CLOSE_WRITE).union(WatchMask::ATTRIB);

/// Events that end the being of a watched folder under its path.
const LOST: EventMask = EventMask::DELETE_SELF.union(EventMask::MOVE_SELF).union(EventMask::UNMOUNT);

/// How often places are looked up that change meanwhile.
const TRIES: usize = 8;

/// Bytes of the buffer for events read at once.
const BUFFER: usize = 4096;

/// A file, or a folder with its files, and everything on the way to them.
pub struct FileWatch {
    events: EventStream<Vec<u8>>,
    places: HashMap<WatchDescriptor, PathBuf>,
    wanted: HashMap<PathBuf, Wanted>,
    /// What changes files, too.
    files: WatchMask,
}

/// What matters in a folder.
#[derive(Default)]
struct Wanted {
    /// Whether every name does.
    all: bool,
    names: HashSet<OsString>,
    /// Whether the content behind names matters, not only where they lead.
    files: bool,
}

impl FileWatch {
    /// A watch of nothing. Fails where the kernel has no inotify instance left (`fs.inotify` in sysctl).
    pub fn new() -> io::Result<FileWatch> {
        let events = Inotify::init()?.into_event_stream(vec![0; BUFFER])?;
        Ok(FileWatch { events, places: HashMap::new(), wanted: HashMap::new(), files: FILES })
    }

    /// Reports each write to a file as well, not only its close: for callers that wait until writes have ceased.
    pub fn with_writes(mut self) -> FileWatch {
        self.files |= WatchMask::MODIFY;
        self
    }

    /// Watches what is at this path now and what would be there. Call it again after each change, before the path is read:
    /// what happens to it afterwards is told.
    pub fn follow(&mut self, path: &Path) -> io::Result<()> {
        let path = std::path::absolute(path)?;
        for _ in 0..TRIES {
            self.wanted = wanted(&path);
            if !self.place()? {
                break;
            }
        }
        Ok(())
    }

    /// Waits until something may have changed.
    pub async fn changed(&mut self) -> io::Result<()> {
        let mut told = false;
        while !told {
            let Some(event) = self.events.next().await else { return Err(io::ErrorKind::BrokenPipe.into()) };
            told |= self.matters(&event?);
            while let Some(Some(event)) = self.events.next().now_or_never() {
                told |= self.matters(&event?);
            }
        }
        Ok(())
    }

    /// True if a place was added, where something may have happened before.
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
            // The kernel may have forgotten it before.
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
        // Events of places that are watched no more are ignored.
        let Some(wanted) = self.places.get(&event.wd).and_then(|place| self.wanted.get(place)) else {
            return false;
        };
        match &event.name {
            Some(name) => wanted.all || wanted.names.contains(name),
            None => event.mask.intersects(LOST),
        }
    }
}

/// Folders and names that decide about a path and what is in it.
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
            // A link that leads nowhere is no file; where it would lead is watched all the same.
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

    async fn is_told(watch: &mut FileWatch) -> bool {
        timeout(Duration::from_millis(300), watch.changed()).await.is_ok()
    }

    #[tokio::test]
    async fn files_of_a_folder() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("config");
        let mut watch = FileWatch::new().unwrap();
        watch.follow(&folder).unwrap();
        fs::write(root.path().join("other"), "x").unwrap();
        assert!(!is_told(&mut watch).await, "a file beside it is none of it");
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
            assert!(is_told(&mut watch).await);
        }
        watch.follow(&folder).unwrap();
        assert!(!is_told(&mut watch).await);
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
        assert!(!is_told(&mut watch).await);
        write("..2", "false");
        assert!(is_told(&mut watch).await);
        watch.follow(root.path()).unwrap();
        fs::write(root.path().join("..2/debug"), "true").unwrap();
        assert!(is_told(&mut watch).await, "the file behind the links");
    }

    #[tokio::test]
    async fn one_file() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("c.yaml");
        let mut watch = FileWatch::new().unwrap();
        watch.follow(&path).unwrap();
        fs::write(&path, "a: 1").unwrap();
        assert!(is_told(&mut watch).await);
        watch.follow(&path).unwrap();
        while is_told(&mut watch).await {}
        fs::write(&path, "a: 2").unwrap();
        assert!(is_told(&mut watch).await);
        fs::write(root.path().join("other"), "x").unwrap();
        while is_told(&mut watch).await {}
        fs::write(root.path().join("other"), "x").unwrap();
        assert!(!is_told(&mut watch).await);
    }
}
