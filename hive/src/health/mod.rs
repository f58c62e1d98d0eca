//! The health of modules and of their parts, as a tree that other cells read and watch.

mod history;
mod summary;

pub use summary::{SHOWN, summarize};

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::lifecycle::panic_text;
use history::History;

/// The state of a reporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// It works.
    Ok,
    /// It does not work as it should; `error` is the reason.
    Degraded,
    /// It has ended and will report no more.
    Stopped,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Ok => "OK",
            Level::Degraded => "Degraded",
            Level::Stopped => "Stopped",
        })
    }
}

/// The path of a reporter: the segments of its module's path, then its scopes.
pub type HealthId = Vec<Arc<str>>;

/// The latest report of one reporter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The path of the reporter.
    pub id: HealthId,
    /// The state.
    pub level: Level,
    /// The message; of a stopped reporter, the message before the stop.
    pub message: String,
    /// The final message of a stopped reporter; empty otherwise.
    pub last_word: String,
    /// Why it is degraded; empty otherwise.
    pub error: String,
    /// The number of consecutive equal reports.
    pub count: u64,
    /// When it last reported.
    pub updated: SystemTime,
    /// When it last reported success.
    pub last_ok: Option<SystemTime>,
    /// When it was stopped.
    pub stopped: Option<SystemTime>,
    /// The number of segments of `id` that are the module's path.
    pub module_segments: usize,
}

impl Status {
    /// Returns a status without a report; the first `module_segments` of the path are that of the module.
    pub fn new(id: HealthId, module_segments: usize, level: Level, updated: SystemTime) -> Self {
        Status {
            id,
            level,
            message: String::new(),
            last_word: String::new(),
            error: String::new(),
            count: 0,
            updated,
            last_ok: None,
            stopped: None,
            module_segments,
        }
    }

    /// Returns the path with dots: `agent.ipam.job-gc`.
    pub fn path(&self) -> String {
        self.id.join(".")
    }

    /// Returns the path of the module.
    pub fn module(&self) -> String {
        self.id[..self.module_segments.min(self.id.len())].join(".")
    }

    /// Returns the name of the job that reports itself or by one of its parts, without the kind: `gc` for
    /// `agent.ipam.timer-job-gc`. `None` for a reporter that is no job's.
    pub fn job(&self) -> Option<&str> {
        let scopes = &self.id[self.module_segments.min(self.id.len())..];
        let prefixes = ["job-", "timer-job-", "observer-job-"];
        scopes.iter().find_map(|scope| prefixes.iter().find_map(|prefix| scope.strip_prefix(prefix)))
    }
}

/// The maximum number of reporters. At the limit, stopped ones are evicted; if there are none, new reporters are
/// refused.
pub(crate) const MAX_REPORTERS: usize = 4096;

/// The maximum length of a message or an error, in bytes.
const MAX_TEXT: usize = 2048;

/// A change of a health tree.
#[derive(Clone, Copy, Debug)]
pub enum HealthChange<'a> {
    /// A reporter has reported.
    Report(&'a Status),
    /// A reporter was closed; this was its last report.
    Closed(&'a Status),
}

type Mirror = Box<dyn Fn(HealthChange<'_>) + Send + Sync>;

/// The reports of all reporters of a hive. Readers take it as `Arc<HealthTree>`.
///
/// Besides the latest report of each it keeps a history: a line for each new failure, for each reporter that stops or
/// is closed, and for each [note](HealthTree::note); the last 1,000 lines.
pub struct HealthTree {
    inner: Mutex<Inner>,
    revision: watch::Sender<u64>,
}

struct Inner {
    statuses: BTreeMap<HealthId, Status>,
    history: History,
    mirrors: Vec<Mirror>,
    clock: fn() -> SystemTime,
}

/// Calls the mirrors, under the lock of the tree: so they see all changes in order, and must not report health.
fn notify(mirrors: &[Mirror], change: HealthChange<'_>) {
    for mirror in mirrors {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| mirror(change))) {
            tracing::error!(error = panic_text(&*panic), "A mirror of health panicked");
        }
    }
}

impl HealthTree {
    pub(crate) fn new() -> Arc<Self> {
        let inner = Inner {
            statuses: BTreeMap::new(),
            history: History::default(),
            mirrors: Vec::new(),
            clock: SystemTime::now,
        };
        Arc::new(HealthTree { inner: Mutex::new(inner), revision: watch::channel(0).0 })
    }

