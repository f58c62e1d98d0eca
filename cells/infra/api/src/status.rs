//! The parts of cells in `GET /healthz`.

use std::fmt;
use std::sync::Arc;

use api_models::StatusResponse;

type Fill = dyn Fn(&mut StatusResponse) + Send + Sync;

/// A function that fills a cell's part of the agent's status. A cell contributes it to the group behind `/healthz`:
/// `Member(StatusSource::new("ipam", move |status| status.ipam = Some(..)))`.
///
/// The function must not block, as it is called for each request and in each round of the status: it returns state that
/// the cell has at hand, such as a snapshot of a table.
#[derive(Clone)]
pub struct StatusSource {
    name: &'static str,
    fill: Arc<Fill>,
}

impl StatusSource {
    /// Returns a source; a failure of it is reported under the name.
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
