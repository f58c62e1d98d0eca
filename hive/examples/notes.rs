//! Notes that are kept in a file, and a clock that adds one at an interval: two cells, a program, and a test of its
//! hooks.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use hive::Service;
use hive::prelude::*;

// ---- The first cell keeps notes. It owns a file, and has an option for its path.

#[derive(hive::Config)]
struct NotesConfig {
    /// File that the notes are kept in
    #[flag(default = "notes.txt")]
    notes_file: PathBuf, // --notes-file, or NOTES_NOTES_FILE in the environment
}

/// An object that other cells take as `Arc<Notes>`.
struct Notes {
    config: Config<NotesConfig>,
    health: Health,
    lines: Mutex<Vec<String>>,
}

impl Notes {
    fn add(&self, note: impl Into<String>) {
        self.lines.lock().unwrap().push(note.into());
    }
}

/// Its start and stop hooks.
impl Service for Notes {
    async fn start(&self, _cx: HookCx) -> anyhow::Result<()> {
        let file = &self.config.notes_file;
        match tokio::fs::read_to_string(file).await {
            Ok(text) => text.lines().for_each(|line| self.add(line)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => anyhow::bail!("{}: {error}", file.display()),
        }
        self.health.ok(format!("{} notes", self.lines.lock().unwrap().len()));
        Ok(())
    }

    async fn stop(&self, _cx: HookCx) -> anyhow::Result<()> {
        let text: String = self.lines.lock().unwrap().iter().map(|note| format!("{note}\n")).collect();
        let file = &self.config.notes_file;
        tokio::fs::write(file, text).await.with_context(|| file.display().to_string())
    }
}

/// A constructor only wires objects. Its parameters are its dependencies, its result is what it provides; hooks read
/// and write files.
fn new_notes(config: Config<NotesConfig>, lifecycle: Lifecycle, health: Health) -> Arc<Notes> {
    let notes = Arc::new(Notes { config, health, lines: Mutex::default() });
    lifecycle.service("notes-file", &notes).add();
    notes
}

fn notes() -> Cell {
    module("notes", "Keeps notes in a file", [config::<NotesConfig>(), provide(new_notes)])
}

// ---- The second cell depends on the first. It has a job, which runs until the program stops.

#[derive(hive::Config)]
struct ClockConfig {
    /// Time between two notes
    #[flag(default = "2s")]
    tick_interval: Duration,
}

fn tick(notes: Arc<Notes>, config: Config<ClockConfig>, jobs: JobGroup) {
    jobs.timer("tick", config.tick_interval, move |_cx| {
        notes.add("tick");
        async { Ok(()) }
    })
    .add();
}

fn clock() -> Cell {
    module("clock", "Makes a note now and then", [config::<ClockConfig>(), invoke(tick)])
}

// ---- The program is a list of cells; their order does not matter.

fn cells() -> Cell {
    bundle([clock(), notes()])
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    Hive::builder(cells()).process("NOTES_").main().await // until SIGINT or SIGTERM
}

// ---- A test starts the real cells, in virtual time.

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn notes_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("notes.txt");
        std::fs::write(&file, "an old note\n").unwrap();

        let mut hive = TestHive::new(cells()).set("notes-file", file.display()).set("tick-interval", "1h");
        hive.start().await;
        // The clock was listed first, but it depends on the notes, so the hook of the notes runs first.
        assert_eq!(hive.hook_order(), ["notes-file", "timer-job-tick"]);
        assert_eq!(hive.health("notes").message, "1 notes");

        tokio::time::sleep(Duration::from_secs(2 * 3600 + 1)).await; // returns instantly
        hive.stop().await; // fails the test if a stop hook does, or if a job is leaked

        assert_eq!(std::fs::read_to_string(&file).unwrap(), "an old note\ntick\ntick\n");
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_named() {
        let mut hive = TestHive::new(cells()).set("notes-file", "/");
        let error = hive.try_start().await.unwrap_err().to_string();
        assert!(error.contains("notes-file"), "the hook: {error}");
        assert!(error.contains("/: Is a directory"), "and the reason: {error}");
    }
}