    /// Calls a function with each existing report, and from then on with each change, in order. It must neither block
    /// nor report health.
    pub fn mirror(&self, mirror: impl Fn(HealthChange<'_>) + Send + Sync + 'static) {
        let mut inner = self.inner.lock();
        for status in inner.statuses.values() {
            mirror(HealthChange::Report(status));
        }
        inner.mirrors.push(Box::new(mirror));
    }

    /// Returns the lines of the history, the oldest first: `TIME | Degraded         | agent.ipam: MESSAGE | ERROR`,
    /// with `Stopped` and `Closed(LEVEL)` in the place of the level.
    pub fn history(&self) -> Vec<String> {
        self.inner.lock().history.all()
    }

    /// Returns the lines of the history from sequence number `from` on, and the next sequence number.
    pub fn history_from(&self, from: u64) -> (Vec<String>, u64) {
        self.inner.lock().history.from(from)
    }

    /// Prepends lines of the previous run to the history; returns the sequence number of the first line of this run.
    pub fn restore_history(&self, lines: Vec<String>) -> u64 {
        self.inner.lock().history.restore(lines.into_iter())
    }

    /// Adds a line to the history: `TIME | WHAT | TEXT`.
    pub fn note(&self, what: &str, text: &str) {
        let mut inner = self.inner.lock();
        let line = history::note((inner.clock)(), what, text);
        inner.history.push(line);
        drop(inner);
        self.revision.send_modify(|revision| *revision += 1);
    }

    /// Replaces the clock, for tests that compare times.
    pub fn set_clock(&self, clock: fn() -> SystemTime) {
        self.inner.lock().clock = clock;
    }

    /// Returns all reports, ordered by id.
    pub fn snapshot(&self) -> Vec<Status> {
        self.inner.lock().statuses.values().cloned().collect()
    }

    /// Returns the reports at `prefix` and below it, compared by whole segments.
    pub fn below(&self, prefix: &[Arc<str>]) -> Vec<Status> {
        let inner = self.inner.lock();
        let from = inner.statuses.range(prefix.to_vec()..);
        from.take_while(|(id, _)| id.starts_with(prefix)).map(|(_, status)| status.clone()).collect()
    }

    /// Returns the report at a path with dots.
    pub fn at(&self, path: &str) -> Option<Status> {
        self.inner.lock().statuses.get(&segments(path)).cloned()
    }

    /// Returns a counter that grows with every change; wait with `changed()` and take another snapshot.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Stores a report; returns true if it differs from the last one.
    fn report(&self, health: &Health, level: Level, message: String, error: String) -> bool {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let now = (inner.clock)();
        let Inner { statuses, history, mirrors, .. } = inner;
        let is_known = statuses.contains_key(&health.id);
        if !is_known && statuses.len() >= MAX_REPORTERS {
            let stopped = statuses.values().filter(|s| s.level == Level::Stopped);
            let Some(gone) = stopped.min_by_key(|s| s.updated).map(|s| s.id.clone()) else {
                drop(guard);
                tracing::warn!(reporter = health.id.join("."), "Too many health reporters, report dropped");
                return true;
            };
            let gone = statuses.remove(&gone);
            gone.iter().for_each(|status| notify(mirrors, HealthChange::Closed(status)));
        }
        if !is_known {
            statuses.insert(
                health.id.clone(),
                Status::new(health.id.clone(), health.module_segments, level, now),
            );
        }
        let Some(status) = statuses.get_mut(&health.id) else { return true };
        let new = status.report(level, cut(message), cut(error), now);
        if new && level != Level::Ok {
            let message = if level == Level::Stopped { &status.last_word } else { &status.message };
            history.push(history::line_of(now, format_args!("{level}"), status, message));
        }
        notify(mirrors, HealthChange::Report(status));
        drop(guard);
        self.revision.send_modify(|revision| *revision += 1);
        new
    }

    fn remove(&self, prefix: &[Arc<str>]) {
        let mut inner = self.inner.lock();
        let now = (inner.clock)();
        let below = inner.statuses.range(prefix.to_vec()..).take_while(|(id, _)| id.starts_with(prefix));
        let below: Vec<HealthId> = below.map(|(id, _)| id.clone()).collect();
        for status in below.iter().filter_map(|id| inner.statuses.remove(id)).collect::<Vec<_>>() {
            let what = format_args!("Closed({})", status.level);
            let line = history::line_of(now, what, &status, &status.message);
            inner.history.push(line);
            notify(&inner.mirrors, HealthChange::Closed(&status));
        }
        drop(inner);
        self.revision.send_modify(|revision| *revision += 1);
    }
}

impl Status {
    /// Stores a report; returns true if it differs from the last one.
    fn report(&mut self, level: Level, message: String, error: String, now: SystemTime) -> bool {
        let last = if level == Level::Stopped { &self.last_word } else { &self.message };
        let same = self.count > 0 && self.level == level && *last == message && self.error == error;
        self.count = if same { self.count + 1 } else { 1 };
        (self.level, self.error, self.updated) = (level, error, now);
        match level {
            Level::Stopped => (self.last_word, self.stopped) = (message, Some(now)),
            Level::Ok | Level::Degraded => {
                (self.message, self.last_word, self.stopped) = (message, String::new(), None);
            }
        }
        if level == Level::Ok {
            self.last_ok = Some(now);
        }
        !same
    }
}

fn segments(path: &str) -> HealthId {
    path.split('.').filter(|s| !s.is_empty()).map(Arc::from).collect()
}

fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
    text
}

