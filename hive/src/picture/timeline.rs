//! The timeline of a start: which hook waited for which, and how long each took.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::event::{Event, HookId, Phase};

/// The timeline of a hive's start, recorded from its [`Events`](crate::Events). Cells may take it as `Arc<Timeline>`;
/// it is complete once the hive has started or failed to.
#[derive(Default)]
pub struct Timeline {
    recording: Mutex<Recording>,
}

#[derive(Default)]
struct Recording {
    begin: Option<Instant>,
    spans: Vec<Span>,
    /// The duration of the whole start, and its error if it failed.
    end: Option<(Duration, Option<String>)>,
}

/// One step of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// The kind of step.
    pub step: Step,
    /// The module that it belongs to.
    pub module: Arc<str>,
    /// The constructor, or the one that registered the hook.
    pub function: &'static str,
    /// The time of its begin, relative to that of the start.
    pub begin: Duration,
    /// The time of its end; `None` while it runs, or if it never ended.
    pub end: Option<Duration>,
    /// Whether it failed.
    pub failed: bool,
}

/// A kind of step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// A constructor or invocation.
    Construct,
    /// A start hook of this name.
    Hook(Arc<str>),
}

impl Timeline {
    /// Reserves capacity for this number of steps.
    pub(crate) fn reserve(&self, steps: usize) {
        self.recording.lock().spans.reserve(steps);
    }

    /// Records an event, until the start is over.
    pub(crate) fn record(&self, event: &Event, at: Instant) {
        let mut recording = self.recording.lock();
        if recording.end.is_none() {
            recording.take(event, at);
        }
    }

    /// Returns the steps so far, in the order in which they began.
    pub fn spans(&self) -> Vec<Span> {
        self.recording.lock().spans.clone()
    }

    /// Returns the duration of the start; `None` while it runs.
    pub fn duration(&self) -> Option<Duration> {
        self.recording.lock().end.as_ref().map(|(duration, _)| *duration)
    }

    /// Returns the start as an SVG picture: construction in one row, then a row for each hook with the hook that it
    /// waited for.
    pub fn svg(&self) -> String {
        let recording = self.recording.lock();
        let (spans, end) = (recording.spans.clone(), recording.end.clone());
        drop(recording);
        draw(&spans, end.as_ref())
    }
}

impl Recording {
    fn take(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Starting => {
                self.begin.get_or_insert(now);
            }
            Event::Constructed { function, module, duration } => {
                let begin = *self.begin.get_or_insert_with(|| now.checked_sub(*duration).unwrap_or(now));
                let end = now.saturating_duration_since(begin);
                self.spans.push(Span {
                    step: Step::Construct,
                    module: module.clone(),
                    function,
                    begin: end.saturating_sub(*duration),
                    end: Some(end),
                    failed: false,
                });
            }
            Event::HookRuns { phase: Phase::Start, hook } => {
                let begin = now.saturating_duration_since(*self.begin.get_or_insert(now));
                self.spans.push(Span {
                    step: Step::Hook(hook.name.clone()),
                    module: hook.module.clone(),
                    function: hook.function,
                    begin,
                    end: None,
                    failed: false,
                });
            }
            Event::HookRan { phase: Phase::Start, hook, duration } => self.close(hook, *duration, false),
            Event::HookFailed { phase: Phase::Start, hook, duration, .. } => {
                self.close(hook, *duration, true);
            }
            Event::Started { duration, .. } => self.end = Some((*duration, None)),
            Event::StartFailed { error, duration, .. } => self.end = Some((*duration, Some(error.clone()))),
            _ => {}
        }
    }

    fn close(&mut self, hook: &HookId, duration: Duration, failed: bool) {
        let is_it = |span: &&mut Span| {
            span.end.is_none()
                && matches!(&span.step, Step::Hook(name) if *name == hook.name)
                && span.module == hook.module
                && span.function == hook.function
        };
        if let Some(span) = self.spans.iter_mut().rev().find(is_it) {
            (span.end, span.failed) = (Some(span.begin + duration), failed);
        }
    }
}

/// Returns the hook that delayed another one: of those that had ended when it began, the one that ended last.
fn waited_for(hooks: &[&Span], index: usize) -> Option<usize> {
    let ended = |other: &usize| hooks[*other].end.is_some_and(|end| end <= hooks[index].begin);
    (0..index).filter(ended).max_by_key(|other| hooks[*other].end)
}

const ROW: usize = 20;
const CHART: usize = 900;
const TOP: usize = 46;
const LETTER: usize = 7;

