//! The source that reads a folder of manifests and follows its changes.

mod file;
mod follow;
mod keep;
mod last_good;
mod manifests;
mod memory;
mod outcome;
mod place;
mod report;
mod watch;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hive::Members;
use inotify::Inotify;
use memory_limit::MemoryLimit;
use state_file::Version;
use tokio::time::Instant;

use self::file::{Found, Signature};
pub(crate) use self::follow::follow;
pub(crate) use self::keep::{Keep, records};
use self::last_good::LastGood;
pub(crate) use self::manifests::Manifests;
pub(crate) use self::memory::Memory;
use self::outcome::Outcome;
pub(crate) use self::report::{Report, SourceMetrics};
use self::watch::Watch;
use crate::MAX_FILE;
use crate::in_memory_source::InMemorySource;

/// The time for which the objects of a file are kept after its removal, for editors and scripts that replace a file in
/// two steps.
const FILE_GRACE: Duration = Duration::from_millis(100);

/// The same for the whole folder.
const FOLDER_GRACE: Duration = Duration::from_secs(1);

/// The maximum number of files that are read before their contents are applied.
const FILES_AT_ONCE: usize = 16;

/// The maximum number of rounds of changes before the job yields.
const MAX_ROUNDS: usize = 8;

/// The retry interval for files that did not fit into memory or could not be read.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The format versions of the records of folders.
pub(crate) fn versions() -> Members<Version> {
    Members(vec![memory::version(), Version::of::<LastGood>()])
}

/// A folder of manifests: watches, the state of its files, and the source of their objects.
pub(crate) struct Folder {
    path: PathBuf,
    manifests: Manifests,
    shelf: InMemorySource,
    report: Report,
    memory: Memory,
    keep: Keep,
    limit: Arc<MemoryLimit>,
    watch: Option<Watch>,
    /// The resolved path of the folder.
    place: Option<PathBuf>,
    /// The signatures with which files were last read.
    known: BTreeMap<String, Option<Signature>>,
    /// Removed files, with the time at which their objects are deleted.
    leaving: BTreeMap<String, Instant>,
    /// When to retry files that did not fit into memory or could not be read: no event reports that this has changed.
    retry_at: Option<Instant>,
    /// Whether all files were read once, and whether readers were notified of that.
    complete: bool,
    completed: bool,
}

impl Folder {
    pub(crate) fn new(
        path: PathBuf,
        manifests: Manifests,
        shelf: InMemorySource,
        report: Report,
        memory: Memory,
        keep: Keep,
        limit: Arc<MemoryLimit>,
    ) -> Folder {
        Folder {
            path,
            manifests,
            shelf,
            report,
            memory,
            keep,
            limit,
            watch: None,
            place: None,
            known: BTreeMap::new(),
            leaving: BTreeMap::new(),
            retry_at: None,
            complete: false,
            completed: false,
        }
    }

    fn start(&mut self, inotify: Inotify) -> io::Result<()> {
        self.watch = Some(Watch::new(inotify));
        self.scan(true)?;
        self.report.late(None, &self.manifests);
        Ok(())
    }

    /// Scans the folder while the kernel reports no changes.
    fn scan_unwatched(&mut self, error: &io::Error) -> io::Result<()> {
        self.watch = None;
        let fault = format!("changes are noticed after a second only: {error}; see fs.inotify in sysctl");
        self.report.late(Some(&fault), &self.manifests);
        let scanned = self.scan(false);
        self.forget()?;
        scanned
    }

    /// Returns the time at which the next removed file expires, or a file has to be retried.
    fn next_deadline(&self) -> Option<Instant> {
        let leaving = self.leaving.iter().filter(|(name, _)| !self.is_written(name));
        leaving.map(|(_, &deadline)| deadline).chain(self.retry_at).min()
    }

    /// Returns the maximum size of files that are read.
    fn largest(&self) -> u64 {
        self.limit.largest_input(MAX_FILE)
    }

