//! Why a policy object is refused.

use std::fmt;

/// A policy object that cannot be taken, with everything that is wrong in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// The object, as far as it can be told: `cnp/shop/web`.
    pub object: String,
    /// What is wrong, in the order of the object; never empty.
    pub problems: Vec<Problem>,
}

/// One thing wrong in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where: `spec.ingress[0].toPorts[1].ports[0].port`.
    pub path: String,
    /// What was found and why it cannot be.
    pub reason: String,
    /// What would be right; empty where the reason tells.
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
