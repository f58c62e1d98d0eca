//! Validation of request bodies.

use std::fmt;

use crate::{
    DaemonConfigurationSpec, EndpointBatchDeleteRequest, EndpointChangeRequest, EndpointConfigurationSpec,
    LabelConfigurationSpec, Labels, PrefilterSpec,
};

/// The states that an endpoint can have.
pub const ENDPOINT_STATES: [&str; 9] = [
    "waiting-for-identity",
    "not-ready",
    "waiting-to-regenerate",
    "regenerating",
    "restoring",
    "ready",
    "disconnecting",
    "disconnected",
    "invalid",
];

const POLICY_ENFORCEMENTS: [&str; 3] = ["default", "always", "never"];

/// A violated rule of the API. It is answered with 422 and [`Violation::code`] in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A required value is missing.
    Required {
        /// The value's name.
        name: String,
        /// Its place: `body`, `query`, `header`, `path`.
        place: &'static str,
    },
    /// A value is none of those permitted.
    NotOneOf {
        /// The value's name.
        name: String,
        /// Its place.
        place: &'static str,
        /// The permitted values.
        permitted: &'static [&'static str],
    },
}

impl Violation {
    /// Returns the code in the body, which is not the HTTP status.
    pub fn code(&self) -> i64 {
        match self {
            Self::Required { .. } => 602,
            Self::NotOneOf { .. } => 606,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Required { name, place } => write!(f, "{name} in {place} is required"),
            Self::NotOneOf { name, place, permitted } => {
                write!(f, "{name} in {place} should be one of [{}]", permitted.join(" "))
            }
        }
    }
}

/// A request body with rules of its own.
pub trait Validate {
    /// Returns an error for the first violated rule.
    fn validate(&self) -> Result<(), Violation> {
        Ok(())
    }
}

impl Validate for EndpointChangeRequest {
    fn validate(&self) -> Result<(), Violation> {
        if self.state.is_empty() {
            return Err(Violation::Required { name: "state".to_owned(), place: "body" });
        }
        one_of("state", &self.state, &ENDPOINT_STATES)
    }
}

impl Validate for DaemonConfigurationSpec {
    fn validate(&self) -> Result<(), Violation> {
        if self.policy_enforcement.is_empty() {
            return Ok(());
        }
        one_of("policy-enforcement", &self.policy_enforcement, &POLICY_ENFORCEMENTS)
    }
}

impl Validate for EndpointBatchDeleteRequest {}
impl Validate for EndpointConfigurationSpec {}
impl Validate for LabelConfigurationSpec {}
impl Validate for Labels {}
impl Validate for PrefilterSpec {}

fn one_of(name: &str, value: &str, permitted: &'static [&'static str]) -> Result<(), Violation> {
    if permitted.contains(&value) {
        return Ok(());
    }
    Err(Violation::NotOneOf { name: name.to_owned(), place: "body", permitted })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_have_ciliums_code_and_text() {
        let missing = EndpointChangeRequest::default().validate().unwrap_err();
        assert_eq!((missing.code(), missing.to_string().as_str()), (602, "state in body is required"));

        let unknown = EndpointChangeRequest { state: "asleep".into(), ..Default::default() };
        let unknown = unknown.validate().unwrap_err();
        assert_eq!(unknown.code(), 606);
        assert_eq!(
            unknown.to_string(),
            "state in body should be one of [waiting-for-identity not-ready waiting-to-regenerate \
             regenerating restoring ready disconnecting disconnected invalid]"
        );

        let spec = DaemonConfigurationSpec { policy_enforcement: "maybe".into(), ..Default::default() };
        let enforcement = spec.validate().unwrap_err();
        assert_eq!(enforcement.code(), 606);
        assert_eq!(
            enforcement.to_string(),
            "policy-enforcement in body should be one of [default always never]"
        );
        assert_eq!(DaemonConfigurationSpec::default().validate(), Ok(()));
    }
}
