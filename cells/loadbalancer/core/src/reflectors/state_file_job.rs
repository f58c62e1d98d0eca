//! The job that follows the state file: reads it when it has changed and was then unchanged for a while.

use hive::health::{SHOWN, summarize};
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use file_watch::FileWatch;
use hive::prelude::*;
use tokio::time::sleep;

use crate::model::error::Refused;
use crate::model::families::Families;
use crate::model::source::Source;
use crate::reflectors::state_file::{self, Loaded, StateFileError};
use crate::writer::freed::freed;
use crate::writer::services_writer::{Initializers, ServicesWriter};

/// The interval of retries for a file that cannot be read.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The minimum interval between reads if the kernel does not report changes.
const UNWATCHED: Duration = Duration::from_secs(1);

/// The maximum number of fields without effect in a health report.
const MAX_REPORTED_FIELDS: usize = 8;

/// A state file to follow.
pub(crate) struct StateFile {
    pub(crate) path: PathBuf,
    pub(crate) interval: Duration,
    pub(crate) families: Families,
    /// The maximum size of the file, in bytes.
    pub(crate) largest: u64,
    pub(crate) writer: ServicesWriter,
    /// Held until the file was read: before that nothing in the kernel is stale.
    pub(crate) initializers: Option<Initializers>,
    /// Refused services of the file.
    pub(crate) refused: Vec<Refused>,
    /// Whether health reports fields without effect.
    pub(crate) has_invalid_fields: bool,
}

impl StateFile {
    /// Follows the file until the agent stops.
    pub(crate) async fn follow(mut self, cx: JobCx) -> anyhow::Result<()> {
        let endless = async {
            loop {
                let Err(unwatched) = self.follow_watched(&cx.health).await;
                self.load(&cx.health).await;
                cx.health.degraded("Changes of the state file are not reported, it is polled", unwatched);
                sleep(self.interval.max(UNWATCHED)).await;
            }
        };
        cx.token().run_until_cancelled(endless).await;
        Ok(())
    }

    /// Follows the file until the kernel cannot report changes any more.
    async fn follow_watched(&mut self, health: &Health) -> io::Result<Infallible> {
        let mut watch = FileWatch::new()?.with_writes();
        watch.follow(&self.path)?;
        // The watch is created before the file is read, so that no change is missed.
        let mut due = self.load(health).await;
        loop {
            tokio::select! {
                changed = watch.changed() => {
                    changed?;
                    watch.follow(&self.path)?;
                    due = Some(self.interval);
                }
                () = sleep(due.unwrap_or_default()), if due.is_some() => due = self.load(health).await,
                () = freed(&self.refused, &self.writer), if !self.refused.is_empty() => due = self.load(health).await,
            }
        }
    }

    /// Reports fields without effect, as long as the file has any.
    fn report_invalid_fields(&mut self, health: &Health, fields: &[String]) {
        let row = health.child("passed-over");
        if fields.is_empty() {
            if std::mem::take(&mut self.has_invalid_fields) {
                row.close();
            }
            return;
        }
        self.has_invalid_fields = true;
        let message = format!("{} field(s) of the state file are passed over", fields.len());
        let error = summarize(fields, MAX_REPORTED_FIELDS, "\n");
        if row.degraded_anew(message, &error) {
            tracing::warn!(path = %self.path.display(), error, "Fields of the state file are passed over");
        }
    }

