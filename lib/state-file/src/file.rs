//! A single state file: atomic replacement, bounded reads.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Default maximum size of a file in bytes (see [`StateFile::limit`]): enough for 65,000 identities with long labels.
pub const LIMIT: u64 = 64 << 20;

/// A file of the run or state folder. The owner must ensure that there is one writer at a time: writers share the name
/// of the temporary file.
#[derive(Debug, Clone)]
pub struct StateFile {
    path: PathBuf,
    mode: u32,
    folder_mode: u32,
    limit: u64,
    flush: bool,
}

impl StateFile {
    /// Returns the file at a path: mode 0600, missing folders are created with 0750, not flushed to the disk.
    pub fn new(path: impl Into<PathBuf>) -> StateFile {
        StateFile { path: path.into(), mode: 0o600, folder_mode: 0o750, limit: LIMIT, flush: false }
    }

    /// Sets the mode of the file.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> StateFile {
        self.mode = mode;
        self
    }

    /// Sets the mode of missing folders that a write creates.
    #[must_use]
    pub fn folder_mode(mut self, mode: u32) -> StateFile {
        self.folder_mode = mode;
        self
    }

    /// Sets the maximum size in bytes; a larger file reads as damaged.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> StateFile {
        self.limit = bytes;
        self
    }

    /// Flushes the file to the disk before a write returns, so that it survives a power failure.
    #[must_use]
    pub fn flushed(mut self) -> StateFile {
        self.flush = true;
        self
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content; `None` if the file does not exist. A link, a pipe, a folder or a file beyond the limit is
    /// damaged.
    pub fn read(&self) -> Result<Option<Vec<u8>>, Error> {
        let Some((file, length)) = open(&self.path)? else { return Ok(None) };
        let mut content = Vec::with_capacity(length.min(self.limit) as usize);
        // One byte more than the limit shows that the file exceeds it, even if it has grown since `open`.
        file.take(self.limit + 1).read_to_end(&mut content).map_err(Error::io("read", &self.path))?;
        match content.len() as u64 > self.limit {
            true => Err(Error::damaged(&self.path, format!("it has more than {} bytes", self.limit))),
            false => Ok(Some(content)),
        }
    }

    /// Reads the file as [`read`](Self::read) does, as text; a file that is not UTF-8 is damaged.
    pub fn read_text(&self) -> Result<Option<String>, Error> {
        let text = self.read()?.map(String::from_utf8).transpose();
        text.map_err(|error| Error::damaged(&self.path, error))
    }

    /// Replaces the file atomically. The previous content stays if this fails.
    pub fn write(&self, content: &[u8]) -> Result<(), Error> {
        let next = self.prepare(content)?;
        self.put(&next)
    }

    /// Writes as [`write`](Self::write) does, unless the file already has this content: then it succeeds on a full
    /// disk.
    pub fn write_changed(&self, content: &[u8]) -> Result<(), Error> {
        match self.read() {
            Ok(Some(old)) if old == content => Ok(()),
            _ => self.write(content),
        }
    }

    /// Writes as [`write`](Self::write) does and rotates the previous content through the paths of `older`: each
    /// version moves to the next path, the last one is dropped. The file itself exists at every step.
    pub fn write_keeping(&self, content: &[u8], older: &[PathBuf]) -> Result<(), Error> {
        // Write the new content first: if the disk is full, no file is renamed.
        let next = self.prepare(content)?;
        for (from, to) in older.iter().zip(older.iter().skip(1)).rev() {
            gone(fs::rename(from, to)).map_err(Error::io("rename", from))?;
        }
        if let Some(first) = older.first() {
            // After a crash between these steps `first` and the next path are links to one inode; `rename` of a file
            // to itself does nothing (POSIX), so `first` still exists here and would make `hard_link` fail.
            gone(fs::remove_file(first)).map_err(Error::io("remove", first))?;
            // On a file system without hard links the file is missing until `put` below.
            let linked = fs::hard_link(&self.path, first).or_else(|_| fs::rename(&self.path, first));
            gone(linked).map_err(Error::io("rename", &self.path))?;
        }
        self.put(&next)
    }

    /// Removes the file and the temporary file of an interrupted write; missing ones are no error.
    pub fn remove(&self) -> Result<(), Error> {
        for path in [self.path.clone(), self.next()] {
            gone(fs::remove_file(&path)).map_err(Error::io("remove", path))?;
        }
        self.flush_folder()
    }

    /// Returns the path of the temporary file that is renamed over the file.
    fn next(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".next");
        name.into()
    }

    /// Writes the content to the temporary file and returns its path.
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

    /// Creates the temporary file. Never opens an existing one: it may be a link to a file of another process.
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
        // A rename is durable only once the directory that holds the name is synced, too.
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        match File::open(folder).and_then(|folder| folder.sync_all()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("flush the folder", folder)(error))
            }
            _ => Ok(()),
        }
    }
}

/// Opens a file for locking and creates it if it is missing. Does not follow a link and does not block on a pipe.
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

/// Opens a file for reading; `None` if it does not exist. A link, a pipe or a folder is damaged; opening a pipe does
/// not block.
pub fn open_to_read(path: &Path) -> Result<Option<File>, Error> {
    Ok(open(path)?.map(|(file, _)| file))
}

/// Opens a regular file for reading and returns it with its length.
fn open(path: &Path) -> Result<Option<(File, u64)>, Error> {
    // O_NONBLOCK: `open` of a pipe without a writer would block. O_NOCTTY: a terminal must not become the agent's own.
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
