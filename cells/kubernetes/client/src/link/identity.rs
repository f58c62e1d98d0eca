//! The identity of the servers' cluster.

use std::time::Duration;

use http::Method;
use kube::client::Body;
use serde_json::Value;
use tokio::time::timeout;

use super::{Link, request};
use crate::request_error::ErrorKind;

/// The request for the cluster's identity: a list with a field selector, for which the agent's role suffices.
pub(crate) const IDENTITY: &str = "/api/v1/namespaces?fieldSelector=metadata.name%3Dkube-system";

impl Link {
    /// Identifies the cluster, unless that was done since the last failure or change of the server, by the uid of its
    /// namespace `kube-system`, as is customary. If the cluster has changed, closes all connections, so that watches
    /// list again.
    pub(crate) async fn identify(&self, limit: Duration) {
        let lease = self.lease();
        if self.state.lock().identified {
            return;
        }
        let request = request(Method::GET, IDENTITY, "application/json", Body::empty());
        let asked = self.fetch_by(&lease, request, "namespace kube-system", "namespaces", "");
        let uid = match timeout(limit, asked).await {
            Ok(Ok(list)) => {
                let list: Value = serde_json::from_slice(&list).unwrap_or_default();
                list["items"][0]["metadata"]["uid"].as_str().map(str::to_owned)
            }
            Ok(Err(error)) if matches!(error.kind, ErrorKind::Forbidden | ErrorKind::NotFound) => None,
            Ok(Err(_)) | Err(_) => return,
        };
        let mut state = self.state.lock();
        if lease.generation != state.generation {
            return;
        }
        state.identified = true;
        let Some(uid) = uid else { return };
        if state.cluster.0.as_ref().is_some_and(|before| *before != uid) {
            let url = &*lease.url;
            tracing::warn!(
                server = url,
                cluster = uid,
                "Another cluster answers, all objects are listed again"
            );
            state.cluster.1 += 1;
            state.cluster.0 = Some(uid);
            drop(state);
            self.cut.send_modify(|cuts| *cuts += 1);
        } else {
            state.cluster.0 = Some(uid);
        }
    }
}
