//! The allowed operations: `--enable-cilium-health-api-server-access`.

use crate::error::Error;

/// An operation of the health API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    GetHealthz,
    GetStatus,
    PutStatusProbe,
}

impl Operation {
    const ALL: [Self; 3] = [Self::GetHealthz, Self::GetStatus, Self::PutStatusProbe];

    /// Returns its name in options.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::GetHealthz => "GetHealthz",
            Self::GetStatus => "GetStatus",
            Self::PutStatusProbe => "PutStatusProbe",
        }
    }
}

/// The allowed operations.
#[derive(Clone, Debug)]
pub(crate) struct Access(Vec<Operation>);

impl Access {
    /// Parses names such as `GetStatus`, prefixes such as `Get*`, or `*` for all.
    pub(crate) fn parse<S: AsRef<str>>(names: &[S]) -> Result<Self, Error> {
        let mut allowed = Vec::new();
        for name in names.iter().map(|name| name.as_ref().trim()).filter(|name| !name.is_empty()) {
            let matches = |operation: &Operation| match name.strip_suffix('*') {
                Some(prefix) => operation.name().starts_with(prefix),
                None => operation.name() == name,
            };
            let before = allowed.len();
            allowed.extend(Operation::ALL.into_iter().filter(matches));
            if before == allowed.len() {
                return Err(Error::UnknownOperation(name.to_owned()));
            }
        }
        Ok(Self(allowed))
    }

    pub(crate) fn allows(&self, operation: Operation) -> bool {
        self.0.contains(&operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_prefixes_and_the_star() {
        let allowed = |names: &[&str]| {
            let access = Access::parse(names).unwrap();
            Operation::ALL.map(|operation| access.allows(operation))
        };
        assert_eq!(allowed(&["*"]), [true; 3]);
        assert_eq!(allowed(&[]), [false; 3]);
        assert_eq!(allowed(&["Get*", " "]), [true, true, false]);
        assert_eq!(allowed(&["PutStatusProbe"]), [false, false, true]);
        let error = Access::parse(&["GetConfig"]).unwrap_err().to_string();
        assert!(error.starts_with("enable-cilium-health-api-server-access: Unknown API flag: \"GetConfig\""));
    }
}
