//! Selectors: who is meant by labels, by prefix or by entity.

use ipnetwork::IpNetwork;

/// A selector in its final form: namespace and cluster are added already.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selector {
    /// By labels; all requirements hold. Without any it selects every identity.
    Labels(Vec<Requirement>),
    /// A prefix without exceptions: identities whose prefix lies inside, but not inside one of the exceptions.
    Cidr {
        /// The prefix.
        prefix: IpNetwork,
        /// What is left out.
        except: Vec<IpNetwork>,
    },
    /// The entity `none`: nobody.
    None,
}

/// One requirement on a label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    /// Source; `any` matches every source.
    pub source: String,
    /// Key, without the source.
    pub key: String,
    /// The test.
    pub test: Test,
}

/// What a requirement asks of the label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Test {
    /// The label has one of these values.
    In(Vec<String>),
    /// There is no such label, or it has none of these values.
    NotIn(Vec<String>),
    /// There is such a label.
    Exists,
    /// There is no such label.
    DoesNotExist,
}
