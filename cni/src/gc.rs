//! GC: deletes endpoints of attachments that the runtime no longer has.

use crate::agent::{Agent, Deletion, SHORT_PATIENCE};
use crate::config::NetworkConfig;
use crate::delegate;
use crate::error::Error;
use crate::invocation::Invocation;
use crate::link::Links;
use crate::log::Log;

/// Runs a GC. Endpoints without an attachment (the host, the health endpoint) are kept, since the runtime does not own
/// them. Continues after a failure and reports the first one at the end.
pub(crate) fn run(invocation: &Invocation, config: &NetworkConfig, log: &mut Log) -> Result<(), Error> {
    let valid = config.valid_attachments()?;
    let mut agent = Agent::new(&invocation.agent);
    agent.config(SHORT_PATIENCE)?;
    // Interfaces of a chained network are the other plugin's, which collects them itself.
    let mut links = if config.is_chained() { None } else { Some(Links::here()?) };
    let mut first_failure = Ok(());
    for endpoint in agent.endpoints()? {
        let attachment = endpoint.status.external_identifiers.cni_attachment_id;
        if attachment.is_empty() || valid.contains(&attachment) {
            continue;
        }
        log.debug(&format!("collecting {attachment}"));
        let interface = &endpoint.status.networking.interface_name;
        let deleted = match agent.delete_attachment(&attachment) {
            Deletion::Later(reason) => Err(Error::Agent { action: "delete an endpoint", reason }),
            Deletion::Settled(reason) => {
                log.warning(&format!("{attachment}: {reason}"));
                Ok(())
            }
            Deletion::Done => Ok(()),
        };
        let removed = deleted.and_then(|()| match &mut links {
            Some(links) if !interface.is_empty() => links.remove_by_name(interface),
            _ => Ok(()),
        });
        if let Err(error) = removed {
            log.warning(&format!("{attachment}: {error}"));
            first_failure = first_failure.and(Err(error));
        }
    }
    if let Some(plugin) = config.ipam_plugin() {
        first_failure = first_failure.and(delegate::run(plugin, "GC", invocation, config).map(drop));
    }
    first_failure
}
