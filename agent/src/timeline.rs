//! The agent's start: `GET /apiary/timeline` returns it as SVG, `GET /apiary/start-up` as JSON.

use std::sync::Arc;
use std::time::Duration;

use api::{Page, Response};
use hive::prelude::*;
use hive::{Span, Step, Timeline};
use serde_json::{Value, json};

/// Serves the timeline, which is incomplete while the agent starts.
pub(crate) fn cell() -> Cell {
    let picture = |timeline: Arc<Timeline>| {
        Member(Page::new("timeline", move |_| {
            let svg = timeline.svg();
            async move { Response::text(200, svg) }
        }))
    };
    let steps = |timeline: Arc<Timeline>| {
        Member(Page::new("start-up", move |_| {
            let steps: Vec<Value> = timeline.spans().iter().map(step).collect();
            let start = json!({"milliseconds": timeline.duration().map(milliseconds), "steps": steps});
            async move { Response::json(200, &start) }
        }))
    };
    module("timeline", "The start as a picture and in numbers", [provide(picture), provide(steps)])
}

fn step(span: &Span) -> Value {
    let hook = match &span.step {
        Step::Hook(name) => Some(&**name),
        _ => None,
    };
    json!({
        "module": &*span.module,
        "function": span.function,
        "hook": hook,
        "beginMilliseconds": milliseconds(span.begin),
        "milliseconds": span.end.map(|end| milliseconds(end.saturating_sub(span.begin))),
        "failed": span.failed,
    })
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
