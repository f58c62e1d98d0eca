//! The parts that cells contribute to the answer of `GET /healthz`.

use std::fmt;
use std::sync::Arc;

use api_models::StatusResponse;

type Fill = dyn Fn(&mut StatusResponse) + Send + Sync;

/// A function that fills a cell's part of the agent's status. A cell contributes it to the group behind `/healthz`:
/// `Member(StatusSource::new("ipam", move |status| status.ipam = Some(..)))`.
///
/// The function must not block, as it is called for each request and whenever the status is collected for probes: it
/// returns state that the cell has at hand, such as a snapshot of a table.
#[derive(Clone)]
pub struct StatusSource {
    name: &'static str,
    fill: Arc<Fill>,
}

impl StatusSource {
    /// Returns a source that calls `fill`; if the function panics, this is reported under `name`.
    pub fn new(name: &'static str, fill: impl Fn(&mut StatusResponse) + Send + Sync + 'static) -> Self {
        Self { name, fill: Arc::new(fill) }
    }

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Fills its part of the status.
    pub fn fill(&self, status: &mut StatusResponse) {
        (self.fill)(status);
    }
}

impl fmt::Debug for StatusSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StatusSource").field(&self.name).finish()
    }
}
