//! The file of an exporter: lines are appended, and it is rotated when it is full, as the Go package lumberjack does.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;

use crate::stream::Stream;

/// The time in the name of a rotated file, UTC, without its milliseconds.
const NAME_TIME: &str = "%Y-%m-%dT%H-%M-%S";

/// The suffix of a compressed file.
const COMPRESSED: &str = ".gz";

/// The suffix of a file whose compression has not ended: a crash leaves no half file under the final name.
const COMPRESSING: &str = ".gz.tmp";

/// Limits of a file and of those that it was rotated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum size in bytes.
    pub max_size: u64,
    /// The number of rotated files that are kept; 0 for all.
    pub max_backups: usize,
    /// Whether rotated files are compressed.
    pub compress: bool,
}

/// The destination of lines. A stream is open between two writes.
#[derive(Debug)]
pub(crate) enum Output {
    /// The standard output.
    Stdout(Option<Stream>),
    /// A file; the path may also be that of a pipe or device, which is not rotated.
    File(RotatingFile, Option<Stream>),
}

impl Output {
    /// Writes lines. On an error, those that were not written are gone; the next call opens the file again.
    ///
    /// # Errors
    /// The file cannot be written, or a line is longer than the maximum size.
    pub(crate) fn write(&mut self, lines: &[String], now: Timestamp) -> Result<(), Unwritten> {
        match self {
            Self::Stdout(stream) => write_stream(stream, Stream::stdout, lines),
            Self::File(file, stream) => {
                let path = &file.name.path;
                let kind = std::fs::metadata(path).map(|metadata| metadata.file_type());
                if kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device()) {
                    return write_stream(stream, || Stream::open(path), lines);
                }
                *stream = None;
                file.write(lines, now)
            }
        }
    }

    /// Returns the pending work on rotated files.
    pub(crate) fn take_cleanup(&mut self) -> Option<Cleanup> {
        let Self::File(file, _) = self else { return None };
        std::mem::take(&mut file.has_rotated).then(|| Cleanup(file.name.clone(), file.limits))
    }
}

/// Writes lines to a stream, which is opened if it is not. One with another error than that of a slow reader is closed.
fn write_stream(
    stream: &mut Option<Stream>,
    open: impl FnOnce() -> io::Result<Stream>,
    lines: &[String],
) -> Result<(), Unwritten> {
    let opened = match stream.take() {
        Some(open) => Ok(open),
        None => open(),
    };
    let mut open = opened.map_err(|error| Unwritten { lines: lines.len() as u64, error })?;
    let written = open.write(lines);
    let is_open = written.as_ref().err().is_none_or(|lost| lost.error.kind() == io::ErrorKind::TimedOut);
    *stream = is_open.then_some(open);
    written
}

/// Lines that could not be written.
#[derive(Debug)]
pub(crate) struct Unwritten {
    pub(crate) lines: u64,
    pub(crate) error: io::Error,
}

/// A file that is renamed and replaced before it becomes larger than its limit.
#[derive(Debug)]
pub(crate) struct RotatingFile {
    name: Name,
    limits: Limits,
    /// The open file with its size.
    open: Option<(File, u64)>,
    /// The permissions of a new file: those of the rotated one, which may have been restricted.
    mode: u32,
    has_rotated: bool,
}

/// The path of a file in parts: `/var/run/cilium/hubble/events.log` is folder, `events`, `.log`.
#[derive(Clone, Debug)]
struct Name {
    path: PathBuf,
    folder: PathBuf,
    stem: String,
    extension: String,
}

impl Name {
    fn new(path: &Path) -> Self {
        let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let extension = match path.extension() {
            Some(extension) => format!(".{}", extension.to_string_lossy()),
            None => String::new(),
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Self { path: path.to_owned(), folder: folder.to_owned(), stem: text(path.file_stem()), extension }
    }

    /// Returns the path of a rotated file.
    fn backup(&self, time: Timestamp) -> PathBuf {
        let (seconds, millis) = (time.strftime(NAME_TIME), time.subsec_millisecond());
        self.folder.join(format!("{}-{seconds}.{millis:03}{}", self.stem, self.extension))
    }

    /// Returns rotated files with their names' times, the newest first.
    fn backups(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let time = name.strip_prefix(&format!("{}-", self.stem));
            let time = time.map(|rest| rest.strip_suffix(COMPRESSED).unwrap_or(rest));
            let time = time.and_then(|rest| rest.strip_suffix(&*self.extension));
            if let Some(time) = time.filter(|time| is_time(time)) {
                found.push((time.to_owned(), entry.path()));
            }
        }
        // The digits of times have fixed places, so that texts have the order of times.
        found.sort_unstable_by(|one, other| other.cmp(one));
        Ok(found)
    }
}

