//! The job: follows events and the file of dynamic exporters; files are written on a thread for blocking work.

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use file_watch::FileWatch;
use futures::future::{Either, OptionFuture};
use hive::JobCx;
use hubble::{Event, Follower};
use local_node::LocalNode;
use statedb::{Db, Table};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use crate::exporter::{Exporter, Moment, STDOUT};
use crate::file::Cleanup;
use crate::metrics::DynamicMetrics;
use crate::set::Exporters;
use crate::spec::{BadFile, Spec, flow_logs};

/// The maximum number of events of one write.
const BATCH: usize = 512;

/// The interval at which the file is read without a notification: network file systems have none.
const READ_INTERVAL: Duration = Duration::from_secs(5);

/// The maximum size of the file.
const MAX_FILE: u64 = 1 << 20;

/// The job.
pub(crate) struct Job {
    pub(crate) follower: Follower,
    pub(crate) exporter: Option<Exporter>,
    pub(crate) file: Option<(PathBuf, DynamicMetrics)>,
    pub(crate) db: Arc<Db>,
    pub(crate) node: Table<LocalNode>,
}

/// The exporters, which move to the thread that writes and back.
#[derive(Default)]
struct Work {
    /// That of the options.
    fixed: Option<Exporter>,
    dynamic: Exporters,
}

impl Work {
    fn write(&mut self, events: &[Event], lost: u64, moment: &Moment) -> Vec<(String, io::Error)> {
        let mut errors = self.dynamic.write(events, lost, moment);
        let fixed = self.fixed.as_mut();
        let error = fixed.and_then(|fixed| fixed.write(events, lost, moment).err());
        errors.extend(error.map(|error| ("options".to_owned(), error)));
        errors
    }

    fn due(&self) -> Option<Instant> {
        let fixed = self.fixed.as_ref().and_then(Exporter::due);
        fixed.into_iter().chain(self.dynamic.due()).min()
    }

    fn take_cleanup(&mut self) -> Option<Cleanup> {
        let fixed = self.fixed.as_mut().and_then(Exporter::take_cleanup);
        fixed.or_else(|| self.dynamic.take_cleanup())
    }

    fn finish(&mut self, moment: &Moment) {
        if let Some(Err(error)) = self.fixed.as_mut().map(|fixed| fixed.finish(moment)) {
            tracing::warn!(%error, "The last flows of the exporter are not written");
        }
        self.dynamic.finish(moment);
    }
}

/// The file of dynamic exporters, as it was read last.
struct Config {
    path: PathBuf,
    metrics: DynamicMetrics,
    content: Option<Vec<u8>>,
    watch: Option<FileWatch>,
    reads: Interval,
}

impl Config {
    fn new((path, metrics): (PathBuf, DynamicMetrics)) -> Self {
        let watch = FileWatch::new().inspect_err(|error| {
            tracing::warn!(%error, "Changes of hubble-flowlogs-config-path are read every 5 s only");
        });
        let mut reads = interval(READ_INTERVAL);
        reads.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { path, metrics, content: None, watch: watch.ok(), reads }
    }

    /// Waits until the file is to be read: at once for the first time.
    async fn changed(&mut self) {
        let changed = match &mut self.watch {
            Some(watch) => Either::Left(watch.changed()),
            None => Either::Right(std::future::pending()),
        };
        tokio::select! {
            _ = self.reads.tick() => {}
            changed = changed => if changed.is_err() {
                self.watch = None;
            },
        }
    }

    /// Reads the file and replaces the exporters if it has changed.
    async fn apply(&mut self, work: &mut Work, moment: &Moment) -> Result<(), BadFile> {
        // Before it is read: a change after this is reported.
        if let Some(Err(_)) = self.watch.as_mut().map(|watch| watch.follow(&self.path)) {
            self.watch = None;
        }
        let path = self.path.clone();
        let content = hive::blocking(move || read(&path)).await;
        let content = content.map_err(|error| BadFile::Unreadable(error.to_string()))?;
        if self.content.as_ref() == Some(&content) {
            self.metrics.read_again(moment.time);
            return Ok(());
        }
        let text = std::str::from_utf8(&content).map_err(|error| BadFile::Unreadable(error.to_string()))?;
        let specs = flow_logs(text)?;
        if let Some(fixed) = &work.fixed {
            check_files(fixed.spec(), &specs)?;
        }
        let (mut dynamic, moment) = (std::mem::take(&mut work.dynamic), moment.clone());
        let time = moment.time;
        // The end of an exporter writes its file.
        let replaced = hive::blocking(move || (dynamic.replace(specs, &moment), dynamic)).await;
        work.dynamic = replaced.1;
        let changes = replaced.0?;
        self.metrics.applied(&content, changes, time);
        tracing::info!(
            added = changes.added,
            updated = changes.updated,
            removed = changes.removed,
            "Exporters of flows read"
        );
        self.content = Some(content);
        Ok(())
    }
}

