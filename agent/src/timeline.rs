//! Timeline of the agent's start: `GET /apiary/timeline` returns it as SVG.

use std::sync::Arc;

use api::{Page, Response};
use hive::Timeline;
use hive::prelude::*;

/// Serves the timeline, which is incomplete while the agent starts.
pub(crate) fn cell() -> Cell {
    let page = |timeline: Arc<Timeline>| {
        Member(Page::new("timeline", move |_| {
            let svg = timeline.svg();
            async move { Response::text(200, svg) }
        }))
    };
    module("timeline", "The start as a picture", provide(page))
}
