//! Runs commands and copies files into a folder, each within the limits. Uses `plan` and `redact`.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, PipeReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use super::plan::{Item, Plan};
use super::redact::Redactor;

/// The longest output of a command or copy of a file.
const MAX_ITEM: u64 = 64 << 20;
/// The longest line that is looked at as one; a longer one is looked at in parts.
const MAX_LINE: u64 = 1 << 20;
/// How often it is looked whether a process has ended that has closed its output.
const POLL: Duration = Duration::from_millis(2);
/// How long output is read after the time of a command.
const DRAIN: Duration = Duration::from_secs(1);
/// The end of what is too long.
const CUT: &str = "\n[cut here: too long]\n";

/// Limits of a collection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For each command.
    pub(super) time: Duration,
    /// Bytes of everything.
    pub(super) total: u64,
}

/// Writes a folder.
#[derive(Debug)]
pub(super) struct Collector {
    folder: PathBuf,
    limits: Limits,
    left: AtomicU64,
    /// Set when the user ends the collection.
    interrupted: Arc<AtomicBool>,
    /// Lines of `summary.tsv`.
    summary: Mutex<Vec<String>>,
}

impl Collector {
    /// Makes the folder, which only its owner reads.
    pub(super) fn new(folder: &Path, limits: Limits, interrupted: Arc<AtomicBool>) -> io::Result<Collector> {
        for below in ["cmd", "conf", "state"] {
            DirBuilder::new().recursive(true).mode(0o700).create(folder.join(below))?;
        }
        let left = AtomicU64::new(limits.total);
        Ok(Collector { folder: folder.to_owned(), limits, left, interrupted, summary: Mutex::default() })
    }