    /// Reads the file and replaces its rows in the tables. A removed or invalid file changes nothing. Returns the delay
    /// of the next attempt, if no event will trigger it.
    async fn load(&mut self, health: &Health) -> Option<Duration> {
        let (path, families, writer) = (self.path.clone(), self.families, self.writer.clone());
        let largest = self.largest;
        self.refused.clear();
        // Reading a large file would block other tasks.
        let read = hive::blocking(move || {
            let Loaded { state, invalid_fields } = state_file::load(&path, families, largest)?;
            let counts = (state.services.len(), state.backends.len());
            Ok((counts, invalid_fields, writer.replace(Source::Api, state)))
        });
        let first = self.initializers.is_some();
        match read.await {
            Ok(((services, backends), invalid_fields, refused)) => {
                self.report_invalid_fields(health, &invalid_fields);
                let message = format!("{services} services and {backends} backends");
                if refused.is_empty() {
                    tracing::info!(path = %self.path.display(), services, backends, "Loaded the state file");
                    health.ok(message);
                } else {
                    let error = summarize(&refused, SHOWN, "\n");
                    tracing::error!(path = %self.path.display(), error, "Services of the state file are refused");
                    health.degraded("Failure processing services", error);
                }
                self.refused = refused;
            }
            Err(error @ StateFileError::Missing(_)) => {
                let trouble = match first {
                    true => "No state file",
                    false => {
                        "The state file is gone, the services stay as they were; an empty one is for none"
                    }
                };
                if health.degraded_anew(trouble, &error) {
                    tracing::error!(%error, "{trouble}");
                }
                if !first {
                    return None;
                }
            }
            // Its entries of the previous run stay in the kernel until the file is valid.
            Err(error) => {
                if health.degraded_anew("The state file is refused, the services stay as they were", &error) {
                    tracing::error!(%error, "The state file is refused");
                }
                // The recovery of a disk causes no event.
                return matches!(error, StateFileError::Unreadable { .. }).then_some(RETRY_INTERVAL);
            }
        }
        if let Some(initializers) = self.initializers.take() {
            self.writer.complete(initializers);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::model::frontend::Frontend;
    use crate::tests::writer;

    const ONE: &str =
        "services: [{metadata: {name: one}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}]\n";
    const TWO: &str =
        "services: [{metadata: {name: two}, spec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}}]\n";

    /// Returns a hive that follows a file, and the writer whose tables it fills.
    async fn following(path: &Path) -> (TestHive, ServicesWriter) {
        following_after(path, Duration::from_millis(30)).await
    }

    async fn following_after(path: &Path, interval: Duration) -> (TestHive, ServicesWriter) {
        let writer = writer();
        let (path, of_hive) = (path.to_owned(), writer.clone());
        let mut hive = TestHive::new([module(
            "file-reflector",
            "A state file",
            [invoke(move |jobs: JobGroup| {
                let file = StateFile {
                    path: path.clone(),
                    interval,
                    families: Families { v4: true, v6: true },
                    largest: k8s_tables::MAX_FILE,
                    initializers: Some(of_hive.register("state-file")),
                    refused: Vec::new(),
                    has_invalid_fields: false,
                    writer: of_hive.clone(),
                };
                jobs.one_shot("follow", move |cx: JobCx| file.follow(cx)).add();
            })],
        )]);
        hive.start().await;
        (hive, writer)
    }

    async fn has(writer: &ServicesWriter, address: &str) {
        let address = address.parse().unwrap();
        let frontends = writer.frontends();
        let found = frontends.wait_for(Frontend::by_address(&address), |_| true);
        tokio::time::timeout(Duration::from_secs(5), found).await.expect("the file was read");
    }

    async fn settled() {
        tokio::time::sleep(Duration::from_millis(150)).await;
    }

    fn names(writer: &ServicesWriter) -> Vec<String> {
        let services = writer.services();
        services.all(&services.snapshot()).map(|service| service.name.to_string()).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_path_that_is_no_file_is_refused_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lb.yaml");
        std::fs::write(&path, ONE).unwrap();
        let (mut hive, writer) = following(&path).await;
        has(&writer, "10.96.0.1:80/TCP").await;

        // No process ever writes into the pipe.
        std::fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        settled().await;
        assert_eq!(names(&writer), ["default/one"]);
        let error = state_file::read(&path, Families { v4: true, v6: true }, k8s_tables::MAX_FILE)
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("is no regular file; put a file in its place"), "{error}");

        let draft = folder.path().join("other.yaml");
        std::fs::write(&draft, TWO).unwrap();
        std::fs::rename(&draft, &path).unwrap();
        has(&writer, "10.96.0.2:80/TCP").await;
        hive.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_is_followed_through_rewrites_renames_and_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lb.yaml");
        std::fs::write(&path, ONE).unwrap();
        let (mut hive, writer) = following(&path).await;
        has(&writer, "10.96.0.1:80/TCP").await;
        writer.services().wait_initialized().await;

        std::fs::write(&path, "services: [oops\n").unwrap();
        std::fs::write(folder.path().join("other.yaml"), TWO).unwrap();
        let row = |hive: &TestHive| hive.health("file-reflector.job-follow");
        hive.until("an invalid file to be reported", || row(&hive).level == Level::Degraded).await;
        assert_eq!(row(&hive).message, "The state file is refused, the services stay as they were");
        assert!(row(&hive).error.contains("lb.yaml: document 1, line 2: "));
        assert_eq!(names(&writer), ["default/one"]);

        std::fs::rename(folder.path().join("other.yaml"), &path).unwrap();
        has(&writer, "10.96.0.2:80/TCP").await;
        assert_eq!(names(&writer), ["default/two"]);
        hive.until("all to be well", || row(&hive).level == Level::Ok).await;

        std::fs::remove_file(&path).unwrap();
        settled().await;
        assert_eq!(names(&writer), ["default/two"]);

        std::fs::write(&path, "").unwrap();
        hive.until("an empty file to empty the tables", || names(&writer).is_empty()).await;
        hive.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_refused_service_is_accepted_once_its_address_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lb.yaml");
        std::fs::write(&path, "").unwrap();
        let (mut hive, writer) = following(&path).await;
        writer.services().wait_initialized().await;
        let holder = crate::ServiceName::new("ns", "holder");
        let frontend = crate::FrontendParams {
            address: "10.96.0.1:80/TCP".parse().unwrap(),
            kind: crate::FrontendType::LocalRedirect,
            port_name: "".into(),
            service_port: 80,
        };
        let mut txn = writer.write();
        txn.upsert_service(crate::Service::new(holder.clone(), Source::Local), vec![frontend]).unwrap();
        txn.commit();
        std::fs::write(&path, ONE).unwrap();
        let row = |hive: &TestHive| hive.health("file-reflector.job-follow");
        hive.until("the refusal to be reported", || row(&hive).level == Level::Degraded).await;
        assert_eq!(names(&writer), ["ns/holder"]);
        let mut txn = writer.write();
        txn.delete_service(&holder);
        txn.commit();
        hive.until("the service to be taken", || names(&writer) == ["default/one"]).await;
        hive.until("all to be well", || row(&hive).level == Level::Ok).await;
        hive.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_missing_file_is_empty_until_it_appears() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later/lb.yaml");
        let (mut hive, writer) = following(&path).await;
        writer.services().wait_initialized().await;
        assert_eq!(names(&writer), [] as [String; 0]);
        std::fs::create_dir(folder.path().join("later")).unwrap();
        std::fs::write(&path, ONE).unwrap();
        has(&writer, "10.96.0.1:80/TCP").await;
        hive.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tables_stay_incomplete_while_the_file_is_invalid_from_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lb.json");
        std::fs::write(&path, "{\"services\": 5}").unwrap();
        let (mut hive, writer) = following(&path).await;
        settled().await;
        assert!(!writer.services().initialized(&writer.services().snapshot()));
        std::fs::write(&path, "{\"services\": []}").unwrap();
        tokio::time::timeout(Duration::from_secs(5), writer.services().wait_initialized()).await.unwrap();
        hive.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn consecutive_writes_are_read_once_after_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lb.yaml");
        std::fs::write(&path, "").unwrap();
        // Long, so that a delay on a busy machine is not taken for a quiet time.
        let (mut hive, writer) = following_after(&path, Duration::from_millis(700)).await;
        writer.services().wait_initialized().await;
        for _ in 0..20 {
            std::fs::write(&path, TWO).unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        std::fs::write(&path, ONE).unwrap();
        has(&writer, "10.96.0.1:80/TCP").await;
        settled().await;
        let services = writer.services();
        // One change to its final content; the intermediate steps have no effect.
        assert_eq!((names(&writer).len(), services.revision(&services.snapshot())), (1, 1));
        hive.stop().await;
    }
}