fn draw(spans: &[Span], end: Option<&(Duration, Option<String>)>) -> String {
    let last = spans.iter().filter_map(|span| span.end).max().unwrap_or_default();
    let total = end.map_or(last, |(duration, _)| *duration).max(last).max(Duration::from_micros(1));
    let hooks: Vec<&Span> = spans.iter().filter(|span| span.step != Step::Construct).collect();
    let names: Vec<String> = hooks.iter().map(|span| name(span)).collect();
    let left = LETTER * (names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(12) + 2);
    let x = |at: Duration| left as f64 + CHART as f64 * at.as_secs_f64() / total.as_secs_f64();
    let y = |row: usize| TOP + row * ROW;
    let (width, height) = (left + CHART + 18 * LETTER, y(hooks.len() + 1) + 8);

    let title = match end {
        Some((duration, None)) => format!("Started in {}", time(*duration)),
        Some((duration, Some(error))) => format!("Failed to start after {}: {error}", time(*duration)),
        None => format!("Starting, {} so far", time(total)),
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <style>.c{{fill:#9bb}}.h{{fill:#47a}}.f{{fill:#c33}}.o{{fill:#ca3}}.w{{stroke:#999;fill:none}}.t{{stroke:#ddd}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"16\" font-size=\"13\">{}</text>\n",
        escape(&title)
    );
    for tick in 0..=4_u32 {
        let at = total * tick / 4;
        let _ = writeln!(
            svg,
            "<line class=\"t\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{height}\"/><text x=\"{0:.1}\" y=\"{1}\">{2}</text>",
            x(at),
            TOP - 8,
            time(at)
        );
    }
    let bar = |svg: &mut String, span: &Span, row: usize, class: &str, tip: &str| {
        let to = x(span.end.unwrap_or(total));
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{}\"><title>{}</title></rect>",
            x(span.begin),
            y(row) + 3,
            (to - x(span.begin)).max(1.0),
            ROW - 6,
            escape(tip)
        );
    };
    let _ = writeln!(svg, "<text x=\"8\" y=\"{}\">construction</text>", y(0) + 14);
    for span in spans.iter().filter(|span| span.step == Step::Construct) {
        bar(&mut svg, span, 0, "c", &format!("{} {} {}", span.module, span.function, took(span)));
    }
    for (index, span) in hooks.iter().enumerate() {
        let row = index + 1;
        let before = waited_for(&hooks, index);
        let waited = before.map(|before| format!(", after {}", names[before])).unwrap_or_default();
        if let Some(before) = before {
            let from = hooks[before].end.unwrap_or_default();
            let _ = writeln!(
                svg,
                "<path class=\"w\" d=\"M{:.1} {}V{}H{:.1}\"/>",
                x(from),
                y(before + 1) + ROW - 3,
                y(row) + ROW / 2,
                x(span.begin)
            );
        }
        let class = match (span.end, span.failed) {
            (_, true) => "f",
            (None, _) => "o",
            _ => "h",
        };
        let _ = writeln!(svg, "<text x=\"8\" y=\"{}\">{}</text>", y(row) + 14, escape(&names[index]));
        let tip = format!("{} ({}) {}{waited}", names[index], span.function, took(span));
        bar(&mut svg, span, row, class, &tip);
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\">{}</text>",
            x(span.end.unwrap_or(total)) + 4.0,
            y(row) + 14,
            took(span)
        );
    }
    svg + "</svg>\n"
}

fn name(span: &Span) -> String {
    let hook = match &span.step {
        Step::Hook(name) => name,
        Step::Construct => "",
    };
    if span.module.is_empty() { hook.to_owned() } else { format!("{}/{hook}", span.module) }
}

fn took(span: &Span) -> String {
    span.end.map_or_else(|| "not ended".to_owned(), |end| time(end - span.begin))
}

fn time(duration: Duration) -> String {
    format!("{duration:.1?}")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(name: &str, begin: u64, end: Option<u64>) -> Span {
        let (begin, end) = (Duration::from_millis(begin), end.map(Duration::from_millis));
        Span {
            step: Step::Hook(name.into()),
            module: "m<1>".into(),
            function: "f",
            begin,
            end,
            failed: false,
        }
    }

    #[test]
    fn a_hook_waits_for_the_last_that_ended_before_it_began() {
        let spans =
            [hook("a", 0, Some(10)), hook("b", 0, Some(30)), hook("c", 10, Some(20)), hook("d", 30, None)];
        let hooks: Vec<&Span> = spans.iter().collect();
        assert_eq!([0, 1, 2, 3].map(|i| waited_for(&hooks, i)), [None, None, Some(0), Some(1)]);
        let svg = draw(&spans, None);
        assert!(svg.contains("m&lt;1&gt;/d (f) not ended, after m&lt;1&gt;/b"), "{svg}");
        assert!(svg.contains("Starting, 30.0ms so far"), "{svg}");
        assert_eq!(svg.matches("<path").count(), 2);
    }
}
