//! What cells say of themselves in `GET /healthz`.

use std::fmt;
use std::sync::Arc;

use api_models::StatusResponse;

type Fill = dyn Fn(&mut StatusResponse) + Send + Sync;

/// Fills a cell's part of the agent's status. A cell gives it to the group that `/healthz` is put together from:
/// `Member(StatusSource::new("ipam", move |status| status.ipam = Some(..)))`.
///
/// It reads what the cell knows already (a snapshot of a table), without waiting for anything: it is called with
/// every request and every probe.
#[derive(Clone)]
pub struct StatusSource {
    name: &'static str,
    fill: Arc<Fill>,
}

impl StatusSource {
    /// A source by the name under which a failure of it is reported.
    pub fn new(name: &'static str, fill: impl Fn(&mut StatusResponse) + Send + Sync + 'static) -> Self {
        Self { name, fill: Arc::new(fill) }
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Fills its part.
    pub fn fill(&self, status: &mut StatusResponse) {
        (self.fill)(status);
    }
}

impl fmt::Debug for StatusSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StatusSource").field(&self.name).finish()
    }
}