/// A reporter. The last report is kept until the reporter is closed, even after the job behind it has ended.
#[derive(Clone)]
pub struct Health {
    tree: Arc<HealthTree>,
    id: HealthId,
    module_segments: usize,
    /// Whether it has reported since this was last read; clones share it.
    heard: Arc<AtomicBool>,
}

impl Health {
    pub(crate) fn of_module(tree: Arc<HealthTree>, module: &str) -> Self {
        let id = segments(module);
        let module_segments = id.len();
        Health { tree, id, module_segments, heard: Arc::default() }
    }

    /// Reports success.
    pub fn ok(&self, message: impl fmt::Display) {
        self.report(Level::Ok, message.to_string(), String::new());
    }

    /// Reports a failure.
    pub fn degraded(&self, message: impl fmt::Display, error: impl fmt::Display) {
        self.degraded_anew(message, error);
    }

    /// Reports an error; returns true if it differs from the last report. A caller that retries logs it only then, not
    /// at each attempt.
    pub fn degraded_anew(&self, message: impl fmt::Display, error: impl fmt::Display) -> bool {
        self.report(Level::Degraded, message.to_string(), format!("{error:#}"))
    }

    /// Reports the end. The previous message stays; this one is the final message.
    pub fn stopped(&self, last_word: impl fmt::Display) {
        self.report(Level::Stopped, last_word.to_string(), String::new());
    }

    fn report(&self, level: Level, message: String, error: String) -> bool {
        self.heard.store(true, Ordering::Relaxed);
        self.tree.report(self, level, message, error)
    }

    /// Whether both are handles to the same reporter.
    pub(crate) fn is_same(&self, other: &Health) -> bool {
        self.id == other.id
    }

    /// Whether it has reported since this was last called.
    pub(crate) fn heard(&self) -> bool {
        self.heard.swap(false, Ordering::Relaxed)
    }

    /// Returns the last reported state.
    pub(crate) fn level(&self) -> Option<Level> {
        self.tree.inner.lock().statuses.get(&self.id).map(|status| status.level)
    }

    /// Reports a successful end.
    pub(crate) fn finished(&self, message: impl fmt::Display) {
        let message = message.to_string();
        self.ok(&message);
        self.stopped(message);
    }

    /// Returns a reporter below this one. Dots in the name do not create levels.
    pub fn child(&self, name: &str) -> Health {
        let mut id = self.id.clone();
        id.push(name.into());
        Health { tree: self.tree.clone(), id, module_segments: self.module_segments, heard: Arc::default() }
    }

    /// Removes the reports of this reporter and of all below it.
    pub fn close(&self) {
        self.tree.remove(&self.id);
    }

    /// Returns the reports of this reporter and of all below it.
    pub(crate) fn reports(&self) -> Vec<Status> {
        self.tree.below(&self.id)
    }

    /// Returns the path of this reporter, with dots.
    pub fn path(&self) -> String {
        self.id.join(".")
    }

