//! The parsers alone, for fuzzing: parsed input has no effect.

use crate::check::Expected;
use crate::config::NetworkConfig;
use crate::delegate;
use crate::error::Error;
use crate::invocation::{Command, Environment, Invocation};

/// A parsed call.
#[derive(Clone, Debug)]
pub struct Call {
    /// The container.
    pub container_id: String,
    /// The interface inside the pod.
    pub interface: String,
    /// The attachments that a GC would keep, if the configuration lists them.
    pub valid_attachments: Option<Vec<String>>,
}

/// Parses variables and network configuration, including the parts that only some verbs use.
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
    config.check_chaining()?;
    if command == Command::Check && !config.is_chained() {
        Expected::of(&config)?.addresses(&invocation.interface)?;
    }
    let valid_attachments = if command == Command::Gc { Some(config.valid_attachments()?) } else { None };
    let Invocation { container_id, interface, .. } = invocation;
    // Verbs without an attachment ignore these variables, so their values are not validated.
    let (container_id, interface) = match command {
        Command::Add | Command::Del | Command::Check => (container_id, interface),
        Command::Status | Command::Version | Command::Gc => Default::default(),
    };
    Ok(Call { container_id, interface, valid_attachments })
}

/// Parses the output of a delegated plugin: its result, or its error.
pub fn read_delegated(stdout: &[u8]) {
    let _ = (delegate::addresses(stdout), delegate::describe(stdout));
}
