//! The history of a health tree: lines about failures and ends, kept with its reports.

use std::collections::VecDeque;
use std::fmt;
use std::time::SystemTime;

use jiff::Timestamp;

use super::{Level, Status};

/// The maximum number of lines; older ones are dropped.
const MAX_LINES: usize = 1000;

/// The width of the level column, so that the text after it is aligned.
const WIDTH: usize = 16;

/// Lines by sequence number; the sequence continues when old lines are dropped.
#[derive(Default)]
pub(super) struct History {
    lines: VecDeque<String>,
    /// The sequence number of the first retained line.
    first: u64,
}

impl History {
    pub(super) fn push(&mut self, line: String) {
        if self.lines.len() == MAX_LINES {
            self.lines.pop_front();
            self.first += 1;
        }
        self.lines.push_back(line);
    }

    /// Prepends lines of the previous run, up to the capacity; returns the sequence number of the first line of this
    /// run.
    pub(super) fn restore(&mut self, older: impl DoubleEndedIterator<Item = String>) -> u64 {
        let there = self.lines.len();
        for line in older.rev().take(MAX_LINES - there) {
            self.lines.push_front(line);
        }
        self.first = 0;
        (self.lines.len() - there) as u64
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }

    /// Returns the lines from sequence number `from` on, and the next sequence number.
    pub(super) fn from(&self, from: u64) -> (Vec<String>, u64) {
        let skip = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let next = self.first + self.lines.len() as u64;
        (self.lines.iter().skip(skip).cloned().collect(), next)
    }
}

/// Formats a line: `2026-11-21T12:10:29Z | Degraded         | agent.ipam: no room | error`.
pub(super) fn line_of(now: SystemTime, what: fmt::Arguments<'_>, status: &Status, message: &str) -> String {
    let error = match status.level {
        Level::Degraded if !status.error.is_empty() => format!(" | {}", status.error),
        _ => String::new(),
    };
    format!("{} | {:WIDTH$} | {}: {message}{error}", rfc3339(now), what.to_string(), status.path())
}

/// Formats a note: `2026-11-21T12:10:29Z | Started | 1.20.0`.
pub(super) fn note(now: SystemTime, what: &str, text: &str) -> String {
    format!("{} | {what} | {text}", rfc3339(now))
}

/// Formats a time in UTC with seconds; a time before 1970 is written as 1970.
fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    Timestamp::from_second(seconds.cast_signed()).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        let at = |seconds| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(1_709_210_096), "2024-02-29T12:34:56Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn old_lines_are_dropped_and_sequence_numbers_continue() {
        let mut history = History::default();
        for n in 0..MAX_LINES + 2 {
            history.push(n.to_string());
        }
        let (lines, next) = history.from(0);
        assert_eq!((lines.len(), lines[0].as_str(), next), (MAX_LINES, "2", MAX_LINES as u64 + 2));
        assert_eq!(history.from(next - 1).0, [(MAX_LINES + 1).to_string()]);
        assert!(history.from(next).0.is_empty());
        history.push("more".to_owned());
        assert_eq!(history.from(next), (vec!["more".to_owned()], next + 1));
    }

    #[test]
    fn lines_of_the_previous_run_come_first() {
        let mut history = History::default();
        history.push("now".to_owned());
        assert_eq!(history.restore(["a", "b"].map(str::to_owned).into_iter()), 2);
        assert_eq!(history.all(), ["a", "b", "now"]);
        assert_eq!(history.from(3), (vec![], 3));
    }
}
