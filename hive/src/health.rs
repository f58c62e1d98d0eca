//! The health of modules and of parts of them, as a tree that others read and watch.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::sync::watch;

/// How a reporter is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// It works.
    Ok,
    /// It does not work as it should; `error` says why.
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
pub struct Status {
    /// Who reports.
    pub id: HealthId,
    /// How it is doing.
    pub level: Level,
    /// What it says.
    pub message: String,
    /// Why it is degraded; empty otherwise.
    pub error: String,
    /// How often it has reported the same in a row.
    pub count: u64,
    /// When it last reported.
    pub updated: SystemTime,
    /// When it last reported to be well.
    pub last_ok: Option<SystemTime>,
    /// When it was stopped.
    pub stopped: Option<SystemTime>,
    /// How many segments of `id` are the module's path.
    pub module_segments: usize,
}

impl Status {
    /// The path with dots: `agent.ipam.job-gc`.
    pub fn path(&self) -> String {
        self.id.join(".")
    }

    /// The path of the module.
    pub fn module(&self) -> String {
        self.id[..self.module_segments.min(self.id.len())].join(".")
    }
}

/// Reporters kept at most. Beyond, those that have stopped make room; without any, new reporters are turned away.
pub(crate) const MAX_REPORTERS: usize = 4096;

/// Bytes kept of a message or an error.
const MAX_TEXT: usize = 2048;

/// The reports of all reporters of a hive. Readers take it as `Arc<HealthTree>`.
pub struct HealthTree {
    statuses: Mutex<BTreeMap<HealthId, Status>>,
    revision: watch::Sender<u64>,
}

impl HealthTree {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(HealthTree { statuses: Mutex::default(), revision: watch::channel(0).0 })
    }

    /// All reports, ordered by id.
    pub fn snapshot(&self) -> Vec<Status> {
        self.statuses.lock().values().cloned().collect()
    }

    /// The reports at `prefix` and below it, segment by segment.
    pub fn below(&self, prefix: &[Arc<str>]) -> Vec<Status> {
        let statuses = self.statuses.lock();
        let from = statuses.range(prefix.to_vec()..);
        from.take_while(|(id, _)| id.starts_with(prefix)).map(|(_, status)| status.clone()).collect()
    }

    /// The report at a path with dots.
    pub fn at(&self, path: &str) -> Option<Status> {
        self.statuses.lock().get(&segments(path)).cloned()
    }

    /// A number that grows with every change; wait with `changed()` and take another snapshot.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// True if it is not what was reported last.
    fn report(&self, health: &Health, level: Level, message: String, error: String) -> bool {
        let now = SystemTime::now();
        let mut statuses = self.statuses.lock();
        if !statuses.contains_key(&health.id) && statuses.len() >= MAX_REPORTERS {
            let gone = statuses.values().filter(|s| s.level == Level::Stopped).min_by_key(|s| s.updated);
            let Some(gone) = gone.map(|s| s.id.clone()) else {
                drop(statuses);
                tracing::warn!(reporter = health.id.join("."), "Too many health reporters, report dropped");
                return true;
            };
            statuses.remove(&gone);
        }
        let status = statuses.entry(health.id.clone()).or_insert_with(|| Status {
            id: health.id.clone(),
            level,
            message: String::new(),
            error: String::new(),
            count: 0,
            updated: now,
            last_ok: None,
            stopped: None,
            module_segments: health.module_segments,
        });
        let (message, error) = (cut(message), cut(error));
        let same =
            status.count > 0 && status.level == level && status.message == message && status.error == error;
        status.count = if same { status.count + 1 } else { 1 };
        (status.level, status.message, status.error, status.updated) = (level, message, error, now);
        match level {
            Level::Ok => (status.last_ok, status.stopped) = (Some(now), None),
            Level::Degraded => status.stopped = None,
            Level::Stopped => status.stopped = Some(now),
        }
        drop(statuses);
        self.revision.send_modify(|revision| *revision += 1);
        !same
    }

    fn remove(&self, prefix: &[Arc<str>]) {
        self.statuses.lock().retain(|id, _| !id.starts_with(prefix));
        self.revision.send_modify(|revision| *revision += 1);
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

/// A reporter. The last report is kept until the reporter is closed, also when the job behind it has ended.
#[derive(Clone)]
pub struct Health {
    tree: Arc<HealthTree>,
    id: HealthId,
    module_segments: usize,
}

impl Health {
    pub(crate) fn of_module(tree: Arc<HealthTree>, module: &str) -> Self {
        let id = segments(module);
        let module_segments = id.len();
        Health { tree, id, module_segments }
    }

    /// Reports that all is well.
    pub fn ok(&self, message: impl fmt::Display) {
        self.tree.report(self, Level::Ok, message.to_string(), String::new());
    }

    /// Reports that something is wrong.
    pub fn degraded(&self, message: impl fmt::Display, error: impl fmt::Display) {
        self.degraded_anew(message, error);
    }

    /// Reports that something is wrong; true if it is not what was reported last. Whoever tries again and again logs it
    /// then, not each time.
    pub fn degraded_anew(&self, message: impl fmt::Display, error: impl fmt::Display) -> bool {
        self.tree.report(self, Level::Degraded, message.to_string(), format!("{error:#}"))
    }

    /// Reports the end.
    pub fn stopped(&self, message: impl fmt::Display) {
        self.tree.report(self, Level::Stopped, message.to_string(), String::new());
    }

    /// A reporter below this one. Dots in the name do not make levels.
    pub fn scope(&self, name: &str) -> Health {
        let mut id = self.id.clone();
        id.push(name.into());
        Health { tree: self.tree.clone(), id, module_segments: self.module_segments }
    }

    /// Removes the reports of this reporter and of all below it.
    pub fn close(&self) {
        self.tree.remove(&self.id);
    }

    /// The path of this reporter, with dots.
    pub fn path(&self) -> String {
        self.id.join(".")
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
    fn the_last_report_stays_and_counts_repetitions() {
        let (tree, health) = health();
        let job = health.scope("job-gc");
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
        assert!(tree.at("agent.ipam.job-gc").unwrap().stopped.is_some());
    }

    #[test]
    fn closing_goes_by_segment_not_by_text() {
        let (tree, health) = health();
        for name in ["b", "bc"] {
            health.scope(name).ok("");
            health.scope(name).scope("x").ok("");
        }
        health.scope("b").close();
        let left: Vec<_> = tree.snapshot().iter().map(Status::path).collect();
        assert_eq!(left, ["agent.ipam.bc", "agent.ipam.bc.x"]);
        assert_eq!(tree.below(&segments("agent.ipam.bc")).len(), 2);
        assert_eq!(tree.below(&segments("agent.ipam.b")).len(), 0);
    }

    #[test]
    fn the_tree_is_bounded() {
        let (tree, health) = health();
        for i in 0..MAX_REPORTERS {
            health.scope(&i.to_string()).ok("");
        }
        health.scope("one-too-many").ok("");
        assert!(tree.at("agent.ipam.one-too-many").is_none());
        health.scope("7").stopped("");
        health.scope("now-there-is-room").ok("x".repeat(10 * MAX_TEXT));
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
