//! The part of `GET /healthz` about Kubernetes.

use api::StatusSource;
use api_models::K8sStatus;

use crate::source::Connection;

/// Returns the status without a server.
pub(crate) fn disabled() -> StatusSource {
    StatusSource::new("kubernetes", |status| {
        status.kubernetes = Some(K8sStatus { state: "Disabled".to_owned(), ..Default::default() });
    })
}

/// Returns the status: the server's version, or the reason why none responds, and the followed kinds.
pub(crate) fn of(connection: &Connection) -> StatusSource {
    let connection = connection.clone();
    StatusSource::new("kubernetes", move |status| {
        let (state, msg) = match connection.link.status() {
            Ok(Some(version)) => ("Ok", version.to_string()),
            Ok(None) => ("Failure", "not connected yet".to_owned()),
            Err(error) => ("Failure", error),
        };
        let mut versions: Vec<String> =
            connection.watches.all().iter().filter_map(|w| w.api_version()).collect();
        versions.sort();
        versions.dedup();
        status.kubernetes =
            Some(K8sStatus { k8s_api_versions: versions.into(), msg, state: state.to_owned() });
    })
}