    fn is_written(&self, name: &str) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_written(name))
    }

    fn is_touched(&self, name: &str) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_touched(name))
    }

    /// Handles the kernel's events, also those that arrive meanwhile; if `scan` is set, scans the folder.
    fn handle(&mut self, mut scan: bool) -> io::Result<()> {
        scan |= self.retry_at.take_if(|due| *due <= Instant::now()).is_some();
        for _ in 0..MAX_ROUNDS {
            let Some(watch) = &mut self.watch else { break };
            watch.drain()?;
            if watch.is_idle() && !scan {
                break;
            }
            let todo = watch.take();
            if let Some(place) = self.place.clone() {
                // Changed files are read before a scan, which may take longer: callers may wait for them.
                let outcome = self.read(&place, todo.read.into_iter().collect())?;
                self.apply(outcome);
            }
            if scan || todo.scan || todo.all {
                self.scan(todo.all)?;
            }
            scan = false;
        }
        self.forget()
    }

    /// Deletes the objects of files that have been removed, or empty, for the grace period.
    fn forget(&mut self) -> io::Result<()> {
        let mut outcome = Outcome::default();
        let now = Instant::now();
        let due = |(name, due): &(&String, &Instant)| **due <= now && !self.is_written(name);
        let due: Vec<String> = self.leaving.iter().filter(due).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.leaving.remove(&name);
            let place = self.place.as_ref().map(|place| place.join(&name));
            let found = place.map_or(Found::Nothing, |place| file::read(&place, self.largest()));
            if let Some(watch) = &mut self.watch {
                watch.drain()?;
            }
            match found {
                // A pending event will handle it.
                _ if self.is_touched(&name) => {}
                Found::Changing => {}
                Found::Nothing => outcome.add(self.manifests.remove(&name)),
                // Truncated again since: the grace period starts over.
                Found::File(signature, Ok(content))
                    if content.is_empty() && self.known.get(&name) != Some(&signature) =>
                {
                    self.known.insert(name.clone(), signature);
                    self.leaving.insert(name, now + FILE_GRACE);
                }
                Found::File(signature, content) => self.take(&name, signature, content, &mut outcome),
            }
        }
        self.apply(outcome);
        Ok(())
    }

    /// Resolves the folder and lists its files, then reads those that have changed, or all of them if `all` is set.
    fn scan(&mut self, all: bool) -> io::Result<()> {
        let mut found = place::find(&self.path);
        if let Some(watch) = &mut self.watch {
            for _ in 0..MAX_ROUNDS {
                if !watch.place(std::mem::take(&mut found.wanted))? {
                    break;
                }
                found = place::find(&self.path);
            }
        }
        self.place = found.place.as_ref().ok().cloned();
        let mut outcome = Outcome::default();
        let names = match (found.place, found.names) {
            (Ok(place), Ok(names)) => {
                if let Some(watch) = &mut self.watch {
                    watch.drain()?;
                }
                let changed = names.iter().filter(|(name, signature)| {
                    let same = !all && signature.is_some() && self.known.get(*name) == Some(*signature);
                    !self.is_written(name) && (!same || self.leaving.contains_key(*name))
                });
                let changed = changed.map(|(name, _)| name.clone()).collect();
                outcome = self.read(&place, changed)?;
                self.memory.note(true);
                self.report.folder(None, &self.manifests);
                names.into_keys().collect()
            }
            // It may be mounted later: the objects of the previous run are kept.
            (Err(error), _)
                if error.kind() == io::ErrorKind::NotFound && !self.complete && self.memory.knows() =>
            {
                let fault = format!(
                    "{} is missing and was there in the run before: policies stay as they are; make it, empty for an \
                     empty cluster",
                    self.path.display()
                );
                self.report.folder(Some(&fault), &self.manifests);
                return Ok(());
            }
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => {
                self.memory.note(false);
                self.report.folder(None, &self.manifests);
                BTreeSet::new()
            }
            // The folder cannot be listed: nothing is deleted.
            (Err(error), _) | (_, Err(error)) => {
                let fault = format!(
                    "{} cannot be read: {error}; policies stay as they are; make it a folder that the agent may read",
                    self.path.display()
                );
                self.report.folder(Some(&fault), &self.manifests);
                self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
                return Ok(());
            }
        };
        let wait = if self.place.is_some() { FILE_GRACE } else { FOLDER_GRACE };
        let gone: Vec<String> = self
            .manifests
            .files()
            .filter(|name| !names.contains(&***name))
            .map(|name| name.to_string())
            .collect();
        for name in gone {
            self.lose(name, wait, &mut outcome);
        }
        if !self.complete {
            outcome.add(self.begin(&names));
        }
        self.complete = true;
        self.apply(outcome);
        Ok(())
    }

    /// Restores the objects of the previous run for files that exist and could not be read yet; drops the records of
    /// removed files.
    fn begin(&mut self, names: &BTreeSet<String>) -> Outcome {
        let mut outcome = Outcome::default();
        for name in self.keep.unasked() {
            match names.contains(&name) {
                true => outcome.add(self.restore(&name)),
                false => self.keep.forget(&name),
            }
        }
        outcome
    }

    /// Restores the objects of a file from the previous run, unless it was read already.
    fn restore(&mut self, name: &str) -> Outcome {
        match self.keep.before(name) {
            Some(before) => self.manifests.restore(name, &before),
            None => Outcome::default(),
        }
    }

    /// Reads files. The content of a file that was written meanwhile is discarded: it is read again when it is closed.
    fn read(&mut self, place: &Path, names: Vec<String>) -> io::Result<Outcome> {
        let mut outcome = Outcome::default();
        let largest = self.largest();
        let mut names = names.iter().peekable();
        while names.peek().is_some() {
            let (mut found, mut bytes) = (Vec::new(), 0);
            while found.len() < FILES_AT_ONCE
                && bytes < largest
                && let Some(name) = names.next()
            {
                let read = file::read(&place.join(name), largest);
                bytes += read.bytes();
                found.push((name, read));
            }
            if let Some(watch) = &mut self.watch {
                watch.drain()?;
            }
            for (name, found) in found {
                outcome.add(self.restore(name));
                match found {
                    _ if self.is_touched(name) => {}
                    Found::Changing => {}
                    Found::Nothing => self.lose(name.clone(), FILE_GRACE, &mut outcome),
                    // It may have been truncated to be rewritten: the kernel reports the close later.
                    Found::File(signature, Ok(content)) if content.is_empty() && self.manifests.has(name) => {
                        if self.known.get(name) != Some(&signature) {
                            outcome.add(self.manifests.leave(name));
                            self.leaving.insert(name.clone(), Instant::now() + FILE_GRACE);
                            self.known.insert(name.clone(), signature);
                        }
                    }
                    Found::File(signature, content) => self.take(name, signature, content, &mut outcome),
                }
            }
        }
        Ok(outcome)
    }

    /// Applies the content of a file.
    fn take(
        &mut self,
        name: &str,
        signature: Option<Signature>,
        content: Result<Vec<u8>, String>,
        outcome: &mut Outcome,
    ) {
        let before = self.known.insert(name.to_owned(), signature).flatten();
        self.leaving.remove(name);
        let grows =
            content.as_ref().is_ok_and(|content| content.len() as u64 > before.map_or(0, |s| s.size()));
        // The memory limit applies only after the first scan: until then a refused file would remove policies that were
        // in force in the previous run.
        if let (true, true, Err(full)) = (grows, self.complete, self.limit.room()) {
            self.known.remove(name);
            self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
            outcome.add(self.manifests.set(name, Err(format!("is not taken now: {full}"))));
            return;
        }
        if signature.is_none() {
            self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
        }
        outcome.add(self.manifests.set(name, content.as_deref().map_err(Clone::clone)));
    }

    fn lose(&mut self, name: String, wait: Duration, outcome: &mut Outcome) {
        self.known.remove(&name);
        if self.manifests.has(&name) && !self.leaving.contains_key(&name) {
            outcome.add(self.manifests.leave(&name));
            self.leaving.insert(name, Instant::now() + wait);
        }
    }

    fn apply(&mut self, outcome: Outcome) {
        if outcome.is_empty() && self.complete == self.completed {
            return;
        }
        self.completed = self.complete;
        self.shelf.write(outcome.changes, self.complete);
        self.report.files(outcome.rows, outcome.gone, &self.manifests);
        for (name, good) in outcome.good {
            self.keep.note(&name, good, self.manifests.accepted());
        }
    }
}