/// Refuses exporters with the file of the options' exporter: each would rotate it under the other.
fn check_files(fixed: &Spec, specs: &[Spec]) -> Result<(), BadFile> {
    let file = |spec: &Spec| (spec.path != STDOUT).then(|| PathBuf::from(&spec.path));
    match specs.iter().position(|spec| file(spec).is_some() && file(spec) == file(fixed)) {
        Some(at) => Err(BadFile::Value {
            path: format!("flowLogs[{at}].filePath"),
            problem: format!("{:?} is the file of hubble-export-file-path: give another one", fixed.path),
        }),
        None => Ok(()),
    }
}

fn read(path: &PathBuf) -> io::Result<Vec<u8>> {
    let size = std::fs::metadata(path)?.len();
    if size > MAX_FILE {
        let text = format!("the file has {size} bytes, more than {MAX_FILE}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    std::fs::read(path)
}

impl Job {
    fn moment(&self) -> Moment {
        let node = self.node.get(&self.db.snapshot(), LocalNode::query()).map(|node| node.name.clone());
        Moment::now(node.unwrap_or_default())
    }

    /// Exports events until the job ends.
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        let mut work = Work { fixed: self.exporter.take(), dynamic: Exporters::default() };
        let mut config = self.file.take().map(Config::new);
        let (mut events, mut refused) = (Vec::new(), None);
        // One at a time: two of the same file would disturb each other.
        let mut cleanup = pin!(OptionFuture::from(None));
        let mut is_cleaning = false;
        report(&cx, &work, None, &[]);
        loop {
            let due = work.due();
            let mut lost = 0;
            let mut is_changed = false;
            tokio::select! {
                () = cx.cancelled() => break,
                missed = self.follower.read(&mut events, BATCH) => lost = missed,
                () = async { config.as_mut().expect("checked").changed().await }, if config.is_some() => is_changed = true,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                result = &mut cleanup, if is_cleaning => {
                    is_cleaning = false;
                    if let Some(Err(error)) = result {
                        tracing::warn!(%error, "Old files of an exporter are not compressed or deleted");
                    }
                    continue;
                }
            }
            let _working = cx.working();
            let moment = self.moment();
            if let Some(config) = config.as_mut().filter(|_| is_changed) {
                let error = config.apply(&mut work, &moment).await.err();
                if let Some(error) = error.as_ref().filter(|error| refused.as_ref() != Some(*error)) {
                    tracing::warn!(file = %config.path.display(), %error, "Exporters of flows refused; those before stay");
                    config.metrics.failed();
                }
                config.metrics.count(&work.dynamic, moment.time);
                refused = error;
            }
            let batch = std::mem::take(&mut events);
            let written = hive::blocking(move || {
                let errors = work.write(&batch, lost, &moment);
                (work, errors)
            });
            let (back, errors) = written.await;
            work = back;
            report(&cx, &work, refused.as_ref(), &errors);
            if !is_cleaning && let Some(task) = work.take_cleanup() {
                cleanup.set(Some(hive::blocking(move || task.run())).into());
                is_cleaning = true;
            }
        }
        let moment = self.moment();
        hive::blocking(move || work.finish(&moment)).await;
        if is_cleaning {
            cleanup.await;
        }
        Ok(())
    }
}

/// Reports the state of exporters in health.
fn report(cx: &JobCx, work: &Work, refused: Option<&BadFile>, errors: &[(String, io::Error)]) {
    if let Some((name, error)) = errors.first() {
        cx.health.degraded(format_args!("Exporter {name} cannot write its file"), error);
    } else if let Some(refused) = refused {
        cx.health.degraded("hubble-flowlogs-config-path is refused, exporters before it stay", refused);
    } else {
        let count = work.dynamic.iter().count() + usize::from(work.fixed.is_some());
        cx.health.ok(format_args!("{count} exporters"));
    }
}
