//! Problems of manifests.

use std::fmt;

/// One fault of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// The path in the document, such as `spec.ports[0].port`; empty for the document itself.
    pub path: String,
    /// The fault, and the remedy.
    pub reason: String,
}

impl Problem {
    /// Returns a fault at a path.
    pub fn new(path: impl Into<String>, reason: impl fmt::Display) -> Problem {
        Problem { path: path.into(), reason: reason.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.is_empty() {
            true => f.write_str(&self.reason),
            false => write!(f, "{}: {}", self.path, self.reason),
        }
    }
}

/// The refusal of a manifest: all its faults, at least one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", list(.0))]
pub struct Refusal(pub Vec<Problem>);

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Refusal {
        Refusal(vec![problem])
    }
}

fn list(problems: &[Problem]) -> String {
    let texts: Vec<String> = problems.iter().map(Problem::to_string).collect();
    texts.join("; ")
}
