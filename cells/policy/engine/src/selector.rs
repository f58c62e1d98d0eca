//! Selectors: who is meant by labels, by prefix or by entity.

use ipnetwork::IpNetwork;

/// A selector in its final form: namespace and cluster are added already.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selector {
    /// By labels; all requirements hold. Without any it selects every identity.
    Labels(Vec<Requirement>),
    /// By prefix.
    Cidr(CidrSelector),
    /// The entity `none`: nobody.
    None,
}

/// Identities whose prefix lies inside a prefix, but not inside one of the exceptions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CidrSelector {
    /// The prefix, host bits as written. One of length 0 selects whoever has its world label.
    pub prefix: IpNetwork,
    /// What is left out.
    pub except: Vec<IpNetwork>,
    /// Name of the reserved label of addresses of this family, see [`world_label`](crate::world_label).
    pub world: &'static str,
    /// Whether it was written as an address, without a length.
    pub bare: bool,
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
    /// The label has this value (`matchLabels`).
    Equals(String),
    /// The label has one of these values.
    In(Vec<String>),
    /// There is no such label, or it has none of these values.
    NotIn(Vec<String>),
    /// There is such a label.
    Exists,
    /// There is no such label.
    DoesNotExist,
}
