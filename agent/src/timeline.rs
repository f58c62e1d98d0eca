//! How the agent started: `GET /apiary/timeline` answers with a picture (SVG).

use std::sync::Arc;

use api::{Page, Response};
use hive::Timeline;
use hive::prelude::*;

/// Answers with the start as it is known.
pub(crate) fn cell() -> Cell {
    let page = |timeline: Arc<Timeline>| {
        Member(Page::new("timeline", move |_| {
            let svg = timeline.svg();
            async move { Response::text(200, svg) }
        }))
    };
    module("timeline", "The start as a picture", provide(page))
}
