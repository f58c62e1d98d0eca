//! The allowed operations: `--enable-cilium-api-server-access`.

use std::collections::BTreeSet;
use strsim::levenshtein;

use crate::error::Error;
use crate::operation::Operation;

/// The body of a denied operation's answer, with status 403.
pub(crate) const DENIED: &str =
    "This API is administratively disabled. Contact your administrator for more details.";

/// Operations that are needed to attach pods and to probe the agent.
const ESSENTIAL: [Operation; 6] = [
    Operation::GetConfig,
    Operation::GetHealthz,
    Operation::PutEndpointID,
    Operation::DeleteEndpointID,
    Operation::PostIpam,
    Operation::DeleteIpamIP,
];

/// The allowed operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    allowed: BTreeSet<Operation>,
}

impl Access {
    /// Parses names such as `GetConfig`, prefixes such as `Get*`, or `*` for all.
    pub(crate) fn parse<S: AsRef<str>>(names: &[S]) -> Result<Self, Error> {
        let mut allowed = BTreeSet::new();
        for name in names.iter().map(|name| name.as_ref().trim()).filter(|name| !name.is_empty()) {
            match name.find('*') {
                None => allowed.insert(Self::known(name)?),
                Some(at) if at + 1 == name.len() => {
                    allowed.extend(Operation::ALL.iter().filter(|op| op.name().starts_with(&name[..at])));
                    true
                }
                Some(_) => return Err(Error::Wildcard(name.to_owned())),
            };
        }
        Ok(Self { allowed })
    }

    pub(crate) fn allows(&self, operation: Operation) -> bool {
        self.allowed.contains(&operation)
    }

    /// Returns the essential operations that are denied.
    pub(crate) fn denied_essentials(&self) -> Vec<&'static str> {
        ESSENTIAL.iter().filter(|&&op| !self.allows(op)).map(|op| op.name()).collect()
    }

    fn known(name: &str) -> Result<Operation, Error> {
        if let Some(&operation) = Operation::ALL.iter().find(|op| op.name() == name) {
            return Ok(operation);
        }
        let distance = |known: &&str| levenshtein(&known.to_lowercase(), &name.to_lowercase());
        let nearest = Operation::ALL.iter().map(|op| op.name()).min_by_key(distance);
        // Suggest only similar names: at most a third of the characters differ.
        let nearest = nearest.filter(|known| distance(known) <= known.len() / 3);
        Err(Error::UnknownOperation { name: name.to_owned(), nearest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_prefixes_and_the_star_allow_operations() {
        let all = Access::parse(&["*"]).unwrap();
        assert!(Operation::ALL.iter().all(|&op| all.allows(op)));
        assert!(all.denied_essentials().is_empty());

        let some = Access::parse(&["GetConfig", "PostIPAM*", " GetHealthz "]).unwrap();
        let allowed: Vec<_> =
            Operation::ALL.iter().filter(|&&op| some.allows(op)).map(|op| op.name()).collect();
        assert_eq!(allowed, ["GetHealthz", "GetConfig", "PostIPAM", "PostIPAMIP"]);
        assert_eq!(some.denied_essentials(), ["PutEndpointID", "DeleteEndpointID", "DeleteIPAMIP"]);

        assert_eq!(Access::parse::<&str>(&[]).unwrap().denied_essentials().len(), 6);
    }

    #[test]
    fn wrong_names_are_refused_with_the_nearest_known() {
        let text = |name| Access::parse(&[name]).unwrap_err().to_string();
        assert_eq!(
            text("PostIpam2"),
            "enable-cilium-api-server-access: Unknown API flag: \"PostIpam2\", did you mean PostIPAM?"
        );
        assert_eq!(text("Everything"), "enable-cilium-api-server-access: Unknown API flag: \"Everything\"");
        assert_eq!(
            text("Get*Config"),
            "enable-cilium-api-server-access: Unsupported API wildcard: \"Get*Config\": * may only stand at the end"
        );
    }
}
