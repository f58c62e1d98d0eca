//! A request that shows whether a server answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::link::Link;

/// Checks on demand whether an API server answers, for health endpoints.
#[derive(Clone)]
pub struct ServerProbe(Arc<Link>);

impl ServerProbe {
    pub(crate) fn new(link: Arc<Link>) -> ServerProbe {
        ServerProbe(link)
    }

    /// Requests `/version`. Returns the version as Cilium's status shows it, or why none came within the limit.
    pub async fn version(&self, limit: Duration) -> Result<String, String> {
        let lease = self.0.lease();
        let version = self.0.version(&lease, limit).await;
        version.map(|version| version.to_string()).map_err(|error| error.to_string())
    }
}

impl fmt::Debug for ServerProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerProbe").finish_non_exhaustive()
    }
}
