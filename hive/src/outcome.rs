//! The outcome of a run.

use std::process::ExitCode;

use crate::error::HiveError;
use crate::shutdown::Reason;

/// The outcome of a run: the cause of its end, and all errors.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The signal that ended the run, if one did.
    pub signal: Option<&'static str>,
    /// The errors; empty after an orderly end.
    pub errors: Vec<HiveError>,
    /// The exit code requested with the shutdown.
    pub code: Option<u8>,
}

impl Outcome {
    /// Returns 0 after an orderly end, otherwise the requested code, or 255.
    pub fn exit_code(&self) -> ExitCode {
        if self.errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(self.code.unwrap_or(255)) }
    }

    /// Returns the first error, if any.
    pub fn into_result(self) -> Result<(), HiveError> {
        self.errors.into_iter().next().map_or(Ok(()), Err)
    }
}

pub(crate) fn outcome(
    reason: Option<Reason>,
    start: Result<(), HiveError>,
    stop: Result<(), HiveError>,
) -> Outcome {
    let mut errors: Vec<HiveError> = vec![];
    let mut code = None;
    let signal = match reason {
        Some(Reason::Signal(name)) => Some(name),
        Some(Reason::Failed(error, asked)) => {
            code = asked;
            errors.push(HiveError::Shutdown(error));
            None
        }
        Some(Reason::Requested) | None => None,
    };
    errors.extend(start.err().filter(|error| !error.is_orderly()));
    errors.extend(stop.err());
    Outcome { signal, errors, code }
}
