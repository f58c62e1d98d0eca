//! The error of a rejected policy object.

use std::fmt;

/// A rejected policy object with all of its problems.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// The object, as far as its metadata is readable: `cnp/shop/web`.
    pub object: String,
    /// Its problems, in the order of the object; never empty.
    pub problems: Vec<Problem>,
}

/// A problem in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The field: `spec.ingress[0].toPorts[1].ports[0].port`.
    pub path: String,
    /// The value found and why it is invalid.
    pub reason: String,
    /// A valid value or form; empty where the reason names it.
    pub remedy: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.object)?;
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)?;
        if !self.remedy.is_empty() {
            write!(f, " ({})", self.remedy)?;
        }
        Ok(())
    }
}
