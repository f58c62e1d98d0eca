//! A reconciler's state as text.

/// The state of a reconciler after a round.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Report {
    /// Nothing fails: "OK, 12 object(s)".
    Ok(String),
    /// Some objects fail.
    #[non_exhaustive]
    Degraded {
        /// The number of errors: "12 error(s)".
        message: String,
        /// Up to ten errors, one a line, and the count of the rest: "2 further errors omitted".
        errors: String,
    },
}

impl Report {
    /// Returns the report of some failing objects, for tests of what receives reports.
    pub fn degraded(message: impl Into<String>, errors: impl Into<String>) -> Self {
        Report::Degraded { message: message.into(), errors: errors.into() }
    }

    /// Builds a report from the count of objects, the count of failing ones and their errors.
    pub(crate) fn new<'e>(objects: usize, failing: usize, errors: impl Iterator<Item = &'e str>) -> Self {
        const MAX_REPORTED_ERRORS: usize = 10;
        if failing == 0 {
            return Report::Ok(format!("OK, {objects} object(s)"));
        }
        let mut errors = errors.take(MAX_REPORTED_ERRORS).collect::<Vec<_>>().join("\n");
        if failing > MAX_REPORTED_ERRORS {
            errors += &format!("\n{} further errors omitted", failing - MAX_REPORTED_ERRORS);
        }
        Report::Degraded { message: format!("{failing} error(s)"), errors }
    }

    /// Reports the state to a job's health.
    #[cfg(feature = "hive")]
    pub fn report_to(&self, health: &hive::Health) {
        match self {
            Report::Ok(message) => health.ok(message),
            Report::Degraded { message, errors } => health.degraded(message, errors),
        }
    }
}
