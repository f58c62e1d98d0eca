//! A single state file: atomic replacement, bounded reads.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Bytes that a file may have unless [`StateFile::limit`] says otherwise: 65,000 identities with long labels.
pub const LIMIT: u64 = 64 << 20;

/// A file of the run or state folder. Its owner sees to it that there is one writer at a time.
#[derive(Debug, Clone)]
pub struct StateFile {
    path: PathBuf,
    mode: u32,
    folder_mode: u32,
    limit: u64,
    flush: bool,
}

impl StateFile {
    /// The file at a path: mode 0600, folders that are missing are made with 0750, not flushed to the disk.
    pub fn new(path: impl Into<PathBuf>) -> StateFile {
        StateFile { path: path.into(), mode: 0o600, folder_mode: 0o750, limit: LIMIT, flush: false }
    }

    /// With another mode.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> StateFile {
        self.mode = mode;
        self
    }

    /// With another mode for folders that are missing.
    #[must_use]
    pub fn folder_mode(mut self, mode: u32) -> StateFile {
        self.folder_mode = mode;
        self
    }

    /// With another bound on what is read.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> StateFile {
        self.limit = bytes;
        self
    }

    /// On the disk when a write returns, so that it outlives a power cut.
    #[must_use]
    pub fn flushed(mut self) -> StateFile {
        self.flush = true;
        self
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it holds; `None` if there is no such file. A link, a pipe, a folder, or a file beyond the limit is damaged.
    pub fn read(&self) -> Result<Option<Vec<u8>>, Error> {
        let Some((file, length)) = open(&self.path)? else { return Ok(None) };
        let mut content = Vec::with_capacity(length.min(self.limit) as usize);
        file.take(self.limit + 1).read_to_end(&mut content).map_err(Error::io("read", &self.path))?;
        match content.len() as u64 > self.limit {
            true => Err(Error::damaged(&self.path, format!("it has more than {} bytes", self.limit))),
            false => Ok(Some(content)),
        }
    }

    /// As [`read`](Self::read), as text; what is no UTF-8 is damaged.
    pub fn read_text(&self) -> Result<Option<String>, Error> {
        let text = self.read()?.map(String::from_utf8).transpose();
        text.map_err(|error| Error::damaged(&self.path, error))
    }

    /// Replaces the file, whole or not at all. What was there before stays if this fails.
    pub fn write(&self, content: &[u8]) -> Result<(), Error> {
        let next = self.prepare(content)?;
        self.put(&next)
    }

    /// As [`write`](Self::write), but skipped if the file has this content already: that needs no disk space.
    pub fn write_changed(&self, content: &[u8]) -> Result<(), Error> {
        match self.read() {
            Ok(Some(old)) if old == content => Ok(()),
            _ => self.write(content),
        }
    }

    /// As [`write`](Self::write), and what was there before stays under the names of `older`, each moving on to the
    /// one behind it, the last one going. The file itself is there all the time.
    pub fn write_keeping(&self, content: &[u8], older: &[PathBuf]) -> Result<(), Error> {
        // Write the new content first: if the disk is full, no file is renamed.
        let next = self.prepare(content)?;
        for (from, to) in older.iter().zip(older.iter().skip(1)).rev() {
            gone(fs::rename(from, to)).map_err(Error::io("rename", from))?;
        }
        if let Some(first) = older.first() {
            // Left there if the one behind it is the same file, as after a stop between these steps.
            gone(fs::remove_file(first)).map_err(Error::io("remove", first))?;
            // Where there are no links, the file is away until the next step.
            let linked = fs::hard_link(&self.path, first).or_else(|_| fs::rename(&self.path, first));
            gone(linked).map_err(Error::io("rename", &self.path))?;
        }
        self.put(&next)
    }

    /// Removes the file and what a stop has left beside it; none is fine.
    pub fn remove(&self) -> Result<(), Error> {
        for path in [self.path.clone(), self.next()] {
            gone(fs::remove_file(&path)).map_err(Error::io("remove", path))?;
        }
        self.flush_folder()
    }

    /// Where the next content is written before it takes the file's place.
    fn next(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".next");
        name.into()
    }

    /// The next file, written.
    fn prepare(&self, content: &[u8]) -> Result<PathBuf, Error> {
        let next = self.next();
        let mut file = match self.create(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = self.path.parent().unwrap_or(Path::new("/"));
                let made = DirBuilder::new().recursive(true).mode(self.folder_mode).create(folder);
                made.map_err(Error::io("create the folder", folder))?;
                self.create(&next)
            }
            created => created,
        }
        .map_err(Error::io("create", &next))?;
        let mut fill = || {
            file.write_all(content)?;
            if self.flush { file.sync_data() } else { Ok(()) }
        };
        if let Err(error) = fill() {
            // The disk may be full, so free the space now; the next write would remove the file as well.
            let _ = fs::remove_file(&next);
            return Err(Error::io("write", &next)(error));
        }
        Ok(next)
    }

    /// Never opens what is there: that may be another's file, or a link to one.
    fn create(&self, next: &Path) -> io::Result<File> {
        let create = || OpenOptions::new().write(true).create_new(true).mode(self.mode).open(next);
        match create() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                gone(fs::remove_file(next))?;
                create()
            }
            created => created,
        }
    }

    fn put(&self, next: &Path) -> Result<(), Error> {
        fs::rename(next, &self.path).map_err(Error::io("replace", &self.path))?;
        self.flush_folder()
    }

    fn flush_folder(&self) -> Result<(), Error> {
        if !self.flush {
            return Ok(());
        }
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        match File::open(folder).and_then(|folder| folder.sync_all()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("flush the folder", folder)(error))
            }
            _ => Ok(()),
        }
    }
}

/// Opens a file to lock it, or makes it. Neither follows a link nor waits for a pipe.
pub fn open_for_lock(path: &Path, mode: u32) -> Result<File, Error> {
    let mut open = OpenOptions::new();
    open.read(true).write(true).create(true).truncate(false).mode(mode);
    let file = open.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = file.map_err(Error::io("open", path))?;
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(file),
        Ok(_) => Err(Error::damaged(path, "it is no regular file; remove it")),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

/// Opens a file that is there to read it; `None` if there is none. A link, a pipe or a folder is damaged, and not waited
/// for.
pub fn open_to_read(path: &Path) -> Result<Option<File>, Error> {
    Ok(open(path)?.map(|(file, _)| file))
}

/// The file and its length.
fn open(path: &Path) -> Result<Option<(File, u64)>, Error> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) => {
            return match error.raw_os_error() {
                Some(libc::ENOENT) => Ok(None),
                Some(libc::ELOOP) => Err(Error::damaged(path, "it is a link")),
                Some(libc::ENXIO) => Err(Error::damaged(path, "it is no regular file")),
                _ => Err(Error::io("open", path)(error)),
            };
        }
    };
    let metadata = file.metadata().map_err(Error::io("read", path))?;
    match metadata.is_file() {
        true => Ok(Some((file, metadata.len()))),
        false => Err(Error::damaged(path, "it is no regular file")),
    }
}

/// Treats `NotFound` as success, so that removal is idempotent.
pub(crate) fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
