//! Standard error behind a thread of its own: a log that is not read, or a disk that is slow, must not stop the program.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

use crate::line::SharedFormat;

/// Limit of the time a line waits until it is written, so that a process that is killed afterwards has not lost it. Lines that
/// follow an overdue one do not wait.
const WRITE_WAIT_LIMIT: Duration = Duration::from_millis(50);

/// Maximum size of lines that wait for a sink that does not take them; further lines are dropped and counted.
const MAX_PENDING_BYTES: usize = 1 << 20;

/// The destination of all lines of the process.
#[derive(Clone)]
pub(crate) struct Sink {
    shared: Arc<Shared>,
}

/// Writes lines.
type Output = Box<dyn Fn(&[u8]) -> io::Result<()> + Send + Sync>;

struct Shared {
    state: Mutex<State>,
    /// Lines are pending.
    pending: Condvar,
    /// Lines have been written.
    written: Condvar,
    output: Output,
    format: SharedFormat,
}

#[derive(Default)]
struct State {
    /// Whether the thread runs; callers write themselves before.
    has_writer: bool,
    pending: Vec<u8>,
    /// Counts of lines since the start.
    accepted: u64,
    written: u64,
    /// Lines that were dropped since the last report.
    dropped: u64,
    /// A line was not written within the limit; lines do not wait until the sink takes some again.
    is_overdue: bool,
}

impl Sink {
    /// Returns a sink whose callers write to `output` themselves until [`start_writer`](Self::start_writer).
    pub(crate) fn new(
        format: SharedFormat,
        output: impl Fn(&[u8]) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            pending: Condvar::new(),
            written: Condvar::new(),
            output: Box::new(output),
            format,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Starts the thread that writes; if it cannot be started, callers continue to write themselves.
    pub(crate) fn start_writer(&self) {
        let mut state = self.shared.state.lock();
        if state.has_writer {
            return;
        }
        let shared = self.shared.clone();
        let thread = thread::Builder::new().name("log".to_owned()).spawn(move || shared.write_pending());
        state.has_writer = thread.is_ok();
    }

    /// Waits until all lines are written, at most for `limit`. Returns whether they are.
    pub(crate) fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.state.lock();
        while state.has_writer && state.written < state.accepted {
            if self.shared.written.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    fn write(&self, line: &[u8]) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if !state.has_writer {
            drop(state);
            return (self.shared.output)(line);
        }
        if state.pending.len() + line.len() > MAX_PENDING_BYTES {
            state.dropped += 1;
            return Ok(());
        }
        state.pending.extend_from_slice(line);
        state.accepted += 1;
        let number = state.accepted;
        self.shared.pending.notify_one();
        let deadline = Instant::now() + WRITE_WAIT_LIMIT;
        while !state.is_overdue && state.written < number {
            state.is_overdue = self.shared.written.wait_until(&mut state, deadline).timed_out();
        }
        Ok(())
    }
}

impl Shared {
    /// Writes pending lines for as long as the process runs.
    fn write_pending(&self) {
        let mut state = self.state.lock();
        loop {
            while state.pending.is_empty() {
                self.pending.wait(&mut state);
            }
            let mut lines = std::mem::take(&mut state.pending);
            let (accepted, dropped) = (state.accepted, std::mem::take(&mut state.dropped));
            drop(state);
            if dropped > 0 {
                let count = dropped.to_string();
                let pairs = [
                    ("level", "warn"),
                    ("msg", "Log lines dropped: the log is not read"),
                    ("count", &*count),
                ];
                lines.extend_from_slice(self.format.line(&pairs).as_bytes());
            }
            // A closed log is no reason to end.
            let _closed = (self.output)(&lines);
            state = self.state.lock();
            state.written = accepted;
            state.is_overdue = false;
            self.written.notify_all();
        }
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").finish_non_exhaustive()
    }
}

impl Write for Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        Sink::write(self, line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Sink;

    fn make_writer(&'a self) -> Sink {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A sink and what it has written; a write waits for a permit.
    fn sink() -> (Sink, Arc<Mutex<String>>, mpsc::Sender<()>) {
        let (text, (permit, permits)) = (Arc::new(Mutex::new(String::new())), mpsc::channel());
        let (written, permits) = (text.clone(), Mutex::new(permits));
        let sink = Sink::new(SharedFormat::default(), move |line: &[u8]| {
            permits.lock().recv().map_err(io::Error::other)?;
            written.lock().push_str(&String::from_utf8_lossy(line));
            Ok(())
        });
        (sink, text, permit)
    }

    #[test]
    fn without_its_thread_callers_write_themselves() {
        let (sink, text, permit) = sink();
        permit.send(()).unwrap();
        Sink::write(&sink, b"first\n").unwrap();
        assert_eq!(*text.lock(), "first\n");
        assert!(sink.flush(Duration::ZERO));
    }

    #[test]
    fn a_sink_that_takes_nothing_holds_up_one_line_and_then_none() {
        let (sink, text, permit) = sink();
        sink.start_writer();
        let line = [b"x".repeat(999), b"\n".to_vec()].concat();
        let begin = Instant::now();
        Sink::write(&sink, &line).unwrap();
        assert!(begin.elapsed() >= WRITE_WAIT_LIMIT);
        // More than the sink keeps; each of them would wait for 50 ms.
        let count = 2 * MAX_PENDING_BYTES / line.len();
        for _ in 0..count {
            Sink::write(&sink, &line).unwrap();
        }
        assert!(begin.elapsed() < WRITE_WAIT_LIMIT * count as u32 / 4);
        assert!(!sink.flush(Duration::from_millis(1)));
        for _ in 0..8 {
            permit.send(()).unwrap();
        }
        assert!(sink.flush(Duration::from_secs(60)));
        let kept = 1 + MAX_PENDING_BYTES / line.len();
        let dropped =
            format!("level=warn msg=\"Log lines dropped: the log is not read\" count={}\n", count + 1 - kept);
        let text = text.lock();
        assert_eq!(text.lines().filter(|line| line.starts_with('x')).count(), kept);
        assert!(text.ends_with(&dropped), "{}", &text[text.len() - 100..]);
    }

    #[test]
    fn a_line_is_written_when_its_call_returns() {
        let (sink, text, permit) = sink();
        sink.start_writer();
        permit.send(()).unwrap();
        Sink::write(&sink, b"one\n").unwrap();
        assert!(sink.flush(Duration::from_secs(60)));
        assert_eq!(*text.lock(), "one\n");
    }
}