/// Whether a text is the time of a rotated file.
fn is_time(text: &str) -> bool {
    let digits = text
        .split_once('.')
        .filter(|(_, millis)| millis.len() == 3 && millis.bytes().all(|byte| byte.is_ascii_digit()));
    digits.is_some_and(|(seconds, _)| jiff::civil::DateTime::strptime(NAME_TIME, seconds).is_ok())
}

impl RotatingFile {
    pub(crate) fn new(path: &Path, limits: Limits) -> Self {
        Self { name: Name::new(path), limits, open: None, mode: 0o644, has_rotated: false }
    }

    fn write(&mut self, lines: &[String], now: Timestamp) -> Result<(), Unwritten> {
        let (mut failed, mut lost) = (None, 0);
        let mut rest = lines;
        while !rest.is_empty() {
            let count = self.write_some(rest, now).unwrap_or_else(|(count, error)| {
                self.open = None;
                lost += count as u64;
                failed = Some(error);
                count
            });
            rest = &rest[count..];
        }
        failed.map_or(Ok(()), |error| Err(Unwritten { lines: lost, error }))
    }

    /// Writes as many lines as fit into the file, at least one. Returns their number, also with an error.
    fn write_some(&mut self, lines: &[String], now: Timestamp) -> Result<usize, (usize, io::Error)> {
        let all = |error| (lines.len(), error);
        let max_size = self.limits.max_size;
        if lines[0].len() as u64 + 1 > max_size {
            let text =
                format!("a line of {} bytes is longer than the file may be: {max_size}", lines[0].len());
            return Err((1, io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        let mut size = self.current().map_err(all)?.1;
        if size > 0 && size + lines[0].len() as u64 + 1 > max_size {
            self.rotate(now).map_err(all)?;
            size = self.current().map_err(all)?.1;
        }
        let mut text = String::new();
        let mut count = 0;
        for line in lines {
            if size + (text.len() + line.len()) as u64 + 1 > max_size {
                break;
            }
            text.push_str(line);
            text.push('\n');
            count += 1;
        }
        let (file, size) = self.current().map_err(all)?;
        if let Err(error) = file.write_all(text.as_bytes()) {
            // A part of a line would make the next one unreadable. Its error would be the same one.
            let _ = file.set_len(*size);
            return Err((count, error));
        }
        *size += text.len() as u64;
        Ok(count)
    }

    /// Returns the file at the path: it may have been removed or renamed since the last write.
    fn current(&mut self) -> io::Result<&mut (File, u64)> {
        let id = |file: &std::fs::Metadata| (file.dev(), file.ino());
        let is_current = match &self.open {
            None => false,
            Some((file, _)) => {
                let at_path = std::fs::metadata(&self.name.path);
                at_path.is_ok_and(|at_path| file.metadata().is_ok_and(|file| id(&file) == id(&at_path)))
            }
        };
        if !is_current {
            DirBuilder::new().recursive(true).mode(0o755).create(&self.name.folder)?;
            let file = OpenOptions::new().append(true).create(true).mode(self.mode).open(&self.name.path)?;
            let size = file.metadata()?.len();
            self.open = Some((file, size));
        }
        self.open.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        self.open = None;
        self.mode = std::fs::metadata(&self.name.path)?.mode() & 0o777;
        // Two rotations of one millisecond have different names.
        let mut time = now;
        while self.name.backup(time).exists() {
            time += jiff::SignedDuration::from_millis(1);
        }
        std::fs::rename(&self.name.path, self.name.backup(time))?;
        self.has_rotated = true;
        Ok(())
    }
}

/// Work on rotated files: those beyond the limit are deleted, others compressed. Takes as long as reading them.
#[derive(Debug)]
pub struct Cleanup(Name, Limits);

impl Cleanup {
    /// Does the work.
    ///
    /// # Errors
    /// A file cannot be read, written or deleted.
    pub fn run(&self) -> io::Result<()> {
        let Self(name, limits) = self;
        let backups = name.backups()?;
        let kept =
            if limits.max_backups == 0 { backups.len() } else { limits.max_backups.min(backups.len()) };
        let is_plain = |path: &&PathBuf| !path.to_string_lossy().ends_with(COMPRESSED);
        let plain = backups[..kept].iter().map(|(_, path)| path).filter(is_plain);
        let plain = plain.filter(|_| limits.compress);
        // One that another process has removed, or that fails, leaves the others to do.
        let deleted = backups[kept..].iter().map(|(_, path)| std::fs::remove_file(path));
        let results = deleted.chain(plain.map(|path| compress(path)));
        let is_gone = |result: &io::Result<()>| {
            result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        results.filter(|result| !is_gone(result)).fold(Ok(()), Result::and)
    }
}

fn compress(path: &Path) -> io::Result<()> {
    let with = |suffix: &str| PathBuf::from(format!("{}{suffix}", path.display()));
    let (unfinished, compressed) = (with(COMPRESSING), with(COMPRESSED));
    let mode = std::fs::metadata(path)?.mode() & 0o777;
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&unfinished)?;
    let mut encoder = GzEncoder::new(file, Compression::default());
    let written = File::open(path).and_then(|mut from| io::copy(&mut from, &mut encoder));
    let finished =
        written.and_then(|_| encoder.finish()).and_then(|_| std::fs::rename(&unfinished, compressed));
    if finished.is_err() {
        // On a full disk it would take what is left.
        let _ = std::fs::remove_file(&unfinished);
    }
    finished.and_then(|()| std::fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_795_262_729_000 + millis).unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn lines(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_full_file_is_renamed_and_old_ones_are_deleted_and_compressed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/events.log");
        let limits = Limits { max_size: 10, max_backups: 2, compress: true };
        let mut output = Output::File(RotatingFile::new(&path, limits), None);
        assert!(!path.exists(), "it is made with the first line");
        output.write(&lines(&["1234", "5678", "abcd", "efgh", "ijkl"]), at(0)).unwrap();
        let deep = folder.path().join("deep");
        assert_eq!(
            names(&deep),
            ["events-2026-11-21T12-05-29.000.log", "events-2026-11-21T12-05-29.001.log", "events.log"]
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "ijkl\n");
        std::fs::write(deep.join("events-other.log"), "kept").unwrap();
        output.write(&lines(&["mnop", "qrst"]), at(500)).unwrap();
        output.take_cleanup().unwrap().run().unwrap();
        assert!(output.take_cleanup().is_none());
        assert_eq!(
            names(&deep),
            [
                "events-2026-11-21T12-05-29.001.log.gz",
                "events-2026-11-21T12-05-29.500.log.gz",
                "events-other.log",
                "events.log"
            ]
        );
        let file = File::open(deep.join("events-2026-11-21T12-05-29.500.log.gz")).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
        assert_eq!(text, "ijkl\nmnop\n");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(&deep)), (0o644, 0o755));
    }

    #[test]
    fn a_new_file_has_the_permissions_of_the_rotated_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.log");
        let limits = Limits { max_size: 10, max_backups: 1, compress: false };
        let mut output = Output::File(RotatingFile::new(&path, limits), None);
        output.write(&lines(&["1234"]), at(0)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        output.write(&lines(&["5678", "abcd"]), at(0)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "abcd\n");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_rotated_file_that_fails_leaves_the_others_to_do_and_no_part() {
        let folder = tempfile::tempdir().unwrap();
        let backup = |second: u32| folder.path().join(format!("events-2026-11-21T12-05-0{second}.000.log"));
        // A folder cannot be removed as a file, nor be read.
        std::fs::create_dir(backup(2)).unwrap();
        std::fs::create_dir(backup(9)).unwrap();
        for second in [1, 8] {
            std::fs::write(backup(second), "x\n").unwrap();
        }
        let limits = Limits { max_size: 10, max_backups: 2, compress: true };
        let cleanup = Cleanup(Name::new(&folder.path().join("events.log")), limits);
        cleanup.run().unwrap_err();
        let expected = [
            "events-2026-11-21T12-05-02.000.log",
            "events-2026-11-21T12-05-08.000.log.gz",
            "events-2026-11-21T12-05-09.000.log",
        ];
        assert_eq!(names(folder.path()), expected);
    }

    #[test]
    fn a_pipe_at_the_path_is_written_and_not_rotated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let limits = Limits { max_size: 4, max_backups: 1, compress: false };
        let mut output = Output::File(RotatingFile::new(&path, limits), None);
        assert_eq!(output.write(&lines(&["a", "b"]), at(0)).unwrap_err().lines, 2, "no reader");
        // Both ends: the open does not wait.
        let mut reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        output.write(&lines(&["1234", "5678"]), at(0)).unwrap();
        let mut text = [0; 10];
        reader.read_exact(&mut text).unwrap();
        assert_eq!((&text, names(folder.path())), (b"1234\n5678\n", vec!["pipe".to_owned()]));
        assert!(output.take_cleanup().is_none());
    }

    #[test]
    fn a_line_that_is_too_long_is_lost_and_a_renamed_or_removed_file_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows");
        let limits = Limits { max_size: 10, max_backups: 0, compress: false };
        std::fs::write(&path, "old\n").unwrap();
        let mut output = Output::File(RotatingFile::new(&path, limits), None);
        let unwritten = output.write(&lines(&["a", "0123456789", "b"]), at(0)).unwrap_err();
        assert_eq!((unwritten.lines, unwritten.error.kind()), (1, io::ErrorKind::InvalidInput));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old\na\nb\n");
        std::fs::rename(&path, folder.path().join("moved")).unwrap();
        output.write(&lines(&["c"]), at(0)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "c\n");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(output.write(&lines(&["d", "e"]), at(0)).unwrap_err().lines, 2);
        std::fs::remove_dir(&path).unwrap();
        output.write(&lines(&["f"]), at(0)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "f\n");
    }
}