    /// Returns the path of its module.
    pub fn module(&self) -> String {
        self.id[..self.module_segments.min(self.id.len())].join(".")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> (Arc<HealthTree>, Health) {
        let tree = HealthTree::new();
        (tree.clone(), Health::of_module(tree, "agent.ipam"))
    }

    #[test]
    fn the_last_report_is_kept_and_counts_repetitions() {
        let (tree, health) = health();
        let job = health.child("job-gc");
        job.ok("Running");
        job.ok("Running");
        let status = tree.at("agent.ipam.job-gc").unwrap();
        assert_eq!((status.level, status.count, status.module().as_str()), (Level::Ok, 2, "agent.ipam"));
        assert!(job.degraded_anew("Failed", "no route to host"));
        let status = tree.at("agent.ipam.job-gc").unwrap();
        assert_eq!(
            (status.level, status.count, status.error.as_str()),
            (Level::Degraded, 1, "no route to host")
        );
        assert!(status.last_ok.is_some());
        assert!(!job.degraded_anew("Failed", "no route to host"));
        assert!(job.degraded_anew("Failed", "no buffer space"));
        job.stopped("Finished");
        let status = tree.at("agent.ipam.job-gc").unwrap();
        assert!(status.stopped.is_some());
        assert_eq!((status.message.as_str(), status.last_word.as_str()), ("Failed", "Finished"));
    }

    #[test]
    fn reports_of_jobs_and_their_parts_name_the_job() {
        let (tree, health) = health();
        for (path, job) in
            [("timer-job-gc", Some("gc")), ("job-server", Some("server")), ("jobs", None), ("pool", None)]
        {
            health.child(path).ok("up");
            assert_eq!(tree.at(&format!("agent.ipam.{path}")).unwrap().job(), job);
        }
        health.child("observer-job-nodes").child("a").ok("up");
        assert_eq!(tree.at("agent.ipam.observer-job-nodes.a").unwrap().job(), Some("nodes"));
    }

    #[test]
    fn history_contains_failures_and_ends() {
        let (tree, health) = health();
        tree.set_clock(|| SystemTime::UNIX_EPOCH);
        health.child("good").ok("up");
        let bad = health.child("bad");
        bad.degraded("no room", "ENOSPC");
        bad.degraded("no room", "ENOSPC");
        bad.stopped("gave up");
        health.child("good").close();
        tree.note("Started", "1.0");
        let lines: Vec<String> =
            tree.history().iter().map(|line| line.replace("1970-01-01T00:00:00Z", "T")).collect();
        assert_eq!(
            lines,
            [
                "T | Degraded         | agent.ipam.bad: no room | ENOSPC",
                "T | Stopped          | agent.ipam.bad: gave up",
                "T | Closed(OK)       | agent.ipam.good: up",
                "T | Started | 1.0",
            ]
        );
        assert_eq!(tree.history_from(3).0.len(), 1);
    }

    #[test]
    fn a_mirror_sees_existing_reports_and_each_change() {
        let (tree, health) = health();
        health.child("a").ok("up");
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = seen.clone();
        tree.mirror(move |change| {
            sink.lock().push(match change {
                HealthChange::Report(status) => format!("{} {}", status.path(), status.message),
                HealthChange::Closed(status) => format!("{} closed", status.path()),
            });
        });
        health.child("b").ok("up");
        health.close();
        let expected = ["agent.ipam.a up", "agent.ipam.b up", "agent.ipam.a closed", "agent.ipam.b closed"];
        assert_eq!(*seen.lock(), expected);
    }

    #[test]
    fn closing_compares_segments_not_text() {
        let (tree, health) = health();
        for name in ["b", "bc"] {
            health.child(name).ok("");
            health.child(name).child("x").ok("");
        }
        health.child("b").close();
        let left: Vec<_> = tree.snapshot().iter().map(Status::path).collect();
        assert_eq!(left, ["agent.ipam.bc", "agent.ipam.bc.x"]);
        assert_eq!(tree.below(&segments("agent.ipam.bc")).len(), 2);
        assert_eq!(tree.below(&segments("agent.ipam.b")).len(), 0);
    }

    #[test]
    fn the_tree_is_bounded() {
        let (tree, health) = health();
        for i in 0..MAX_REPORTERS {
            health.child(&i.to_string()).ok("");
        }
        health.child("one-too-many").ok("");
        assert!(tree.at("agent.ipam.one-too-many").is_none());
        health.child("7").stopped("");
        health.child("now-there-is-room").ok("x".repeat(10 * MAX_TEXT));
        let status = tree.at("agent.ipam.now-there-is-room").unwrap();
        assert_eq!(status.message.len(), MAX_TEXT);
        assert!(tree.at("agent.ipam.7").is_none());
        assert_eq!(tree.snapshot().len(), MAX_REPORTERS);
    }

    #[tokio::test]
    async fn changes_can_be_awaited() {
        let (tree, health) = health();
        let mut watch = tree.watch();
        health.ok("up");
        watch.changed().await.unwrap();
        assert_eq!(tree.snapshot().len(), 1);
    }
}
