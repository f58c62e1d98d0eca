//! The log of a running script.

use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The capacity in bytes; output beyond it is dropped, with one notice.
const KEPT: usize = 16 << 20;

/// The log of a script: lines, outputs of commands, expected errors. Clones are one log.
#[derive(Clone, Default)]
pub struct Log(Arc<Shared>);

#[derive(Default)]
struct Shared {
    text: Mutex<Text>,
    written: Notify,
    taken: Notify,
}

#[derive(Default)]
struct Text {
    kept: String,
    /// The offset in the log at which the duration of the current section is inserted.
    section: Option<usize>,
    full: bool,
}

impl Log {
    /// Adds text as it is.
    pub fn write(&self, text: &str) {
        {
            let mut log = self.0.text.lock();
            if log.kept.len() + text.len() <= KEPT {
                log.kept.push_str(text);
            } else if !log.full {
                log.full = true;
                log.kept.push_str("[the log is full, the rest is left out]\n");
            }
        }
        self.0.written.notify_one();
    }

    /// Adds text as a block of its own, ended by a newline.
    pub(crate) fn block(&self, title: &str, text: &[u8]) {
        if !text.is_empty() {
            let text = String::from_utf8_lossy(text);
            let end = if text.ends_with('\n') { "" } else { "\n" };
            self.write(&format!("[{title}]\n{text}{end}"));
        }
    }

    /// Begins a section; its duration is written after its header when it ends.
    pub(crate) fn begin_section(&self, header: &str) {
        let mut log = self.0.text.lock();
        log.kept.push_str(header);
        log.section = Some(log.kept.len());
        log.kept.push('\n');
    }

    pub(crate) fn end_section(&self, took: std::time::Duration) {
        let mut log = self.0.text.lock();
        let Some(at) = log.section.take() else { return };
        let mut time = String::new();
        let _ = write!(time, " ({:.3}s)", took.as_secs_f64());
        if log.kept.is_char_boundary(at) {
            log.kept.insert_str(at, &time);
        }
    }

    /// Returns the text since the previous call, for a reader that forwards it.
    pub fn take(&self) -> String {
        let text = {
            let mut log = self.0.text.lock();
            (log.section, log.full) = (None, false);
            std::mem::take(&mut log.kept)
        };
        self.0.taken.notify_one();
        text
    }

    /// Returns the whole log.
    pub fn text(&self) -> String {
        self.0.text.lock().kept.clone()
    }

    /// Waits until there is text to take.
    pub async fn written(&self) {
        while self.0.text.lock().kept.is_empty() {
            self.0.written.notified().await;
        }
    }

    /// Waits until the reader has taken all but a small part, as backpressure on endless output.
    pub async fn drained(&self) {
        const LITTLE: usize = 64 << 10;
        while self.0.text.lock().kept.len() > LITTLE {
            self.0.taken.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sections_get_their_time() {
        let log = Log::default();
        log.begin_section("# set up");
        log.write("> echo\n");
        log.end_section(Duration::from_millis(12));
        log.end_section(Duration::from_millis(99));
        assert_eq!(log.text(), "# set up (0.012s)\n> echo\n");
    }

    #[test]
    fn a_flood_is_cut_once() {
        let log = Log::default();
        for _ in 0..40 {
            log.write(&"x".repeat(1 << 20));
        }
        assert_eq!(log.text().matches("is full").count(), 1);
        assert!(log.take().len() <= KEPT + 100);
        log.write("again");
        assert_eq!(log.take(), "again");
    }

    #[tokio::test]
    async fn a_writer_waits_for_its_reader() {
        let log = Log::default();
        log.write(&"x".repeat(1 << 20));
        let reader = async {
            log.written().await;
            log.take().len()
        };
        assert_eq!(futures::join!(log.drained(), reader).1, 1 << 20);
    }
}
