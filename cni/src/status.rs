//! STATUS: whether an ADD would succeed now.

use crate::agent::{Agent, SHORT_PATIENCE};
use crate::config::NetworkConfig;
use crate::delegate;
use crate::error::Error;
use crate::invocation::Invocation;

/// Runs a STATUS. The runtime polls the current state: unlike an ADD, this does not wait long for an agent that is
/// starting.
pub(crate) fn run(invocation: &Invocation, config: &NetworkConfig) -> Result<(), Error> {
    Agent::new(&invocation.agent).healthz(SHORT_PATIENCE).map_err(|reason| Error::NotAvailable { reason })?;
    match config.ipam_plugin() {
        Some(plugin) => delegate::run(plugin, "STATUS", invocation, config).map(drop),
        None => Ok(()),
    }
}