    /// Collects everything by so many threads, and a summary: what failed is part of the report. An interruption is an
    /// error, once the commands that run have been killed.
    pub(super) fn collect(self, plan: &Plan, workers: usize) -> io::Result<()> {
        let workers = match workers {
            0 => thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        };
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..workers.min(plan.items().len()) {
                scope.spawn(|| {
                    while !self.is_interrupted()
                        && let Some(item) = plan.items().get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        self.one(item);
                    }
                });
            }
        });
        if self.is_interrupted() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        let mut lines = self.summary.into_inner().unwrap_or_default();
        lines.sort();
        let text = format!("item\tresult\tbytes\tmilliseconds\n{}\n", lines.join("\n"));
        new_file(&self.folder.join("summary.tsv"))?.write_all(text.as_bytes())
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn one(&self, item: &Item) {
        let start = Instant::now();
        let (result, bytes) = match item {
            Item::Command { title, program, arguments } => {
                self.command(title, Command::new(program).args(arguments))
            }
            Item::File { path, to } => self.file(path, &self.folder.join(to)),
        };
        let line = format!("{item}\t{result}\t{bytes}\t{}", start.elapsed().as_millis());
        self.summary.lock().unwrap_or_else(|poison| poison.into_inner()).push(line);
    }

    /// Runs a command; returns how it ended, and the length of its output.
    fn command(&self, title: &str, command: &mut Command) -> (String, u64) {
        let path = self.folder.join("cmd").join(title.replace([' ', '/'], "-") + ".md");
        let spawned = io::pipe().and_then(|(reader, writer)| {
            let errors = writer.try_clone()?;
            // Of its own group, so that its children end with it.
            let command = command.process_group(0).stdin(Stdio::null()).stdout(writer).stderr(errors);
            let child = command.spawn();
            // The writers live in the command, and the reader waits for their end.
            command.stdout(Stdio::null()).stderr(Stdio::null());
            Ok((child?, reader))
        });
        let (child, reader) = match spawned {
            Ok(spawned) => spawned,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return ("not installed".to_owned(), 0),
            Err(error) => return (error.to_string(), 0),
        };
        let time = self.limits.time;
        let (ended, has_ended) = channel::<()>();
        thread::scope(|scope| {
            let watchdog = scope.spawn(move || self.wait(child, &has_ended, time));
            let deadline = Instant::now() + time + DRAIN;
            let copied = self.copy(Output { reader, deadline }, &path);
            if matches!(copied, Ok((_, true)) | Err(_)) {
                // It may write for ever. Only the watchdog knows that the group still is the command's.
                let _ = ended.send(());
            }
            drop(ended);
            let mut result = watchdog.join().unwrap_or_else(|_| "unknown".to_owned());
            match copied {
                Ok((bytes, is_cut)) => {
                    if is_cut {
                        result = "cut".to_owned();
                    }
                    (result, bytes)
                }
                Err(error) => {
                    let _ = write!(result, ", {error}");
                    (result, 0)
                }
            }
        })
    }

    fn file(&self, path: &Path, to: &Path) -> (String, u64) {
        let copied = File::open(path).and_then(|file| {
            if let Some(folder) = to.parent() {
                DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            }
            self.copy(file, to)
        });
        match copied {
            Ok((bytes, is_cut)) => (if is_cut { "cut" } else { "ok" }.to_owned(), bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => ("does not exist".to_owned(), 0),
            Err(error) => (error.to_string(), 0),
        }
    }

    /// Copies text without its secrets; returns the bytes written, and whether some are left out.
    fn copy(&self, from: impl Read, to: &Path) -> io::Result<(u64, bool)> {
        let mut from = BufReader::new(from);
        let mut file = BufWriter::new(new_file(to)?);
        let mut redactor = Redactor::default();
        let (mut line, mut written) = (Vec::new(), 0);
        loop {
            line.clear();
            if (&mut from).take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
                file.flush()?;
                return Ok((written, false));
            }
            if self.is_interrupted() {
                return Ok((written, true));
            }
            let Some(text) = redactor.line(&line) else { continue };
            let len = text.len() as u64;
            if written + len > MAX_ITEM || !self.reserve(len) {
                file.write_all(CUT.as_bytes())?;
                file.flush()?;
                return Ok((written, true));
            }
            file.write_all(&text)?;
            written += len;
        }
    }

    /// Takes bytes from what is left for everything; returns false if it is not enough.
    fn reserve(&self, len: u64) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(len)).is_ok()
    }

    /// Waits for the end of a process and of its output, or kills it after the time, on request or at an interruption;
    /// returns its result.
    fn wait(&self, mut child: Child, has_ended: &Receiver<()>, time: Duration) -> String {
        let deadline = Instant::now() + time;
        let is_over = || self.is_interrupted() || Instant::now() >= deadline;
        let ended = loop {
            match has_ended.recv_timeout(POLL) {
                Err(RecvTimeoutError::Timeout) if !is_over() => {}
                ended => break ended,
            }
        };
        let (is_cut, mut is_late) = (ended == Ok(()), ended == Err(RecvTimeoutError::Timeout));
        // It may close its output and go on.
        while !is_cut && !is_late && matches!(child.try_wait(), Ok(None)) {
            thread::sleep(POLL);
            is_late = is_over();
        }
        if is_cut || is_late {
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        }
        match child.wait() {
            _ if is_late => "timeout".to_owned(),
            Ok(status) if status.success() => "ok".to_owned(),
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

/// The output of a command, which ends at a time: a process outside of the command's group may hold it open.
struct Output {
    reader: PipeReader,
    deadline: Instant,
}

impl Read for Output {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.reader, PollFlags::IN)], Some(&left))? {
            0 => Ok(0),
            _ => self.reader.read(buffer),
        }
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Item {
        let arguments = vec!["-c".to_owned(), line.to_owned()];
        Item::Command { title: "it".to_owned(), program: "sh".into(), arguments }
    }

    /// Collects one item; returns the columns of its summary, and the file.
    fn collect(item: Item, limits: Limits) -> (Vec<String>, String) {
        let folder = tempfile::tempdir().unwrap();
        let dump = folder.path().join("dump");
        Collector::new(&dump, limits, Arc::default()).unwrap().collect(&Plan::of([item]), 0).unwrap();
        let summary = fs::read_to_string(dump.join("summary.tsv")).unwrap();
        let columns = summary.lines().nth(1).unwrap().split('\t').map(str::to_owned).collect();
        (columns, fs::read_to_string(dump.join("cmd/it.md")).unwrap_or_default())
    }

    fn limits(time: u64) -> Limits {
        Limits { time: Duration::from_secs(time), total: 100 << 20 }
    }

    #[test]
    fn output_of_both_streams_and_the_exit_code() {
        let (summary, text) = collect(command("echo a; echo password=b >&2; exit 3"), limits(30));
        assert_eq!(text, "a\npassword=[redacted]\n");
        assert_eq!(summary[..3], ["it", "exit status: 3", "22"]);
    }

    #[test]
    fn commands_that_never_end_or_never_stop_writing() {
        // The child of the shell holds the output open.
        let (summary, text) = collect(command("echo a; sleep 1000 & wait"), limits(1));
        assert_eq!((summary[1].as_str(), text.as_str()), ("timeout", "a\n"));
        // A process of another group does.
        let (summary, text) = collect(command("echo a; setsid sleep 20 & sleep 0.2"), limits(1));
        assert_eq!((summary[1].as_str(), text.as_str()), ("timeout", "a\n"));
        assert!(summary[3].parse::<u64>().unwrap() < 15_000, "{summary:?}");
        let (summary, _) = collect(command("exec >/dev/null 2>&1; sleep 1000"), limits(1));
        assert_eq!(summary[1], "timeout");
        let (summary, text) = collect(command("yes"), Limits { total: 1000, ..limits(30) });
        assert_eq!(summary[1..3], ["cut", "1000"]);
        assert_eq!(text, "y\n".repeat(500) + CUT);
    }

    #[test]
    fn programs_and_files_that_are_not_there() {
        let missing =
            Item::Command { title: "it".into(), program: "/nonexistent/x".into(), arguments: vec![] };
        assert_eq!(collect(missing, limits(30)).0[1], "not installed");
        let missing = Item::File { path: "/nonexistent/x".into(), to: "conf/x".into() };
        assert_eq!(collect(missing, limits(30)).0[1], "does not exist");
    }
}
