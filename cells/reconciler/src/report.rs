//! A reconciler's state in words.

/// The state of a reconciler after a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Nothing fails: "OK, 12 object(s)".
    Ok(String),
    /// Some objects fail.
    Degraded {
        /// How much: "12 error(s)".
        message: String,
        /// Up to ten errors, one a line, and how many more there are: "2 further errors omitted".
        errors: String,
    },
}

impl Report {
    /// Of so many objects, of which so many fail with these errors.
    pub(crate) fn new<'e>(objects: usize, failing: usize, errors: impl Iterator<Item = &'e str>) -> Self {
        const SHOWN: usize = 10;
        if failing == 0 {
            return Report::Ok(format!("OK, {objects} object(s)"));
        }
        let mut errors = errors.take(SHOWN).collect::<Vec<_>>().join("\n");
        if failing > SHOWN {
            errors += &format!("\n{} further errors omitted", failing - SHOWN);
        }
        Report::Degraded { message: format!("{failing} error(s)"), errors }
    }

    /// Writes it to a job's health.
    pub fn tell(&self, health: &hive::Health) {
        match self {
            Report::Ok(message) => health.ok(message),
            Report::Degraded { message, errors } => health.degraded(message, errors),
        }
    }
}
