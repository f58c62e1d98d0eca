//! The parsers alone, for those who try inputs: nothing is done about what is read.

use crate::check::Expected;
use crate::config::NetworkConfig;
use crate::delegate;
use crate::error::Error;
use crate::invocation::{Command, Environment, Invocation};

/// A request by its arguments and variables.
#[derive(Clone, Debug)]
pub struct Call {
    /// The container.
    pub container_id: String,
    /// The interface inside.
    pub interface: String,
    /// The attachments that a GC would leave alone, if it is told.
    pub valid_attachments: Option<Vec<String>>,
}

/// Reads variables and network configuration with all that any verb looks at.
///
/// # Errors
/// Those of the plugin.
pub fn read(env: &Environment, stdin: &[u8]) -> Result<Call, Error> {
    let command = Command::from_env(env)?;
    let invocation = Invocation::from_env(command, env)?;
    let config = NetworkConfig::parse(stdin)?;
    config.check_version(command)?;
    invocation.validate()?;
    invocation.pod()?;
    config.check_not_chained()?;
    if command == Command::Check {
        Expected::of(&config)?.addresses(&invocation.interface)?;
    }
    let valid_attachments = if command == Command::Gc { Some(config.valid_attachments()?) } else { None };
    let Invocation { container_id, interface, .. } = invocation;
    // A call without an attachment may leave anything in its variables: they are not read.
    let (container_id, interface) = match command {
        Command::Add | Command::Del | Command::Check => (container_id, interface),
        Command::Status | Command::Version | Command::Gc => Default::default(),
    };
    Ok(Call { container_id, interface, valid_attachments })
}

/// Reads what a delegated plugin has printed: its result, and the words of its failure.
pub fn read_delegated(stdout: &[u8]) {
    let _ = (delegate::addresses(stdout), delegate::describe(stdout));
}
