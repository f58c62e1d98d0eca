//! Refused services: whether they may be accepted now.

use statedb::Snapshot;

use crate::model::error::Refused;
use crate::model::frontend::Frontend;
use crate::model::service::Service;
use crate::writer::services_writer::ServicesWriter;

/// Whether the reason for one of these refusals is gone.
pub(crate) fn any_freed<'r>(
    refused: impl IntoIterator<Item = &'r Refused>,
    writer: &ServicesWriter,
    snapshot: &Snapshot,
) -> bool {
    let (services, frontends) = (writer.services(), writer.frontends());
    refused.into_iter().any(|refused| match refused {
        Refused::Owned { address, owner } => {
            let frontend = frontends.get(snapshot, Frontend::by_address(address));
            frontend.is_none_or(|frontend| frontend.service.name != *owner)
        }
        Refused::Defined { name, owner } => {
            services.get(snapshot, Service::by_name(name)).is_none_or(|service| service.source != *owner)
        }
    })
}

/// Waits until the reason for one of these refusals is gone. The owner that they conflict with may belong to another
/// source, which the caller does not watch.
pub(crate) async fn freed<'r>(
    refused: impl IntoIterator<Item = &'r Refused> + Clone,
    writer: &ServicesWriter,
) {
    let (services, frontends) = (writer.services(), writer.frontends());
    loop {
        let snapshot = frontends.snapshot();
        if any_freed(refused.clone(), writer, &snapshot) {
            return;
        }
        let (services, frontends) = (services.watch(&snapshot), frontends.watch(&snapshot));
        drop(snapshot);
        tokio::select! {
            () = services.changed() => {}
            () = frontends.changed() => {}
        }
    }
}
